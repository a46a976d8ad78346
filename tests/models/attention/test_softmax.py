"""Exact attention against code that is not ours, and where exponentials overflow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.models.attention import SoftmaxConfig


def build():
    return SoftmaxConfig().build(num_heads=2, head_dim=6, key=jax.random.key(0))


@pytest.mark.parametrize("causal", [False, True])
def test_equals_jax_own_attention(causal):
    attention = build()
    q, k, v = jax.random.normal(jax.random.key(1), (3, 2, 11, 2, 6))
    mask = jnp.ones((2, 11), bool).at[1, 8:].set(False)

    def ours(q, k, v):
        return attention(q, k, v, causal=causal, key_mask=mask)

    def theirs(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None, None, :], is_causal=causal)

    def output_and_gradients(attend):
        def loss(*x):
            out = attend(*x)
            return (out**2).sum(), out

        (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(q, k, v)
        return out, *gradients

    for a, b in zip(output_and_gradients(ours), output_and_gradients(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_scores_beyond_the_range_of_exp_choose_the_largest():
    attention = build()
    q = jnp.full((1, 3, 2, 6), 100.0)
    k = q * jnp.array([1.0, 2.0, -1.0])[None, :, None, None]
    v = jnp.broadcast_to(jnp.arange(3.0)[None, :, None, None], q.shape)
    out, gradient = jax.value_and_grad(lambda q: attention(q, k, v, causal=True)[0, :, 0, 0].sum())(q)
    # The first sees itself; the others see the second, whose score is the largest.
    assert float(out) == pytest.approx(0.0 + 1.0 + 1.0)
    assert jnp.isfinite(gradient).all()
