"""Polysketch attention: polynomial attention of degree p in linear time (PolySketchFormer, sections 2.2 to 3.2).

    out_i = sum_j s(i, j) v_j / (1 + sum_j s(i, j)),    s(i, j) = <S(q'_i), S(k'_j)>^2  ~  <q'_i, k'_j>^p

q' and k' are layer-normalised and divided by sqrt(beta) (QKNorm), S is a sketch of degree p / 2 (sketch.py), random
or learned, one for all heads, queries and keys. The square makes scores non-negative; as features it is
self-tensoring, r (r + 1) / 2 of them. Without it (`nonnegative` False) S has degree p and s = <S(q'), S(k')> has any
sign (Algorithm 1's PolySketchWithNegativity).

Local blocks. With `local`, residues of one block of `block_size` have the exact score <q'_i, k'_j>^p. Blocks are
counted from a row's first residue (in segments: from a segment's), wherever padding lies, and the same in both modes:
the paper has the causal one alone. A padded query reads 0 then.
"""

from dataclasses import dataclass
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
from proteinlm.models.attention.linear.state import Features, State, divide


@register_attention
@dataclass(frozen=True)
class PolySketchConfig(MechanismConfig):
    """Polysketch attention; the defaults are the paper's best (learned + local, r = 32).

    Attributes:
        degree: p, a power of two of at least 2 (2 needs no sketch: the features are exact).
        sketch_size: r; the paper has 32 and 64.
        learned: trained networks in place of Gaussian matrices (Algorithm 2).
        local: exact scores inside blocks (section 3.2).
        block_size: b, of these blocks; it is part of the model if `local`, otherwise nothing but speed.
        nonnegative: self-tensoring; without it scores and denominators can have any sign.
        beta: scores are <LN(q), LN(k)> / beta; None is sqrt(D), see `QKNorm`.
        min_denominator: if not `nonnegative`, the least distance of 1 + sum from 0 (see linear.py).
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
        """Return the mechanism; one sketch serves all heads, queries and keys."""
        return PolySketchAttention(self, num_heads=num_heads, head_dim=head_dim, key=key)


class LocalState(NamedTuple):
    """What Polysketch with local blocks remembers.

    Attributes:
        before: sums over the complete blocks.
        block: sums over the block that is not complete yet; it joins `before` when it is.
        keys: float32 [B, b, H, D], normalised keys of that block.
        values: float32 [B, b, H, E], its values.
        count: int32 [B], residues so far.
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
        """Draw a new random sketch; a learned one stays. A pure function of the key."""
        if isinstance(self.sketch, RandomSketch):
            self.sketch.redraw(key)

    def _features(self, x: Float[Array, "N C D"]) -> Features:
        """Return the features of normalised queries or keys, and what scores inside a chunk are made of."""
        sketch = self.sketch(x)
        if not self.config.nonnegative:
            return Features(sketch, local=x if self.config.local else None)
        return Features(self_tensor(sketch), local=x if self.config.local else sketch)

    def _options(self) -> dict[str, Any]:
        config = self.config
        degree = config.degree if config.local else 2
        return {
            "query_features": self._features,
            "key_features": self._features,
            "chunk_size": config.block_size,
            "constant": 1.0,
            "min_denominator": None if config.nonnegative else config.min_denominator,
            "local_kernel": (lambda s: s**degree) if config.local or config.nonnegative else None,
            "exact_blocks": config.local,
        }

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
            return linear_attention(q, k, v, causal=causal, key_mask=key_mask, **self._options())[0]
        q, k, v, mask = left_aligned(key_mask, q, k, v, key_mask)
        return restored(key_mask, linear_attention(q, k, v, causal=causal, key_mask=mask, **self._options())[0])

    def _attend_spread(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
        axis: str,
    ) -> Float[Array, "B L H E"]:
        """As `_attend`; local blocks are counted from a row's first place, so rows are padded on the right.

        Moving residues to the front of their row would move them between devices: rows padded elsewhere read NaN.
        """
        q, k = self.norm(q, k)
        if not self.config.local:
            return linear_attention(q, k, v, causal=causal, key_mask=key_mask, axis=axis, **self._options())[0]
        out, _ = linear_attention(q, k, v, causal=causal, key_mask=key_mask, axis=axis, **self._options())
        if key_mask is None:
            return out
        place = jax.lax.axis_index(axis) * q.shape[1] + jnp.arange(q.shape[1])
        on_the_right = key_mask == (place[None] < jax.lax.psum(key_mask.sum(1), axis)[:, None])
        fine = jax.lax.pmin(on_the_right.all(1).astype(jnp.int32), axis)[:, None, None, None] > 0
        # Padded queries read 0, as on one device.
        out = jnp.where(key_mask[:, :, None, None], out, jnp.zeros((), out.dtype))
        return jnp.where(fine, out, jnp.full((), jnp.nan, out.dtype))

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
            return segmented_attention(q, k, v, segments, causal=causal, **options)
        # Each residue's sketch is scored in up to three chunks: it is made once, and travels with the residue.
        q, k = self._with_sketch(q), self._with_sketch(k)
        options |= {"query_features": self._of_sketch, "key_features": self._of_sketch}
        return segmented_attention(q, k, v, segments, causal=causal, block_scores=self._block_scores, **options)

    def _with_sketch(self, x: Float[Array, "B L H D"]) -> Float[Array, "B L H DR"]:
        batch, length, heads, _ = x.shape
        sketches = jax.lax.map(jax.checkpoint(self.sketch), split(x, min(self.config.block_size, length)))
        return jnp.concatenate([x, join(sketches, batch, length, heads)], axis=-1)

    def _of_sketch(self, x: Float[Array, "N C DR"]) -> Features:
        """Return `_features` of what has its sketch behind it."""
        sketch = x[..., self.head_dim :]
        return Features(self_tensor(sketch) if self.config.nonnegative else sketch, local=x)

    def _block_scores(self, phi_q: Features, phi_k: Features, same_block: Bool[Array, "N C K"]) -> Array:
        """Return exact scores in a block, those of the sketch elsewhere."""
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
        """s(i, j) / (1 + sum_j s(i, j))."""
        q, k = (x.swapaxes(1, 2) for x in self.norm(q, k))
        sketch_q, sketch_k = (self.sketch(x.reshape(-1, *x.shape[2:])).reshape(*x.shape[:3], -1) for x in (q, k))
        scores = jnp.einsum("bhir,bhjr->bhij", sketch_q, sketch_k)
        scores = scores**2 if self.config.nonnegative else scores
        pairs = visible_pairs(q.shape[2], causal, key_mask)
        if self.config.local:
            seen = jnp.ones((1, q.shape[2]), bool) if key_mask is None else key_mask
            block = (jnp.cumsum(seen, axis=1) - 1) // self.config.block_size
            same = (block[:, None, :, None] == block[:, None, None, :]) & pairs
            scores = jnp.where(same, jnp.einsum("bhid,bhjd->bhij", q, k) ** self.config.degree, scores)
            pairs = pairs & seen[:, None, :, None]
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
            return linear_attention(q, k, v, causal=True, key_mask=key_mask, **self._options())
        batch, length = q.shape[:2]
        mask = jnp.ones((batch, length), bool) if key_mask is None else key_mask
        q, k, v, mask = left_aligned(key_mask, q, k, v, mask)
        out, _ = linear_attention(q, k, v, causal=True, key_mask=mask, **self._options())
        return restored(key_mask, out), self._local_state(k, v, mask)

    def _local_state(
        self, k: Float[Array, "B L H D"], v: Float[Array, "B L H E"], mask: Bool[Array, "B L"]
    ) -> LocalState:
        """Return the state after left-aligned, normalised keys."""
        size, count = self.config.block_size, mask.sum(1).astype(jnp.int32)
        place = jnp.arange(mask.shape[1])[None]
        complete = place < (count // size * size)[:, None]
        before, block = (
            absorbed(k, v, key_features=self._features, key_mask=part, chunk_size=size)
            for part in (complete, mask & ~complete)
        )
        # Rows of the block; what lies past the row's end is not read before it is written over.
        rows = jnp.minimum((count // size * size)[:, None] + jnp.arange(size)[None], mask.shape[1] - 1)
        keys, values = (jnp.take_along_axis(x.astype(jnp.float32), rows[:, :, None, None], axis=1) for x in (k, v))
        return LocalState(before, block, keys, values, count)

    def _step(
        self, q: Float[Array, "B 1 H D"], k: Float[Array, "B 1 H D"], v: Float[Array, "B 1 H E"], state: Any
    ) -> tuple[Float[Array, "B 1 H E"], Any]:
        q, k = self.norm(q, k)
        if not self.config.local:
            return linear_attention(q, k, v, causal=True, state=state, **self._options())
        return self._local_step(q, k, v, state)

    def _local_step(
        self, q: Float[Array, "B 1 H D"], k: Float[Array, "B 1 H D"], v: Float[Array, "B 1 H E"], state: LocalState
    ) -> tuple[Float[Array, "B 1 H E"], LocalState]:
        config, (batch, _, heads, _) = self.config, q.shape
        place = state.count % config.block_size
        put = jax.vmap(lambda rows, row, i: jax.lax.dynamic_update_slice_in_dim(rows, row, i, 0))
        keys = put(state.keys, k, place)
        values = put(state.values, v.astype(jnp.float32), place)
        scores = jnp.einsum("bhd,bjhd->bhj", q[:, 0], keys) ** config.degree
        scores = jnp.where((jnp.arange(config.block_size)[None] <= place[:, None])[:, None], scores, 0.0)
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
        """Return the state with one more token; a complete block moves to `before`."""
        batch, _, heads, width = v.shape
        v_one = with_ones(v.reshape(batch * heads, 1, width))
        block = state.block.sums + jnp.einsum("nce,ncm->nem", v_one, phi_k)
        count = state.count + 1
        complete = jnp.repeat(count % self.config.block_size == 0, heads)[:, None, None]
        before = state.before.sums + jnp.where(complete, block, 0.0)
        return LocalState(State(before, None), State(jnp.where(complete, 0.0, block), None), keys, values, count)
