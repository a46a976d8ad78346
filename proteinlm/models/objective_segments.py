"""Random draws of masked language modelling in rows of several proteins: those that each protein has alone in a row.

A protein alone in its row draws jax.random.bits of its key, one number for each position. JAX's threefry
(jax_threefry_partitionable, the default) computes number i from (key, i) alone, as fold_in does. Here every token folds
its position in its protein into the key of its protein, which gives the same bits, and the same numbers made of them.
"""

import jax
import jax.numpy as jnp
from jax import Array

from proteinlm import alphabet
from proteinlm.models.positions import positions_in, segment_starts


def draws_in_segments(
    key: Array, fraction: float, keys: Array, is_residue: Array, segments: Array
) -> tuple[Array, Array, Array]:
    """Return the draws of one row, [L] each: selected (bool), action (float32), residue (int32); see `masked_example`.

    Args:
        key: a JAX random key, with the step folded in.
        fraction: fraction of each protein's residues that are selected.
        keys: uint32 [S, 2], digests of the proteins' content.
        is_residue: bool [L].
        segments: int [L], from 1, ascending; then 0 at padding.
    """
    three_keys = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(jax.random.fold_in(key, k[0]), k[1]), 3))(keys)
    rank_key, action_key, residue_key = jnp.moveaxis(three_keys[jnp.maximum(segments - 1, 0)], 1, 0)
    positions = positions_in(segments[None])[0]
    selected = _selected(bits_at(rank_key, positions), fraction, is_residue, segments)
    return selected, uniform_at(action_key, positions), residues_at(residue_key, positions)


def _selected(bits: Array, fraction: float, is_residue: Array, segments: Array) -> Array:
    """Return the residues with the smallest bits of their protein: round(fraction n) of n, at least one."""
    bits = jnp.where(is_residue, bits >> 1, jnp.uint32(0xFFFFFFFF))
    index = jnp.arange(len(segments), dtype=jnp.int32)
    last = jnp.where(segments > 0, segments, len(segments) + 1)
    order = jax.lax.sort((last, bits, index), num_keys=2, is_stable=True)[2]
    # The first sort key is the protein, so each protein's tokens begin at the same index as before.
    rank = jnp.zeros_like(index).at[order].set(index) - segment_starts(segments[None])[0]
    count = jax.ops.segment_sum(is_residue.astype(jnp.float32), segments, len(segments) + 1)[segments]
    return is_residue & (rank < jnp.minimum(jnp.maximum(jnp.round(fraction * count), 1), count))


def bits_at(keys: Array, positions: Array) -> Array:
    """Return jax.random.bits(key, ...)[position] of each pair, uint32 [L]."""
    words = jax.random.key_data(jax.vmap(jax.random.fold_in)(keys, positions))
    return words[:, 0] ^ words[:, 1]


def uniform_at(keys: Array, positions: Array) -> Array:
    """Return jax.random.uniform(key, ...)[position] of each pair, float32 [L]: 23 bits are the mantissa of 1 to 2."""
    mantissa = (bits_at(keys, positions) >> 9) | jnp.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1.0


def residues_at(keys: Array, positions: Array) -> Array:
    """Return jax.random.randint(key, ..., first, first + 20)[position] of each pair: standard residues, int32 [L]."""
    high, low = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    span = jnp.uint32(alphabet.NUM_STANDARD)
    # 64 bits modulo 20, computed from two words of 32 bits.
    word = jnp.uint32(pow(2, 32, alphabet.NUM_STANDARD))
    offset = ((bits_at(high, positions) % span) * word + bits_at(low, positions) % span) % span
    return alphabet.FIRST_RESIDUE + offset.astype(jnp.int32)
