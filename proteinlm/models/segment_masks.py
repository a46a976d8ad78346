"""The random draws of masked language modelling for rows of several proteins: each protein's are those it has alone.

A row alone draws jax.random.bits of its own key over its places. JAX's threefry (jax_threefry_partitionable, the
default) makes bit i from (key, i) alone, by what fold_in does with (key, i); so here every token folds its place in its
protein into its protein's key, and the bits are the same. So are the numbers that JAX makes of them.
"""

import jax
import jax.numpy as jnp
from jax import Array

from proteinlm import alphabet
from proteinlm.models.positions import positions_in, segment_starts


def draws_in_segments(
    key: Array, fraction: float, keys: Array, is_residue: Array, segments: Array
) -> tuple[Array, Array, Array]:
    """Return (selected bool, action float32, residue int32), [L] each, of one row; `masked_example` says what they are.

    Args:
        key: a JAX random key, with the step folded in.
        fraction: share of each protein's residues that are selected.
        keys: uint32 [S, 2], of each protein's content.
        is_residue: bool [L].
        segments: int [L], from 1, ascending; 0 at pads, after them.
    """
    own = jax.vmap(lambda k: jax.random.split(jax.random.fold_in(jax.random.fold_in(key, k[0]), k[1]), 3))(keys)
    rank_key, action_key, residue_key = jnp.moveaxis(own[jnp.maximum(segments - 1, 0)], 1, 0)
    places = positions_in(segments[None])[0]
    selected = _selected(bits_at(rank_key, places), fraction, is_residue, segments)
    return selected, uniform_at(action_key, places), residues_at(residue_key, places)


def _selected(bits: Array, fraction: float, is_residue: Array, segments: Array) -> Array:
    """Return the residues with the smallest bits of their protein, round(fraction n) of n and at least one."""
    bits = jnp.where(is_residue, bits >> 1, jnp.uint32(0xFFFFFFFF))
    places = jnp.arange(len(segments), dtype=jnp.int32)
    last = jnp.where(segments > 0, segments, len(segments) + 1)
    order = jax.lax.sort((last, bits, places), num_keys=2, is_stable=True)[2]
    # Sorted by protein first: each protein's tokens still begin where they did.
    rank = jnp.zeros_like(places).at[order].set(places) - segment_starts(segments[None])[0]
    count = jax.ops.segment_sum(is_residue.astype(jnp.float32), segments, len(segments) + 1)[segments]
    return is_residue & (rank < jnp.minimum(jnp.maximum(jnp.round(fraction * count), 1), count))


def bits_at(keys: Array, places: Array) -> Array:
    """Return jax.random.bits(key, ...)[place] of each pair, uint32 [L]."""
    words = jax.random.key_data(jax.vmap(jax.random.fold_in)(keys, places))
    return words[:, 0] ^ words[:, 1]


def uniform_at(keys: Array, places: Array) -> Array:
    """Return jax.random.uniform(key, ...)[place] of each pair, float32 [L]: 23 bits are the mantissa of 1 to 2."""
    mantissa = (bits_at(keys, places) >> 9) | jnp.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type(mantissa, jnp.float32) - 1.0


def residues_at(keys: Array, places: Array) -> Array:
    """Return jax.random.randint(key, ..., first, first + 20)[place] of each pair, the standard residues: int32 [L]."""
    high, low = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    span = jnp.uint32(alphabet.NUM_STANDARD)
    # 64 bits modulo 20, from two words of 32.
    word = jnp.uint32(pow(2, 32, alphabet.NUM_STANDARD))
    offset = ((bits_at(high, places) % span) * word + bits_at(low, places) % span) % span
    return alphabet.FIRST_RESIDUE + offset.astype(jnp.int32)
