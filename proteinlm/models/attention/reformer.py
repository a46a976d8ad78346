"""Reformer: attention inside the buckets of a locality-sensitive hash (Kitaev, Kaiser, Levskaya 2020, sections 2, 3).

Queries are keys too: k_j = q_j / |q_j|. Scores are q_i.k_j / sqrt(D), and a residue attends to itself only if it has no
other key. The hash of a round is h(x) = argmax([x R; -x R]) with a Gaussian R [D, num_buckets / 2]; the heads of a
layer share the R of each round. A residue attends to the union of its keys of all rounds, and each key counts once (the
paper's N_ij).

Difference from the paper: the keys of a residue. The paper sorts residues by bucket and position and splits the sorted
list into chunks. The borders of the chunks depend on the number of residues in earlier buckets, which includes later
tokens: the future decides which keys the past has, and a decoding step cannot reproduce that. Here, in each round,
residue i attends to the bucket_size residues of its own bucket that come before it (bidirectional: and to the
bucket_size that come after it). With rank_i the number of residues of the bucket before i, in order of position,

    causal: 1 <= rank_i - rank_j <= bucket_size        bidirectional: 1 <= |rank_i - rank_j| <= bucket_size

A residue without keys in any round attends to itself. A difference of ranks depends on the tokens between the two
residues alone. So causal attention is strictly causal, padding changes nothing, and the decoding state has a fixed
size, the last bucket_size keys and values of each bucket. The cost is that of the paper; hash_buckets.py has the
sorted lists. No residue attends to padding, whose output is 0.

Hashes are compared in float32. A query near the border of two buckets may get either of them if a product of another
shape (a decoding step, another length) rounds differently.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from proteinlm.errors import InputError, check_range
from proteinlm.models.attention.base import Attention, MechanismConfig, Projection, register_attention, visible_pairs
from proteinlm.models.attention.blocks import with_ones
from proteinlm.models.attention.exact.hash_buckets import (
    Rounds,
    attend_in_buckets,
    ranks,
    rounds_in_segments,
    rounds_of,
    softmax_sums,
    take,
)
from proteinlm.models.attention.linear.state import NEVER, divide

# A query shorter than this has no direction: its key is 0.
_SHORTEST = 1e-12
# Number of positions that are hashed together; the products in memory are [N, this number, R * num_buckets / 2].
_HASHED_TOGETHER = 512


@register_attention
@dataclass(frozen=True)
class ReformerConfig(MechanismConfig):
    """Reformer attention.

    Attributes:
        num_hashes: number of rounds; the paper has 1 to 16 (reformer-pytorch: "4 is permissible per author, 8 is the
            best but slower"; trax's reformer_imagenet64.gin, which the Performer paper ran, has 2).
        num_buckets: number of buckets in each round, even. It does not depend on the length of the input, so that
            padding never changes a result. About max_length / bucket_size buckets hold bucket_size residues on average
            (16 for the 1,024 tokens of the paper's protein models); trax has twice as many, 192 for 12,288 and chunks
            of 128.
        bucket_size: number of residues of its bucket that a residue attends to in a round, on each side; 64 is the
            Reformer paper's according to reformer-pytorch.
    """

    kind: ClassVar[str] = "reformer"
    shares_queries_and_keys: ClassVar[bool] = True
    tiny_sizes: ClassVar = {"num_hashes": 2, "num_buckets": 4, "bucket_size": 8}
    num_hashes: int = 4
    num_buckets: int = 16
    bucket_size: int = 64

    def __post_init__(self):
        for name in ("num_hashes", "bucket_size"):
            check_range(f"attention.{name}", getattr(self, name), at_least=1)
        if self.num_buckets < 2 or self.num_buckets % 2:
            raise InputError(
                f"attention.num_buckets is {self.num_buckets}; it must be even and at least 2: buckets come in "
                "opposite pairs."
            )

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "ReformerAttention":
        """Return the mechanism; all heads share the rotations of each round."""
        return ReformerAttention(self, num_heads=num_heads, head_dim=head_dim, key=key)


class State(NamedTuple):
    """The last residues of each bucket, in ring buffers; N = B * H rows, R rounds, K buckets, W = bucket_size.

    Attributes:
        keys: float32 [N, R, K, W, D].
        values: float32 [N, R, K, W, E].
        positions: int32 [N, R, K, W], index of the token in each slot; -1: empty.
        counts: int32 [N, R, K], number of residues of the bucket so far; the next one goes to slot counts % W.
        time: int32 [], number of tokens so far.
    """

    keys: Array
    values: Array
    positions: Array
    counts: Array
    time: Array


class ReformerAttention(Attention):
    """Reformer attention of one layer.

    Keys are computed from the queries, and k is not read. A k that differs from q is refused (ValueError); inside
    jax.jit or jax.grad, where values are unknown, this is not checked.
    """

    def __init__(self, config: ReformerConfig, *, num_heads: int, head_dim: int, key: jax.Array):
        """Draw the rotations."""
        super().__init__(config, num_heads=num_heads, head_dim=head_dim)
        self.rotations = Projection(self._draw(key))

    def _draw(self, key: jax.Array) -> Float[Array, "R D K"]:
        config = self.config
        return jax.random.normal(key, (config.num_hashes, self.head_dim, config.num_buckets // 2), jnp.float32)

    def redraw(self, key: jax.Array) -> None:
        """Draw new rotations, as a pure function of the key."""
        self.rotations[...] = self._draw(key)

    def buckets(self, q: Float[Array, "N L D"]) -> Int[Array, "R N L"]:
        """Return the hash h(q) of each round, 0 to num_buckets - 1, int32; the norm of q does not matter."""
        rotations = self.rotations[...]

        def hash_one(x: Array) -> Array:
            rotated = jnp.einsum("nd,rdm->nrm", x, rotations, precision="highest")
            return jnp.argmax(jnp.concatenate([rotated, -rotated], axis=-1), axis=-1).astype(jnp.int32)

        buckets = jax.lax.map(hash_one, jax.lax.stop_gradient(q).swapaxes(0, 1), batch_size=_HASHED_TOGETHER)
        return buckets.transpose(2, 1, 0)

    def _attend(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B L H E"]:
        return self._in_rounds(rounds_of, q, k, v, causal, _of_heads(key_mask, q, True))

    def _attend_segments(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        segments: Int[Array, "B L"],
    ) -> Float[Array, "B L H E"]:
        return self._in_rounds(rounds_in_segments, q, k, v, causal, _of_heads(segments, q))

    def _in_rounds(
        self, make_rounds: Callable[..., Rounds], q: Array, k: Array, v: Array, causal: bool, shown: Array
    ) -> Float[Array, "B L H E"]:
        """Attend; `make_rounds` of hash_buckets.py sorts residues; its second argument is `shown` [N, L]."""
        _check_shared(q, k)
        queries, values = _rows(q), _rows(v)
        config, length = self.config, q.shape[1]
        # Ranks differ by less than L, so a longer window has no more keys.
        window = min(config.bucket_size, length)
        rounds = make_rounds(self.buckets(queries), shown, config.num_buckets, window, causal)
        out = attend_in_buckets(queries * q.shape[-1] ** -0.5, _unit(queries), values, rounds, window, causal)
        out = jnp.where((rounds.alone & shown.astype(bool))[..., None], values, out)
        return _unrows(out, q.shape[0]).astype(v.dtype)

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        """Return the softmax over the union of the rounds' keys; a residue without keys attends to itself."""
        _check_shared(q, k)
        batch, length, heads, dim = q.shape
        visible = jnp.ones((batch, length), bool) if key_mask is None else key_mask
        both = visible_pairs(length, False, visible) & visible[:, None, :, None]
        bucket = self.buckets(_rows(q)).reshape(-1, batch, heads, length)
        same = (bucket[..., :, None] == bucket[..., None, :]) & both[None]
        # rank_i: number of residues of the same bucket before i.
        rank = jnp.where(jnp.tril(jnp.ones((length, length), bool), -1)[None, None, None], same, False).sum(-1)
        difference = jnp.abs(rank[..., :, None] - rank[..., None, :])
        near = same & (difference >= 1) & (difference <= self.config.bucket_size)
        keys = near.any(0) & visible_pairs(length, causal, key_mask)
        scores = jnp.einsum("bihd,bjhd->bhij", q, _unit(q)) / jnp.sqrt(dim)
        weights = jnp.where(keys, jax.nn.softmax(jnp.where(keys, scores, NEVER), axis=-1), 0.0)
        alone = visible[:, None, :] & ~keys.any(-1)
        return weights + alone[..., None] * jnp.eye(length)[None, None]

    def _prefill(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        key_mask: Bool[Array, "B L"] | None,
        max_length: int,
    ) -> tuple[Float[Array, "B L H E"], State]:
        _check_shared(q, k)
        config, length = self.config, q.shape[1]
        queries, visible = _rows(q), _of_heads(key_mask, q, True)
        fill = partial(_fill_rings, num_buckets=config.num_buckets, window=config.bucket_size)
        bucket = jnp.where(visible[None], self.buckets(queries), config.num_buckets)
        positions, counts = jax.vmap(jax.vmap(fill))(bucket.swapaxes(0, 1))
        index = jnp.where(positions < 0, length, positions).reshape(len(positions), -1)
        keys, values = (take(x, index).reshape(*positions.shape, -1) for x in (_unit(queries), _rows(v)))
        state = State(keys, values, positions, counts, jnp.asarray(length, jnp.int32))
        return self._attend(q, k, v, True, key_mask), state

    def _step(
        self, q: Float[Array, "B 1 H D"], k: Float[Array, "B 1 H D"], v: Float[Array, "B 1 H E"], state: State
    ) -> tuple[Float[Array, "B 1 H E"], State]:
        _check_shared(q, k)
        query, value = _rows(q), _rows(v)
        bucket = self.buckets(query)[..., 0].T
        rows, rounds = np.arange(bucket.shape[0])[:, None], np.arange(bucket.shape[1])[None]
        ring = (rows, rounds, bucket)
        keys, values, positions = (
            x[ring].reshape(len(bucket), -1, *x.shape[4:]) for x in (state.keys, state.values, state.positions)
        )
        # N_ij: number of rounds that have the same token; each ring buffer holds it at most once.
        times = (positions[:, :, None] == positions[:, None, :]).sum(-1)
        share = jnp.where(positions >= 0, 1 / times, 0.0)
        scores = jnp.einsum("nid,njd->nij", query * q.shape[-1] ** -0.5, keys)
        numerator, _ = softmax_sums(scores, share[:, None], with_ones(values))
        out = jnp.where(numerator[..., -1:] > 0, divide(numerator[..., :-1], numerator[..., -1], None), value)
        slot = (*ring, state.counts[ring] % self.config.bucket_size)
        state = State(
            state.keys.at[slot].set(_unit(query)),
            state.values.at[slot].set(value),
            state.positions.at[slot].set(state.time),
            state.counts.at[ring].add(1),
            state.time + 1,
        )
        return _unrows(out, q.shape[0]).astype(v.dtype), state


def _fill_rings(bucket: Int[Array, " L"], num_buckets: int, window: int) -> tuple[Int[Array, "K W"], Int[Array, " K"]]:
    """Return the positions of each bucket's last residues, -1 in empty slots, and the size of each bucket."""
    rank, sizes = ranks(bucket, num_buckets)
    kept = (bucket < num_buckets) & (rank >= sizes[jnp.minimum(bucket, num_buckets - 1)] - window)
    slot = jnp.where(kept, bucket * window + rank % window, num_buckets * window)
    positions = jnp.full(num_buckets * window, -1, jnp.int32)
    positions = positions.at[slot].set(jnp.arange(len(bucket), dtype=jnp.int32), mode="drop")
    return positions.reshape(num_buckets, window), sizes


def _unit(q: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
    """Return q / |q|; 0, with gradient 0, where q is too short to have a direction."""
    square = (q * q).sum(-1, keepdims=True)
    direction = square > _SHORTEST**2
    return jnp.where(direction, q * jax.lax.rsqrt(jnp.where(direction, square, 1.0)), 0.0)


def _rows(x: Float[Array, "B L H W"]) -> Float[Array, "N L W"]:
    """Return float32 [B * H, L, W]."""
    return x.astype(jnp.float32).swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3])


def _unrows(x: Float[Array, "N L W"], batch: int) -> Float[Array, "B L H W"]:
    return x.reshape(batch, -1, *x.shape[1:]).swapaxes(1, 2)


def _of_heads(x: Array | None, q: Float[Array, "B L H D"], default: Any = None) -> Array:
    """Repeat a mask or segments [B, L] for each head, [N, L]; None gives the default everywhere."""
    batch, length, heads, _ = q.shape
    x = jnp.full((batch, length), default) if x is None else x
    return jnp.broadcast_to(x[:, None], (batch, heads, length)).reshape(-1, length)


def _check_shared(q: Any, k: Any) -> None:
    if k is q or isinstance(q, Tracer) or isinstance(k, Tracer):
        return
    if not np.array_equal(np.asarray(q, np.float32), np.asarray(k, np.float32), equal_nan=True):
        raise ValueError(
            "k differs from q; Reformer shares queries and keys (its keys are the queries, scaled to length 1)"
        )
