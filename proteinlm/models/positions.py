"""Positions: learned and sinusoidal vectors that are added to embeddings, and rotations of queries and keys.

All of them take the positions of `positions_of`, which padding does not change, or of `positions_in` if a row holds
several proteins (segments).
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
    """Return each token's position among the tokens of its row, from 0; padding on either side does not change it."""
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


def segment_starts(segments: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Return the index in the row at which each token's segment begins; for padding (segment 0), its own index."""
    index = jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32)[None], segments.shape)
    before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)))
    return jax.lax.cummax(jnp.where((segments != before) | (segments == 0), index, 0), axis=1)


def positions_in(segments: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Return each token's position in its segment, from 0: its position if the segment is alone in a row."""
    return jnp.arange(segments.shape[1], dtype=jnp.int32)[None] - segment_starts(segments)


def initial_embedding(key: jax.Array, rows: int, embed_dim: int) -> Float[Array, "rows F"]:
    """Return initial vectors of length about 1: each value is drawn from N(0, 1 / F), float32."""
    return embed_dim**-0.5 * jax.random.normal(key, (rows, embed_dim), jnp.float32)


class LearnedPositions(nnx.Module):
    """One trained vector for each position."""

    def __init__(self, max_length: int, embed_dim: int, key: jax.Array):
        self.embedding = nnx.Param(initial_embedding(key, max_length, embed_dim))

    def __call__(self, positions: Int[Array, "B L"]) -> Float[Array, "B L F"]:
        """Return the vectors of the positions, float32."""
        return self.embedding[...][positions]


class SinusoidalPositions(nnx.Module):
    """Fixed sinusoids (Vaswani et al. 2017, section 3.5), computed and not stored.

    They are divided by sqrt(F). The paper multiplies embeddings by sqrt(F) before it adds sinusoids; we divide the
    sinusoids instead, so that the sum is the paper's divided by sqrt(F).
    """

    def __init__(self, embed_dim: int):
        self.embed_dim = embed_dim

    def __call__(self, positions: Int[Array, "B L"]) -> Float32[Array, "B L F"]:
        """Return the vectors of the positions, of length sqrt(1/2)."""
        return self.embed_dim**-0.5 * waves(positions, self.embed_dim)


def waves(positions: Int[Array, "B L"], embed_dim: int) -> Float32[Array, "B L F"]:
    """Return sin(p / 10000^(2i / F)) at 2i and the cosine at 2i + 1; the last value of an odd width is a sine."""
    angles = _angles(positions, embed_dim)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, -1)[..., :embed_dim]


class Rotation(NamedTuple):
    """The rotation of each pair of values of each token: float32 [B, L, 1, D / 2], the same for all heads."""

    cos: Float32[Array, "B L 1 half"]
    sin: Float32[Array, "B L 1 half"]


def rotation_of(positions: Int[Array, "B L"], head_dim: int) -> Rotation:
    """Return the rotations by p / 10000^(2i / D) for positions p and an even head_dim (Su et al. 2021, eq. 15)."""
    angles = _angles(positions, head_dim)[:, :, None, :]
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "B L H D"], rotation: Rotation) -> Float[Array, "B L H D"]:
    """Return queries or keys rotated by their positions, so that q_i.k_j depends on positions through i - j alone.

    Pair i is values i and i + D / 2, as in GPT-NeoX and ESM-2 (Su et al. pair 2i and 2i + 1; only the order differs).
    The computation is float32; the result has the dtype of x.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * rotation.cos - second * rotation.sin, second * rotation.cos + first * rotation.sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _angles(positions: Int[Array, "B L"], width: int) -> Float32[Array, "B L pairs"]:
    """Return p / 10000^(2i / width) for i from 0 to ceil(width / 2) - 1."""
    # Rates are computed in float64: the error of a float32 power would be multiplied by p.
    rates = jnp.asarray(_BASE ** (-np.arange(0, width, 2) / width), jnp.float32)
    return positions.astype(jnp.float32)[..., None] * rates[None, None, :]
