"""The key-value cache: what is in it, and what happens when it is full."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.models.attention import PolynomialConfig, SoftmaxConfig
from proteinlm.models.attention.exact.cache import appended, filled

B, H, D, E = 2, 2, 4, 3


def inputs(length, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 3)
    return tuple(
        jax.random.normal(key, (B, length, H, width)).astype(dtype) for key, width in zip(keys, (D, D, E), strict=True)
    )


def test_tokens_lie_in_order_and_room_is_hidden():
    _, k, v = inputs(5)
    mask = jnp.array([[False, True, True], [True, True, True]])
    cache = filled(k[:, :3], v[:, :3], mask, max_length=6)
    for i in (3, 4):
        cache = appended(cache, k[:, i : i + 1], v[:, i : i + 1])
    assert int(cache.length) == 5
    np.testing.assert_array_equal(cache.keys[:, :5], k)
    np.testing.assert_array_equal(cache.values[:, :5], v)
    np.testing.assert_array_equal(cache.visible, [[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]])


@pytest.mark.parametrize("config", [SoftmaxConfig(), PolynomialConfig()])
def test_cache_keeps_the_dtype_of_its_inputs(config):
    attention = config.build(num_heads=H, head_dim=D, key=jax.random.key(0))
    q, k, v = inputs(4, jnp.bfloat16)

    @jax.jit
    def run(q, k, v):
        _, cache = attention.prefill(q[:, :3], k[:, :3], v[:, :3], max_length=4)
        return *attention.step(q[:, 3:], k[:, 3:], v[:, 3:], cache), attention(q, k, v, causal=True)

    out, cache, whole = run(q, k, v)
    assert out.dtype == cache.keys.dtype == cache.values.dtype == jnp.bfloat16
    # What the parallel form gives for the same rounded inputs: only the results are rounded again.
    np.testing.assert_allclose(out[:, 0].astype(jnp.float32), whole[:, 3].astype(jnp.float32), rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("config", [SoftmaxConfig(), PolynomialConfig()])
def test_a_step_past_the_end_is_refused_or_nan(config):
    """Never an answer from a cache whose last token was overwritten: ValueError where the length is known, else NaN."""
    attention = config.build(num_heads=H, head_dim=D, key=jax.random.key(0))
    q, k, v = inputs(4)
    cache = filled(k[:, :2], v[:, :2], None, max_length=3)
    step = jax.jit(attention.step)
    out, cache = step(q[:, 2:3], k[:, 2:3], v[:, 2:3], cache)
    assert jnp.isfinite(out).all()
    with pytest.raises(ValueError, match="the cache is full: max_length of the prefill was 3"):
        attention.step(q[:, 3:], k[:, 3:], v[:, 3:], cache)
    for _ in range(2):
        out, cache = step(q[:, 3:], k[:, 3:], v[:, 3:], cache)
        assert jnp.isnan(out).all()
