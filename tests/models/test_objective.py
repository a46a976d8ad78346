import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.models.objective import (
    ObjectiveConfig,
    causal_example,
    make_example,
    masked_example,
    mean_loss,
    residue_weights,
    token_sums,
)

MASKED = ObjectiveConfig(kind="masked")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mask_fraction": 0.0}, "mask_fraction"),
        ({"mask_token": 0.8, "random_token": 0.3}, "at most 1"),
        ({"mask_token": float("nan")}, "objective.mask_token is nan; .* a finite number"),
    ],
)
def test_impossible_objectives_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        ObjectiveConfig(**options)


KEY = jax.random.key(7)
RESIDUE_IDS = np.arange(alphabet.FIRST_RESIDUE, alphabet.SIZE)

masked = jax.jit(masked_example, static_argnames="config")


def rows(lengths, width, seed=0) -> np.ndarray:
    """Random sequences with <eos> where there is room, uint8, right padded."""
    generator = np.random.default_rng(seed)
    tokens = np.zeros((len(lengths), width), np.uint8)
    for row, n in zip(tokens, lengths, strict=True):
        row[:n] = generator.choice(RESIDUE_IDS, n)
        row[n : n + 1] = alphabet.EOS
    return tokens


def keys_for(count, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, (count, 2), np.uint32)


# Causal


def test_causal_shifts_bos_in():
    tokens = np.array([[*alphabet.encode("ACD"), alphabet.EOS, 0, 0], [*alphabet.encode("ACDEFG")]], np.uint8)
    inputs, targets, weights = causal_example(jnp.asarray(tokens))
    a, c, d, e, f = alphabet.encode("ACDEF")
    # The fourth place reads D and is asked for <eos>; the last <eos> is never read, pads stay.
    assert inputs.tolist() == [[alphabet.BOS, a, c, d, 0, 0], [alphabet.BOS, a, c, d, e, f]]
    assert targets.tolist() == tokens.tolist()
    assert weights.tolist() == [[1, 1, 1, 1, 0, 0], [1] * 6]
    assert (inputs.dtype, targets.dtype, weights.dtype) == (jnp.int32, jnp.int32, jnp.float32)


def test_causal_inputs_are_pad_where_tokens_are():
    tokens = rows([0, 1, 5, 12], 12)
    inputs = np.asarray(causal_example(jnp.asarray(tokens)).inputs)
    np.testing.assert_array_equal(inputs == alphabet.PAD, tokens == alphabet.PAD)


def test_causal_windows_read_the_eos_between_proteins():
    tokens = np.array([[*alphabet.encode("AC"), alphabet.EOS, *alphabet.encode("DE")]], np.uint8)
    inputs, _, weights = causal_example(jnp.asarray(tokens))
    a, c, d = alphabet.encode("ACD")
    assert inputs.tolist() == [[alphabet.BOS, a, c, alphabet.EOS, d]]
    assert weights.tolist() == [[1, 1, 1, 1, 1]]


# Masked


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(0, 60), min_size=4, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_exact_share_of_residues_alone_is_selected(lengths, seed):
    tokens = rows(lengths, 61, seed)
    inputs, targets, weights = map(np.asarray, masked(tokens, keys_for(4, seed), MASKED, KEY))
    for row, n in enumerate(lengths):
        expected = max(1, int(np.round(np.float32(0.15) * np.float32(n)))) if n else 0
        assert weights[row].sum() == expected
    # Neither <eos> nor a pad is ever selected or changed, and no residue outside the selected ones.
    is_residue = tokens >= alphabet.FIRST_RESIDUE
    assert not weights[~is_residue].any()
    np.testing.assert_array_equal(inputs[weights == 0], tokens[weights == 0])
    np.testing.assert_array_equal(targets, tokens)
    allowed = [alphabet.MASK, *RESIDUE_IDS]
    assert np.isin(inputs[weights > 0], allowed).all()


def test_masks_do_not_depend_on_the_batch():
    lengths = [60, 7, 23, 51]
    tokens, keys = rows(lengths, 61), keys_for(4)
    inputs, _, weights = map(np.asarray, masked(tokens, keys, MASKED, KEY))
    # Other places, other batch mates, other padded lengths.
    order = [2, 0, 3, 1]
    for width in (61, 200):
        wide = np.zeros((5, width), np.uint8)
        wide[:4, :61] = tokens[order]
        wide[4] = rows([width - 1], width, 9)
        other_inputs, _, other = map(np.asarray, masked(wide, np.vstack([keys[order], keys[:1]]), MASKED, KEY))
        np.testing.assert_array_equal(other[:4, :61], weights[order])
        np.testing.assert_array_equal(other_inputs[:4, :61], inputs[order])
        assert not other[:4, 61:].any()
    alone = masked(tokens[1:2, :9], keys[1:2], MASKED, KEY)
    np.testing.assert_array_equal(np.asarray(alone.inputs)[0], inputs[1, :9])


def test_random_bits_are_stable_at_the_front():
    # What the test above rests on; a JAX that breaks it is to be seen here first.
    long = np.asarray(jax.random.bits(KEY, (512,), jnp.uint32))
    for length in (7, 64):
        np.testing.assert_array_equal(np.asarray(jax.random.bits(KEY, (length,), jnp.uint32)), long[:length])


def test_masks_are_a_function_of_key_content_and_step():
    tokens, keys = rows([60] * 4, 61), keys_for(4)

    def weights(keys=keys, key=KEY, step=None):
        return np.asarray(masked(tokens, keys, MASKED, key, step).weights)

    evaluation = weights()
    np.testing.assert_array_equal(evaluation, weights())
    assert (evaluation[0] != evaluation[1]).any()
    np.testing.assert_array_equal(weights(step=3), weights(step=jnp.int32(3)))
    for other in (
        weights(step=0),
        weights(step=3),
        weights(key=jax.random.key(8)),
        weights(keys=keys[:, ::-1]),
    ):
        assert (other != evaluation).any(axis=1).all()
    assert (weights(step=3) != weights(step=4)).any(axis=1).all()
    # Both halves of a row's key matter.
    for half in (0, 1):
        changed = keys.copy()
        changed[:, half] += 1
        assert (weights(keys=changed) != evaluation).any(axis=1).all()


def test_shares_of_mask_random_and_kept():
    tokens = np.full((400, 101), alphabet.FIRST_RESIDUE, np.uint8)  # all alanine
    tokens[:, -1] = alphabet.EOS
    config = dataclasses.replace(MASKED, mask_fraction=0.5)
    inputs, _, weights = map(np.asarray, masked(tokens, keys_for(400), config, KEY))
    # Every place is selected equally often.
    assert (abs(weights.mean(axis=0)[:100] - 0.5) < 5 * np.sqrt(0.25 / 400)).all()
    chosen = inputs[weights > 0]
    assert len(chosen) == 400 * 50
    close = functools.partial(pytest.approx, abs=5 * np.sqrt(0.25 / len(chosen)))
    assert (chosen == alphabet.MASK).mean() == close(0.8)
    # A random residue is the true one once in twenty times.
    assert (chosen == alphabet.FIRST_RESIDUE).mean() == close(0.1 + 0.1 / 20)
    others = chosen[(chosen != alphabet.MASK) & (chosen != alphabet.FIRST_RESIDUE)]
    # The 19 other standard residues, equally often; never B Z X O U, never a special token.
    ids, counts = np.unique(others, return_counts=True)
    np.testing.assert_array_equal(ids, alphabet.FIRST_RESIDUE + np.arange(1, 20))
    expected = len(others) / 19
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize(
    ("mask_token", "random_token", "want"),
    [(1.0, 0.0, "mask"), (0.0, 1.0, "random"), (0.0, 0.0, "kept")],
)
def test_fractions_at_their_ends(mask_token, random_token, want):
    config = ObjectiveConfig("masked", mask_fraction=1.0, mask_token=mask_token, random_token=random_token)
    tokens = rows([30, 12], 31)
    inputs, _, weights = map(np.asarray, masked(tokens, keys_for(2), config, KEY))
    assert weights.sum(axis=1).tolist() == [30, 12]
    chosen = inputs[weights > 0]
    if want == "mask":
        assert (chosen == alphabet.MASK).all()
    elif want == "kept":
        np.testing.assert_array_equal(inputs, tokens)
    else:
        assert (chosen >= alphabet.FIRST_RESIDUE).all()
        assert (chosen < alphabet.FIRST_RESIDUE + alphabet.NUM_STANDARD).all()


def test_one_residue_is_selected_and_an_empty_row_is_not():
    tokens = rows([1, 2, 0, 0], 61)
    tokens[3] = alphabet.PAD  # a filler row; the one before is a lone <eos>
    weights = np.asarray(masked(tokens, keys_for(4), MASKED, KEY).weights)
    assert weights.sum(axis=1).tolist() == [1, 1, 0, 0]


def test_make_example_follows_the_config():
    tokens, keys = rows([60, 4, 9, 0], 61), keys_for(4)
    example = jax.jit(make_example, static_argnames="config")
    causal = example(tokens, keys, ObjectiveConfig(kind="causal"), KEY)
    for got, want in zip(causal, causal_example(jnp.asarray(tokens)), strict=True):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(example(tokens, keys, MASKED, KEY), masked(tokens, keys, MASKED, KEY), strict=True):
        np.testing.assert_array_equal(got, want)


def test_wrong_rank_is_named():
    with pytest.raises(ValueError, match=r"shape \(5,\); expected \[B, L\]"):
        causal_example(jnp.zeros(5, jnp.int32))


# Sums


def test_token_sums_against_numpy():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(3, 6, alphabet.SIZE)).astype(np.float32) * 4
    targets = generator.integers(0, alphabet.SIZE, (3, 6))
    weights = generator.integers(0, 2, (3, 6)).astype(np.float32)
    sums = token_sums(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights))
    exact = logits.astype(np.float64)
    log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log_probs, targets[:, :, None], -1)[:, :, 0]
    np.testing.assert_allclose(sums.nll, (nll * weights).sum(1), rtol=1e-5)
    np.testing.assert_array_equal(sums.correct, ((logits.argmax(-1) == targets) * weights).sum(1))
    np.testing.assert_array_equal(sums.count, weights.sum(1))
    assert mean_loss(sums) == pytest.approx((nll * weights).sum() / weights.sum(), rel=1e-5)


def test_token_sums_of_a_long_row_in_bfloat16_are_float32():
    length = 1000
    logits = jnp.zeros((1, length, alphabet.SIZE), jnp.bfloat16)
    sums = token_sums(logits, jnp.zeros((1, length), jnp.int32), jnp.ones((1, length)))
    assert sums.count[0] == length  # a bfloat16 sum of ones stops at 256
    assert sums.nll.dtype == jnp.float32
    assert sums.nll[0] == pytest.approx(length * np.log(alphabet.SIZE), rel=1e-5)


def test_large_logits_do_not_overflow():
    logits = jnp.full((1, 2, alphabet.SIZE), -1e4).at[:, :, 5].set(1e4)
    sums = token_sums(logits, jnp.full((1, 2), 5), jnp.ones((1, 2)))
    assert sums.nll[0] == 0
    assert sums.correct[0] == 2


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_nothing_to_predict_gives_loss_zero_and_gradient_zero(kind):
    tokens = jnp.zeros((2, 5), jnp.uint8)

    def loss(logits):
        _, targets, weights = make_example(tokens, jnp.asarray(keys_for(2)), ObjectiveConfig(kind=kind), KEY, 0)
        return mean_loss(token_sums(logits, targets, weights))

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.ones((2, 5, alphabet.SIZE)))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_a_filler_row_does_not_change_the_loss():
    tokens = rows([6, 3], 7)
    filled = np.vstack([tokens, np.zeros((2, 7), np.uint8)])
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 7, alphabet.SIZE)), jnp.float32)

    def loss(tokens):
        _, targets, weights = causal_example(jnp.asarray(tokens))
        return mean_loss(token_sums(logits[: len(tokens)], targets, weights))

    assert loss(tokens) == loss(filled)


def test_residue_weights_leave_eos_out():
    tokens = rows([3, 5], 5)
    _, targets, weights = causal_example(jnp.asarray(tokens))
    np.testing.assert_array_equal(weights, [[1, 1, 1, 1, 0], [1] * 5])
    np.testing.assert_array_equal(residue_weights(targets, weights), [[1, 1, 1, 0, 0], [1] * 5])
    # A weight that is 0 stays 0.
    np.testing.assert_array_equal(residue_weights(targets, jnp.zeros_like(weights)), np.zeros((2, 5)))
