"""Exact polynomial attention of even degree p (PolySketchFormer paper, section 2.1, equation 2).

    A_ij = <q'_i, k'_j>^p / (1 + sum_j <q'_i, k'_j>^p)

with q' and k' layer-normalised. The 1 keeps the denominator away from 0: weights sum to den / (1 + den), not to 1.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

_EPSILON = 1e-6


class QKNorm(nnx.Module):
    """The layer normalisations before a polynomial kernel: trained scale and bias over D, for queries and for keys.

    Both come out divided by sqrt(beta), so that scores are <q', k'> = <LN(q), LN(k)> / beta. A normalised vector has
    length sqrt(D), and the product of two unrelated ones a standard deviation of sqrt(D): beta None means sqrt(D) and
    gives such a pair a score of order 1 (softmax's own choice; section 2).
    """

    def __init__(self, head_dim: int, *, beta: float | None = None):
        """Start as the plain normalisation: scale 1, bias 0."""
        self.beta = head_dim**0.5 if beta is None else float(beta)
        self.query_scale = nnx.Param(jnp.ones((head_dim,), jnp.float32))
        self.query_bias = nnx.Param(jnp.zeros((head_dim,), jnp.float32))
        self.key_scale = nnx.Param(jnp.ones((head_dim,), jnp.float32))
        self.key_bias = nnx.Param(jnp.zeros((head_dim,), jnp.float32))

    def __call__(
        self, q: Float[Array, "*rows D"], k: Float[Array, "*keys D"]
    ) -> tuple[Float[Array, "*rows D"], Float[Array, "*keys D"]]:
        """Return (q', k'), float32 whatever the inputs; statistics over the last axis, any axes before it."""
        return (
            _layer_norm(q, self.query_scale[...] * self.beta**-0.5, self.query_bias[...] * self.beta**-0.5),
            _layer_norm(k, self.key_scale[...] * self.beta**-0.5, self.key_bias[...] * self.beta**-0.5),
        )


def _layer_norm(
    x: Float[Array, "*rows D"], scale: Float[Array, "D"], bias: Float[Array, "D"]
) -> Float[Array, "*rows D"]:
    x = x.astype(jnp.float32)
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + _EPSILON)
    shape = (1,) * (x.ndim - 1) + (-1,)
    return x * scale.reshape(shape) + bias.reshape(shape)
