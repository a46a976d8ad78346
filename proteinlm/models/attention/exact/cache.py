"""The decoding state of exact mechanisms: all keys and values so far."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int


class KeyValueCache(NamedTuple):
    """Keys and values of the tokens so far, with free places for later ones; S places in all.

    Attributes:
        keys: [B, S, H, D], the inputs' dtype.
        values: [B, S, H, E], the inputs' dtype.
        visible: bool [B, S]; False for padding and for free places.
        length: int32, number of tokens so far, padding included.
    """

    keys: Float[Array, "B S H D"]
    values: Float[Array, "B S H E"]
    visible: Bool[Array, "B S"]
    length: Int[Array, ""]


def filled(
    k: Float[Array, "B L H D"], v: Float[Array, "B L H E"], key_mask: Bool[Array, "B L"] | None, max_length: int
) -> KeyValueCache:
    """Return a cache of `max_length` places with these tokens in the first L."""
    batch, length = k.shape[:2]
    free = max_length - length
    visible = jnp.ones((batch, length), bool) if key_mask is None else key_mask
    return KeyValueCache(
        jnp.pad(k, ((0, 0), (0, free), (0, 0), (0, 0))),
        jnp.pad(v, ((0, 0), (0, free), (0, 0), (0, 0))),
        jnp.pad(visible, ((0, 0), (0, free))),
        jnp.asarray(length, jnp.int32),
    )


def appended(cache: KeyValueCache, k: Float[Array, "B 1 H D"], v: Float[Array, "B 1 H E"]) -> KeyValueCache:
    """Return the cache with one more token of each row; jax.jit updates a donated cache in place.

    If no place is free, the new value is NaN, and so are the outputs (a slice update alone would silently overwrite the
    last token).

    Raises:
        ValueError: no place is free, and the length is known (outside jit).
    """
    size = cache.keys.shape[1]
    if not isinstance(cache.length, Tracer) and int(cache.length) >= size:
        raise ValueError(f"the cache is full: max_length of the prefill was {size}; there is no place for another key")
    v = jnp.where(cache.length < size, v, jnp.nan).astype(cache.values.dtype)
    return KeyValueCache(
        lax.dynamic_update_slice_in_dim(cache.keys, k.astype(cache.keys.dtype), cache.length, axis=1),
        lax.dynamic_update_slice_in_dim(cache.values, v, cache.length, axis=1),
        lax.dynamic_update_slice_in_dim(cache.visible, jnp.ones((k.shape[0], 1), bool), cache.length, axis=1),
        cache.length + 1,
    )
