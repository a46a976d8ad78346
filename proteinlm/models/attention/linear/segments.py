"""Linear attention in rows of several proteins (segments) that do not attend to each other.

The algorithm is the scan of linear_attention.py with two changes. Inside a chunk, a pair counts only if both residues
belong to the same segment. The state belongs to one segment, that of the last residue before the chunk: residues of
other segments do not use it, and if the chunk ends in another segment, the state is reset. So a causal row has the cost
of a row without segments, for any number of segments. Bidirectional attention has no sum over all keys here; it takes
two scans, as exact blocks do: one adds the keys before a chunk, one the keys after it. Memory is linear in L and does
not depend on the number of segments either.

Invisible keys are left out by `where`; they are not subtracted or multiplied by 0. So the output of a residue has the
same bits whatever its neighbours are.

Local blocks (PolySketchFormer, section 3.2) are counted from the first residue of a segment, so a block may cross the
border of two chunks. With `block_scores` the explicit pairs of a chunk therefore extend over as many neighbouring
chunks as a block is long (`reach`), and the state covers the chunks beyond. Chunks have half the length of a block: a
query is paired with the keys of one and a half blocks.
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
    """Carry of the scan: the state of the current segment, and the number of that segment, int32 [N]."""

    state: State
    segment: Int[Array, "N"]


class _Keys(NamedTuple):
    """Keys of a chunk, or of neighbouring chunks side by side; [S, N, C, .] before the scan takes one of S.

    Attributes:
        k: [N, C, D].
        v: [N, C, E].
        segment: int32 [N, C], 0 at padding.
        position: int32 [N, C], in the segment.
    """

    k: Array
    v: Array
    segment: Array
    position: Array


def segmented_attention(
    q: Float[Array, "B L H D"],
    k: Float[Array, "B L H D"],
    v: Float[Array, "B L H E"],
    segments: Int[Array, "B L"],
    options: LinearOptions,
    *,
    causal: bool,
) -> Float[Array, "B L H E"]:
    """Attend inside segments, as `linear_attention` does if each is alone in a row; the result has the values' dtype.

    Args:
        q: queries, k: keys, v: values; any float dtype, all finite.
        segments: see `Attention.__call__`.
        options: as for `linear_attention`. Exact blocks need `block_scores`.
        causal: residue i attends to the residues of its segment up to itself; otherwise to all of its segment.
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
    # A key is in the past if its column is at most that of the query.
    past = jnp.arange(near.k.shape[2])[None, None, :] - reach * chunk <= rows[None, :, None]

    def add_near(
        phi_q: Features, of_queries: tuple[Array, Array], keys: _Keys, phi_k: Features
    ) -> tuple[Array, Array | None]:
        segment, position = of_queries
        pairs = (segment[:, :, None] == keys.segment[:, None, :]) & (keys.segment > 0)[:, None, :]
        pairs = pairs & past if causal else pairs
        if block_scores is None:
            scores = local_scores(phi_q, phi_k, options.local_kernel)
        else:
            same = position[:, :, None] // chunk_size == keys.position[:, None, :] // chunk_size
            scores = block_scores(phi_q, phi_k, same)
        return _pair_sums(scores, pairs, phi_k.log_scale, with_ones(keys.v))

    def onward(passed: _Passed, inputs: tuple) -> tuple[_Passed, Array | tuple]:
        q, of_queries, near, leaving = inputs
        phi_q, phi_k = options.features_of(q), options.features_of(near.k)
        sums, running = _add_state(passed, phi_q.values, of_queries[0], *add_near(phi_q, of_queries, near, phi_k))
        if leaving is not None:
            near, phi_k = leaving, options.features_of(leaving.k)
        passed = _pass(passed, near, phi_k, edge=-1)
        if not causal:
            return passed, (sums, running)
        return passed, options.output(checkpoint_name(sums, "sums"), phi_q.log_scale, running, v.dtype)

    def back(passed: _Passed, inputs: tuple) -> tuple[_Passed, Array]:
        q, of_queries, leaving, (sums, running) = inputs
        phi_q = options.features_of(q)
        sums, running = _add_state(passed, phi_q.values, of_queries[0], sums, running)
        passed = _pass(passed, leaving, options.features_of(leaving.k), edge=0)
        return passed, options.output(sums, phi_q.log_scale, running, v.dtype)

    empty = _Passed(
        empty_state(options.features, batch * heads, k.shape[-1], width), jnp.zeros((batch * heads,), jnp.int32)
    )
    of_queries = keys.segment, keys.position
    inputs = queries, of_queries, near, _side_by_side(keys, [-reach]) if reach else None
    # As in linear_attention.py: for each chunk only its sums are kept.
    recomputed = partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("sums"))
    if causal:
        _, out = jax.lax.scan(recomputed(onward), empty, inputs)
    else:
        _, sums_before = jax.lax.scan(jax.checkpoint(onward), empty, inputs)
        inputs = queries, of_queries, _side_by_side(keys, [reach]), sums_before
        _, out = jax.lax.scan(jax.checkpoint(back), empty, inputs, reverse=True)
    return join(out, batch, length, heads)


def _split_keys(k: Array, v: Array, segments: Int[Array, "B L"], chunk: int) -> _Keys:
    def of_heads(x: Array) -> Array:
        x = jnp.broadcast_to(x.astype(jnp.int32)[:, :, None, None], (*k.shape[:3], 1))
        return split(x, chunk)[..., 0]

    return _Keys(split(k, chunk), split(v, chunk), of_heads(segments), of_heads(positions_in(segments)))


def _side_by_side(keys: _Keys, offsets: range | list[int]) -> _Keys:
    """Return for each chunk the keys of the chunks at these offsets from it, concatenated; zeros past the ends."""

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
    """Add the sums of the state for the residues of its segment; sums are divided by exp(running)."""
    reads = segment == passed.segment[:, None]
    of_keys = read_state(passed.state, phi_q)
    if running is None or passed.state.maximum is None:
        return sums + jnp.where(reads[..., None], of_keys, 0.0), None
    of_state = jnp.where(reads, passed.state.maximum[:, None], NEVER)
    largest = jnp.maximum(running, of_state)
    of_keys = jnp.where(reads[..., None], of_keys * jnp.exp(of_state - largest)[..., None], 0.0)
    return sums * jnp.exp(running - largest)[..., None] + of_keys, largest


def _pass(passed: _Passed, keys: _Keys, phi_k: Features, edge: int) -> _Passed:
    """Return the state after a chunk, of the segment at its edge; that segment may have begun in an earlier chunk."""
    segment = keys.segment[:, edge]
    continues = segment == passed.segment
    sums = jnp.where(continues[:, None, None], passed.state.sums, 0.0)
    maximum = None if passed.state.maximum is None else jnp.where(continues, passed.state.maximum, NEVER)
    inside = (keys.segment == segment[:, None]) & (keys.segment > 0)
    return _Passed(absorb(State(sums, maximum), visible_features(phi_k, inside), with_ones(keys.v)), segment)
