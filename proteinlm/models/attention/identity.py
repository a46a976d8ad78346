"""Attention that returns V: the cost of a model without attention ("X (OPT)", Performer paper, section 4.1)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from proteinlm.models.attention.base import Attention, MechanismConfig, register_attention


@register_attention
@dataclass(frozen=True)
class IdentityConfig(MechanismConfig):
    """No attention; there are no options."""

    kind: ClassVar[str] = "identity"
    no_spread: ClassVar[str] = ""

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "IdentityAttention":
        """Return the mechanism; it draws nothing."""
        return IdentityAttention(self, num_heads=num_heads, head_dim=head_dim)


class IdentityAttention(Attention):
    """Every residue gets its own value: the weights are the identity matrix. The output of padding is 0."""

    def _attend(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B L H E"]:
        return v if key_mask is None else jnp.where(key_mask[:, :, None, None], v, jnp.zeros((), v.dtype))

    def _attend_segments(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        segments: Int[Array, "B L"],
    ) -> Float[Array, "B L H E"]:
        return self._attend(q, k, v, causal, segments > 0)

    def _attend_spread(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
        axis: str,
    ) -> Float[Array, "B L H E"]:
        return self._attend(q, k, v, causal, key_mask)

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        batch, length, heads, _ = q.shape
        weights = jnp.broadcast_to(jnp.eye(length)[None, None], (batch, heads, length, length))
        return weights if key_mask is None else weights * key_mask[:, None, None, :]

    def _prefill(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        key_mask: Bool[Array, "B L"] | None,
        max_length: int,
    ) -> tuple[Float[Array, "B L H E"], tuple[()]]:
        return self._attend(q, k, v, True, key_mask), ()

    def _step(
        self, q: Float[Array, "B 1 H D"], k: Float[Array, "B 1 H D"], v: Float[Array, "B 1 H E"], state: tuple[()]
    ) -> tuple[Float[Array, "B 1 H E"], tuple[()]]:
        return v, state
