"""What every mechanism owes its callers, whatever it computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.models.attention import FavorConfig, GeneralizedConfig, IdentityConfig, SoftmaxConfig

B, H, D, E = 2, 2, 6, 5
FUNCTIONS = ("relu", "sigmoid", "exp", "abs", "gelu", "cos", "tanh", "identity")
MECHANISMS = {
    "softmax": SoftmaxConfig(),
    "favor": FavorConfig(num_features=10, chunk_size=4),
    "returns_v": IdentityConfig(),
    **{name: GeneralizedConfig(function=name, num_features=10, chunk_size=4) for name in FUNCTIONS},
}
MIXING = [name for name in MECHANISMS if name != "returns_v"]
# Kernels that are never negative: their rows are averages, whatever the inputs.
POSITIVE = ("softmax", "favor", "relu", "sigmoid", "exp", "abs")


def build(config):
    return config.build(num_heads=H, head_dim=D, key=jax.random.key(0))


def inputs(length, *, seed=1, size=2.0, dtype=jnp.float32):
    q, k, v = jax.random.split(jax.random.key(seed), 3)
    shape = (B, length, H, D)
    return (
        (size * jax.random.normal(q, shape)).astype(dtype),
        (size * jax.random.normal(k, shape)).astype(dtype),
        jax.random.normal(v, (B, length, H, E)).astype(dtype),
    )


def value_and_gradients(attend, q, k, v):
    """The output, and the gradients of a fixed weighted sum of it."""
    cotangent = jax.random.normal(jax.random.key(9), v.shape)

    def loss(q, k, v):
        out = attend(q, k, v)
        return (out.astype(jnp.float32) * cotangent).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return (out, *gradients)


def assert_close(found, expected, tolerance):
    """Each array within `tolerance` of the largest value of its expected one."""
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()))


def reference(attention, causal, mask):
    def attend(q, k, v):
        weights = attention.weights(q, k, causal=causal, key_mask=mask)
        return jnp.einsum("bhij,bjhe->bihe", weights, v.astype(jnp.float32)).astype(v.dtype)

    return attend


def fast(attention, causal, mask):
    return lambda q, k, v: attention(q, k, v, causal=causal, key_mask=mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MECHANISMS)
def test_fast_path_equals_the_reference(name, causal):
    """Values and all gradients; one row padded on the left, one on the right; L = 11 in chunks of 4."""
    attention = build(MECHANISMS[name])
    mask = jnp.array([[False] * 3 + [True] * 8, [True] * 7 + [False] * 4])
    q, k, v = inputs(11, size=1.0)
    found = value_and_gradients(fast(attention, causal, mask), q, k, v)
    expected = value_and_gradients(reference(attention, causal, mask), q, k, v)
    # Where the denominator comes near 0, 1 / den^2 in the gradient enlarges the rounding of float32.
    assert_close(found, expected, 2e-5 if name in (*POSITIVE, "returns_v") else 2e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (8, 4), (3, 1), (5, 16)])
@pytest.mark.parametrize("config", [FavorConfig, GeneralizedConfig])
def test_every_chunk_size_gives_the_reference(config, length, chunk, causal):
    attention = build(config(num_features=7, chunk_size=chunk))
    q, k, v = inputs(length)
    found = value_and_gradients(fast(attention, causal, None), q, k, v)
    expected = value_and_gradients(reference(attention, causal, None), q, k, v)
    assert_close(found, expected, 2e-5)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("function", ["relu", "exp", "cos"])
def test_without_projection_or_normalisation(function, renormalize):
    config = GeneralizedConfig(function=function, num_features=0, renormalize=renormalize, chunk_size=4)
    attention = build(config)
    assert not jax.tree.leaves(jax.tree.map(jnp.asarray, list(vars(attention).get("projection", []))))
    q, k, v = inputs(9)
    found = value_and_gradients(fast(attention, True, None), q, k, v)
    expected = value_and_gradients(reference(attention, True, None), q, k, v)
    assert_close(found, expected, 2e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["softmax", "favor", "relu", "exp"])
def test_bfloat16_inputs_accumulate_in_float32(name, causal):
    """Against the float32 reference of the same rounded inputs: what is left is the rounding of the results, 2^-8."""
    attention = build(MECHANISMS[name])
    q, k, v = inputs(33, size=1.0, dtype=jnp.bfloat16)
    found = value_and_gradients(fast(attention, causal, None), q, k, v)
    assert all(x.dtype == jnp.bfloat16 for x in found)
    wide = [x.astype(jnp.float32) for x in (q, k, v)]
    expected = value_and_gradients(reference(attention, causal, None), *wide)
    assert_close(found, expected, 1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MECHANISMS)
def test_one_hot_values_read_the_matrix(name, causal):
    """V = I gives the explicit matrix to 1e-5, V = 1 gives 1, and the first residue of a causal row sees itself."""
    attention, length = build(MECHANISMS[name]), 10
    q, k, _ = inputs(length, size=1.0)
    values = jnp.concatenate([jnp.eye(length), jnp.ones((length, 1))], axis=1)
    values = jnp.broadcast_to(values[None, :, None, :], (B, length, H, length + 1))
    out = jax.jit(fast(attention, causal, None))(q, k, values).transpose(0, 2, 1, 3)
    weights = attention.weights(q, k, causal=causal)
    assert weights.shape == (B, H, length, length)
    assert weights.dtype == jnp.float32
    scale = max(1.0, float(jnp.abs(weights).max()))
    np.testing.assert_allclose(out[..., :-1], weights, rtol=0, atol=1e-5 * scale)
    if name in (*POSITIVE, "returns_v"):
        np.testing.assert_allclose(out[..., -1], 1.0, atol=1e-5)
        assert (weights >= 0).all()
    if causal and name in (*POSITIVE, "returns_v"):
        np.testing.assert_allclose(out[:, :, 0, 0], 1.0, atol=1e-6)


@pytest.mark.parametrize("name", MECHANISMS)
def test_nothing_comes_from_the_future(name):
    """By gradients: exactly 0 from every later residue, and not 0 from the earlier ones that are seen."""
    attention, length, i = build(MECHANISMS[name]), 11, 6
    q, k, v = inputs(length)
    gradients = jax.jit(jax.grad(lambda *x: (attention(*x, causal=True)[:, i] ** 2).sum(), argnums=(0, 1, 2)))(q, k, v)
    for gradient in gradients:
        assert (gradient[:, i + 1 :] == 0).all()
    assert (gradients[2][:, i] != 0).any()
    if name in MIXING:
        assert (jnp.abs(gradients[1][:, : i + 1]).max(axis=(0, 2, 3)) > 0).all()
        assert (jnp.abs(gradients[2][:, : i + 1]).max(axis=(0, 2, 3)) > 0).all()


@pytest.mark.parametrize("name", MECHANISMS)
def test_large_changes_stay_where_they_are(name):
    """Later keys, masked keys and other rows, 1e4 times larger, change nothing, to the last bit."""
    attention, length, i = build(MECHANISMS[name]), 11, 6
    q, k, v = inputs(length)
    mask = jnp.ones((B, length), bool).at[:, 2].set(False)
    attend = jax.jit(lambda q, k, v: attention(q, k, v, causal=True, key_mask=mask))
    before = attend(q, k, v)
    later = [x.at[:, i:].multiply(1e4) for x in (q, k, v)]
    np.testing.assert_array_equal(attend(*later)[:, :i], before[:, :i])
    masked = attend(q, k.at[:, 2].multiply(1e4), v.at[:, 2].multiply(1e4))
    np.testing.assert_array_equal(masked, before)
    row = [x.at[1].multiply(1e4) for x in (q, k, v)]
    np.testing.assert_array_equal(attend(*row)[0], before[0])
    both = jax.jit(lambda q, k, v: attention(q, k, v, causal=False, key_mask=mask))
    np.testing.assert_array_equal(both(*row)[0], both(q, k, v)[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_row_that_sees_nothing_is_zero_forward_and_backward(name, causal):
    attention = build(MECHANISMS[name])
    q, k, v = inputs(9)
    mask = jnp.ones((B, 9), bool).at[0].set(False).at[1, :3].set(False)
    out, *gradients = value_and_gradients(fast(attention, causal, mask), q, k, v)
    assert (out[0] == 0).all()
    if causal:
        assert (out[1, :3] == 0).all()
    for gradient in gradients:
        assert jnp.isfinite(gradient).all()
        assert (gradient[0] == 0).all()
    weights = attention.weights(q, k, causal=causal, key_mask=mask)
    assert (weights[0] == 0).all()
    assert (weights[1, :, :, :3] == 0).all()


@pytest.mark.parametrize("name", MIXING)
def test_bidirectional_attention_follows_a_permutation(name):
    attention = build(MECHANISMS[name])
    q, k, v = inputs(11, size=1.0)
    order = jax.random.permutation(jax.random.key(4), 11)
    attend = jax.jit(lambda q, k, v: attention(q, k, v, causal=False))
    out, moved = attend(q, k, v), attend(q[:, order], k[:, order], v[:, order])
    assert_close([moved], [out[:, order]], 1e-5 if name in POSITIVE else 1e-4)
