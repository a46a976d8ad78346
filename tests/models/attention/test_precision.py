"""bfloat16 inputs at L = 8192 against float64: what is lost is the rounding of inputs and results, never of sums.

The references are written here again from the papers' equations; of the mechanisms they take drawn matrices alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps import sweep

from proteinlm.models.attention import (
    FavorConfig,
    GeneralizedConfig,
    LinformerConfig,
    PolynomialConfig,
    PolySketchConfig,
    ReformerConfig,
    SoftmaxConfig,
)
from proteinlm.models.attention.features.projections import matrix

L, D, ROWS = 8192, 8, 512
MECHANISMS = {
    "relu": GeneralizedConfig(num_features=16),
    "favor": FavorConfig(num_features=16),
    "hyperbolic": FavorConfig(num_features=8, features="hyperbolic", projection="hadamard", regularized=True),
    "trigonometric": FavorConfig(num_features=64, features="trigonometric", min_denominator=1e-6),
    "polysketch": PolySketchConfig(sketch_size=4, learned=False, local=False, block_size=256),
    "polysketch_local": PolySketchConfig(sketch_size=4, learned=False, block_size=256),
    "polysketch_learned": PolySketchConfig(sketch_size=4, local=False, block_size=256),
    "softmax": SoftmaxConfig(block_size=512),
    "polynomial": PolynomialConfig(block_size=512),
    "linformer": LinformerConfig(num_projections=16, max_length=L),
}


def standardized(x, epsilon):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + epsilon)


def sketched(attention, x):
    """A sketch of degree 2: one product of two matrices, or of two networks, of each vector."""
    r = attention.config.sketch_size
    level = attention.sketch.levels[0]
    if not attention.config.learned:
        left, right = (w.astype(jnp.float64) for w in level[...][0])
        return (x @ left) * (x @ right) / r**0.5
    outputs = []
    for side in range(2):
        h = x
        for half in range(2):
            first, second = (w[...][0, side].astype(jnp.float64) for w in level.dense[2 * half : 2 * half + 2])
            h = jax.nn.gelu(standardized(h, 1e-5) @ first) @ second
        outputs.append(h)
    return r**0.5 * jnp.tanh(outputs[0] * outputs[1] / r**0.5)


def scores_of(attention, q, k, start):
    """Return unnormalised scores [rows, L], and the constant in the denominator; float64."""
    config = attention.config
    if config.kind == "softmax":
        return jnp.exp(q @ k.T / D**0.5), 0.0
    if config.kind in ("polynomial", "polysketch"):
        q, k = (standardized(x, 1e-6) / D**0.25 for x in (q, k))
        exact = (q @ k.T) ** 4
        if config.kind == "polynomial":
            return exact, 1.0
        scores = (sketched(attention, q) @ sketched(attention, k).T) ** 2
        if config.local:
            same = (start + jnp.arange(ROWS))[:, None] // config.block_size == jnp.arange(L)[None] // config.block_size
            scores = jnp.where(same, exact, scores)
        return scores, 1.0
    w = matrix(attention.projection.get_value(), D).astype(jnp.float64)
    if config.kind == "generalized":
        q, k = (jax.nn.relu(x @ w.T) + config.kernel_epsilon for x in (q, k))
        return q @ k.T, 0.0
    q, k = q / D**0.25, k / D**0.25
    factor = jnp.exp((k**2).sum(-1) / 2)[None]
    if config.features == "trigonometric":
        q, k = (jnp.concatenate([jnp.cos(x @ w.T), jnp.sin(x @ w.T)], axis=1) for x in (q, k))
        return q @ k.T * factor, 0.0
    both = config.features == "hyperbolic"
    logs = [jnp.concatenate([x @ w.T, -x @ w.T], axis=1) if both else x @ w.T for x in (q, k)]
    largest = [x.max(-1, keepdims=True) for x in logs]
    q, k = (jnp.exp(x - c) + config.kernel_epsilon for x, c in zip(logs, largest, strict=True))
    return q @ k.T * jnp.exp(largest[1][:, 0])[None] / factor, 0.0


def float64_reference(attention, q, k, v):
    """Attention from explicit scores, blocks of rows at a time; causal but for Linformer."""
    if attention.config.kind == "linformer":
        e = attention.projection[...].astype(jnp.float64)
        return jax.nn.softmax(q @ (e @ k).T / D**0.5, axis=-1) @ (np.exp(-attention.config.delta) * e @ v)

    def rows(start):
        scores, constant = scores_of(attention, jax.lax.dynamic_slice_in_dim(q, start, ROWS), k, start)
        seen = jnp.arange(L)[None, :] <= start + jnp.arange(ROWS)[:, None]
        scores = jnp.where(seen, scores, 0.0)
        return scores @ v / (constant + scores.sum(-1, keepdims=True))

    return jax.lax.map(jax.checkpoint(rows), jnp.arange(0, L, ROWS)).reshape(L, -1)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", sweep(MECHANISMS, ["softmax", "favor", "polysketch"]))
def test_bfloat16_stays_within_one_percent_of_float64(name):
    attention = MECHANISMS[name].build(num_heads=1, head_dim=D, key=jax.random.key(0))
    # Trigonometric estimates are good for short vectors alone: long ones have denominators of no sign.
    size = 0.5 if name == "trigonometric" else 1.0
    inputs = [(size * x).astype(jnp.bfloat16) for x in jax.random.normal(jax.random.key(1), (3, 1, L, 1, D))]
    weight = jax.random.normal(jax.random.key(2), (1, L, 1, D))

    def loss(q, k, v):
        out = attention(q, k, v, causal=not attention.config.no_causal)
        return (out.astype(jnp.float32) * weight).sum(), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)
    found = [np.asarray(x, np.float64).reshape(L, D) for x in (out, *gradients)]
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
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


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["relu", "favor", "polysketch", "softmax", "linformer"])
def test_float16_sums_do_not_overflow(name):
    """65,504 is the largest float16: the sum of 4,096 values of 100 is beyond it, their average is not."""
    attention = MECHANISMS[name].build(num_heads=1, head_dim=D, key=jax.random.key(0))
    q, k = jax.random.normal(jax.random.key(1), (2, 1, 4096, 1, D)).astype(jnp.float16)
    v = jnp.full((1, 4096, 1, D), 100.0, jnp.float16)
    out = jax.jit(lambda q, k, v: attention(q, k, v, causal=not attention.config.no_causal))(q, k, v)
    assert out.dtype == jnp.float16
    expected = attention(*(x.astype(jnp.float32) for x in (q, k, v)), causal=not attention.config.no_causal)
    np.testing.assert_allclose(np.asarray(out, np.float32), expected, rtol=2e-3, atol=1e-3)
