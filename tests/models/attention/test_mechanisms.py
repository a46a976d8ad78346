"""The contract of all attention mechanisms; tests/helpers/mechanisms.py lists them.

Of the cases that resemble another one, and of the most expensive tests, `make test` runs a part (`sweep`). Compiling
takes most of the time, so one program a mode (`compiled`) serves as many tests as it can.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mechanisms import (
    CASES,
    CAUSAL,
    MODES,
    B,
    H,
    assert_close,
    build,
    fast,
    inputs,
    keys,
    reference,
    value_and_gradients,
)
from sweeps import sweep
from tiny_models import DISTINCT, KINDS

from proteinlm.models.attention import FavorConfig, GeneralizedConfig

MIXING = [name for name, case in CASES.items() if case.mixes]
modes = pytest.mark.parametrize(("name", "causal"), sweep(MODES, DISTINCT))
kinds = pytest.mark.parametrize(("name", "causal"), sweep(MODES, KINDS))
causal_names = pytest.mark.parametrize("name", sweep(CAUSAL, DISTINCT))
# Three chunks of 4, the last one not full.
LENGTH = 11
EVERYTHING = jnp.ones((B, LENGTH), bool)


@functools.cache
def compiled(name, causal):
    """Return a function (q, k, v, key_mask, cotangent) -> output and gradients by q, k, v, for L = LENGTH."""
    return _with_gradients(fast, build(name), causal)


@functools.cache
def compiled_reference(name, causal):
    """Return the same of the explicit matrix, and a function (q, k, key_mask) that gives the matrix."""
    attention = build(name)
    weights = jax.jit(lambda q, k, mask: attention.weights(q, keys(attention, q, k), causal=causal, key_mask=mask))
    return _with_gradients(reference, attention, causal), weights


def _with_gradients(path, attention, causal):
    @jax.jit
    def run(q, k, v, mask, cotangent):
        out, back = jax.vjp(path(attention, causal, mask), q, k, v)
        return out, *back(cotangent)

    return run


def some_cotangent(v):
    return jax.random.normal(jax.random.key(9), v.shape)


@pytest.mark.few(4)
@modes
def test_fast_path_equals_the_reference(name, causal):
    """Values and all gradients; one row padded on the left, one on the right."""
    mask = jnp.array([[False] * 3 + [True] * 8, [True] * 7 + [False] * 4])
    q, k, v = inputs(LENGTH, size=1.0)
    found = compiled(name, causal)(q, k, v, mask, some_cotangent(v))
    expected = compiled_reference(name, causal)[0](q, k, v, mask, some_cotangent(v))
    assert_close(found, expected, CASES[name].tolerance)


@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "chunk"), sweep([(1, 4), (8, 4), (3, 1), (5, 16)], [1, 8]))
@pytest.mark.parametrize("config", [FavorConfig, GeneralizedConfig])
def test_every_chunk_size_gives_the_reference(config, length, chunk, causal):
    attention = config(num_features=7, chunk_size=chunk).build(num_heads=H, head_dim=6, key=jax.random.key(0))
    q, k, v = inputs(length)
    found = value_and_gradients(fast(attention, causal, None), q, k, v)
    expected = value_and_gradients(reference(attention, causal, None), q, k, v)
    assert_close(found, expected, 2e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "causal"),
    [
        (n, c)
        for n, c in MODES
        if n in ("polysketch", "polysketch_random_local", "softmax", "reformer", "linformer_redrawn")
    ],
)
def test_one_residue_is_a_sequence(name, causal):
    """L = 1, shorter than any block or bucket: values and gradients."""
    attention = build(name)
    q, k, v = inputs(1)
    found = value_and_gradients(fast(attention, causal, None), q, k, v)
    expected = value_and_gradients(reference(attention, causal, None), q, k, v)
    assert_close(found, expected, CASES[name].tolerance)


@pytest.mark.few(4)
@kinds
def test_bfloat16_inputs_accumulate_in_float32(name, causal):
    """Against the float32 reference of the same rounded inputs: what is left is the rounding of the results, 2^-8."""
    attention = build(name)
    q, k, v = inputs(33, size=1.0, dtype=jnp.bfloat16)
    found = value_and_gradients(fast(attention, causal, None), q, k, v)
    assert all(x.dtype == jnp.bfloat16 for x in found)
    wide = [x.astype(jnp.float32) for x in (q, k, v)]
    expected = value_and_gradients(reference(attention, causal, None), *wide)
    assert_close(found, expected, CASES[name].bfloat16)


@pytest.mark.few(4)
@modes
def test_one_hot_values_read_the_matrix(name, causal):
    """V = I gives the explicit matrix to 1e-5, V = 1 gives 1, and the first residue of a causal row sees itself."""
    attention, length, averages = build(name), LENGTH, CASES[name].averages
    q, k, _ = inputs(length, size=1.0)
    values = jnp.concatenate([jnp.eye(length), jnp.ones((length, 1))], axis=1)
    values = jnp.broadcast_to(values[None, :, None, :], (B, length, H, length + 1))
    out = jax.jit(fast(attention, causal, None))(q, k, values).transpose(0, 2, 1, 3)
    weights = compiled_reference(name, causal)[1](q, k, EVERYTHING)
    assert weights.shape == (B, H, length, length)
    assert weights.dtype == jnp.float32
    scale = max(1.0, float(jnp.abs(weights).max()))
    np.testing.assert_allclose(out[..., :-1], weights, rtol=0, atol=max(1e-5, CASES[name].tolerance / 2) * scale)
    if averages:
        np.testing.assert_allclose(out[..., -1], 1.0, atol=1e-5)
        assert (weights >= 0).all()
    if causal:
        assert (jnp.triu(weights, 1) == 0).all()
    if causal and averages:
        np.testing.assert_allclose(out[:, :, 0, 0], 1.0, atol=1e-6)


@causal_names
def test_nothing_comes_from_the_future(name):
    """By gradients: exactly 0 from every later residue, and not 0 from the earlier ones that are seen."""
    attention, i = build(name), 6
    q, k, v = inputs(LENGTH)
    out, *_ = compiled(name, True)(q, k, v, EVERYTHING, jnp.zeros_like(v))
    # The gradients of the sum of squares of one residue's output.
    _, *gradients = compiled(name, True)(q, k, v, EVERYTHING, jnp.zeros_like(v).at[:, i].set(2 * out[:, i]))
    for gradient in gradients:
        assert (gradient[:, i + 1 :] == 0).all()
    if CASES[name].sees_itself:
        assert (gradients[2][:, i] != 0).any()
    if CASES[name].mixes:
        of_keys = gradients[0 if attention.config.shares_queries_and_keys else 1]
        assert (jnp.abs(of_keys[:, : i + 1]).max(axis=(0, 2, 3)) > 0).all()
        seen = i + CASES[name].sees_itself
        assert (jnp.abs(gradients[2][:, :seen]).max(axis=(0, 2, 3)) > 0).all()


@modes
def test_large_changes_stay_where_they_are(name, causal):
    """Later keys, masked keys and other rows, 1e4 times larger, change nothing, to the last bit."""
    attention, i = build(name), 6
    q, k, v = inputs(LENGTH)
    mask = EVERYTHING.at[:, 2].set(False)

    def attend(q, k, v):
        return compiled(name, causal)(q, k, v, mask, jnp.zeros_like(v))[0]

    before = attend(q, k, v)
    if causal:
        later = [x.at[:, i:].multiply(1e4) for x in (q, k, v)]
        np.testing.assert_array_equal(attend(*later)[:, :i], before[:, :i])
    others = jnp.arange(LENGTH) != 2
    masked = [x.at[:, 2].multiply(1e4) for x in (keys(attention, q, k), v)]
    shared = attention.config.shares_queries_and_keys
    found = attend(masked[0] if shared else q, masked[0], masked[1])
    np.testing.assert_array_equal(found[:, others], before[:, others])
    row = [x.at[1].multiply(1e4) for x in (q, k, v)]
    np.testing.assert_array_equal(attend(*row)[0], before[0])


@modes
def test_a_row_that_sees_nothing_is_zero_forward_and_backward(name, causal):
    q, k, v = inputs(LENGTH)
    mask = EVERYTHING.at[0].set(False).at[1, :3].set(False)
    out, *gradients = compiled(name, causal)(q, k, v, mask, some_cotangent(v))
    assert (out[0] == 0).all()
    if causal:
        assert (out[1, :3] == 0).all()
    for gradient in gradients:
        assert jnp.isfinite(gradient).all()
        assert (gradient[0] == 0).all()
    weights = compiled_reference(name, causal)[1](q, k, mask)
    assert (weights[0] == 0).all()
    assert (weights[1, :, :, :3] == 0).all()


@pytest.mark.parametrize("name", sweep([name for name in MIXING if CASES[name].equivariant], DISTINCT))
def test_bidirectional_attention_follows_a_permutation(name):
    q, k, v = inputs(LENGTH, size=1.0)
    order = jax.random.permutation(jax.random.key(4), LENGTH)
    out, moved = (
        compiled(name, False)(*arrays, EVERYTHING, jnp.zeros_like(v))[0]
        for arrays in ((q, k, v), (q[:, order], k[:, order], v[:, order]))
    )
    assert_close([moved], [out[:, order]], 1e-5 if CASES[name].averages else 1e-4)


@pytest.mark.few(4)
@causal_names
def test_prefill_and_steps_equal_the_parallel_result(name):
    """One row of 9 residues, one of 6 padded to 9 on the left; then 7 more tokens each, one at a time."""
    attention, prompt, steps = build(name), 9, 7
    q, k, v = inputs(prompt + steps, size=1.0)
    k = keys(attention, q, k)
    mask = jnp.ones((B, prompt + steps), bool).at[1, :3].set(False)
    whole = jax.jit(fast(attention, True, mask))(q, k, v)
    prefill = jax.jit(lambda *x: attention.prefill(*x, key_mask=mask[:, :prompt], max_length=prompt + steps))
    out, state = prefill(q[:, :prompt], k[:, :prompt], v[:, :prompt])
    np.testing.assert_allclose(out, whole[:, :prompt], atol=1e-5)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), state)
    step = jax.jit(attention.step)
    for i in range(prompt, prompt + steps):
        out, state = step(q[:, i : i + 1], k[:, i : i + 1], v[:, i : i + 1], state)
        np.testing.assert_allclose(out[:, 0], whole[:, i], atol=CASES[name].tolerance, rtol=1e-4)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == shapes


@pytest.mark.parametrize("name", [name for name in CASES if name not in CAUSAL])
def test_what_has_no_causal_form_says_why(name):
    attention = build(name)
    q, k, v = inputs(5)
    for attempt in (
        lambda: attention(q, k, v, causal=True),
        lambda: attention.weights(q, k, causal=True),
        lambda: attention.prefill(q, k, v, max_length=5),
    ):
        with pytest.raises(ValueError, match="has no causal form: "):
            attempt()


@causal_names
def test_steps_and_prefills_of_the_wrong_size_are_refused(name):
    attention = build(name)
    q, k, v = inputs(5)
    k = keys(attention, q, k)
    with pytest.raises(ValueError, match=r"q has 5 residues, above max_length, 4"):
        attention.prefill(q, k, v, max_length=4)
    state = jax.eval_shape(lambda *x: attention.prefill(*x, max_length=8)[1], q, k, v)
    with pytest.raises(ValueError, match=r"a step takes one token, \[B, 1, H, D\]"):
        attention.step(q, k, v, state)
