"""Exact attention against code that is not ours, and where exponentials overflow."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from proteinlm.errors import InputError
from proteinlm.models.attention import SoftmaxConfig
from proteinlm.models.attention.softmax import chosen, flash_attention


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


def shapes(dtype, width, value_width=None):
    q = jax.ShapeDtypeStruct((1, 9, 2, width), dtype)
    return q, q, jax.ShapeDtypeStruct((1, 9, 2, value_width or width), dtype)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_auto_takes_the_flash_kernel_where_it_fits(dtype):
    assert chosen("auto", "cuda", *shapes(dtype, 64)) == "cudnn"
    assert chosen("cudnn", "cuda", *shapes(dtype, 128)) == "cudnn"


@pytest.mark.parametrize(
    ("platform", "arguments"),
    [
        ("cpu", shapes(jnp.bfloat16, 64)),
        ("tpu", shapes(jnp.bfloat16, 64)),
        ("gpu", shapes(jnp.bfloat16, 64)),
        ("cuda", shapes(jnp.float32, 64)),
        ("cuda", shapes(jnp.bfloat16, 136)),
        ("cuda", shapes(jnp.bfloat16, 12)),
        ("cuda", shapes(jnp.bfloat16, 64, 32)),
        ("cuda", (*shapes(jnp.bfloat16, 64)[:2], shapes(jnp.float16, 64)[2])),
    ],
)
def test_elsewhere_it_takes_blocks_and_says_why_the_kernel_cannot_be_had(platform, arguments):
    assert chosen("auto", platform, *arguments) == "blocks"
    with pytest.raises(ValueError, match=f"implementation is 'cudnn', but q, k, v are .* on {platform}; it needs"):
        chosen("cudnn", platform, *arguments)


def test_blocks_are_taken_when_asked_for():
    assert chosen("blocks", "cuda", *shapes(jnp.bfloat16, 64)) == "blocks"


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_s_arguments_mean_what_blocks_compute(causal):
    """By jax.nn.dot_product_attention's plain code, which takes the same arguments as cuDNN's. Row 0 sees nothing."""
    q, k, v, d_out = jax.random.normal(jax.random.key(1), (4, 3, 11, 2, 6))
    mask = jnp.array([[False] * 11, [False] * 3 + [True] * 8, [True] * 4 + [False, True] * 2 + [False] * 3])
    # What queries that are masked themselves read is nobody's business.
    d_out = d_out * mask[:, :, None, None]

    def output_and_gradients(attend):
        def run(q, k, v):
            out, back = jax.vjp(attend, q, k, v)
            return out * mask[:, :, None, None], *back(d_out)

        return jax.jit(run)(q, k, v)

    found = output_and_gradients(lambda q, k, v: flash_attention(q, k, v, causal, mask, implementation="xla"))
    expected = output_and_gradients(lambda q, k, v: build()(q, k, v, causal=causal, key_mask=mask))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
        assert (a[0] == 0).all()


def test_settings_out_of_range_are_refused(monkeypatch):
    # Users do not run under beartype, which would be first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match=r"attention.implementation is 'flash'; it must be one of auto, blocks, cudnn"):
        SoftmaxConfig(implementation="flash")
    with pytest.raises(InputError, match=r"attention.block_size is 0; it must be at least 1"):
        SoftmaxConfig(block_size=0)
