"""Exact softmax attention: softmax(q.k / sqrt(D)) v (Performer paper, equations 1 and 2). Time and memory O(L^2)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proteinlm.models.attention.base import Attention, MechanismConfig, visible_pairs
from proteinlm.models.attention.linear import NEVER


@dataclass(frozen=True)
class SoftmaxConfig(MechanismConfig):
    """Exact softmax attention; nothing to set."""

    kind: ClassVar[str] = "softmax"

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "SoftmaxAttention":
        """Return the mechanism; it draws nothing."""
        return SoftmaxAttention(self, num_heads=num_heads, head_dim=head_dim)


class SoftmaxAttention(Attention):
    """Exact softmax attention of one layer: products add up in float32, the softmax is float32."""

    def _attend(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B L H E"]:
        scores = jnp.einsum("bihd,bjhd->bhij", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
        scores = jnp.where(visible_pairs(q.shape[1], causal, key_mask), scores, NEVER)
        largest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
        # Where nothing is seen, 0 instead of the maximum makes every exponential of the row 0.
        weights = jnp.exp(scores - jnp.where(largest > NEVER, largest, 0.0))
        total = weights.sum(-1)
        out = jnp.einsum("bhij,bjhe->bihe", weights, v.astype(jnp.float32))
        return (out / jnp.where(total > 0, total, 1.0).transpose(0, 2, 1)[..., None]).astype(v.dtype)

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        pairs = visible_pairs(q.shape[1], causal, key_mask)
        scores = jnp.einsum("bihd,bjhd->bhij", q, k) / jnp.sqrt(q.shape[-1])
        return jnp.where(pairs, jax.nn.softmax(jnp.where(pairs, scores, NEVER), axis=-1), 0.0)
