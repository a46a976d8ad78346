"""Polysketch attention: polynomial attention of degree p in linear time (PolySketchFormer, sections 2.2 to 3.2).

    out_i = sum_j s(i, j) v_j / (1 + sum_j s(i, j)),    s(i, j) = <S(q'_i), S(k'_j)>^2  ~  <q'_i, k'_j>^p

q' and k' are layer-normalised and divided by sqrt(beta) (QKNorm). S is a sketch of degree p / 2 (sketches.py), random
or learned; all heads, queries and keys share it. The square makes scores non-negative; as features it is
self-tensoring, with r (r + 1) / 2 features. Without the square (`nonnegative` False) S has degree p, and s = <S(q'),
S(k')> any sign (PolySketchWithNegativity of Algorithm 1).

Local blocks. With `local`, residues in the same block of `block_size` have the exact score <q'_i, k'_j>^p. Blocks are
counted from the first residue of a row (in segments: of a segment), wherever padding lies. They are the same for causal
and bidirectional attention; the paper has the causal form alone. The output of a padded query is then 0.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from proteinlm.errors import InputError, check_range
from proteinlm.models.attention.base import (
    Attention,
    MechanismConfig,
    left_aligned,
    register_attention,
    restored,
    visible_pairs,
)
from proteinlm.models.attention.blocks import join, split, with_ones
from proteinlm.models.attention.features.norms import QKNorm
from proteinlm.models.attention.features.sketches import LearnedSketch, RandomSketch, self_tensor
from proteinlm.models.attention.linear.linear_attention import absorbed, linear_attention
from proteinlm.models.attention.linear.segments import segmented_attention
from proteinlm.models.attention.linear.state import Features, LinearOptions, State, divide


@register_attention
@dataclass(frozen=True)
class PolySketchConfig(MechanismConfig):
    """Polysketch attention; the defaults are the paper's best (learned + local, r = 32).

    Attributes:
        degree: p, a power of two of at least 2 (2 needs no sketch: the features are exact).
        sketch_size: r; the paper has 32 and 64.
        learned: trained networks in place of Gaussian matrices (Algorithm 2).
        local: exact scores inside blocks (section 3.2).
        block_size: b, length of these blocks. If `local`, it is part of the model; otherwise it changes speed alone.
        nonnegative: self-tensoring; without it scores and denominators can have any sign.
        beta: scores are <LN(q), LN(k)> / beta; None is sqrt(D).
        min_denominator: if not `nonnegative`, least distance of 1 + sum from 0.
    """

    kind: ClassVar[str] = "polysketch"
    no_spread: ClassVar[str] = ""
    split_axes: ClassVar = ((r"^sketch/levels/\d+/dense/", -2),)
    tiny_sizes: ClassVar = {"block_size": 16, "sketch_size": 4}
    degree: int = 4
    sketch_size: int = 32
    learned: bool = True
    local: bool = True
    block_size: int = 1024
    nonnegative: bool = True
    beta: float | None = None
    min_denominator: float = 1e-3

    def __post_init__(self):
        if self.degree < 2 or self.degree & (self.degree - 1):
            raise InputError(
                f"attention.degree is {self.degree}; a sketch halves it level by level, so it must be 2, 4, 8, ..."
            )
        if self.learned and self.sketch_size == 1:
            raise InputError(
                "attention.sketch_size is 1; a learned sketch is normalised over its entries: take 2 or more."
            )
        for name in ("sketch_size", "block_size"):
            check_range(f"attention.{name}", getattr(self, name), at_least=1)
        if self.beta is not None:
            check_range("attention.beta", self.beta, above=0)
        check_range("attention.min_denominator", self.min_denominator, above=0)

    @property
    def no_unit_sums(self) -> str:
        """The reason why the weights of a residue need not sum to 1."""
        return "its denominator is 1 + the sum of scores" + ("" if self.nonnegative else ", which can have any sign")

    @property
    def spread_multiple(self) -> int:
        """Length of a local block: blocks do not cross devices."""
        return self.block_size if self.local else 1

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "PolySketchAttention":
        """Return the mechanism; all heads, queries and keys share one sketch."""
        return PolySketchAttention(self, num_heads=num_heads, head_dim=head_dim, key=key)


class LocalState(NamedTuple):
    """Decoding state of Polysketch with local blocks.

    Attributes:
        before: sums over the complete blocks.
        block: sums over the current, incomplete block; they are added to `before` when it is complete.
        keys: float32 [B, b, H, D], normalised keys of the current block.
        values: float32 [B, b, H, E], values of the current block.
        count: int32 [B], number of residues so far.
    """

    before: State
    block: State
    keys: Array
    values: Array
    count: Array


class PolySketchAttention(Attention):
    """Polysketch attention of one layer."""

    def __init__(self, config: PolySketchConfig, *, num_heads: int, head_dim: int, key: jax.Array):
        """Draw the sketch."""
        super().__init__(config, num_heads=num_heads, head_dim=head_dim)
        self.norm = QKNorm(head_dim, beta=config.beta)
        kind = LearnedSketch if config.learned else RandomSketch
        degree = config.degree // 2 if config.nonnegative else config.degree
        self.sketch = kind(dim=head_dim, degree=degree, size=config.sketch_size, key=key)

    def redraw(self, key: jax.Array) -> None:
        """Draw a new random sketch, as a pure function of the key; a learned sketch stays."""
        if isinstance(self.sketch, RandomSketch):
            self.sketch.redraw(key)

    def _features(self, x: Float[Array, "N C D"]) -> Features:
        """Return the features of normalised queries or keys, and the vectors for scores inside a chunk."""
        sketch = self.sketch(x)
        if not self.config.nonnegative:
            return Features(sketch, local=x if self.config.local else None)
        return Features(self_tensor(sketch), local=x if self.config.local else sketch)

    def _options(self) -> LinearOptions:
        config = self.config
        degree = config.degree if config.local else 2
        return LinearOptions(
            self._features,
            chunk_size=config.block_size,
            constant=1.0,
            min_denominator=None if config.nonnegative else config.min_denominator,
            local_kernel=(lambda s: s**degree) if config.local or config.nonnegative else None,
            exact_blocks=config.local,
        )

    def _attend(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B L H E"]:
        q, k = self.norm(q, k)
        if key_mask is None or not self.config.local:
            return linear_attention(q, k, v, self._options(), causal=causal, key_mask=key_mask)[0]
        q, k, v, mask = left_aligned(key_mask, q, k, v, key_mask)
        return restored(key_mask, linear_attention(q, k, v, self._options(), causal=causal, key_mask=mask)[0])

    def _attend_spread(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
        axis: str,
    ) -> Float[Array, "B L H E"]:
        """Attend as `_attend`. With local blocks, rows must be padded on the right; the output of other rows is NaN.

        Blocks are counted from index 0 of a row: moving residues to the front would move them between devices.
        """
        q, k = self.norm(q, k)
        if not self.config.local:
            return linear_attention(q, k, v, self._options(), causal=causal, key_mask=key_mask, axis=axis)[0]
        out, _ = linear_attention(q, k, v, self._options(), causal=causal, key_mask=key_mask, axis=axis)
        if key_mask is None:
            return out
        index = jax.lax.axis_index(axis) * q.shape[1] + jnp.arange(q.shape[1])
        on_the_right = key_mask == (index[None] < jax.lax.psum(key_mask.sum(1), axis)[:, None])
        valid = jax.lax.pmin(on_the_right.all(1).astype(jnp.int32), axis)[:, None, None, None] > 0
        # The output of padded queries is 0, as on one device.
        out = jnp.where(key_mask[:, :, None, None], out, jnp.zeros((), out.dtype))
        return jnp.where(valid, out, jnp.full((), jnp.nan, out.dtype))

    def _attend_segments(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        segments: Int[Array, "B L"],
    ) -> Float[Array, "B L H E"]:
        q, k = self.norm(q, k)
        options = self._options()
        if not self.config.local:
            return segmented_attention(q, k, v, segments, options, causal=causal)
        # The sketch of a residue is scored in up to three chunks: it is computed once and stored beside the residue.
        q, k = self._with_sketch(q), self._with_sketch(k)
        options = replace(options, features=self._of_sketch, block_scores=self._block_scores)
        return segmented_attention(q, k, v, segments, options, causal=causal)

    def _with_sketch(self, x: Float[Array, "B L H D"]) -> Float[Array, "B L H DR"]:
        batch, length, heads, _ = x.shape
        sketches = jax.lax.map(jax.checkpoint(self.sketch), split(x, min(self.config.block_size, length)))
        return jnp.concatenate([x, join(sketches, batch, length, heads)], axis=-1)

    def _of_sketch(self, x: Float[Array, "N C DR"]) -> Features:
        """Return the features, as of `_features`, of residues that are stored beside their sketch."""
        sketch = x[..., self.head_dim :]
        return Features(self_tensor(sketch) if self.config.nonnegative else sketch, local=x)

    def _block_scores(self, phi_q: Features, phi_k: Features, same_block: Bool[Array, "N C K"]) -> Array:
        """Return exact scores for pairs in the same block and the sketch's scores for all others."""
        assert phi_q.local is not None and phi_k.local is not None  # noqa: PT018
        (q, sketch_q), (k, sketch_k) = (jnp.split(x, [self.head_dim], axis=-1) for x in (phi_q.local, phi_k.local))
        far = jnp.einsum("nir,njr->nij", sketch_q, sketch_k)
        far = far**2 if self.config.nonnegative else far
        return jnp.where(same_block, jnp.einsum("nid,njd->nij", q, k) ** self.config.degree, far)

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        """Return s(i, j) / (1 + sum_j s(i, j))."""
        q, k = (x.swapaxes(1, 2) for x in self.norm(q, k))
        sketch_q, sketch_k = (self.sketch(x.reshape(-1, *x.shape[2:])).reshape(*x.shape[:3], -1) for x in (q, k))
        scores = jnp.einsum("bhir,bhjr->bhij", sketch_q, sketch_k)
        scores = scores**2 if self.config.nonnegative else scores
        pairs = visible_pairs(q.shape[2], causal, key_mask)
        if self.config.local:
            visible = jnp.ones((1, q.shape[2]), bool) if key_mask is None else key_mask
            block = (jnp.cumsum(visible, axis=1) - 1) // self.config.block_size
            same = (block[:, None, :, None] == block[:, None, None, :]) & pairs
            scores = jnp.where(same, jnp.einsum("bhid,bhjd->bhij", q, k) ** self.config.degree, scores)
            pairs = pairs & visible[:, None, :, None]
        scores = jnp.where(pairs, scores, 0.0)
        least = None if self.config.nonnegative else self.config.min_denominator
        return divide(scores, 1 + scores.sum(-1), least)

    def _prefill(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        key_mask: Bool[Array, "B L"] | None,
        max_length: int,
    ) -> tuple[Float[Array, "B L H E"], Any]:
        q, k = self.norm(q, k)
        if not self.config.local:
            return linear_attention(q, k, v, self._options(), causal=True, key_mask=key_mask)
        batch, length = q.shape[:2]
        mask = jnp.ones((batch, length), bool) if key_mask is None else key_mask
        q, k, v, mask = left_aligned(key_mask, q, k, v, mask)
        out, _ = linear_attention(q, k, v, self._options(), causal=True, key_mask=mask)
        return restored(key_mask, out), self._local_state(k, v, mask)

    def _local_state(
        self, k: Float[Array, "B L H D"], v: Float[Array, "B L H E"], mask: Bool[Array, "B L"]
    ) -> LocalState:
        """Return the state after left-aligned, normalised keys."""
        size, count = self.config.block_size, mask.sum(1).astype(jnp.int32)
        index = jnp.arange(mask.shape[1])[None]
        complete = index < (count // size * size)[:, None]
        before, block = (
            absorbed(k, v, self._features, key_mask=part, chunk_size=size) for part in (complete, mask & ~complete)
        )
        # Residues of the current block. Indices past the end of the row repeat its last residue; these entries are
        # overwritten before they are read.
        rows = jnp.minimum((count // size * size)[:, None] + jnp.arange(size)[None], mask.shape[1] - 1)
        keys, values = (jnp.take_along_axis(x.astype(jnp.float32), rows[:, :, None, None], axis=1) for x in (k, v))
        return LocalState(before, block, keys, values, count)

    def _step(
        self, q: Float[Array, "B 1 H D"], k: Float[Array, "B 1 H D"], v: Float[Array, "B 1 H E"], state: Any
    ) -> tuple[Float[Array, "B 1 H E"], Any]:
        q, k = self.norm(q, k)
        if not self.config.local:
            return linear_attention(q, k, v, self._options(), causal=True, state=state)
        return self._local_step(q, k, v, state)

    def _local_step(
        self, q: Float[Array, "B 1 H D"], k: Float[Array, "B 1 H D"], v: Float[Array, "B 1 H E"], state: LocalState
    ) -> tuple[Float[Array, "B 1 H E"], LocalState]:
        config, (batch, _, heads, _) = self.config, q.shape
        index = state.count % config.block_size
        put = jax.vmap(lambda rows, row, i: jax.lax.dynamic_update_slice_in_dim(rows, row, i, 0))
        keys = put(state.keys, k, index)
        values = put(state.values, v.astype(jnp.float32), index)
        scores = jnp.einsum("bhd,bjhd->bhj", q[:, 0], keys) ** config.degree
        scores = jnp.where((jnp.arange(config.block_size)[None] <= index[:, None])[:, None], scores, 0.0)
        phi_q, phi_k = (self._features(x.reshape(batch * heads, 1, -1)).values for x in (q, k))
        far = jnp.einsum("ncm,nem->ne", phi_q, state.before.sums).reshape(batch, heads, -1)
        numerator = jnp.einsum("bhj,bjhe->bhe", scores, values) + far[..., :-1]
        least = None if config.nonnegative else config.min_denominator
        out = divide(numerator, 1 + scores.sum(-1) + far[..., -1], least)[:, None].astype(v.dtype)
        return out, self._with_token(state, phi_k, v, keys, values)

    def _with_token(
        self,
        state: LocalState,
        phi_k: Float[Array, "N 1 M"],
        v: Float[Array, "B 1 H E"],
        keys: Float[Array, "B b H D"],
        values: Float[Array, "B b H E"],
    ) -> LocalState:
        """Return the state with one more token; the sums of a block that is now complete are added to `before`."""
        batch, _, heads, width = v.shape
        v_one = with_ones(v.reshape(batch * heads, 1, width))
        block = state.block.sums + jnp.einsum("nce,ncm->nem", v_one, phi_k)
        count = state.count + 1
        complete = jnp.repeat(count % self.config.block_size == 0, heads)[:, None, None]
        before = state.before.sums + jnp.where(complete, block, 0.0)
        return LocalState(State(before, None), State(jnp.where(complete, 0.0, block), None), keys, values, count)
