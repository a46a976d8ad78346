"""Parts of linear attention: features, options, and the state of the keys so far, with its update and its use.

linear_attention.py combines them and explains stabilisers and denominators; segments.py combines them for rows of
several proteins. Axes: N = B * H rows, C residues of a chunk, M features, E value dim, F = E + 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

# In place of log 0: below every log scale that occurs, and differences of two such numbers are finite.
NEVER = -1e30
# A denominator below this counts as 0. Its inverse square, a factor of the gradient, is still finite in float32.
_ZERO = 1e-18


class Features(NamedTuple):
    """Values of a feature map.

    Attributes:
        values: float32 [N, C, M].
        log_scale: [N, C]; the features are the values times exp(log_scale). None: the values are the features.
        local: [N, C, W], vectors for `local_kernel`; None without such a kernel.
    """

    values: Array
    log_scale: Array | None = None
    local: Array | None = None


FeatureMap = Callable[[Array], Features]
"""float32 [N, C, D] -> Features, for each residue independently."""


@dataclass(frozen=True)
class LinearOptions:
    """Options of linear attention: the kernel, given by its features, and the normalisation.

    The top of linear_attention.py explains denominators and the scores inside a chunk.

    Attributes:
        features: phi, for queries and keys; called on chunks.
        chunk_size: C; the length need not be a multiple, and C may exceed it. 0 takes the size that is fast on this
            backend.
        renormalize: divide by the sum of scores (D^-1 in the Performer paper); otherwise return the sum itself.
        min_denominator: least distance of a denominator from 0, for kernels of any sign; None for kernels that are
            never negative.
        constant: added to the sum of scores.
        local_kernel: computes the scores inside a chunk from the products of `Features.local`; it must map 0 to 0, and
            the features must not have a log scale. None: the scores are products of the features.
        exact_blocks: the scores inside a chunk are not those of the features, so the chunks are part of the result.
        block_scores: for exact blocks in segments: (features of queries, features of keys, bool [N, C, K] whether a
            pair is in one block) -> scores [N, C, K].
    """

    features: FeatureMap
    chunk_size: int = 0
    renormalize: bool = True
    min_denominator: float | None = None
    constant: float = 0.0
    local_kernel: Callable[[Array], Array] | None = None
    exact_blocks: bool = False
    block_scores: Callable[[Features, Features, Array], Array] | None = None

    def features_of(self, x: Float[Array, "N C D"]) -> Features:
        """Return the features of queries or keys of any float dtype."""
        return self.features(x.astype(jnp.float32))

    def output(
        self, sums: Float[Array, "N C F"], query_scale: Array | None, key_scale: Array | None, dtype: Any
    ) -> Float[Array, "N C E"]:
        """Return the output, from sums over [v | 1] that were divided by exp of the log scales [N, C].

        The log scales of queries and keys cancel in the division; they are used without `renormalize` alone.
        """
        if self.renormalize:
            return divide(sums[..., :-1], sums[..., -1] + self.constant, self.min_denominator).astype(dtype)
        if query_scale is None or key_scale is None:
            return sums[..., :-1].astype(dtype)
        # One exponential of the sum: a query with a large scale may have no visible key, whose scale is log 0.
        return (sums[..., :-1] * jnp.exp(query_scale + key_scale)[..., None]).astype(dtype)


class State(NamedTuple):
    """The state of linear attention after some keys; N = B * H.

    Attributes:
        sums: float32 [N, E + 1, M], sum over keys of [v | 1]^T phi(k), divided by exp(maximum). With this order of axes
            no product transposes the features, which would take nearly twice the time on CPUs.
        maximum: float32 [N], the largest log scale so far; None for a feature map without log scales.
    """

    sums: Array
    maximum: Array | None


def fast_chunk_size(causal: bool, backend: str | None = None) -> int:
    """Return the default C: on CPUs causal chunks that fit the caches are fastest; accelerators need large chunks."""
    return (64 if causal else 512) if (backend or jax.default_backend()) == "cpu" else 256


def empty_state(features: FeatureMap, rows: int, dim: int, value_dim: int) -> State:
    """Return the state before any key, for `rows` = B * H pairs of batch row and head."""
    shapes = jax.eval_shape(features, jax.ShapeDtypeStruct((rows, 1, dim), jnp.float32))
    sums = jnp.zeros((rows, value_dim + 1, shapes.values.shape[-1]), jnp.float32)
    return State(sums, None if shapes.log_scale is None else jnp.full((rows,), NEVER, jnp.float32))


def visible_features(features: Features, visible: Bool[Array, "N C"] | None) -> Features:
    """Mask keys: their features become 0 (masked inputs would not do: phi(0) > 0), their log scale log 0."""
    if visible is None:
        return features
    values, scale, local = features
    return Features(
        jnp.where(visible[..., None], values, 0.0),
        None if scale is None else jnp.where(visible, scale, NEVER),
        None if local is None else jnp.where(visible[..., None], local, 0.0),
    )


def local_scores(
    phi_q: Features, phi_k: Features, local_kernel: Callable[[Array], Array] | None
) -> Float[Array, "N C C"]:
    """Return the scores of all pairs inside a chunk."""
    if local_kernel is None or phi_q.local is None or phi_k.local is None:
        return jnp.einsum("nim,njm->nij", phi_q.values, phi_k.values)
    return local_kernel(jnp.einsum("niw,njw->nij", phi_q.local, phi_k.local))


def read_state(state: State, phi_q: Float[Array, "N C M"]) -> Float[Array, "N C F"]:
    """Return the sums over the keys of the state for each query, divided by exp(maximum)."""
    return jnp.einsum("ncm,nem->nce", phi_q, state.sums)


def absorb(state: State, phi_k: Features, v_one: Float[Array, "N C F"]) -> State:
    """Add a chunk of keys and values to the state."""
    if phi_k.log_scale is None or state.maximum is None:
        return State(state.sums + jnp.einsum("nce,ncm->nem", v_one, phi_k.values), None)
    maximum = stop_gradient(jnp.maximum(state.maximum, phi_k.log_scale.max(axis=1)))
    v_one = v_one * jnp.exp(phi_k.log_scale - maximum[:, None])[..., None]
    kept = state.sums * jnp.exp(state.maximum - maximum)[:, None, None]
    return State(kept + jnp.einsum("nce,ncm->nem", v_one, phi_k.values), maximum)


def divide(
    numerator: Float[Array, "*rows E"], denominator: Float[Array, "*rows"], min_denominator: float | None
) -> Float[Array, "*rows E"]:
    """Divide, with the treatment of small denominators described at the top of linear_attention.py."""
    denominator = denominator[..., None]
    if min_denominator is None:
        positive = denominator > _ZERO
        return jnp.where(positive, numerator / jnp.where(positive, denominator, 1.0), 0.0)
    nearest = jnp.where(denominator < 0, -min_denominator, min_denominator)
    return numerator / jnp.where(jnp.abs(denominator) < min_denominator, nearest, denominator)
