"""Arrays [B, L, H, .] split into blocks of C residues, [S, N, C, .] (S blocks, N = B * H rows), and joined again."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped


def split(x: Shaped[Array, "B L H W"], block: int) -> Shaped[Array, "S N C W"]:
    """Split into S = L / C blocks, rounded up; the last one is filled with zeros."""
    batch, length, heads, width = x.shape
    steps = math.ceil(length / block)
    x = jnp.pad(x, ((0, 0), (0, steps * block - length), (0, 0), (0, 0)))
    x = x.reshape(batch, steps, block, heads, width).transpose(1, 0, 3, 2, 4)
    return x.reshape(steps, batch * heads, block, width)


def split_mask(
    key_mask: Bool[Array, "B L"] | None, batch: int, length: int, heads: int, block: int
) -> Bool[Array, "S N C"] | None:
    """Split the mask as the keys, with False where they are filled; None if every key is visible and none is filled."""
    steps = math.ceil(length / block)
    if key_mask is None and steps * block == length:
        return None
    mask = jnp.ones((batch, length), bool) if key_mask is None else key_mask
    mask = jnp.pad(mask, ((0, 0), (0, steps * block - length)))
    mask = mask.reshape(batch, steps, 1, block).transpose(1, 0, 2, 3)
    return jnp.broadcast_to(mask, (steps, batch, heads, block)).reshape(steps, batch * heads, block)


def join(out: Float[Array, "S N C E"], batch: int, length: int, heads: int) -> Float[Array, "B L H E"]:
    """Undo `split`."""
    steps, _, block, width = out.shape
    out = out.reshape(steps, batch, heads, block, width).transpose(1, 0, 3, 2, 4)
    return out.reshape(batch, steps * block, heads, width)[:, :length]


def with_ones(v: Float[Array, "*rows E"]) -> Float[Array, "*rows F"]:
    """Return [v | 1] in float32, F = E + 1: one weighted sum over it gives numerator and denominator."""
    return jnp.concatenate([v.astype(jnp.float32), jnp.ones((*v.shape[:-1], 1), jnp.float32)], axis=-1)
