"""Where a residue stands: learned and sinusoidal vectors added to the embeddings, rotations of queries and keys.

All of them start from `positions_of`, so that padding moves nothing, or from `positions_in` where a row has several
proteins, each a segment.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int

# Wavelengths go from 2 pi to nearly 2 pi times this (Vaswani et al. 2017, section 3.5; Su et al. 2021, section 3.3).
_BASE = 10_000


def positions_of(mask: Bool[Array, "B L"]) -> Int[Array, "B L"]:
    """Return each token's place among its row's tokens, from 0: padding, left or right, moves nothing."""
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


def segment_starts(segments: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Return the place in the row at which each token's segment begins; of padding (segment 0), the place itself."""
    places = jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32)[None], segments.shape)
    before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))
    return jax.lax.cummax(jnp.where((segments != before) | (segments == 0), places, 0), axis=1)


def positions_in(segments: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Return each token's place in its segment, from 0: those that it would have alone in its row."""
    return jnp.arange(segments.shape[1], dtype=jnp.int32)[None] - segment_starts(segments)


def initial_embedding(key: jax.Array, rows: int, embed_dim: int) -> Float[Array, "rows F"]:
    """Return initial vectors of length about 1: N(0, 1 / F) each value, float32."""
    return embed_dim**-0.5 * jax.random.normal(key, (rows, embed_dim), jnp.float32)


class LearnedPositions(nnx.Module):
    """One trained vector a place."""

    def __init__(self, max_length: int, embed_dim: int, key: jax.Array):
        self.embedding = nnx.Param(initial_embedding(key, max_length, embed_dim))

    def __call__(self, positions: Int[Array, "B L"]) -> Float[Array, "B L F"]:
        """Return the vectors of the places, float32."""
        return self.embedding[...][positions]


class SinusoidalPositions(nnx.Module):
    """Fixed waves (Vaswani et al. 2017, section 3.5), computed and not stored.

    They are divided by sqrt(F). The paper adds them to embeddings that it multiplies by sqrt(F); ours are that much
    shorter, so that the sum is the paper's but for one factor.
    """

    def __init__(self, embed_dim: int):
        self.embed_dim = embed_dim

    def __call__(self, positions: Int[Array, "B L"]) -> Float32[Array, "B L F"]:
        """Return the vectors of the places, of length sqrt(1/2)."""
        return self.embed_dim**-0.5 * waves(positions, self.embed_dim)


def waves(positions: Int[Array, "B L"], embed_dim: int) -> Float32[Array, "B L F"]:
    """Return sin(p / 10000^(2i / F)) at 2i and the cosine at 2i + 1; the last value of an odd width is a sine."""
    angles = _angles(positions, embed_dim)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, -1)[..., :embed_dim]


class Rotation(NamedTuple):
    """The rotations of every token, one by each pair of values: float32 [B, L, 1, D / 2], the same for all heads."""

    cos: Float32[Array, "B L 1 half"]
    sin: Float32[Array, "B L 1 half"]


def rotation_of(positions: Int[Array, "B L"], head_dim: int) -> Rotation:
    """Return the rotations by p / 10000^(2i / D) for the places p and an even head_dim (Su et al. 2021, eq. 15)."""
    angles = _angles(positions, head_dim)[:, :, None, :]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "B L H D"], rotation: Rotation) -> Float[Array, "B L H D"]:
    """Return queries or keys turned by their places, so that q_i.k_j depends on places through i - j alone.

    Pair i is values i and i + D / 2, as in GPT-NeoX and ESM-2 (Su et al. pair 2i and 2i + 1; only the order differs).
    In float32; the dtype of x comes back.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * rotation.cos - second * rotation.sin, second * rotation.cos + first * rotation.sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _angles(positions: Int[Array, "B L"], width: int) -> Float32[Array, "B L pairs"]:
    """Return p / 10000^(2i / width) for i from 0 to ceil(width / 2) - 1."""
    # The rates from float64: a float32 power would be off by several of its last bits, times p.
    rates = jnp.asarray(_BASE ** (-np.arange(0, width, 2) / width), jnp.float32)
    return positions.astype(jnp.float32)[..., None] * rates[None, None, :]
