"""Exact polynomial attention of even degree p (PolySketchFormer paper, section 2.1, equation 2).

    A_ij = <q'_i, k'_j>^p / (1 + sum_j <q'_i, k'_j>^p)

with q' and k' layer-normalised. The 1 keeps the denominator away from 0; weights sum to den / (1 + den), not to 1.
Time is O(L^2) and memory linear in L, by blocks (exact_attention.py).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from proteinlm.errors import InputError, check_range
from proteinlm.models.attention.base import Attention, MechanismConfig, register_attention, visible_pairs
from proteinlm.models.attention.exact.cache import KeyValueCache, appended, filled
from proteinlm.models.attention.exact.exact_attention import Power, attend_from_last, exact_attention
from proteinlm.models.attention.features.norms import QKNorm


@register_attention
@dataclass(frozen=True)
class PolynomialConfig(MechanismConfig):
    """Exact polynomial attention.

    Attributes:
        degree: p, even: 4 or 8 in the paper's language models.
        beta: scores are <LN(q), LN(k)> / beta; None is sqrt(D), see `QKNorm`.
        block_size: number of residues in a block; it changes speed and memory alone.
    """

    kind: ClassVar[str] = "polynomial"
    tiny_sizes: ClassVar = {"block_size": 16}
    degree: int = 4
    beta: float | None = None
    block_size: int = 512

    def __post_init__(self):
        if self.degree < 2 or self.degree % 2:
            raise InputError(f"attention.degree is {self.degree}; it must be even and at least 2.")
        if self.beta is not None:
            check_range("attention.beta", self.beta, above=0)
        check_range("attention.block_size", self.block_size, at_least=1)

    @property
    def no_unit_sums(self) -> str:
        """The reason why the weights of a residue need not sum to 1."""
        return "its denominator is 1 + the sum of scores"

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "PolynomialAttention":
        """Return the mechanism; it draws nothing, since its normalisations start with scale 1 and bias 0."""
        return PolynomialAttention(self, num_heads=num_heads, head_dim=head_dim)


class PolynomialAttention(Attention):
    """Exact polynomial attention of one layer; all heads share one pair of normalisations."""

    def __init__(self, config: PolynomialConfig, *, num_heads: int, head_dim: int):
        """Make the normalisations."""
        super().__init__(config, num_heads=num_heads, head_dim=head_dim)
        self.norm = QKNorm(head_dim, beta=config.beta)

    def _attend(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B L H E"]:
        kernel, block_size = Power(self.config.degree), self.config.block_size
        return exact_attention(*self.norm(q, k), v, kernel, causal=causal, key_mask=key_mask, block_size=block_size)

    def _attend_segments(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        segments: Int[Array, "B L"],
    ) -> Float[Array, "B L H E"]:
        kernel, block_size = Power(self.config.degree), self.config.block_size
        return exact_attention(*self.norm(q, k), v, kernel, causal=causal, segments=segments, block_size=block_size)

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        """Return A^(p) of equation 2."""
        q, k = self.norm(q, k)
        powers = jnp.einsum("bihd,bjhd->bhij", q, k) ** self.config.degree
        powers = jnp.where(visible_pairs(q.shape[1], causal, key_mask), powers, 0.0)
        return powers / (1 + powers.sum(-1, keepdims=True))

    def _prefill(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        key_mask: Bool[Array, "B L"] | None,
        max_length: int,
    ) -> tuple[Float[Array, "B L H E"], KeyValueCache]:
        return self._attend(q, k, v, True, key_mask), filled(k, v, key_mask, max_length)

    def _step(
        self, q: Float[Array, "B 1 H D"], k: Float[Array, "B 1 H D"], v: Float[Array, "B 1 H E"], state: KeyValueCache
    ) -> tuple[Float[Array, "B 1 H E"], KeyValueCache]:
        # The cache holds keys before the normalisation: in bfloat16 they take half the memory of normalised ones.
        cache = appended(state, k, v)
        q, k = self.norm(q, cache.keys)
        return attend_from_last(q, k, cache.values, Power(self.config.degree), cache.visible), cache
