"""Generalized attention: the kernel phi(x).phi(y) with phi(x) = (f(W x) + epsilon) / sqrt(M) (Performer paper, eq. 5).

x is q or k divided by D^(1/4), as for softmax. W is a random projection (projections.py), one per layer, or absent.

Denominators. If f is never negative (relu, sigmoid, exp, abs), the denominator of a residue with any visible key is
positive; kernel_epsilon keeps it positive where all features are 0. With identity, cos, tanh and gelu it can be near 0
or negative, which makes the paper's training diverge to NaN. For these functions a denominator nearer to 0 than
`min_denominator` is moved to that distance and keeps its sign (0 counts as positive): values and gradients stay finite,
and the weights of such a row do not sum to 1. exp is kept in range by the running maximum of linear_attention.py (a row
whose products all underflow is 0); the other functions need no maximum.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proteinlm.errors import InputError, check_range
from proteinlm.models.attention.base import MechanismConfig, Projection, register_attention, visible_pairs
from proteinlm.models.attention.features.projections import Draw, Kind, draw_projection, matrix, project
from proteinlm.models.attention.linear.linear_attention import LinearAttention
from proteinlm.models.attention.linear.state import Features, LinearOptions, divide, fast_chunk_size

Function = Literal["relu", "sigmoid", "exp", "abs", "gelu", "cos", "tanh", "identity"]

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "exp": jnp.exp,
    "abs": jnp.abs,
    "gelu": jax.nn.gelu,
    "cos": jnp.cos,
    "tanh": jnp.tanh,
    "identity": lambda x: x,
}
SIGNED = frozenset({"gelu", "cos", "tanh", "identity"})
"""Functions whose kernel, and so whose denominator, can be zero or negative."""


@register_attention
@dataclass(frozen=True)
class GeneralizedConfig(MechanismConfig):
    """Generalized attention.

    Attributes:
        function: f, one of the paper's.
        num_features: M, number of rows of the random projection; 0 applies f to queries and keys directly (M = D).
        projection: distribution of the rows: independent (gaussian), orthogonal, or orthogonal by products that need
            less memory (hadamard, givens).
        kernel_epsilon: added to f; the paper's 1e-3 keeps the denominators of ReLU away from 0.
        renormalize: divide by the sum of the row; without it, weights are the kernel itself and outputs grow with L.
        min_denominator: for gelu, cos, tanh and identity: least distance of a denominator from 0.
        chunk_size: number of residues in a step of the scan; 0 takes the size that is fast on the backend. It changes
            speed and memory alone.
    """

    kind: ClassVar[str] = "generalized"
    no_spread: ClassVar[str] = ""
    tiny_sizes: ClassVar = {"num_features": 16, "chunk_size": 16}
    function: Function = "relu"
    num_features: int = 256
    projection: Kind = "orthogonal"
    kernel_epsilon: float = 1e-3
    renormalize: bool = True
    min_denominator: float = 1e-3
    chunk_size: int = 0

    def __post_init__(self):
        if self.function not in get_args(Function):
            raise InputError(
                f"attention.function is {self.function!r}; it must be one of {', '.join(get_args(Function))}."
            )
        if self.projection not in get_args(Kind):
            raise InputError(
                f"attention.projection is {self.projection!r}; it must be one of {', '.join(get_args(Kind))}."
            )
        for name in ("num_features", "chunk_size", "kernel_epsilon"):
            check_range(f"attention.{name}", getattr(self, name), at_least=0)
        check_range("attention.min_denominator", self.min_denominator, above=0)

    @property
    def label(self) -> str:
        """Name of the mechanism in a report, with its function."""
        return f"{self.kind} ({self.function})"

    @property
    def no_unit_sums(self) -> str:
        """The reason why the weights of a residue need not sum to 1."""
        if not self.renormalize:
            return "renormalize is off: weights are the kernel itself"
        if self.function in SIGNED:
            return (
                f"the kernel of {self.function} has any sign, and a sum nearer to 0 than {self.min_denominator:g} is "
                "moved away from it"
            )
        return ""

    def on_platform(self, platform: str, *, causal: bool) -> MechanismConfig:
        """Return the config with the chunk size of the platform in place of 0."""
        return replace(self, chunk_size=self.chunk_size or fast_chunk_size(causal, platform))

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "GeneralizedAttention":
        """Return the mechanism; all heads, queries and keys share one projection."""
        return GeneralizedAttention(self, num_heads=num_heads, head_dim=head_dim, key=key)


class GeneralizedAttention(LinearAttention):
    """Generalized attention of one layer."""

    def __init__(self, config: GeneralizedConfig, *, num_heads: int, head_dim: int, key: jax.Array):
        """Draw the projection, if there is one."""
        super().__init__(config, num_heads=num_heads, head_dim=head_dim)
        if config.num_features:
            self.projection = Projection(self._draw(key))

    def _draw(self, key: jax.Array) -> Draw:
        return draw_projection(self.config.projection, key, self.config.num_features, self.head_dim)

    def redraw(self, key: jax.Array) -> None:
        """Draw a new projection, if there is one, as a pure function of the key."""
        if self.config.num_features:
            self.projection.set_value(self._draw(key))

    def _least(self) -> float | None:
        return self.config.min_denominator if self.config.function in SIGNED else None

    def _options(self) -> LinearOptions:
        config = self.config
        draw = self.projection.get_value() if config.num_features else None

        def features(x: Array) -> Features:
            return kernel_features(x, draw, config.function, config.kernel_epsilon)

        return LinearOptions(
            features, chunk_size=config.chunk_size, renormalize=config.renormalize, min_denominator=self._least()
        )

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        """Return A, A_ij = phi(q_i).phi(k_j), or D^-1 A if renormalised (equations 3 to 5)."""

        def phi(x: Array) -> Array:
            x = x / self.head_dim**0.25
            if self.config.num_features:
                x = jnp.einsum("blhd,md->blhm", x, matrix(self.projection.get_value(), self.head_dim))
            return (FUNCTIONS[self.config.function](x) + self.config.kernel_epsilon) / x.shape[-1] ** 0.5

        scores = jnp.einsum("bihm,bjhm->bhij", phi(q), phi(k))
        scores = jnp.where(visible_pairs(q.shape[1], causal, key_mask), scores, 0.0)
        return divide(scores, scores.sum(-1), self._least()) if self.config.renormalize else scores


def kernel_features(x: Float[Array, "*rows D"], draw: Draw | None, function: str, epsilon: float) -> Features:
    """Return (f(W x / D^(1/4)) + epsilon) / sqrt(M); for exp, divided by exp(c), where c is the largest exponent."""
    x = x * x.shape[-1] ** -0.25
    inputs = x if draw is None else project(draw, x)
    size = inputs.shape[-1] ** -0.5
    if function == "exp":
        # At least 0, so that exp(-c), the factor of epsilon, does not overflow.
        c = jnp.maximum(inputs.max(-1), 0.0)
        return Features((jnp.exp(inputs - c[..., None]) + epsilon * jnp.exp(-c)[..., None]) * size, c)
    return Features((FUNCTIONS[function](inputs) + epsilon) * size)
