"""Where a residue stands: learned position embeddings."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int


def positions_of(mask: Bool[Array, "B L"]) -> Int[Array, "B L"]:
    """Return each token's place among its row's tokens, from 0: padding, left or right, moves nothing."""
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


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
