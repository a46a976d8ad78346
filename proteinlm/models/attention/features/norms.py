"""Layer normalisation inside attention: of queries and keys before a polynomial kernel, and of sketches."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from proteinlm.errors import InputError


class QKNorm(nnx.Module):
    """Layer normalisations before a polynomial kernel: trained scale and bias over D, for queries and for keys.

    Both results are divided by sqrt(beta), so that scores are <q', k'> = <LN(q), LN(k)> / beta. A normalised vector has
    the length sqrt(D), and the product of two unrelated ones has a standard deviation of sqrt(D). The default beta,
    sqrt(D), gives such a pair a score of order 1 (as in softmax attention; section 2).
    """

    def __init__(self, head_dim: int, *, beta: float | None = None):
        """Start with scale 1 and bias 0."""
        if head_dim < 2:
            raise InputError(
                "the model's heads have width 1; polynomial kernels normalise over a head: take 2 or more."
            )
        self.beta = head_dim**0.5 if beta is None else float(beta)
        self.query_scale = nnx.Param(jnp.ones((head_dim,), jnp.float32))
        self.query_bias = nnx.Param(jnp.zeros((head_dim,), jnp.float32))
        self.key_scale = nnx.Param(jnp.ones((head_dim,), jnp.float32))
        self.key_bias = nnx.Param(jnp.zeros((head_dim,), jnp.float32))

    def __call__(
        self, q: Float[Array, "*rows D"], k: Float[Array, "*keys D"]
    ) -> tuple[Float[Array, "*rows D"], Float[Array, "*keys D"]]:
        """Return (q', k'), float32 for any float dtype; statistics are over the last axis, after any other axes."""
        return (
            _affine(q, self.query_scale[...] * self.beta**-0.5, self.query_bias[...] * self.beta**-0.5),
            _affine(k, self.key_scale[...] * self.beta**-0.5, self.key_bias[...] * self.beta**-0.5),
        )


def normalized(x: Float[Array, "*rows W"], epsilon: float = 1e-6) -> Float[Array, "*rows W"]:
    """Return x with mean 0 and variance 1 over its last axis, float32; a constant vector becomes 0."""
    x = x.astype(jnp.float32)
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon)


def _affine(x: Float[Array, "*rows D"], scale: Float[Array, "D"], bias: Float[Array, "D"]) -> Float[Array, "*rows D"]:
    shape = (1,) * (x.ndim - 1) + (-1,)
    return normalized(x) * scale.reshape(shape) + bias.reshape(shape)
