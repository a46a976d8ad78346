"""The linear core: state, stabiliser, denominators, memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteinlm.models.attention.linear.linear_attention import linear_attention
from proteinlm.models.attention.linear.state import Features, LinearOptions, State, divide, empty_state

B, H, D, E = 2, 2, 4, 3


def plain(x):
    return Features(jax.nn.relu(x) + 0.1)


def scaled(x):
    """The same features as `plain`, but for a factor that each residue chooses: exp of 30 times its first entry."""
    return Features(jax.nn.relu(x) + 0.1, 30.0 * x[..., 0])


def inputs(length, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return tuple(jax.random.normal(key, (B, length, H, width)) for key, width in zip(keys, (D, D, E), strict=True))


def by_hand(q, k, v, causal, mask, with_scale):
    """float64, one pair at a time in the log domain."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    scores = np.log(np.einsum("bihm,bjhm->bhij", np.maximum(q, 0) + 0.1, np.maximum(k, 0) + 0.1))
    if with_scale:
        scores = scores + 30.0 * k[..., 0].transpose(0, 2, 1)[:, :, None, :]
    seen = np.tril(np.ones(scores.shape[-2:], bool)) if causal else np.ones(scores.shape[-2:], bool)
    seen = seen[None, None] & np.asarray(mask)[:, None, None, :]
    scores = np.where(seen, scores, -np.inf)
    largest = np.maximum(scores.max(-1, keepdims=True), -1e300)
    a = np.exp(scores - largest)
    return np.einsum("bhij,bjhe->bihe", a / np.maximum(a.sum(-1, keepdims=True), 1e-300), v)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 12),
    chunk=st.integers(1, 14),
    causal=st.booleans(),
    with_scale=st.booleans(),
    first=st.integers(0, 5),
)
def test_any_length_and_chunk_equals_pairs_by_hand(length, chunk, causal, with_scale, first):
    """Scales range over e^+-90 here: only exponents relative to the running maximum survive in float32."""
    q, k, v = inputs(length)
    mask = jnp.arange(length)[None] >= jnp.array([0, first])[:, None]
    feature_map = scaled if with_scale else plain
    options = LinearOptions(feature_map, chunk_size=chunk)
    out = jax.jit(lambda q, k, v: linear_attention(q, k, v, options, causal=causal, key_mask=mask)[0])(q, k, v)
    np.testing.assert_allclose(out, by_hand(q, k, v, causal, mask, with_scale), atol=2e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("feature_map", [plain, scaled])
@pytest.mark.parametrize("causal", [False, True])
def test_a_given_state_continues_the_sequence(feature_map, causal):
    """Prefill then the rest, one token at a time or all at once, equals the whole; gradients through the state too."""
    q, k, v = inputs(9)
    attend = partial(linear_attention, options=LinearOptions(feature_map, chunk_size=4), causal=causal)

    def whole(q, k, v):
        return attend(q, k, v)[0][:, 5:]

    def in_parts(q, k, v):
        _, state = attend(q[:, :5], k[:, :5], v[:, :5])
        return attend(q[:, 5:], k[:, 5:], v[:, 5:], state=state)[0]

    def output_and_gradients(function):
        def loss(*x):
            out = function(*x)
            return (out**2).sum(), out

        (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
        return out, *gradients

    found, expected = output_and_gradients(in_parts), output_and_gradients(whole)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5 * max(1.0, float(jnp.abs(b).max())))
    if causal:
        state = empty_state(feature_map, B * H, D, E)
        shapes = jax.tree.map(jnp.shape, state)
        take = jax.jit(lambda q, k, v, state: attend(q, k, v, state=state))
        for i in range(9):
            step, state = take(*(x[:, i : i + 1] for x in (q, k, v)), state)
            if i >= 5:
                np.testing.assert_allclose(step[:, 0], expected[0][:, i - 5], atol=1e-5)
        assert jax.tree.map(jnp.shape, state) == shapes
        assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(state))


@pytest.mark.parametrize("causal", [False, True])
def test_scales_are_put_back_without_normalisation(causal):
    q, k, v = inputs(7)
    mild = lambda x: Features(jax.nn.relu(x) + 0.1, x[..., 0])  # noqa: E731
    folded = lambda x: Features((jax.nn.relu(x) + 0.1) * jnp.exp(x[..., :1]))  # noqa: E731
    out = [
        linear_attention(q, k, v, LinearOptions(f, chunk_size=3, renormalize=False), causal=causal)[0]
        for f in (mild, folded)
    ]
    np.testing.assert_allclose(out[0], out[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_sums_do_not_stop_at_256(causal):
    length = 1000
    ones = jnp.ones((1, length, 1, 1), jnp.bfloat16)
    same = lambda x: Features(x)  # noqa: E731
    options = LinearOptions(same, renormalize=False, chunk_size=64)
    out, _ = linear_attention(ones, ones, ones, options, causal=causal)
    expected = np.arange(1, length + 1) if causal else np.full(length, length)
    np.testing.assert_array_equal(out[0, :, 0, 0], jnp.asarray(expected, jnp.bfloat16))


def test_denominators_keep_their_sign_and_their_distance_from_zero():
    numerator = jnp.ones((6, 1))
    denominator = jnp.array([2.0, 1e-4, 0.0, -1e-4, -2.0, 0.1])
    out = divide(numerator, denominator, 0.1)[:, 0]
    np.testing.assert_allclose(out, [0.5, 10.0, 10.0, -10.0, -0.5, 10.0], rtol=1e-6)
    out = divide(numerator, jnp.array([2.0, 1e-17, 1e-19, 0.0, 1.0, 4.0]), None)[:, 0]
    np.testing.assert_allclose(out, [0.5, 1e17, 0.0, 0.0, 1.0, 0.25], rtol=1e-6)
    for least, expected in ((0.1, [-0.25, 0, 0, 0, -0.25, -100.0]), (None, [-0.25, -1e8, 0, 0, 0, -100.0])):
        gradient = jax.grad(lambda d, least=least: divide(numerator, d, least).sum())(denominator)
        np.testing.assert_allclose(gradient[:5], expected[:5], rtol=1e-5)
    for least in (0.1, None):
        gradient = jax.grad(lambda d, least=least: divide(numerator, d, least).sum())(denominator * 1e-16)
        assert jnp.isfinite(gradient).all()


def test_state_is_float32_sums_over_values_and_ones():
    q, k, v = inputs(5)
    _, state = linear_attention(q, k, v, LinearOptions(plain, chunk_size=2), causal=True)
    assert isinstance(state, State)
    assert state.maximum is None
    phi = np.maximum(k, 0) + 0.1
    sums = np.einsum("blhm,blhe->bhem", phi, v).reshape(B * H, E, D)
    np.testing.assert_allclose(state.sums[:, :-1], sums, atol=1e-5)
    np.testing.assert_allclose(state.sums[:, -1], phi.sum(1).reshape(B * H, D), rtol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("with_scale", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_memory_doubles_when_the_length_doubles(with_scale, causal):
    """Temporaries of the compiled gradient; a matrix of L^2 would quadruple, and features are not kept."""
    heads, dim, num_features = 2, 16, 256
    projection = jax.random.normal(jax.random.key(0), (dim, num_features))

    def features(x):
        return Features(jax.nn.relu(x @ projection), x[..., 0] if with_scale else None)

    def temporary(length):
        shape = jax.ShapeDtypeStruct((1, length, heads, dim), jnp.float32)

        def loss(q, k, v):
            options = LinearOptions(features, chunk_size=64)
            return (linear_attention(q, k, v, options, causal=causal)[0] ** 2).sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long = temporary(4096), temporary(8192)
    assert 1.5 < long / short < 2.1
    # Less than the features of the queries, or of the keys, alone.
    assert long < 8192 * heads * num_features * 4
