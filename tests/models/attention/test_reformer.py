"""Reformer: its hash, its union of rounds, its windows; bits, steps and padding where windows are full."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import B, D, E, H, assert_close, fast, inputs, reference, value_and_gradients

from proteinlm.errors import InputError
from proteinlm.models.attention import ReformerConfig

SMALL = ReformerConfig(num_hashes=3, num_buckets=4, bucket_size=3)
LENGTH = 40
"""With `SMALL`, about ten residues a bucket: windows are full, and most of the past is out of sight."""


def build(config=SMALL):
    return config.build(num_heads=H, head_dim=D, key=jax.random.key(0))


def attend(attention, q, v, *, causal, mask=None):
    return jax.jit(lambda q, v: attention(q, q, v, causal=causal, key_mask=mask))(q, v)


def exact(q, causal):
    """Shared-QK softmax over all but itself, in numpy, float64 [B, H, L, L]."""
    q = np.asarray(q, np.float64).swapaxes(1, 2)
    scores = q @ (q / np.linalg.norm(q, axis=-1, keepdims=True)).swapaxes(2, 3) / np.sqrt(D)
    others = ~np.eye(q.shape[2], dtype=bool)
    seen = np.tril(others) if causal else others
    weights = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    weights[:, :, ~seen.any(-1)] = np.eye(q.shape[2])[~seen.any(-1)]
    return weights / weights.sum(-1, keepdims=True)


def sets_of_rounds(attention, q, causal):
    """Who sees whom in each round, by loops over residues: bool [R, B, H, L, L]."""
    rows = q.swapaxes(1, 2).reshape(B * H, -1, D)
    buckets = np.asarray(attention.buckets(rows)).reshape(-1, B, H, q.shape[1])
    seen = np.zeros((*buckets.shape, q.shape[1]), bool)
    for index in np.ndindex(*buckets.shape):
        *head, i = index
        mine = buckets[(*head,)] == buckets[index]
        before, after = np.flatnonzero(mine[:i]), i + 1 + np.flatnonzero(mine[i + 1 :])
        width = attention.config.bucket_size
        seen[index][before[-width:]] = True
        seen[index][after[: 0 if causal else width]] = True
    return seen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_hashes": 0}, "attention.num_hashes is 0"),
        ({"bucket_size": 0}, "attention.bucket_size is 0"),
        ({"num_buckets": 7}, "attention.num_buckets is 7; it must be even"),
        ({"num_buckets": 0}, "attention.num_buckets is 0"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        ReformerConfig(**change)


def test_keys_that_are_not_the_queries_are_refused():
    attention = build()
    q, k, v = inputs(5)
    state = jax.eval_shape(lambda q, v: attention.prefill(q, q, v, max_length=6)[1], q, v)
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)
    for attempt in (
        lambda: attention(q, k, v, causal=True),
        lambda: attention.weights(q, k, causal=True),
        lambda: attention.prefill(q, k, v, max_length=5),
        lambda: attention.step(q[:, :1], k[:, :1], v[:, :1], state),
    ):
        with pytest.raises(ValueError, match="k differs from q; Reformer shares queries and keys"):
            attempt()
    # The same numbers in another array are no other keys. Nothing is computed, yet q and its copy are seen.
    same = jnp.array(np.asarray(q))
    assert jax.eval_shape(lambda: attention(q, same, v, causal=True)).shape == v.shape


def test_buckets_are_those_of_the_formula_and_know_no_length():
    """h(x) = argmax([x R; -x R]), the same for 7 x, opposite for -x; 1100 positions are hashed in three parts."""
    attention = build(ReformerConfig(num_hashes=2, num_buckets=6))
    x = jax.random.normal(jax.random.key(3), (1, 1100, D))
    rotated = np.einsum("nld,rdm->rnlm", np.asarray(x), np.asarray(attention.rotations[...]))
    found = attention.buckets(x)
    np.testing.assert_array_equal(found, np.concatenate([rotated, -rotated], -1).argmax(-1))
    np.testing.assert_array_equal(attention.buckets(7 * x), found)
    np.testing.assert_array_equal(attention.buckets(-x), (found + 3) % 6)
    assert set(np.unique(found)) == set(range(6))


def test_redraw_is_a_function_of_the_key():
    attention = build()
    first = attention.rotations[...]
    attention.redraw(jax.random.key(5))
    assert (attention.rotations[...] != first).all()
    attention.redraw(jax.random.key(0))
    np.testing.assert_array_equal(attention.rotations[...], first)


@pytest.mark.parametrize("causal", [False, True])
def test_each_pair_of_the_union_counts_once(causal):
    """Fast path and reference are softmax over the union of sets that loops over residues find."""
    attention = build()
    q, _, v = inputs(LENGTH, size=1.0)
    sets = sets_of_rounds(attention, q, causal)
    union, times = sets.any(0), sets.sum(0)
    assert (times > 1).any()
    assert (union.sum(-1) < (20 if causal else 30)).all()
    kept = exact(q, causal) * union
    alone = ~union.any(-1)
    kept[alone] = np.eye(LENGTH)[np.nonzero(alone)[-1]]
    expected = kept / kept.sum(-1, keepdims=True)
    weights = jax.jit(lambda q: attention.weights(q, q, causal=causal))(q)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    out = attend(attention, q, v, causal=causal)
    np.testing.assert_allclose(out, np.einsum("bhij,bjhe->bihe", expected, v), atol=1e-5)


def test_wide_windows_and_many_rounds_are_exact_attention():
    """Two buckets and 40 rounds: any two residues of these meet in one of them, and the window holds all."""
    attention = build(ReformerConfig(num_hashes=40, num_buckets=2, bucket_size=16))
    q, _, v = inputs(9)
    # Close to one direction, as no round has all of a sphere in one bucket.
    q = q.at[..., 0].add(4.0)
    expected = np.einsum("bhij,bjhe->bihe", exact(q, False), v)
    np.testing.assert_allclose(attend(attention, q, v, causal=False), expected, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize(("length", "size", "causal"), [(1, 4, True), (5, 16, False), (37, 9, True)])
def test_any_length_and_window_give_the_reference(length, size, causal):
    """L = 1; L below the window; L no multiple of the block, 2, and more than two windows in a bucket."""
    attention = build(ReformerConfig(num_hashes=2, num_buckets=2, bucket_size=size))
    q, _, v = inputs(length, size=1.0)
    found = value_and_gradients(fast(attention, causal, None), q, q, v)
    assert_close(found, value_and_gradients(reference(attention, causal, None), q, q, v), 2e-5)


def test_later_tokens_change_nothing_to_the_last_bit():
    """Other buckets for later tokens move every block of the lists: earlier outputs and gradients stay."""
    attention = build(ReformerConfig(num_hashes=3, num_buckets=4, bucket_size=8))
    q, _, v = inputs(LENGTH)
    cotangent = jax.random.normal(jax.random.key(8), v.shape)

    @jax.jit
    def run(q, v, i):
        past = (jnp.arange(LENGTH) < i)[None, :, None, None]
        loss = lambda q, v: (jnp.where(past, attention(q, q, v, causal=True), 0.0) * cotangent).sum()  # noqa: E731
        return attention(q, q, v, causal=True), *jax.grad(loss, (0, 1))(q, v)

    for seed, i in enumerate((1, 13, 26, 39)):
        other = 1e4 * inputs(LENGTH, seed=10 + seed)[0]
        later = (jnp.arange(LENGTH) >= i)[None, :, None, None]
        before = run(q, v, i)
        after = run(jnp.where(later, other, q), jnp.where(later, 1e4, v), i)
        for a, b in zip(after, before, strict=True):
            np.testing.assert_array_equal(a[:, :i], b[:, :i])
        assert all((gradient[:, i:] == 0).all() for gradient in after[1:])


@pytest.mark.parametrize("causal", [False, True])
def test_padding_of_any_amount_on_any_side_changes_nothing(causal):
    attention, short = build(), 21
    q, _, v = inputs(short)
    expected = attend(attention, q, v, causal=causal)
    padded = jax.jit(lambda q, v, mask: attention(q, q, v, causal=causal, key_mask=mask))
    for left, right in ((0, 11), (11, 0), (4, 7)):
        around = ((0, 0), (left, right), (0, 0), (0, 0))
        mask = jnp.pad(jnp.ones((B, short), bool), around[:2])
        out = padded(*(jnp.pad(x, around, constant_values=100.0) for x in (q, v)), mask)
        np.testing.assert_allclose(out[:, left : left + short], expected, atol=1e-6)
        assert (out[:, :left] == 0).all()
        assert (out[:, left + short :] == 0).all()


def test_rows_that_see_all_follow_a_permutation():
    attention = build(ReformerConfig(num_hashes=2, num_buckets=4, bucket_size=16))
    q, _, v = inputs(11)
    order = jax.random.permutation(jax.random.key(4), 11)
    bidirectional = jax.jit(lambda q, v: attention(q, q, v, causal=False))
    np.testing.assert_allclose(bidirectional(q[:, order], v[:, order]), bidirectional(q, v)[:, order], atol=1e-5)


def test_steps_equal_the_parallel_result_where_rings_are_full():
    """A prompt of 30 residues, 11 of the second row padding, on the left or the right; then 20 more, one at a time."""
    attention, prompt, length = build(), 30, 50
    q, _, v = inputs(length, size=1.0)
    whole = jax.jit(lambda mask: attention(q, q, v, causal=True, key_mask=mask))
    prefill = jax.jit(lambda mask: attention.prefill(*(x[:, :prompt] for x in (q, q, v)), key_mask=mask, max_length=99))

    @jax.jit
    def steps(state):
        def step(state, x):
            out, state = attention.step(x[0], x[0], x[1], state)
            return state, out[:, 0]

        return jax.lax.scan(step, state, [x[:, prompt:, None].swapaxes(0, 1) for x in (q, v)])

    for padding in (slice(0, 11), slice(prompt - 11, prompt)):
        mask = jnp.ones((B, length), bool).at[1, padding].set(False)
        expected = whole(mask)
        out, state = prefill(mask[:, :prompt])
        np.testing.assert_allclose(out, expected[:, :prompt], atol=1e-6)
        np.testing.assert_array_equal(state.counts.sum(-1), np.repeat([[30], [19]], H, axis=0) * np.ones((1, 3)))
        after, out = steps(state)
        np.testing.assert_allclose(out.swapaxes(0, 1), expected[:, prompt:], atol=1e-5)
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)


def test_a_state_does_not_grow_and_an_empty_prompt_leaves_nothing():
    attention = build()
    q, _, v = inputs(9)

    def state_of(length):
        q, v = (jax.ShapeDtypeStruct((B, length, H, width), jnp.float32) for width in (D, E))
        state = jax.eval_shape(lambda q, v: attention.prefill(q, q, v, max_length=length)[1], q, v)
        return jax.tree.map(lambda x: (x.shape, x.dtype), state)

    assert state_of(1) == state_of(512)
    assert [shape for shape, _ in state_of(1)] == [(4, 3, 4, 3, D), (4, 3, 4, 3, E), (4, 3, 4, 3), (4, 3, 4), ()]
    prefill = jax.jit(lambda q, v, mask: attention.prefill(q, q, v, key_mask=mask, max_length=10))
    out, state = prefill(q, v, jnp.zeros((B, 9), bool))
    assert (out == 0).all()
    out, _ = jax.jit(lambda q, v, state: attention.step(q, q, v, state))(q[:, :1], v[:, :1], state)
    np.testing.assert_array_equal(out, v[:, :1])


def test_more_rounds_find_more_of_the_exact_attention():
    """The mass of exact attention on the union, mean over 800 residues, against what a random set of its size holds."""
    q = inputs(200, size=3.0)[0]
    sets = sets_of_rounds(build(ReformerConfig(num_hashes=8, num_buckets=8, bucket_size=32)), q, False)
    masses, sizes = [], []
    for rounds in (1, 2, 4, 8):
        union = sets[:rounds].any(0)
        masses.append((exact(q, False) * union).sum(-1).mean())
        sizes.append(union.sum(-1).mean() / 199)
    # The union of random sets would hold its share of the mass, within 0.02.
    assert (np.array(masses) > np.array(sizes) + 0.1).all()
    assert masses[-1] > 0.75


def test_queries_without_a_direction_and_very_long_ones_are_in_range():
    """Keys of zero queries are 0; lengths of 1e5 put all weight on the nearest in direction."""
    attention = build()
    q, _, v = inputs(11)
    gradients = jax.jit(jax.value_and_grad(lambda q, v: (attention(q, q, v, causal=True) ** 2).sum(), (0, 1)))
    explicit = reference(attention, True, None)
    expected = jax.jit(jax.value_and_grad(lambda q, v: (explicit(q, q, v) ** 2).sum(), (0, 1)))
    for queries in (q.at[:, 3:6].set(0.0).at[:, 7].multiply(1e-14), 1e5 * q):
        found, wanted = jax.tree.leaves(gradients(queries, v)), jax.tree.leaves(expected(queries, v))
        assert all(jnp.isfinite(x).all() for x in found)
        assert_close(found, wanted, 1e-4)


def test_compiled_memory_of_the_gradient_doubles_with_the_length():
    attention = ReformerConfig(num_hashes=2, num_buckets=8, bucket_size=16).build(
        num_heads=1, head_dim=8, key=jax.random.key(0)
    )

    def memory(length):
        x = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
        gradient = jax.jit(jax.grad(lambda q, v: (attention(q, q, v, causal=True) ** 2).sum(), (0, 1)))
        return gradient.lower(x, x).compile().memory_analysis().temp_size_in_bytes

    assert memory(4096) < 2.1 * memory(2048)
