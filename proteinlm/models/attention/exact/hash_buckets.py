"""Attention inside hash buckets, in several rounds; each round assigns the residues to buckets independently.

In a round, residue i attends to the nearest residues of its own bucket. With rank_i the number of residues of the
bucket before i, in order of position,

    causal: 1 <= rank_i - rank_j <= window        bidirectional: 1 <= |rank_i - rank_j| <= window

A residue attends to the union of its keys of all rounds: a key of N_ij rounds counts 1 / N_ij in each of them.

The list. A round sorts residues by bucket and position into a list of T slots. Each bucket starts at a multiple of the
block size, so that the slot of a residue in its block follows from its rank. Later tokens and padding move whole
blocks, so the arithmetic for a residue, and its output, stay the same to the last bit. A block of queries is scored
with its own keys and a window of keys before it (bidirectional: and after it). A block is a quarter of a window: with L
/ window buckets the list has at most 1.25 L slots, and each slot is scored with 1.25 windows of keys. Padding is not in
the list.

The rounds run one after another with a running softmax, and so do the blocks of a round. The backward pass is written
by hand: it keeps the output and two numbers per residue, and computes the scores of each block again. All arrays are
float32, and memory is linear in L.

Axes: N rows (B * H), L residues, R rounds, K buckets, T slots of the list, D and E widths of keys and values.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from proteinlm.models.attention.blocks import with_ones
from proteinlm.models.attention.linear.state import NEVER, divide

# The code of an empty slot: the codes of residues are at least 0, so none of them is within a window of it.
_EMPTY = -(2**30)


class Rounds(NamedTuple):
    """The sorted list of residues of each round; it has T slots.

    Attributes:
        slot: int32 [R, N, L], slot of each residue in the list; T for padding.
        residue: int32 [R, N, T], residue in each slot; L: empty.
        code: int32 [R, N, L]. i and j share a bucket and their ranks differ by r <= window if and only if their codes
            differ by r.
        alone: bool [N, L], whether a residue has no key in any round.
    """

    slot: Array
    residue: Array
    code: Array
    alone: Array


def rounds_of(
    buckets: Int[Array, "R N L"], visible: Bool[Array, "N L"], num_buckets: int, window: int, causal: bool
) -> Rounds:
    """Sort the residues of each round into its list.

    Args:
        buckets: bucket of each residue in each round, 0 to num_buckets - 1.
        visible: False for padding, which is not in the list.
        num_buckets: K.
        window: number of keys of a residue on each side; at most L.
        causal: residues attend to earlier ones alone.
    """
    length, block = buckets.shape[-1], _block(window)
    # Each bucket with residues leaves fewer slots empty than a block has.
    size = (length + min(num_buckets, length) * (block - 1)) // block * block

    def slots_of_row(bucket: Array) -> tuple[Array, ...]:
        rank, sizes = ranks(bucket, num_buckets)
        padded = (sizes + block - 1) // block * block
        first = jnp.cumsum(padded) - padded
        visible = bucket < num_buckets
        known = jnp.minimum(bucket, num_buckets - 1)
        slot = jnp.where(visible, first[known] + rank, size)
        residue = jnp.full(size, length, jnp.int32).at[slot].set(jnp.arange(length, dtype=jnp.int32), mode="drop")
        alone = rank == 0 if causal else sizes[known] == 1
        # Between two buckets the codes have a gap that is wider than the window.
        return slot, residue, slot + bucket * (window + 1), alone

    buckets = jnp.where(visible[None], buckets, num_buckets)
    slot, residue, code, alone = jax.vmap(jax.vmap(slots_of_row))(buckets)
    return Rounds(slot, residue, code, alone.all(0))


def rounds_in_segments(
    buckets: Int[Array, "R N L"], segments: Int[Array, "N L"], num_buckets: int, window: int, causal: bool
) -> Rounds:
    """Sort the residues of each round by segment, bucket and position; arguments as for `rounds_of`; 0 is padding.

    The slots of a segment begin at the index at which the segment begins in its row, whatever other segments hold. The
    buckets of a segment follow each other without empty slots, which would otherwise grow with the number of segments.
    So a later token of the same protein can change the arithmetic of an earlier one, by rounding alone.
    """
    length, block = buckets.shape[-1], _block(window)
    size = (length + block - 1) // block * block
    numbers = jnp.arange(length, dtype=jnp.int32)

    def slots_of_row(bucket: Array, segments: Array) -> tuple[Array, ...]:
        visible = segments > 0
        group = jnp.where(visible, segments * num_buckets + bucket, jnp.iinfo(jnp.int32).max)
        order = jnp.argsort(group, stable=True)
        rank = jnp.argsort(order).astype(jnp.int32)
        differs = group[order][1:] != group[order][:-1]
        begins, ends = jnp.pad(differs, (1, 0), constant_values=True), jnp.pad(differs, (0, 1), constant_values=True)
        alone = begins if causal else begins & ends
        code = numbers + jnp.cumsum(begins, dtype=jnp.int32) * (window + 1)
        slot = jnp.where(visible, rank, size)
        residue = jnp.full(size, length, jnp.int32).at[slot].set(numbers, mode="drop")
        return slot, residue, code[rank], alone[rank]

    slot, residue, code, alone = jax.vmap(jax.vmap(slots_of_row), in_axes=(0, None))(buckets, segments)
    return Rounds(slot, residue, code, alone.all(0))


def ranks(bucket: Int[Array, " L"], num_buckets: int) -> tuple[Int[Array, " L"], Int[Array, " K"]]:
    """Return the number of residues of the same bucket before each residue, and bucket sizes; padding has bucket K."""
    order = jnp.argsort(bucket, stable=True)
    starts = jnp.searchsorted(bucket[order], jnp.arange(num_buckets + 1, dtype=jnp.int32)).astype(jnp.int32)
    return jnp.argsort(order).astype(jnp.int32) - starts[bucket], jnp.diff(starts)


def attend_in_buckets(
    q: Float[Array, "N L D"],
    k: Float[Array, "N L D"],
    v: Float[Array, "N L E"],
    rounds: Rounds,
    window: int,
    causal: bool,
) -> Float[Array, "N L E"]:
    """Return softmax(q.k) v over the union of the rounds' keys, float32; 0 for a residue without keys.

    q, k and v are float32; window and causal are those of `rounds_of`.
    """
    return _attend(q, k, v, rounds, window, causal)  # pyright: ignore[reportReturnType]


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(q: Array, k: Array, v: Array, rounds: Rounds, window: int, causal: bool) -> Array:
    return _forward(q, k, v, rounds, window, causal)[0]


def _forward(q: Array, k: Array, v: Array, rounds: Rounds, window: int, causal: bool) -> tuple[Array, tuple]:
    """Sum over the rounds with a running softmax: [numerator | denominator], divided by exp of the largest score."""
    keys_values = jnp.concatenate([k, with_ones(v)], axis=-1)
    dim, width = q.shape[-1], v.shape[-1]

    def add_round(carry: tuple[Array, Array], of_round: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        sums, largest = carry
        number, slot, residue = of_round
        lists = _Lists.of(number, residue, rounds.code, keys_values, window, causal)
        queries = take(q, residue)

        def read(block: Array) -> Array:
            keys, values = jnp.split(lists.window_of(block), [dim], axis=-1)
            scores = jnp.einsum("nid,njd->nij", lists.block_of(queries, block), keys)
            return jnp.concatenate(softmax_sums(scores, lists.share(block), values), axis=-1)

        read_by_residues = take(_joined(jax.lax.map(read, lists.blocks)), slot)
        round_sums, round_largest = jnp.split(read_by_residues, [width + 1], axis=-1)
        round_largest = jnp.where(round_sums[..., -1:] > 0, round_largest, NEVER)
        new = jnp.maximum(largest, round_largest)
        return (sums * jnp.exp(largest - new) + round_sums * jnp.exp(round_largest - new), new), None

    start = jnp.zeros((*q.shape[:2], width + 1)), jnp.full((*q.shape[:2], 1), NEVER)
    (sums, largest), _ = jax.lax.scan(add_round, start, (_numbers(rounds), rounds.slot, rounds.residue))
    out, denominator = divide(sums[..., :-1], sums[..., -1], None), sums[..., -1:]
    return out, (q, k, v, rounds, out, denominator, largest)


def _backward(window: int, causal: bool, kept: tuple, d_out: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, rounds, out, denominator, largest = kept
    has_keys = denominator > 0
    d_out = jnp.where(has_keys, d_out / jnp.where(has_keys, denominator, 1.0), 0.0)
    keys_values = jnp.concatenate([k, v], axis=-1)
    of_query = jnp.concatenate([q, d_out, (d_out * out).sum(-1, keepdims=True), largest], axis=-1)
    dim, width = q.shape[-1], v.shape[-1]

    def add_round(carry: tuple[Array, Array], of_round: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        number, slot, residue = of_round
        lists = _Lists.of(number, residue, rounds.code, keys_values, window, causal)
        queries = take(of_query, residue)

        def add_block(window_sums: Array, block: Array) -> tuple[Array, tuple[Array, Array]]:
            d_queries, d_window = _block_gradients(
                lists.block_of(queries, block), lists.share(block), lists.window_of(block), dim
            )
            # The window moves on by a block; the sums of the block that leaves it are complete.
            done, rest = jnp.split(window_sums + d_window, [lists.size], axis=1)
            return jnp.pad(rest, ((0, 0), (0, lists.size), (0, 0))), (d_queries, done)

        zeros = jnp.zeros((len(q), lists.span, dim + width))
        rest, (d_queries, done) = jax.lax.scan(add_block, zeros, lists.blocks)
        d_list = jnp.concatenate([_joined(done), rest], axis=1)[:, window : window + queries.shape[1]]
        return (carry[0] + take(_joined(d_queries), slot), carry[1] + take(d_list, slot)), None

    start = jnp.zeros(q.shape), jnp.zeros((*q.shape[:2], dim + width))
    (d_q, d_kv), _ = jax.lax.scan(add_round, start, (_numbers(rounds), rounds.slot, rounds.residue))
    return d_q, d_kv[..., :dim], d_kv[..., dim:], None


def _block_gradients(
    queries: Float[Array, "N I G"],
    share: Float[Array, "N I J"],
    keys_values: Float[Array, "N J F"],
    dim: int,
) -> tuple[Float[Array, "N I D"], Float[Array, "N J F"]]:
    """Return the gradients of a block's q and of its window's [keys | values].

    Queries are [q | d_out | average | largest]. With d_out_i divided by the softmax's denominator, p_ij = share_ij
    exp(s_ij - largest_i) takes the role of the weight: d v_j = sum_i p_ij d_out_i, d s_ij = p_ij (d_out_i.v_j -
    average_i), average_i = d_out_i.out_i.
    """
    keys, values = jnp.split(keys_values, [dim], axis=-1)
    q, d_out, average, largest = jnp.split(queries, (dim, keys_values.shape[-1], keys_values.shape[-1] + 1), axis=-1)
    scores = jnp.where(share > 0, jnp.einsum("nid,njd->nij", q, keys) - largest, NEVER)
    weights = jnp.exp(scores) * share
    d_scores = weights * (jnp.einsum("nie,nje->nij", d_out, values) - average)
    d_keys = jnp.einsum("nij,nid->njd", d_scores, q)
    d_values = jnp.einsum("nij,nie->nje", weights, d_out)
    return jnp.einsum("nij,njd->nid", d_scores, keys), jnp.concatenate([d_keys, d_values], axis=-1)


_attend.defvjp(_forward, _backward)


def _numbers(rounds: Rounds) -> Int[Array, " R"]:
    return jnp.arange(len(rounds.slot), dtype=jnp.int32)


class _Lists(NamedTuple):
    """The sorted list of one round, with access to blocks of queries and the windows of keys around them.

    Attributes:
        number: int32 [], index of the round.
        codes: int32 [N, R, T + window (+ window)], codes of all rounds, with empty slots on each side that is read.
        keys_values: float32 [N, T + window (+ window), D + E].
        window: number of keys on each side.
        size: number of slots in a block.
        causal: whether the keys are before the block alone.
    """

    number: Array
    codes: Array
    keys_values: Array
    window: int
    size: int
    causal: bool

    @classmethod
    def of(cls, number: Array, residue: Array, codes: Array, keys_values: Array, window: int, causal: bool) -> "_Lists":
        residue = jnp.pad(residue, ((0, 0), (window, 0 if causal else window)), constant_values=keys_values.shape[1])
        codes = take(codes.transpose(1, 2, 0), residue, _EMPTY).swapaxes(1, 2)
        return cls(number, codes, take(keys_values, residue), window, _block(window), causal)

    @property
    def span(self) -> int:
        """Number of keys for a block: its own, those before it and, bidirectional, those after it."""
        return self.size + self.window * (1 if self.causal else 2)

    @property
    def blocks(self) -> Array:
        """Index of each block."""
        return jnp.arange((self.codes.shape[-1] - self.span) // self.size + 1)

    def block_of(self, x: Array, block: Array) -> Array:
        """Return one block of a list [N, T, ...] without the empty slots at its ends."""
        return jax.lax.dynamic_slice_in_dim(x, block * self.size, self.size, axis=1)

    def window_of(self, block: Array) -> Array:
        """Return [keys | values] for the block, [N, span, D + E]."""
        return jax.lax.dynamic_slice_in_dim(self.keys_values, block * self.size, self.span, axis=1)

    def share(self, block: Array) -> Array:
        """Return 1 / N_ij if query i of the block has key j of the window in this round, else 0: [N, size, span]."""
        codes = jax.lax.dynamic_slice_in_dim(self.codes, block * self.size, self.span, axis=-1)
        difference = codes[..., self.window : self.window + self.size, None] - codes[..., None, :]
        difference = difference if self.causal else jnp.abs(difference)
        visible = (difference >= 1) & (difference <= self.window)
        in_round = jax.lax.dynamic_index_in_dim(visible, self.number, axis=1, keepdims=False)
        return jnp.where(in_round, 1 / jnp.maximum(visible.sum(1), 1).astype(jnp.float32), 0.0)


def softmax_sums(
    scores: Float[Array, "N I J"], share: Float[Array, "N I J"], v_one: Float[Array, "N J F"]
) -> tuple[Float[Array, "N I F"], Float[Array, "N I 1"]]:
    """Return sums of share exp(score - largest) [v | 1], and the largest score, NEVER if every share is 0."""
    scores = jnp.where(share > 0, scores, NEVER)
    largest = scores.max(-1, keepdims=True)
    return jnp.einsum("nij,njf->nif", jnp.exp(scores - largest) * share, v_one), largest


def _block(window: int) -> int:
    """Return the block size. The list and its windows grow with it; below a quarter of a window time does not fall."""
    return max(window // 4, 1)


def take(x: Array, index: Int[Array, "N T"], empty: int = 0) -> Array:
    """Return rows of each list, [N, L, W] and [N, T] -> [N, T, W]; `empty` for an index of L or more."""
    return jax.vmap(lambda x, i: x.at[i].get(mode="fill", fill_value=empty))(x, index)


def _joined(blocks: Float[Array, "S N C W"]) -> Float[Array, "N T W"]:
    """Join the blocks that a scan returns to one list."""
    return blocks.swapaxes(0, 1).reshape(blocks.shape[1], -1, blocks.shape[3])
