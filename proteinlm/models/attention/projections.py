"""Random projections: rows w of a feature map exp(w.x - |x|^2 / 2), f(w.x), ...: iid Gaussian, or orthogonal."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def gaussian(key: jax.Array, num_features: int, dim: int) -> Float[Array, "M D"]:
    """Return iid standard Gaussian rows, float32 [M, D]."""
    return jax.random.normal(key, (num_features, dim), jnp.float32)


def orthogonal(key: jax.Array, num_features: int, dim: int, *, norms: str = "chi") -> Float[Array, "M D"]:
    """Return rows that are orthogonal within blocks of D (R-ORF; Performer paper, section 2.4), float32 [M, D].

    Each row by itself is a standard Gaussian vector, so features stay unbiased. Blocks are independent; the last one
    may be partial.

    Args:
        key: of the draw.
        num_features: M; above D, several blocks are stacked.
        dim: D.
        norms: "chi" (each row has the norm of a Gaussian vector) or "sqrt" (each has norm sqrt(D)).
    """
    if norms not in ("chi", "sqrt"):
        raise ValueError(f"norms is {norms!r}; expected 'chi' or 'sqrt'")
    blocks = math.ceil(num_features / dim)
    direction_key, norm_key = jax.random.split(key)
    square, triangle = jnp.linalg.qr(jax.random.normal(direction_key, (blocks, dim, dim), jnp.float32))
    # Without the signs of R's diagonal, Q is not uniform over rotations (Mezzadri 2007).
    signs = jnp.where(jnp.diagonal(triangle, axis1=1, axis2=2) < 0, -1.0, 1.0)
    directions = (square * signs[:, None, :]).transpose(0, 2, 1).reshape(blocks * dim, dim)[:num_features]
    if norms == "sqrt":
        return directions * math.sqrt(dim)
    lengths = jnp.linalg.norm(jax.random.normal(norm_key, (num_features, dim), jnp.float32), axis=-1)
    return directions * lengths[:, None]
