"""Linear attention inside segments: several proteins in one row, none of which sees another.

The scan of linear.py with two changes. Inside a chunk a pair counts if both residues are of one segment. And the state
is of one segment, that of the last residue that the scan has passed: residues of another do not read it, and where a
chunk ends in another one it starts anew. So a causal row costs what it costs without segments, however many there are.
Bidirectional attention has no sum over all keys to read; it takes two scans, as exact blocks do: one adds what comes
before a chunk, one what comes after. Memory is linear in L and does not know the number of segments either.

What is not seen is left out by choice (where), not subtracted and not multiplied by 0: whatever neighbours hold, a
residue reads the same bits.

Local blocks (PolySketchFormer, section 3.2) are counted from a segment's first residue, so one of them may lie across
the border of two chunks. With `block_scores` a chunk's pairs reach as many chunks further as a block is long, and
states end, and start, so many chunks away. Chunks are half a block then: a query meets keys of one and a half blocks.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

from proteinlm.models.attention.blocks import join, split, with_ones
from proteinlm.models.attention.linear.state import (
    NEVER,
    Features,
    LinearOptions,
    State,
    absorb,
    empty_state,
    fast_chunk_size,
    local_scores,
    read_state,
    visible_features,
)
from proteinlm.models.positions import positions_in


class _Passed(NamedTuple):
    """What a scan carries: the state of the segment that it is in, and which one that is, int32 [N]."""

    state: State
    segment: Int[Array, "N"]


class _Keys(NamedTuple):
    """Keys of a chunk, or of neighbouring ones side by side; [S, N, C, .] before the scan takes one of S.

    Attributes:
        k: [N, C, D].
        v: [N, C, E].
        segment: int32 [N, C], 0 at padding.
        place: int32 [N, C], in the segment.
    """

    k: Array
    v: Array
    segment: Array
    place: Array


def segmented_attention(
    q: Float[Array, "B L H D"],
    k: Float[Array, "B L H D"],
    v: Float[Array, "B L H E"],
    segments: Int[Array, "B L"],
    options: LinearOptions,
    *,
    causal: bool,
) -> Float[Array, "B L H E"]:
    """Attend inside segments, as `linear_attention` would if each had a row for itself, in the values' dtype.

    Args:
        q: queries, k: keys, v: values; any float dtype, all finite.
        segments: see `Attention.__call__`.
        options: as for `linear_attention`. Exact blocks need `block_scores`.
        causal: residue i sees the residues of its segment up to itself; otherwise all of its segment.
    """
    chunk_size, block_scores = options.chunk_size, options.block_scores
    if options.exact_blocks and block_scores is None:
        raise ValueError("exact_blocks in segments need block_scores, the scores of pairs in one block and in two")
    batch, length, heads, width = v.shape
    if block_scores is None:
        chunk, reach = min(chunk_size or fast_chunk_size(causal=True), length), 0
    else:
        chunk = min((chunk_size + 1) // 2, length)
        reach = min((chunk_size + chunk - 2) // chunk, (length - 1) // chunk)
    queries, keys = split(q, chunk), _split_keys(k, v, segments, chunk)
    near = _side_by_side(keys, range(-reach, 1 if causal else reach + 1))
    rows = jnp.arange(chunk)
    # The column of a key that comes as late as the query: the past is up to it.
    past = jnp.arange(near.k.shape[2])[None, None, :] - reach * chunk <= rows[None, :, None]

    def add_near(phi_q: Features, own: tuple[Array, Array], keys: _Keys, phi_k: Features) -> tuple[Array, Array | None]:
        segment, place = own
        pairs = (segment[:, :, None] == keys.segment[:, None, :]) & (keys.segment > 0)[:, None, :]
        pairs = pairs & past if causal else pairs
        if block_scores is None:
            scores = local_scores(phi_q, phi_k, options.local_kernel)
        else:
            same = place[:, :, None] // chunk_size == keys.place[:, None, :] // chunk_size
            scores = block_scores(phi_q, phi_k, same)
        return _pair_sums(scores, pairs, phi_k.log_scale, with_ones(keys.v))

    def onward(passed: _Passed, inputs: tuple) -> tuple[_Passed, Array | tuple]:
        q, own, near, leaving = inputs
        phi_q, phi_k = options.features_of(q), options.features_of(near.k)
        sums, running = _add_state(passed, phi_q.values, own[0], *add_near(phi_q, own, near, phi_k))
        if leaving is not None:
            near, phi_k = leaving, options.features_of(leaving.k)
        passed = _pass(passed, near, phi_k, edge=-1)
        if not causal:
            return passed, (sums, running)
        return passed, options.output(checkpoint_name(sums, "sums"), phi_q.log_scale, running, v.dtype)

    def back(passed: _Passed, inputs: tuple) -> tuple[_Passed, Array]:
        q, own, leaving, (sums, running) = inputs
        phi_q = options.features_of(q)
        sums, running = _add_state(passed, phi_q.values, own[0], sums, running)
        passed = _pass(passed, leaving, options.features_of(leaving.k), edge=0)
        return passed, options.output(sums, phi_q.log_scale, running, v.dtype)

    nothing = _Passed(
        empty_state(options.features, batch * heads, k.shape[-1], width), jnp.zeros((batch * heads,), jnp.int32)
    )
    own = keys.segment, keys.place
    inputs = queries, own, near, _side_by_side(keys, [-reach]) if reach else None
    # As in linear.py: of a chunk its sums alone are kept.
    remade = partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("sums"))
    if causal:
        _, out = jax.lax.scan(remade(onward), nothing, inputs)
    else:
        _, found = jax.lax.scan(jax.checkpoint(onward), nothing, inputs)
        inputs = queries, own, _side_by_side(keys, [reach]), found
        _, out = jax.lax.scan(jax.checkpoint(back), nothing, inputs, reverse=True)
    return join(out, batch, length, heads)


def _split_keys(k: Array, v: Array, segments: Int[Array, "B L"], chunk: int) -> _Keys:
    def of_heads(x: Array) -> Array:
        x = jnp.broadcast_to(x.astype(jnp.int32)[:, :, None, None], (*k.shape[:3], 1))
        return split(x, chunk)[..., 0]

    return _Keys(split(k, chunk), split(v, chunk), of_heads(segments), of_heads(positions_in(segments)))


def _side_by_side(keys: _Keys, offsets: range | list[int]) -> _Keys:
    """Return for each chunk the keys of those at these offsets from it, one after another; zeros past the ends."""

    def moved(x: Array, offset: int) -> Array:
        if not offset:
            return x
        zeros = jnp.zeros_like(x[: abs(offset)])
        return jnp.concatenate([zeros, x[:offset]] if offset < 0 else [x[offset:], zeros])

    return _Keys(*(jnp.concatenate([moved(x, offset) for offset in offsets], axis=2) for x in keys))


def _pair_sums(
    scores: Float[Array, "N C K"],
    pairs: Bool[Array, "N C K"],
    log_scale: Float[Array, "N K"] | None,
    v_one: Float[Array, "N K F"],
) -> tuple[Float[Array, "N C F"], Float[Array, "N C"] | None]:
    """Return sums over the pairs, divided by exp(M_i), and M_i, the largest log scale among them."""
    if log_scale is None:
        return jnp.einsum("nij,nje->nie", jnp.where(pairs, scores, 0.0), v_one), None
    running = jnp.where(pairs, stop_gradient(log_scale)[:, None, :], NEVER).max(-1)
    decay = jnp.exp(jnp.where(pairs, log_scale[:, None, :] - running[:, :, None], NEVER))
    return jnp.einsum("nij,nje->nie", jnp.where(pairs, scores * decay, 0.0), v_one), running


def _add_state(
    passed: _Passed,
    phi_q: Float[Array, "N C M"],
    segment: Int[Array, "N C"],
    sums: Float[Array, "N C F"],
    running: Float[Array, "N C"] | None,
) -> tuple[Float[Array, "N C F"], Float[Array, "N C"] | None]:
    """Add what the state holds, for the residues of its segment; sums are divided by exp(running)."""
    reads = segment == passed.segment[:, None]
    found = read_state(passed.state, phi_q)
    if running is None or passed.state.maximum is None:
        return sums + jnp.where(reads[..., None], found, 0.0), None
    of_state = jnp.where(reads, passed.state.maximum[:, None], NEVER)
    largest = jnp.maximum(running, of_state)
    found = jnp.where(reads[..., None], found * jnp.exp(of_state - largest)[..., None], 0.0)
    return sums * jnp.exp(running - largest)[..., None] + found, largest


def _pass(passed: _Passed, keys: _Keys, phi_k: Features, edge: int) -> _Passed:
    """Return the state beyond a chunk: of the segment at its edge, of which it may hold earlier residues."""
    segment = keys.segment[:, edge]
    goes_on = segment == passed.segment
    sums = jnp.where(goes_on[:, None, None], passed.state.sums, 0.0)
    maximum = None if passed.state.maximum is None else jnp.where(goes_on, passed.state.maximum, NEVER)
    inside = (keys.segment == segment[:, None]) & (keys.segment > 0)
    return _Passed(absorb(State(sums, maximum), visible_features(phi_k, inside), with_ones(keys.v)), segment)
