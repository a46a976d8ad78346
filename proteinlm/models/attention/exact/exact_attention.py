"""Exact attention by blocks of queries and keys: time O(L^2) and memory linear in L, forward and backward.

    out_i = sum_j w(s_ij) v_j / den_i,    s_ij = scale q_i.k_j

w and den are given by a `Kernel`: softmax, or a power. For a block of queries, the forward pass iterates over the
blocks of visible keys and carries sums (for softmax, relative to a running maximum). It keeps the output and one number
per row, from which the backward pass computes the same weights again, block by block (FlashAttention, arXiv
2205.14135). For both kernels the gradient of a weight is dout_i.(v_j - out_i) / den_i. Causal attention skips blocks
above the diagonal, and masks only the blocks on it. Segments mask pairs; blocks that share no protein are skipped, so
time grows with L times the length of the longest protein.

Axes: N = B * H rows, S blocks, C residues of a block. Scores, sums and products are float32 for inputs of any dtype.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from proteinlm.models.attention.blocks import join, split, split_mask
from proteinlm.models.attention.linear.state import NEVER
from proteinlm.models.positions import segment_starts


@dataclass(frozen=True)
class Softmax:
    """w = exp(s), den = sum of w; a row without visible keys gives 0."""

    scale: float
    hidden: ClassVar[float] = NEVER
    """The score of an invisible pair; its weight and gradient are 0."""

    def maximum(self, so_far: Array, scores: Array) -> Array:
        """Return the largest score of each row, of earlier scores and these: float32 [..., C]."""
        return jnp.maximum(so_far, scores.max(-1))

    def weights(self, scores: Array, maximum: Array) -> Array:
        """Return w / exp(maximum), [..., C, K]."""
        # For a row without visible keys so far, 0 in place of the maximum makes every exponential 0.
        return jnp.exp(scores - jnp.where(maximum > NEVER, maximum, 0.0)[..., None])

    def kept(self, old: Array, new: Array) -> Array:
        """Return the factor by which sums change when the maximum moves from old to new."""
        return jnp.exp(old - new)

    def denominator(self, total: Array) -> Array:
        """Return den, from the sum of a row's weights."""
        return jnp.where(total > 0, total, 1.0)

    def normaliser(self, maximum: Array, denominator: Array) -> Array:
        """Return the number per row that `normalised` needs: log den."""
        return jnp.where(maximum > NEVER, maximum, 0.0) + jnp.log(denominator)

    def normalised(self, scores: Array, normaliser: Array) -> tuple[Array, Array]:
        """Return (w / den, (dw / ds) / den); the normaliser broadcasts to the scores."""
        weights = jnp.exp(scores - normaliser)
        return weights, weights


@dataclass(frozen=True)
class Power:
    """w = s^degree with an even degree, den = 1 + sum of w."""

    degree: int
    scale: float = 1.0
    hidden: ClassVar[float] = 0.0

    def maximum(self, so_far: Array, scores: Array) -> Array:
        """Return `so_far`: powers need no maximum."""
        return so_far

    def weights(self, scores: Array, maximum: Array) -> Array:
        """Return w."""
        return scores**self.degree

    def kept(self, old: Array, new: Array) -> Array:
        """Return 1: sums do not change."""
        return jnp.ones_like(new)

    def denominator(self, total: Array) -> Array:
        """Return den, from the sum of a row's weights."""
        return 1.0 + total

    def normaliser(self, maximum: Array, denominator: Array) -> Array:
        """Return 1 / den."""
        return 1.0 / denominator

    def normalised(self, scores: Array, normaliser: Array) -> tuple[Array, Array]:
        """Return (w / den, (dw / ds) / den); the normaliser broadcasts to the scores."""
        below = scores ** (self.degree - 1) * normaliser
        return below * scores, self.degree * below


Kernel = Softmax | Power


class _Segments(NamedTuple):
    """Segments split into blocks, used in place of the mask of visible keys.

    Attributes:
        number: int32 [S, N, C], segment of each residue; 0 at padding.
        first: int32 [S], index of the first block that shares a segment with each block, in any row.
        stop: int32 [S], index after the last such block.
    """

    number: Int[Array, "S N C"]
    first: Int[Array, "S"]
    stop: Int[Array, "S"]


def _split_segments(segments: Int[Array, "B L"], heads: int, block: int) -> _Segments:
    steps = -(-segments.shape[1] // block)
    segments = jnp.pad(segments.astype(jnp.int32), ((0, 0), (0, steps * block - segments.shape[1])))
    shape = len(segments), steps, block
    starts = segment_starts(segments)
    # In the reversed row, a segment starts where it ends.
    ends = steps * block - 1 - segment_starts(segments[:, ::-1])[:, ::-1]
    first = starts.reshape(shape).min((0, 2)) // block
    stop = ends.reshape(shape).max((0, 2)) // block + 1
    number = jnp.broadcast_to(segments.reshape(shape).swapaxes(0, 1)[:, :, None], (steps, shape[0], heads, block))
    return _Segments(number.reshape(steps, -1, block), first, stop)


def _pairs(visible: Bool[Array, "S N C"] | _Segments, i: Array, j: Array) -> Bool[Array, "N _ C"]:
    """Return which keys of block j are visible to the queries of block i, [N, queries or 1, keys]."""
    if isinstance(visible, _Segments):
        of_keys = _at(visible.number, j)[:, None, :]
        return (_at(visible.number, i)[:, :, None] == of_keys) & (of_keys > 0)
    return _at(visible, j)[:, None, :]


def _range(visible: Bool[Array, "S N C"] | _Segments | None, i: Array, steps: int) -> tuple[int | Array, int | Array]:
    """Return the range (first, last + 1) of the blocks that share pairs with block i in bidirectional attention."""
    return (_at(visible.first, i), _at(visible.stop, i)) if isinstance(visible, _Segments) else (0, steps)


def exact_attention(
    q: Float[Array, "B L H D"],
    k: Float[Array, "B L H D"],
    v: Float[Array, "B L H E"],
    kernel: Kernel,
    *,
    causal: bool,
    key_mask: Bool[Array, "B L"] | None = None,
    segments: Int[Array, "B L"] | None = None,
    block_size: int = 512,
) -> Float[Array, "B L H E"]:
    """Compute exact attention, in the values' dtype.

    Args:
        q: queries, k: keys, v: values; any float dtype.
        kernel: function from scores to weights.
        causal: residue i attends to residues 0 to i alone.
        key_mask: False for keys that are not visible.
        segments: in place of key_mask, see `Attention.__call__`.
        block_size: C; L need not be a multiple, and C may exceed L. It changes speed and memory alone.
    """
    batch, length, heads, _ = v.shape
    block = min(block_size, length)
    # The zeros that fill the last block come after all residues, so the causal mask alone hides them.
    visible = None if causal and key_mask is None else split_mask(key_mask, batch, length, heads, block)
    if segments is not None:
        visible = _split_segments(segments, heads, block)
    out = _attend(kernel, causal, *(split(x, block) for x in (q, k, v)), visible)
    return join(out, batch, length, heads).astype(v.dtype)


def attend_from_last(
    q: Float[Array, "B 1 H D"],
    k: Float[Array, "B S H D"],
    v: Float[Array, "B S H E"],
    kernel: Kernel,
    visible: Bool[Array, "B S"],
) -> Float[Array, "B 1 H E"]:
    """Attend from one residue to the visible ones of a cache of S, in the values' dtype."""
    scores = jnp.einsum("bihd,bjhd->bhij", q.astype(jnp.float32) * kernel.scale, k.astype(jnp.float32))
    scores = jnp.where(visible[:, None, None, :], scores, kernel.hidden)
    weights = kernel.weights(scores, kernel.maximum(jnp.full(scores.shape[:-1], NEVER), scores))
    weights = weights / kernel.denominator(weights.sum(-1))[..., None]
    return jnp.einsum("bhij,bjhe->bihe", weights, v.astype(jnp.float32)).astype(v.dtype)


def _plain(
    kernel: Kernel,
    causal: bool,
    q: Float[Array, "S N C D"],
    k: Float[Array, "S N C D"],
    v: Float[Array, "S N C E"],
    visible: Bool[Array, "S N C"] | _Segments | None,
) -> Float[Array, "S N C E"]:
    return _forward(kernel, causal, q, k, v, visible)[0]


def _forward(
    kernel: Kernel,
    causal: bool,
    q: Float[Array, "S N C D"],
    k: Float[Array, "S N C D"],
    v: Float[Array, "S N C E"],
    visible: Bool[Array, "S N C"] | _Segments | None,
) -> tuple[Float[Array, "S N C E"], tuple]:
    """Return the output in float32, and the arrays that the backward pass needs."""
    steps, rows, block, _ = q.shape

    def row(_: None, inputs: tuple) -> tuple[None, tuple[Array, Array]]:
        i, q_i = inputs
        q_i = q_i.astype(jnp.float32) * kernel.scale

        def absorb(j: Array, sums: tuple, diagonal: bool = False) -> tuple:
            maximum, total, out = sums
            scores = jnp.einsum("nid,njd->nij", q_i, _float(k, j))
            if diagonal:
                scores = jnp.where(_past(block), scores, kernel.hidden)
            if visible is not None:
                scores = jnp.where(_pairs(visible, i, j), scores, kernel.hidden)
            new = kernel.maximum(maximum, scores)
            weights, kept = kernel.weights(scores, new), kernel.kept(maximum, new)
            out = out * kept[..., None] + jnp.einsum("nij,nje->nie", weights, _float(v, j))
            return new, total * kept + weights.sum(-1), out

        empty = jnp.zeros((rows, block), jnp.float32)
        sums = (empty + NEVER, empty, jnp.zeros((rows, block, v.shape[-1]), jnp.float32))
        first, stop = _range(visible, i, steps)
        sums = lax.fori_loop(first, i if causal else stop, absorb, sums)
        maximum, total, out = absorb(i, sums, diagonal=True) if causal else sums
        denominator = kernel.denominator(total)
        return None, (out / denominator[..., None], kernel.normaliser(maximum, denominator))

    _, (out, normaliser) = lax.scan(row, None, (jnp.arange(steps), q))
    return out, (q, k, v, visible, out, normaliser)


def _backward(kernel: Kernel, causal: bool, kept: tuple, d_out: Float[Array, "S N C E"]) -> tuple:
    """Return the gradients of q, k and v; for each block of keys, iterate over the blocks of queries that attend to it.

    Scores are [keys, queries] and d_q [D, queries] here, so that no product transposes a large matrix, which would take
    twice the time on CPUs.
    """
    q, k, v, visible, out, normaliser = kept
    steps, rows, block, width = q.shape
    d_out_out = (d_out * out).sum(-1)

    def column(d_q: Array, inputs: tuple) -> tuple[Array, tuple[Array, Array]]:
        j, k_j, v_j = inputs
        k_j, v_j = k_j.astype(jnp.float32), v_j.astype(jnp.float32)
        k_j_transposed = k_j.transpose(0, 2, 1)

        def absorb(i: Array, sums: tuple, diagonal: bool = False) -> tuple:
            d_q, d_k, d_v = sums
            q_i, d_out_i = _float(q, i) * kernel.scale, _at(d_out, i)
            scores = jnp.einsum("njd,nid->nji", k_j, q_i)
            if diagonal:
                scores = jnp.where(_past(block).transpose(0, 2, 1), scores, kernel.hidden)
            if visible is not None:
                scores = jnp.where(_pairs(visible, i, j).transpose(0, 2, 1), scores, kernel.hidden)
            weights, slopes = kernel.normalised(scores, _at(normaliser, i)[:, None, :])
            d_weights = jnp.einsum("nje,nie->nji", v_j, d_out_i) - _at(d_out_out, i)[:, None, :]
            d_scores = slopes * d_weights
            d_q_i = _at(d_q, i) + jnp.einsum("ndj,nji->ndi", k_j_transposed, d_scores)
            d_k = d_k + jnp.einsum("nji,nid->njd", d_scores, q_i)
            d_v = d_v + jnp.einsum("nji,nie->nje", weights, d_out_i)
            return lax.dynamic_update_index_in_dim(d_q, d_q_i, i, 0), d_k, d_v

        sums = (d_q, jnp.zeros_like(k_j), jnp.zeros_like(v_j))
        sums = absorb(j, sums, diagonal=True) if causal else sums
        first, stop = _range(visible, j, steps)
        d_q, d_k, d_v = lax.fori_loop(j + 1 if causal else first, stop, absorb, sums)
        return d_q, (d_k.astype(k.dtype), d_v.astype(v.dtype))

    zeros = jnp.zeros((steps, rows, width, block), jnp.float32)
    d_q, (d_k, d_v) = lax.scan(column, zeros, (jnp.arange(steps), k, v))
    return (d_q * kernel.scale).transpose(0, 1, 3, 2).astype(q.dtype), d_k, d_v, None


_attend = jax.custom_vjp(_plain, nondiff_argnums=(0, 1))
_attend.defvjp(_forward, _backward)


def _at(x: Array, i: Array) -> Array:
    return lax.dynamic_index_in_dim(x, i, keepdims=False)


def _float(x: Float[Array, "S N C W"], i: Array) -> Float[Array, "N C W"]:
    return _at(x, i).astype(jnp.float32)


def _past(block: int) -> Bool[Array, "1 C C"]:
    """Return which keys of the same block are visible to a query, [1, queries, keys]."""
    return jnp.tril(jnp.ones((block, block), bool))[None]
