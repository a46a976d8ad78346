"""Layer normalisation before a kernel: flax's own, scores of order 1, finite gradients where all is equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from parameters import shaken

from proteinlm.models.attention.features.norms import QKNorm

H, D = 2, 6


def test_norm_is_flax_s_layer_norm_over_the_root_of_beta():
    """Flax's own, with each side's trained scale and bias; bfloat16 comes out as float32."""
    norm = shaken(QKNorm(D, beta=5.0))
    q, k, _ = (3.0 * jax.random.normal(jax.random.key(1), (3, 2, 7, H, D)) + 1.0).astype(jnp.bfloat16)
    found = norm(q, k)
    sides = ((q, norm.query_scale, norm.query_bias), (k, norm.key_scale, norm.key_bias))
    for x, (raw, scale, bias) in zip(found, sides, strict=True):
        theirs = nnx.LayerNorm(D, epsilon=1e-6, rngs=nnx.Rngs(0))
        theirs.scale[...], theirs.bias[...] = scale[...], bias[...]
        assert x.dtype == jnp.float32
        with jax.numpy_rank_promotion("allow"):
            expected = theirs(raw.astype(jnp.float32)) / 5.0**0.5
        np.testing.assert_allclose(x, expected, atol=1e-5)


def test_unrelated_queries_and_keys_have_scores_of_order_one():
    """Two random directions of D - 1 dimensions and length sqrt(D), over sqrt(D): variance D / (D - 1)."""
    dim, pairs = 64, 4000
    q, k = 10.0 * jax.random.normal(jax.random.key(0), (2, pairs, dim)) + 3.0
    q, k = QKNorm(dim)(q, k)
    scores = (q * k).sum(-1)
    # Standard error of the mean square: sqrt(2 / pairs).
    assert float((scores**2).mean()) == pytest.approx(dim / (dim - 1), abs=5 * (2 / pairs) ** 0.5)
    np.testing.assert_allclose((q * q).sum(-1), dim**0.5, rtol=1e-4)


def test_a_constant_vector_has_finite_gradients():
    """Its deviation is 0: the epsilon is inside the root."""
    norm, same = shaken(QKNorm(D)), jnp.full((1, 4, H, D), 2.0)
    gradients = jax.jit(jax.grad(lambda *x: sum((y**2).sum() for y in norm(*x)), argnums=(0, 1)))(same, same)
    assert all(jnp.isfinite(x).all() for x in gradients)
