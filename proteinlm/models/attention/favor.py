"""FAVOR+: softmax attention by random features (Performer paper, sections 2.3 and 2.4, Lemma 1, Theorem 1).

SM(x, y) = exp(x.y) = E[phi(x).phi(y)], x = q / D^(1/4), with w_m the rows of a random projection (projections.py):

    positive       phi(x) = exp(-|x|^2 / 2) (exp(w_m.x))_m / sqrt(M)                     M features
    hyperbolic     phi(x) = exp(-|x|^2 / 2) (exp(w_m.x), exp(-w_m.x))_m / sqrt(2 M)     2 M features
    trigonometric  phi(x) = exp(+|x|^2 / 2) (cos(w_m.x), sin(w_m.x))_m / sqrt(M)        2 M features

Positive and hyperbolic estimates are never negative, and exact where SM is near 0; the trigonometric ones are worst
there. With rows of norm sqrt(D) (`regularized`) positive and hyperbolic features estimate the regularised kernel SMREG,
which is bounded by SM. The factors exp(-|x|^2 / 2) and exp(-|y|^2 / 2) turn SM into the Gaussian kernel.

The stabiliser of 1e-6. The public code divides features by exp of their maximum over the whole sequence and then adds
1e-6. A later key changes this maximum, and with it the relative size of 1e-6 for earlier keys: the future leaks. Here
the features of a residue are divided by exp(c), where c is its own largest log-feature, before 1e-6 is added, so the
result is a function of this residue alone. The scan of linear_attention.py multiplies by exp(c_j), relative to its
running maximum. Purpose of the stabiliser: for a distant query and key, all products of features may underflow; with it
every score is positive, so the output of a residue with any visible key is an average of the values. With 0 the
estimator is unbiased, but a residue whose products all underflow gets 0. Trigonometric features do not underflow and
have no stabiliser.

Denominators of trigonometric features may be near 0 or negative. They are treated as in generalized.py: a denominator
nearer to 0 than `min_denominator` is moved to that distance and keeps its sign (0 counts as positive); the weights of
such a row do not sum to 1. The unit of `min_denominator` is the largest possible score of the query with its visible
keys, |phi(q)| max |phi(k)|; the gradient of such a row does not include the change of this unit with q and k.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proteinlm.errors import InputError, check_range
from proteinlm.models.attention.base import MechanismConfig, Projection, register_attention, visible_pairs
from proteinlm.models.attention.features.projections import Draw, Kind, draw_projection, matrix, project
from proteinlm.models.attention.linear.linear_attention import LinearAttention
from proteinlm.models.attention.linear.state import NEVER, Features, LinearOptions, divide, fast_chunk_size

FeatureKind = Literal["positive", "hyperbolic", "trigonometric"]


@register_attention
@dataclass(frozen=True)
class FavorConfig(MechanismConfig):
    """FAVOR+ softmax attention.

    Attributes:
        num_features: M, number of rows of the projection; the paper's protein models have 256. Each row gives one
            positive feature, or two hyperbolic or trigonometric ones.
        features: the estimator of exp(x.y); hyperbolic features have less variance than positive ones, trigonometric
            ones can give negative weights (docs/attention.md).
        projection: distribution of the rows: independent (gaussian), orthogonal, or orthogonal by products that need
            less memory (hadamard, givens).
        regularized: rows have the norm sqrt(D), so that the kernel is SMREG; not with trigonometric features.
        kernel_epsilon: the paper's stabiliser, added to every feature relative to the largest feature of the same
            residue, so that no row of weights is 0. Trigonometric features have none.
        min_denominator: trigonometric features only: least distance of a denominator from 0, relative to the largest
            possible score.
        chunk_size: number of residues in a step of the scan; 0 takes the size that is fast on the backend. It changes
            speed and memory alone.
    """

    kind: ClassVar[str] = "favor"
    no_spread: ClassVar[str] = ""
    tiny_sizes: ClassVar = {"num_features": 16, "chunk_size": 16}
    num_features: int = 256
    features: FeatureKind = "positive"
    projection: Kind = "orthogonal"
    regularized: bool = False
    kernel_epsilon: float = 1e-6
    min_denominator: float = 1e-3
    chunk_size: int = 0

    def __post_init__(self):
        for name, kinds in (("features", get_args(FeatureKind)), ("projection", get_args(Kind))):
            if getattr(self, name) not in kinds:
                raise InputError(f"attention.{name} is {getattr(self, name)!r}; it must be one of {', '.join(kinds)}.")
        for name, least in (("num_features", 1), ("chunk_size", 0), ("kernel_epsilon", 0)):
            check_range(f"attention.{name}", getattr(self, name), at_least=least)
        check_range("attention.min_denominator", self.min_denominator, above=0)
        if self.regularized and self.features == "trigonometric":
            raise InputError(
                "attention.regularized is True and attention.features 'trigonometric'; the regularised kernel "
                "needs positive or hyperbolic features."
            )

    @property
    def no_unit_sums(self) -> str:
        """The reason why the weights of a residue need not sum to 1."""
        if self.features != "trigonometric":
            return ""
        return (
            "trigonometric features estimate weights of any sign, and a sum nearer to 0 than "
            f"{self.min_denominator:g} is moved away from it"
        )

    def on_platform(self, platform: str, *, causal: bool) -> MechanismConfig:
        """Return the config with the chunk size of the platform in place of 0."""
        return replace(self, chunk_size=self.chunk_size or fast_chunk_size(causal, platform))

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "FavorAttention":
        """Return the mechanism; all heads, queries and keys share one projection."""
        return FavorAttention(self, num_heads=num_heads, head_dim=head_dim, key=key)


class FavorAttention(LinearAttention):
    """FAVOR+ softmax attention of one layer."""

    def __init__(self, config: FavorConfig, *, num_heads: int, head_dim: int, key: jax.Array):
        """Draw the projection."""
        super().__init__(config, num_heads=num_heads, head_dim=head_dim)
        self.projection = Projection(self._draw(key))

    def _draw(self, key: jax.Array) -> Draw:
        config = self.config
        norms = "sqrt" if config.regularized else "chi"
        return draw_projection(config.projection, key, config.num_features, self.head_dim, norms=norms)

    def redraw(self, key: jax.Array) -> None:
        """Draw a new projection, as a pure function of the key."""
        self.projection.set_value(self._draw(key))

    def _least(self) -> float | None:
        return self.config.min_denominator if self.config.features == "trigonometric" else None

    def _options(self) -> LinearOptions:
        config, draw = self.config, self.projection.get_value()

        def features(x: Array) -> Features:
            return softmax_features(x * self.head_dim**-0.25, draw, config.features, epsilon=config.kernel_epsilon)

        return LinearOptions(features, chunk_size=config.chunk_size, min_denominator=self._least())

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        """Return D^-1 A, A_ij = phi(q_i).phi(k_j); each row is computed relative to exp of its largest visible c_j."""
        w, kind = matrix(self.projection.get_value(), self.head_dim), self.config.features

        def features(x: Array) -> tuple[Array, Array]:
            x = x / self.head_dim**0.25
            half = (x**2).sum(-1).swapaxes(1, 2)[..., None] / 2
            wx = jnp.einsum("blhd,md->bhlm", x, w)
            if kind == "trigonometric":
                return jnp.concatenate([jnp.cos(wx), jnp.sin(wx)], -1) / len(w) ** 0.5, half[..., 0]
            log = (wx if kind == "positive" else jnp.concatenate([wx, -wx], -1)) - half
            c = log.max(-1, keepdims=True)
            return jnp.exp(log - c) + self.config.kernel_epsilon, c[..., 0]

        (phi_q, _), (phi_k, c) = features(q), features(k)
        pairs = visible_pairs(q.shape[1], causal, key_mask)
        c = jnp.where(pairs, c[:, :, None, :], NEVER)
        c = jnp.exp(c - jax.lax.stop_gradient(c.max(-1, keepdims=True)))
        scores = jnp.where(pairs, jnp.einsum("bhim,bhjm->bhij", phi_q, phi_k) * c, 0.0)
        return divide(scores, scores.sum(-1), self._least())


def softmax_features(
    x: Float[Array, "*rows D"], draw: Draw, kind: FeatureKind = "positive", *, epsilon: float = 0.0
) -> Features:
    """Return phi(x) as defined at the top of this file; products of these features estimate exp(x.y).

    Args:
        x: queries or keys, already divided by D^(1/4).
        draw: a projection from `draw_projection`; with norms "sqrt" the kernel is SMREG.
        kind: kind of features.
        epsilon: added to positive and hyperbolic features, relative to the largest feature of the same x.

    Returns:
        Features: values [..., M] or [..., 2 M], all in [-1, 1 + epsilon], and the log [...] of the factor left out.
    """
    projected, half = project(draw, x), (x * x).sum(-1) / 2
    if kind == "trigonometric":
        size = projected.shape[-1] ** -0.5
        return Features(jnp.concatenate([jnp.cos(projected), jnp.sin(projected)], axis=-1) * size, half)
    if kind == "hyperbolic":
        projected = jnp.concatenate([projected, -projected], axis=-1)
    largest = projected.max(-1)
    values = jnp.exp(projected - largest[..., None]) + epsilon
    return Features(values, largest - half - math.log(values.shape[-1]) / 2)
