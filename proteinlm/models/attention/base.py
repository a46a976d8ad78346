"""The interface of attention mechanisms: fast attention, the explicit matrix as its reference, and decoding by token.

Axes: B batch, L residues, H heads, D head dim, E width of the values (D in a model; anything in a probe), M features.
"""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool


@dataclass(frozen=True)
class MechanismConfig:
    """Base class of the mechanisms' configs: frozen dataclasses that hold what the package must know of a mechanism.

    Everything but `kind` and `build` has a default.

    Attributes:
        kind: name of the mechanism in JSON and in the registry.
        no_causal: the reason why there is no causal form; "" if there is one.
        no_spread: the reason why the residues of a row cannot be split over devices; "" if they can.
        shares_queries_and_keys: the model passes the queries as keys too, and has no layer for keys.
        split_axes: (pattern, axis) of trained arrays that may be split over devices, along that axis, counted from the
            end. The pattern (a regular expression) is matched against the name of the array inside the mechanism, such
            as "sketch/levels/0/dense/1/value". Every device holds a copy of all other arrays.
        tiny_sizes: for `tiny`, the upper limits of numeric fields.
    """

    kind: ClassVar[str]
    no_causal: ClassVar[str] = ""
    no_spread: ClassVar[str] = "its residues attend to keys of the whole row"
    shares_queries_and_keys: ClassVar[bool] = False
    split_axes: ClassVar[tuple[tuple[str, int], ...]] = ()
    tiny_sizes: ClassVar[Mapping[str, int]] = {}

    @property
    def label(self) -> str:
        """Name of the mechanism in a report: `kind`, possibly with the most important option."""
        return self.kind

    @property
    def no_segments(self) -> str:
        """The reason why a row cannot hold several proteins; "" if it can."""
        return ""

    @property
    def no_unit_sums(self) -> str:
        """The reason why the weights of a residue with visible keys need not sum to 1; "" if they do."""
        return ""

    @property
    def spread_multiple(self) -> int:
        """Number that must divide the residues of a row on each device, where rows can be split over devices."""
        return 1

    def tiny(self, length: int) -> "MechanismConfig":
        """Return the config with small numbers, for rows of `length` tokens: every field at its limit or below."""
        limits = {name: min(getattr(self, name), limit) for name, limit in self.tiny_sizes.items()}
        return replace(self, **limits)

    def on_platform(self, platform: str, *, causal: bool) -> "MechanismConfig":
        """Return the config with the choices that it leaves to the backend made for JAX's platform of that name."""
        return self

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "Attention":
        """Return the mechanism of one layer; its parameters and random features are drawn from the key."""
        raise NotImplementedError(f"{type(self).__name__} has no build, the method that makes the mechanism's module")


ATTENTION: dict[str, type[MechanismConfig]] = {}
"""The config class of each registered mechanism, by `kind`."""

_ConfigClass = TypeVar("_ConfigClass", bound=type[MechanismConfig])


def register_attention(config: _ConfigClass) -> _ConfigClass:
    """Add a mechanism to the registry and return its config class; a decorator of that class.

    `Config.from_json` reads the mechanisms of the registry. One that is defined outside the package is known as soon as
    its module is imported.

    Args:
        config: frozen dataclass with a `kind` of its own.

    Raises:
        ValueError: another class has this `kind`.
    """
    known = ATTENTION.setdefault(config.kind, config)
    # A module that is loaded again (a notebook's cell) replaces its own class.
    if (known.__module__, known.__qualname__) != (config.__module__, config.__qualname__):
        raise ValueError(f"{config.__name__} has the kind {config.kind!r}, which {known.__name__} is registered under")
    ATTENTION[config.kind] = config
    return config


class Projection(nnx.Variable):
    """An array of random draws: saved with the model, without a gradient, drawn again by `redraw`."""


class Attention(nnx.Module):
    """Base class of mechanisms: the attention of one layer.

    The public methods check their arguments and call the methods with an underscore, which a mechanism implements.
    """

    def __init__(self, config: MechanismConfig, *, num_heads: int, head_dim: int):
        """Store the sizes that inputs must have, H and D."""
        self.config: Any = config
        self.num_heads = num_heads
        self.head_dim = head_dim

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        causal: bool,
        key_mask: Array | None = None,
        segments: Array | None = None,
        axis: str | None = None,
    ) -> Array:
        """Return for each residue the average of the values, weighted by attention: [B, L, H, E], the values' dtype.

        Args:
            q: queries [B, L, H, D], any float dtype.
            k: keys [B, L, H, D].
            v: values [B, L, H, E].
            causal: residue i attends to residues 0 to i alone.
            key_mask: bool [B, L], False at padding, to which no residue attends. A residue without any visible key has
                the output 0 and the gradient 0. The output of a padded query is not specified: 0, or an average of the
                residues around it.
            segments: int [B, L], number of the protein of its row that a residue belongs to, at most L, 0 at padding.
                The residues of a protein are consecutive. Residues attend to their own protein alone, as if it were
                alone in the row: other proteins change no bit of the result, even if they hold NaN or infinities. Not
                together with key_mask.
            axis: inside jax.shard_map, the mesh axis over whose devices, in order, the residues of each row are split;
                L is the number of residues on this device. Not together with segments.

        Raises:
            ValueError: an argument has the wrong rank, axes or dtype (the message names it and its shape), or the
                mechanism has no causal form, none for segments, or none for rows that are split over devices.
        """
        self._check(q, k, v, key_mask)
        if causal:
            self._check_causal()
        if axis is not None:
            self._check_spread(q, segments)
            return self._attend_spread(q, k, v, causal, key_mask, axis)
        if segments is not None:
            self._check_segments(q, key_mask, segments)
            return self._isolated(q, k, v, causal, segments)
        return self._attend(q, k, v, causal, key_mask)

    def weights(self, q: Array, k: Array, *, causal: bool, key_mask: Array | None = None) -> Array:
        """Return the explicit attention matrix, float32 [B, H, L, L], with a row for each query: out = weights @ v.

        This is the reference for tests and for figures of short proteins: plain code, O(L^2). Arguments and errors are
        those of `__call__`.
        """
        self._check(q, k, None, key_mask)
        if causal:
            self._check_causal()
        return self._weights(q.astype(jnp.float32), k.astype(jnp.float32), causal, key_mask)

    def prefill(
        self, q: Array, k: Array, v: Array, *, key_mask: Array | None = None, max_length: int
    ) -> tuple[Array, Any]:
        """Attend causally, as `__call__`; return the output and the state for later tokens.

        Args:
            q: queries, k: keys, v: values, key_mask: as in `__call__`.
            max_length: number of tokens in all, these and those of `step`. It is the size of the cache of mechanisms
                that keep every key; the state of a linear mechanism does not depend on it.
        """
        self._check(q, k, v, key_mask)
        self._check_causal()
        if q.shape[1] > max_length:
            raise ValueError(f"q has {q.shape[1]} residues, above max_length, {max_length}")
        return self._prefill(q, k, v, key_mask, max_length)

    def step(self, q: Array, k: Array, v: Array, state: Any) -> tuple[Array, Any]:
        """Attend from one more token of each row to itself and all earlier ones; return [B, 1, H, E] and the new state.

        A prefill and steps give the result of `__call__` on the whole sequence. After max_length tokens (see `prefill`)
        the cache of a mechanism that keeps every key is full: ValueError, or NaN inside jax.jit, where the number of
        tokens is unknown.
        """
        self._check(q, k, v, None)
        self._check_causal()
        if q.shape[1] != 1:
            raise ValueError(f"q has shape {q.shape}; a step takes one token, [B, 1, H, D]")
        return self._step(q, k, v, state)

    def redraw(self, key: jax.Array) -> None:
        """Draw new random features, as a pure function of the key; a mechanism without random features does nothing."""

    @abc.abstractmethod
    def _attend(self, q: Array, k: Array, v: Array, causal: bool, key_mask: Array | None) -> Array: ...

    @abc.abstractmethod
    def _weights(self, q: Array, k: Array, causal: bool, key_mask: Array | None) -> Array: ...

    # For mechanisms whose config gives no reason in `no_segments`:

    def _attend_segments(self, q: Array, k: Array, v: Array, causal: bool, segments: Array) -> Array:
        raise NotImplementedError(self._lacks("_attend_segments", "no_segments"))

    # For mechanisms whose config gives no reason in `no_spread`:

    def _attend_spread(self, q: Array, k: Array, v: Array, causal: bool, key_mask: Array | None, axis: str) -> Array:
        raise NotImplementedError(self._lacks("_attend_spread", "no_spread"))

    # For mechanisms with a causal form:

    def _prefill(self, q: Array, k: Array, v: Array, key_mask: Array | None, max_length: int) -> tuple[Array, Any]:
        raise NotImplementedError(self._lacks("_prefill"))

    def _step(self, q: Array, k: Array, v: Array, state: Any) -> tuple[Array, Any]:
        raise NotImplementedError(self._lacks("_step"))

    def _lacks(self, name: str, reason: str = "no_causal") -> str:
        return f"{type(self).__name__} has no {name}: write it, or give the reason in {reason} of its config"

    def _isolated(self, q: Array, k: Array, v: Array, causal: bool, segments: Array) -> Array:
        """Attend inside segments. A segment with an infinity or NaN has the output NaN, and does not reach the others.

        The weight of a masked pair is 0, and 0 times a finite number is 0; but 0 times an infinity is NaN.
        """
        finite = jnp.isfinite(q).all((2, 3)) & jnp.isfinite(k).all((2, 3)) & jnp.isfinite(v).all((2, 3))

        def whole_segment(finite: Array, segments: Array) -> Array:
            return jax.ops.segment_min(finite.astype(jnp.int32), segments, segments.shape[0] + 1)[segments] > 0

        finite = jax.vmap(whole_segment)(finite, segments)[:, :, None, None]
        shared = k is q
        q, v = (jnp.where(finite, x, jnp.zeros((), x.dtype)) for x in (q, v))
        k = q if shared else jnp.where(finite, k, jnp.zeros((), k.dtype))
        out = self._attend_segments(q, k, v, causal, segments)
        return jnp.where(finite, out, jnp.full((), jnp.nan, out.dtype))

    def _check_causal(self) -> None:
        if self.config.no_causal:
            raise ValueError(f"{self.config.kind} attention has no causal form: {self.config.no_causal}")

    def _check_segments(self, q: Array, key_mask: Array | None, segments: Array) -> None:
        if self.config.no_segments:
            raise ValueError(f"{self.config.kind} attention takes no segments: {self.config.no_segments}")
        if segments.shape != q.shape[:2] or not jnp.issubdtype(segments.dtype, jnp.integer):
            raise ValueError(
                f"segments has shape {segments.shape} and dtype {segments.dtype}; expected integers {q.shape[:2]} "
                "([B, L])"
            )
        if key_mask is not None:
            raise ValueError("segments and key_mask are both given; padding is segment 0, so leave key_mask out")

    def _check_spread(self, q: Array, segments: Array | None) -> None:
        if reason := self.config.no_spread or (segments is not None and "segments would cross devices"):
            raise ValueError(f"{self.config.kind} attention takes no rows that are split over devices: {reason}")
        if q.shape[1] % self.config.spread_multiple:
            raise ValueError(
                f"a device has {q.shape[1]} residues of each row; for {self.config.kind} attention that must be a "
                f"multiple of {self.config.spread_multiple}"
            )

    def _check(self, q: Array, k: Array, v: Array | None, key_mask: Array | None) -> None:
        if q.ndim != 4 or q.shape[2:] != (self.num_heads, self.head_dim) or not jnp.issubdtype(q.dtype, jnp.floating):
            raise ValueError(
                f"q has shape {q.shape} and dtype {q.dtype}; expected floats [B, L, H, D] with H = {self.num_heads} "
                f"heads of width D = {self.head_dim}"
            )
        if not q.size:
            raise ValueError(
                f"q has shape {q.shape}: there is no residue to attend from; expected B and L of at least 1"
            )
        if k.shape != q.shape or not jnp.issubdtype(k.dtype, jnp.floating):
            raise ValueError(f"k has shape {k.shape} and dtype {k.dtype}; expected floats of q's shape, {q.shape}")
        if v is not None and (v.ndim != 4 or v.shape[:3] != q.shape[:3] or not jnp.issubdtype(v.dtype, jnp.floating)):
            raise ValueError(
                f"v has shape {v.shape} and dtype {v.dtype}; expected floats [B, L, H, E] with the B, L and H of q, "
                f"{q.shape[:3]}"
            )
        if key_mask is not None and (key_mask.shape != q.shape[:2] or key_mask.dtype != jnp.bool_):
            raise ValueError(
                f"key_mask has shape {key_mask.shape} and dtype {key_mask.dtype}; expected bool {q.shape[:2]} ([B, L])"
            )


def visible_pairs(length: int, causal: bool, key_mask: Bool[Array, "B L"] | None) -> Bool[Array, "#B 1 L L"]:
    """Return whether residue i attends to key j, bool, broadcastable to [B, H, L, L]."""
    pairs = jnp.tril(jnp.ones((length, length), bool)) if causal else jnp.ones((length, length), bool)
    pairs = pairs[None, None]
    return pairs if key_mask is None else pairs & key_mask[:, None, None, :]


def left_aligned(key_mask: Bool[Array, "B L"] | None, *arrays: Array) -> tuple[Array, ...]:
    """Return the arrays [B, L, ...] with the visible residues of each row first, in their order, and padding last.

    For mechanisms in which the index of a residue in its row matters (local blocks, projections of the length): padding
    on the left then equals padding on the right. Without a mask the arrays stay as they are. `restored` is the inverse.
    """
    if key_mask is None:
        return arrays
    order = jnp.argsort(~key_mask, axis=1, stable=True)
    return tuple(jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1) for x in arrays)


def restored(key_mask: Bool[Array, "B L"] | None, out: Array) -> Array:
    """Move the outputs of `left_aligned` queries back to the queries' own indices; padded queries get 0."""
    if key_mask is None:
        return out
    shape = key_mask.shape + (1,) * (out.ndim - 2)
    index = jnp.where(key_mask, jnp.cumsum(key_mask, axis=1) - 1, 0).reshape(shape)
    return jnp.where(key_mask.reshape(shape), jnp.take_along_axis(out, index, axis=1), jnp.zeros((), out.dtype))
