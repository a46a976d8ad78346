"""Polynomial attention: its normalisations, its scale, and the 1 in its denominator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from parameters import shaken

from proteinlm.errors import InputError
from proteinlm.models.attention import PolynomialConfig

H, D = 2, 6


def build(**options):
    return PolynomialConfig(**options).build(num_heads=H, head_dim=D, key=jax.random.key(0))


def inputs(length, dtype=jnp.float32):
    return tuple(x.astype(dtype) for x in 3.0 * jax.random.normal(jax.random.key(1), (3, 2, length, H, D)) + 1.0)


def test_all_scales_and_biases_are_trained():
    attention = build(block_size=4)
    shaken(attention.norm)
    q, k, v = inputs(7)
    graph, state = nnx.split(attention)

    def loss(state, fast):
        attention = nnx.merge(graph, state)
        if fast:
            return (attention(q, k, v, causal=True) ** 2).sum()
        return (jnp.einsum("bhij,bjhe->bihe", attention.weights(q, k, causal=True), v) ** 2).sum()

    found, expected = (jax.jit(jax.grad(loss), static_argnums=1)(state, fast) for fast in (True, False))
    assert len(jax.tree.leaves(found)) == 4
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a != 0).any()
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, float(jnp.abs(b).max())))


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_weights_are_equation_2(degree):
    """By hand in float64, and V = 1 reads sum / (1 + sum)."""
    attention = build(degree=degree, beta=1.5)
    q, k, v = inputs(7)
    a, b = (np.asarray(x, np.float64) for x in attention.norm(q, k))
    powers = np.tril(np.einsum("bihd,bjhd->bhij", a, b) ** degree)
    total = powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(attention.weights(q, k, causal=True), powers / (1 + total), atol=1e-5)
    out = jax.jit(lambda q, k, v: attention(q, k, v, causal=True))(q, k, jnp.ones_like(v))
    np.testing.assert_allclose(out[..., 0], (total / (1 + total))[..., 0].transpose(0, 2, 1), atol=1e-5)


@pytest.mark.parametrize("degree", [-2, 0, 1, 3, 5])
def test_odd_degrees_are_refused(degree):
    with pytest.raises(InputError, match=f"attention.degree is {degree}; it must be even and at least 2"):
        PolynomialConfig(degree=degree)


def test_settings_out_of_range_are_refused():
    with pytest.raises(InputError, match=r"attention.beta is 0.0; it must be above 0"):
        PolynomialConfig(beta=0.0)
    with pytest.raises(InputError, match=r"attention.block_size is 0; it must be at least 1"):
        PolynomialConfig(block_size=0)
