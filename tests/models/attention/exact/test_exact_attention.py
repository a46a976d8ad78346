"""Exact attention in blocks: against matrices by hand, against torch, and what it costs."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteinlm.models.attention.exact.exact_attention import Power, Softmax, attend_from_last, exact_attention

B, H, D, E = 2, 2, 4, 3
KERNELS = {"softmax": Softmax(scale=D**-0.5), "power_2": Power(2), "power_4": Power(4), "power_8": Power(8, scale=0.7)}
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
MASKS = {
    "none": lambda i: None,
    "left": lambda i: i[None] >= jnp.array([0, 3])[:, None],
    "right": lambda i: i[None] < jnp.array([4, 100])[:, None],
    "holes": lambda i: (i[None] + jnp.arange(2)[:, None]) % 3 != 0,
    "all": lambda i: (i[None] >= 0) & jnp.array([False, True])[:, None],
}


def inputs(length, seed=0, size=1.0, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(seed), 4)
    return tuple(
        (size * jax.random.normal(key, (B, length, H, width))).astype(dtype)
        for key, width in zip(keys, (D, D, E, E), strict=True)
    )


def by_hand(q, k, v, d_out, kernel, causal, mask):
    """float64: the output, and the gradients of sum(out * d_out), by matrices [L, L] and the chain rule."""
    q, k, v, d_out = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, d_out))
    scores = kernel.scale * q @ k.swapaxes(-1, -2)
    seen = np.tril(np.ones(scores.shape[-2:], bool)) if causal else np.ones(scores.shape[-2:], bool)
    seen = np.broadcast_to(seen if mask is None else seen & np.asarray(mask)[:, None, None, :], scores.shape)
    if isinstance(kernel, Softmax):
        largest = np.where(seen, scores, -1e300).max(-1, keepdims=True)
        w = np.where(seen, np.exp(np.where(seen, scores - largest, 0.0)), 0.0)
        slope, constant = w, 0.0
    else:
        w = np.where(seen, scores**kernel.degree, 0.0)
        slope, constant = np.where(seen, kernel.degree * scores ** (kernel.degree - 1), 0.0), 1.0
    den = w.sum(-1, keepdims=True) + constant
    den = np.where(den > 0, den, 1.0)
    out = w @ v / den
    d_w = (d_out @ v.swapaxes(-1, -2) - (d_out * out).sum(-1, keepdims=True)) / den
    d_scores = d_w * slope * kernel.scale
    found = (out, d_scores @ k, d_scores.swapaxes(-1, -2) @ q, (w / den).swapaxes(-1, -2) @ d_out)
    return tuple(x.transpose(0, 2, 1, 3) for x in found)


def in_blocks(q, k, v, d_out, kernel, causal, mask, block_size):
    @jax.jit
    def run(q, k, v):
        options = {"causal": causal, "key_mask": mask, "block_size": block_size}
        out, back = jax.vjp(lambda *x: exact_attention(*x, kernel, **options), q, k, v)
        return out, *back(d_out)

    return run(q, k, v)


def assert_near(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 13),
    block=st.integers(1, 15),
    causal=st.booleans(),
    kernel=st.sampled_from(list(KERNELS.values())),
    mask=st.sampled_from(list(MASKS)),
)
def test_any_length_block_and_mask_equals_matrices_by_hand(length, block, causal, kernel, mask):
    """Values and all gradients; lengths that blocks do not divide, blocks longer than the row, one residue."""
    x, seen = inputs(length), MASKS[mask](jnp.arange(length))
    assert_near(in_blocks(*x, kernel, causal, seen, block), by_hand(*x, kernel, causal, seen), 1e-5)


@pytest.mark.few(2)
@kernels
@pytest.mark.parametrize("causal", [False, True])
def test_own_backward_pass_equals_automatic_differentiation(kernel, causal):
    """Of the same sums by one matrix, which nobody differentiated by hand."""
    length = 11
    q, k, v, d_out = inputs(length, seed=3)
    mask = MASKS["holes"](jnp.arange(length))
    pairs = mask[:, None, None, :] & (jnp.tril(jnp.ones((length, length), bool)) | (not causal))[None, None]

    @jax.jit
    def plain(q, k, v):
        def attend(q, k, v):
            scores = jnp.einsum("bihd,bjhd->bhij", q, k) * kernel.scale
            weights = jnp.exp(scores) if isinstance(kernel, Softmax) else scores**kernel.degree
            weights = jnp.where(pairs, weights, 0.0)
            total = weights.sum(-1) + (1e-30 if isinstance(kernel, Softmax) else 1.0)
            return jnp.einsum("bhij,bjhe->bihe", weights / total[..., None], v)

        out, back = jax.vjp(attend, q, k, v)
        return out, *back(d_out)

    found = in_blocks(q, k, v, d_out, kernel, causal, mask, 4)
    assert_near(found, [np.asarray(x) for x in plain(q, k, v)], 1e-5)


@pytest.mark.few(2)
@kernels
@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_inputs_are_within_their_rounding_of_float64(kernel, causal):
    """Sums and weights are float32: at L = 500, what is left is the rounding of the results, 2^-9."""
    x = inputs(500, dtype=jnp.bfloat16)
    found = in_blocks(*x, kernel, causal, None, 64)
    assert all(a.dtype == jnp.bfloat16 for a in found)
    for a, b in zip(found, by_hand(*x, kernel, causal, None), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=2**-8, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize("causal", [False, True])
def test_scores_far_beyond_the_range_of_exp(causal):
    """Scores up to some hundreds, so that the running maximum moves by much from block to block, either way."""
    kernel = KERNELS["softmax"]
    x = inputs(29, size=15.0)
    scale = jnp.linspace(0.1, 3.0, 29)[None, :, None, None]
    for factor in (scale, scale[:, ::-1]):
        q, k, v, d_out = x
        y = (q, k * factor, v, d_out)
        assert_near(in_blocks(*y, kernel, causal, None, 4), by_hand(*y, kernel, causal, None), 1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_equals_torch(causal):
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[interop]'")
    x = inputs(70, seed=5)
    q, k, v, d_out = (torch.tensor(np.asarray(a)).transpose(1, 2).requires_grad_() for a in x)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    out.backward(d_out)
    expected = [a.detach().transpose(1, 2).numpy() for a in (out, q.grad, k.grad, v.grad)]
    assert_near(in_blocks(*x, KERNELS["softmax"], causal, None, 16), expected, 1e-5)


@pytest.mark.parametrize("name", ["softmax", "power_4"])
def test_one_query_reads_as_the_last_row(name):
    kernel, mask = KERNELS[name], MASKS["all"](jnp.arange(9))
    q, k, v, d_out = inputs(9)
    found = attend_from_last(q[:, -1:], k, v, kernel, mask)
    np.testing.assert_allclose(found, by_hand(q, k, v, d_out, kernel, True, mask)[0][:, -1:], atol=1e-5)


@dataclass(frozen=True)
class Counted(Softmax):
    """Notes each block whose scores become weights."""

    def weights(self, scores, maximum):
        jax.debug.callback(FORWARD.append, 1)
        return super().weights(scores, maximum)

    def normalised(self, scores, normaliser):
        jax.debug.callback(BACKWARD.append, 1)
        return super().normalised(scores, normaliser)


FORWARD, BACKWARD = [], []


@pytest.mark.parametrize(("causal", "blocks"), [(True, 5 * 6 // 2), (False, 5 * 5)])
def test_causal_attention_skips_the_blocks_above_the_diagonal(causal, blocks):
    FORWARD.clear()
    BACKWARD.clear()
    jax.block_until_ready(in_blocks(*inputs(19), Counted(0.5), causal, None, 4))
    jax.effects_barrier()
    assert (len(FORWARD), len(BACKWARD)) == (blocks, blocks)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["softmax", "power_4"])
@pytest.mark.parametrize("causal", [False, True])
def test_memory_doubles_when_the_length_doubles(name, causal):
    """Temporaries of the compiled gradient, with a mask; a matrix of L^2 would quadruple."""
    heads, dim = 2, 16

    def temporary(length):
        shape = jax.ShapeDtypeStruct((1, length, heads, dim), jnp.float32)
        mask = jax.ShapeDtypeStruct((1, length), jnp.bool_)

        def loss(q, k, v, mask):
            out = exact_attention(q, k, v, KERNELS[name], causal=causal, key_mask=mask, block_size=64)
            return (out**2).sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape, mask).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    short, long = temporary(4096), temporary(8192)
    assert 1.5 < long / short < 2.1
    # A dozen arrays of the size of q; one matrix would be 134 MB a head.
    assert long < 16 * 8192 * heads * dim * 4
