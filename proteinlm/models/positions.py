"""Where a residue stands: learned position embeddings."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int


def positions_of(mask: Bool[Array, "B L"]) -> Int[Array, "B L"]:
    """Return each token's place among its row's tokens, from 0: padding, left or right, moves nothing."""
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


class LearnedPositions(nnx.Module):
    """One trained vector a place."""

    def __init__(self, max_length: int, embed_dim: int, key: jax.Array):
        self.embedding = nnx.Param(0.02 * jax.random.normal(key, (max_length, embed_dim), jnp.float32))

    def __call__(self, positions: Int[Array, "B L"]) -> Float[Array, "B L F"]:
        """Return the vectors of the places, float32."""
        return self.embedding[...][positions]
