"""Linformer: keys and values projected along the length, to k rows (arXiv 2006.04768; Performer paper, appendix A.6).

    out = softmax(Q (E K)^T / sqrt(D)) F V,    E, F in R^{k x L}

There is no causal form. With R of independent N(0, 1/k) entries, redrawn projections are E = R and F = e^{-delta} R.
The Performer paper describes delta as "the exponent in a renormalization procedure using e^{-delta} as a multiplier in
order to approximate softmax". Linformer's theorem also has E = delta R, but with delta = 1e-6 every score would be 0
and attention uniform; therefore E = R here. Learned projections start as two independent draws of R, for E and for F.

A projection has one column for each index in a row. Visible residues are therefore moved to the front of their row, so
that padding, on either side and of any length, changes nothing. Time and memory are O(L k); the backward pass computes
blocks of queries again.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from proteinlm.errors import InputError, check_range
from proteinlm.models.attention.base import Attention, MechanismConfig, Projection, left_aligned, register_attention
from proteinlm.models.attention.blocks import join, split

Projections = Literal["learned", "redrawn"]


@register_attention
@dataclass(frozen=True)
class LinformerConfig(MechanismConfig):
    """Linformer attention.

    Attributes:
        num_projections: k, number of rows after the projection of keys and values.
        max_length: number of columns of the projections; longer inputs are refused.
        projections: "redrawn": random (`redraw` draws new ones); "learned": trained. All heads share them.
        delta: for redrawn projections: the one of the values is multiplied by exp(-delta).
        block_size: number of queries in a block; it changes speed and memory alone.
    """

    kind: ClassVar[str] = "linformer"
    no_causal: ClassVar[str] = "its projections mix keys and values of the whole row, so residues attend to later ones"
    split_axes: ClassVar = (("^(of_keys|of_values)/", -2),)
    tiny_sizes: ClassVar = {"num_projections": 16, "block_size": 16}
    num_projections: int = 600
    max_length: int = 1024
    projections: Projections = "redrawn"
    delta: float = 1e-6
    block_size: int = 256

    @property
    def no_segments(self) -> str:
        """The reason why a row cannot hold several proteins."""
        return (
            "every protein would need its own projected keys and values, and there are more of them than residues in "
            "most proteins; take batches.form single"
        )

    @property
    def no_unit_sums(self) -> str:
        """The reason why the weights of a residue need not sum to 1."""
        projection = "learned" if self.projections == "learned" else "random"
        return f"its weights are products with a {projection} projection, of any sign"

    def tiny(self, length: int) -> MechanismConfig:
        """Return the config with small numbers, its projections as long as the rows."""
        return replace(super().tiny(length), max_length=min(self.max_length, length))

    def __post_init__(self):
        if self.projections not in get_args(Projections):
            raise InputError(
                f"attention.projections is {self.projections!r}; it must be one of {', '.join(get_args(Projections))}."
            )
        for name in ("num_projections", "max_length", "block_size"):
            check_range(f"attention.{name}", getattr(self, name), at_least=1)
        check_range("attention.delta", self.delta, at_least=0)

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "LinformerAttention":
        """Return the mechanism; its projections are drawn from the key."""
        return LinformerAttention(self, num_heads=num_heads, head_dim=head_dim, key=key)


class LinformerAttention(Attention):
    """Linformer attention of one layer; projections, scores, softmax and sums are float32 for inputs of any dtype."""

    def __init__(self, config: LinformerConfig, *, num_heads: int, head_dim: int, key: jax.Array):
        """Draw the projections, [k, max_length]."""
        super().__init__(config, num_heads=num_heads, head_dim=head_dim)
        if config.projections == "redrawn":
            self.projection = Projection(self._draw(key))
        else:
            keys, values = jax.random.split(key)
            self.of_keys = nnx.Param(self._draw(keys))
            self.of_values = nnx.Param(self._draw(values))

    def redraw(self, key: jax.Array) -> None:
        """Draw new random projections, as a pure function of the key; learned projections stay."""
        if self.config.projections == "redrawn":
            self.projection[...] = self._draw(key)

    def _draw(self, key: jax.Array) -> Float[Array, "K S"]:
        rows = self.config.num_projections
        return jax.random.normal(key, (rows, self.config.max_length), jnp.float32) * rows**-0.5

    def _projections(self, length: int) -> tuple[Float[Array, "K L"], Float[Array, "K L"]]:
        """Return E and F for rows of this length."""
        if length > self.config.max_length:
            raise ValueError(f"q has {length} residues, above attention.max_length, {self.config.max_length}")
        if self.config.projections == "redrawn":
            drawn = self.projection[:, :length]
            return drawn, math.exp(-self.config.delta) * drawn
        return self.of_keys[:, :length], self.of_values[:, :length]

    def _attend(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B L H E"]:
        batch, length, heads, _ = v.shape
        keys, values = (
            jnp.einsum("kl,blhw->bhkw", projection, x.astype(jnp.float32)).reshape(batch * heads, -1, x.shape[-1])
            for projection, x in zip(self._projections(length), _front(key_mask, k, v), strict=True)
        )

        @partial(jax.checkpoint, prevent_cse=False)
        def read(q: Float[Array, "N C D"]) -> Float[Array, "N C E"]:
            scores = jnp.einsum("ncd,nkd->nck", q.astype(jnp.float32) * self.head_dim**-0.5, keys)
            return jnp.einsum("nck,nke->nce", jax.nn.softmax(scores, axis=-1), values).astype(v.dtype)

        out = jax.lax.map(read, split(q, min(self.config.block_size, length)))
        return join(out, batch, length, heads)

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        """Return softmax(Q (E K)^T / sqrt(D)) F; the column of a visible key is its rank among the visible keys."""
        batch, length = q.shape[:2]
        visible = jnp.ones((batch, length), bool) if key_mask is None else key_mask
        rank = jnp.where(visible, jnp.cumsum(visible, axis=1) - 1, 0)
        of_keys, of_values = (
            jnp.where(visible[:, None, :], projection[:, rank].transpose(1, 0, 2), 0.0)
            for projection in self._projections(length)
        )
        keys = jnp.einsum("bkj,bjhd->bkhd", of_keys, k)
        weights = jax.nn.softmax(jnp.einsum("bihd,bkhd->bhik", q, keys) / jnp.sqrt(q.shape[-1]), axis=-1)
        return jnp.einsum("bhik,bkj->bhij", weights, of_values)


def _front(
    key_mask: Bool[Array, "B L"] | None, k: Float[Array, "B L H D"], v: Float[Array, "B L H E"]
) -> tuple[Array, ...]:
    """Move visible keys and values to the front of their row and set all others to 0."""
    if key_mask is None:
        return k, v
    visible = key_mask[:, :, None, None]
    return left_aligned(key_mask, *(jnp.where(visible, x, jnp.zeros((), x.dtype)) for x in (k, v)))
