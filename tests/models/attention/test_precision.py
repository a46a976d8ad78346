"""bfloat16 inputs at L = 8192 against float64: what is lost is the rounding of inputs and results, never of sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.models.attention import (
    FavorConfig,
    GeneralizedConfig,
    PolynomialConfig,
    PolySketchConfig,
    ReformerConfig,
    SoftmaxConfig,
)

L, D, ROWS = 8192, 8, 512
MECHANISMS = {
    "relu": GeneralizedConfig(num_features=16),
    "favor": FavorConfig(num_features=16),
    "polysketch": PolySketchConfig(sketch_size=4, learned=False, local=False, block_size=256),
    "softmax": SoftmaxConfig(block_size=512),
    "polynomial": PolynomialConfig(block_size=512),
}


def scores_of(attention, q, k):
    """Return unnormalised scores [rows, L] up to a factor a row, and the constant in the denominator; float64."""
    config = attention.config
    if config.kind == "softmax":
        scores = q @ k.T / D**0.5
        return jnp.exp(scores - scores.max(-1, keepdims=True)), 0.0
    if config.kind in ("polynomial", "polysketch"):
        q, k = attention.norm(q, k)
        if config.kind == "polynomial":
            return (q @ k.T).astype(jnp.float64) ** 4, 1.0
        sketch = lambda x: attention.sketch(x[None])[0].astype(jnp.float64)  # noqa: E731
        return (sketch(q) @ sketch(k).T) ** 2, 1.0
    options = attention._options()
    phi_q, phi_k = options["query_features"](q), options["key_features"](k)
    scores = phi_q.values @ phi_k.values.T
    return scores if phi_k.log_scale is None else scores * jnp.exp(phi_k.log_scale)[None], 0.0


def float64_reference(attention, q, k, v):
    """Causal attention from explicit scores, blocks of rows at a time."""

    def rows(start):
        scores, constant = scores_of(attention, jax.lax.dynamic_slice_in_dim(q, start, ROWS), k)
        seen = jnp.arange(L)[None, :] <= start + jnp.arange(ROWS)[:, None]
        scores = jnp.where(seen, scores, 0.0)
        return scores @ v / (constant + scores.sum(-1, keepdims=True))

    return jax.lax.map(jax.checkpoint(rows), jnp.arange(0, L, ROWS)).reshape(L, -1)


@pytest.mark.parametrize("name", MECHANISMS)
def test_bfloat16_stays_within_one_percent_of_float64(name):
    attention = MECHANISMS[name].build(num_heads=1, head_dim=D, key=jax.random.key(0))
    inputs = [x.astype(jnp.bfloat16) for x in jax.random.normal(jax.random.key(1), (3, 1, L, 1, D))]
    weight = jax.random.normal(jax.random.key(2), (1, L, 1, D))

    def loss(q, k, v):
        out = attention(q, k, v, causal=True)
        return (out.astype(jnp.float32) * weight).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)
    found = [np.asarray(x, np.float64).reshape(L, D) for x in (out, *gradients)]
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x, np.float64).reshape(L, D)) for x in inputs]
        wide_weight = jnp.asarray(np.asarray(weight, np.float64).reshape(L, D))

        def wide_loss(q, k, v):
            out = float64_reference(attention, q, k, v)
            return (out * wide_weight).sum(), out

        (_, out), gradients = jax.jit(jax.value_and_grad(wide_loss, argnums=(0, 1, 2), has_aux=True))(*wide)
        expected = [np.asarray(x) for x in (out, *gradients)]
    for a, b in zip(found, expected, strict=True):
        assert b.dtype == np.float64
        assert np.linalg.norm(a - b) < 1e-2 * np.linalg.norm(b)


def test_reformer_sums_bfloat16_in_float32():
    """One bucket: each residue averages the 1,024 before it; sums that stopped at 256 would forget the later ones."""
    config = ReformerConfig(num_hashes=1, num_buckets=2, bucket_size=1024)
    attention = config.build(num_heads=1, head_dim=2, key=jax.random.key(0))
    q = jnp.ones((1, 1500, 1, 2), jnp.bfloat16)
    values = np.where(np.arange(1500) < 300, 1.0, 3.0)
    v = jnp.asarray(values, jnp.bfloat16)[None, :, None, None]
    out = jax.jit(lambda q, v: attention(q, q, v, causal=True))(q, v)
    expected = [values[0], *(values[max(0, i - 1024) : i].mean() for i in range(1, 1500))]
    np.testing.assert_allclose(np.asarray(out, np.float64)[0, :, 0, 0], expected, rtol=2**-8)
