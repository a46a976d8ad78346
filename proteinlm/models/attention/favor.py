"""FAVOR+: softmax attention by positive orthogonal random features (Performer paper, sections 2.3 and 2.4, Lemma 1).

exp(x.y) = E[phi(x).phi(y)] with phi(x)_m = exp(w_m.x - |x|^2 / 2) / sqrt(M), w_m standard Gaussian; x = q / D^(1/4).

Where the paper's stabiliser of 1e-6 belongs. The public code divides features by exp of their maximum over the whole
sequence and then adds 1e-6: a later key changes what the 1e-6 means to earlier ones, and the future leaks. Here each
residue's features are divided by exp(c), c its own largest log-feature, and 1e-6 is added to that: a function of one
residue alone. The scan of linear.py puts exp(c_j) back relative to its running maximum. What the stabiliser is for: a
query and a key far apart may have no feature in common that does not underflow; with it every score is positive, so a
row that sees anything is an average of the values. With 0 the estimator is unbiased, and such a row gives 0.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proteinlm.errors import InputError
from proteinlm.models.attention.base import MechanismConfig, Projection, visible_pairs
from proteinlm.models.attention.linear import NEVER, Features, LinearAttention, divide
from proteinlm.models.attention.projections import gaussian, orthogonal


@dataclass(frozen=True)
class FavorConfig(MechanismConfig):
    """FAVOR+ softmax attention.

    Attributes:
        num_features: M; the paper's protein models have 256.
        orthogonal: rows of the projection orthogonal within blocks of D (lower variance), or iid.
        kernel_epsilon: the paper's stabiliser, added to every feature relative to the largest feature of the same
            residue (so it tells nothing of other residues); see the top of this file.
        chunk_size: residues of a step of the scan; speed and memory alone depend on it.
    """

    kind: ClassVar[str] = "favor"
    num_features: int = 256
    orthogonal: bool = True
    kernel_epsilon: float = 1e-6
    chunk_size: int = 128

    def __post_init__(self):
        for name in ("num_features", "chunk_size"):
            if getattr(self, name) < 1:
                raise InputError(f"attention.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.kernel_epsilon < 0:
            raise InputError(f"attention.kernel_epsilon is {self.kernel_epsilon}; it cannot be below 0.")

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "FavorAttention":
        """Return the mechanism; one projection serves all heads, queries and keys."""
        return FavorAttention(self, num_heads=num_heads, head_dim=head_dim, key=key)


class FavorAttention(LinearAttention):
    """FAVOR+ softmax attention of one layer."""

    def __init__(self, config: FavorConfig, *, num_heads: int, head_dim: int, key: jax.Array):
        """Draw the projection."""
        super().__init__(config, num_heads=num_heads, head_dim=head_dim)
        self.projection = Projection(self._draw(key))

    def _draw(self, key: jax.Array) -> Array:
        draw = orthogonal if self.config.orthogonal else gaussian
        return draw(key, self.config.num_features, self.head_dim)

    def redraw(self, key: jax.Array) -> None:
        """Draw a new projection; a pure function of the key."""
        self.projection[...] = self._draw(key)

    def _options(self) -> dict[str, Any]:
        projection, epsilon = self.projection[...], self.config.kernel_epsilon

        def features(x: Array) -> Features:
            return positive_features(x, projection, epsilon)

        return {"query_features": features, "key_features": features, "chunk_size": self.config.chunk_size}

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        """D^-1 A with A_ij = phi(q_i).phi(k_j); each row divided by exp of its largest visible c_j."""

        def features(x: Array) -> tuple[Array, Array]:
            x = x / self.head_dim**0.25
            log = jnp.einsum("blhd,md->bhlm", x, self.projection[...]) - (x**2).sum(-1).swapaxes(1, 2)[..., None] / 2
            c = log.max(-1, keepdims=True)
            return jnp.exp(log - c) + self.config.kernel_epsilon, c[..., 0]

        (phi_q, _), (phi_k, c) = features(q), features(k)
        pairs = visible_pairs(q.shape[1], causal, key_mask)
        c = jnp.where(pairs, c[:, :, None, :], NEVER)
        c = jnp.exp(c - jax.lax.stop_gradient(c.max(-1, keepdims=True)))
        scores = jnp.where(pairs, jnp.einsum("bhim,bhjm->bhij", phi_q, phi_k) * c, 0.0)
        return divide(scores, scores.sum(-1), None)


def positive_features(x: Float[Array, "*rows D"], projection: Float[Array, "M D"], epsilon: float) -> Features:
    """Return exp(w.x' - |x'|^2 / 2 - c) + epsilon, x' = x / D^(1/4), and c, the largest of w.x' - |x'|^2 / 2.

    The 1 / sqrt(M) of each side is left out: it cancels in the quotient.
    """
    x = x * x.shape[-1] ** -0.25
    projected = x @ projection.T
    largest = projected.max(-1)
    return Features(jnp.exp(projected - largest[..., None]) + epsilon, largest - (x * x).sum(-1) / 2)
