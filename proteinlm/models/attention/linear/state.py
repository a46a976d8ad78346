"""What linear attention is made of: features, the state of the keys so far, how one is read and the other absorbs.

linear.py says what stabilisers and denominators are, and puts these together; linear_segments.py does for rows of
several proteins. N = B * H rows, C residues of a chunk, M features, E value dim, F = E + 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

# Stands for log 0: below every real log scale, yet differences of two stay finite.
NEVER = -1e30
# Below this a denominator is nothing. Its inverse square, which the gradient holds, is still a float32.
_NOTHING = 1e-18


class Features(NamedTuple):
    """Values of a feature map.

    Attributes:
        values: float32 [N, C, M].
        log_scale: [N, C]; the values still lack a factor exp(log_scale). None is a factor of 1.
        local: [N, C, W], what `local_kernel` reads; None where there is none.
    """

    values: Array
    log_scale: Array | None = None
    local: Array | None = None


FeatureMap = Callable[[Array], Features]
"""float32 [N, C, D] -> Features, each residue by itself."""


@dataclass(frozen=True)
class LinearOptions:
    """A kernel given by its features, and how sums of scores become weights; linear_attention.py has the details.

    Attributes:
        features: phi, of queries and keys alike; called on chunks.
        chunk_size: C; the length need not be a multiple, and C may exceed it. 0 takes the size that is fast on this
            backend.
        renormalize: divide by the sum of scores (D^-1 in the Performer paper); otherwise return the sum itself.
        min_denominator: least distance of a denominator from 0, for kernels of any sign; None for kernels that are
            never negative.
        constant: added to the sum of scores.
        local_kernel: makes scores inside a chunk of the products of `Features.local`; it must map 0 to 0, and the
            features have no log scale. None: the products of the features themselves.
        exact_blocks: the scores inside a chunk are not those of the features, so the chunks are part of the result.
        block_scores: for exact blocks in segments: (features of queries, features of keys, bool [N, C, K], which pairs
            lie in one block) -> scores [N, C, K].
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
        """Return what residues read, of sums over [v | 1] that lack exp of the log scales [N, C] of queries and keys.

        The scales cancel in the division, so they matter without `renormalize` alone.
        """
        if self.renormalize:
            return divide(sums[..., :-1], sums[..., -1] + self.constant, self.min_denominator).astype(dtype)
        if query_scale is None or key_scale is None:
            return sums[..., :-1].astype(dtype)
        # One exponential of their sum: a large scale of a query may meet the log 0 of a query that sees nothing.
        return (sums[..., :-1] * jnp.exp(query_scale + key_scale)[..., None]).astype(dtype)


class State(NamedTuple):
    """What linear attention remembers of the keys so far; N = B * H.

    Attributes:
        sums: float32 [N, E + 1, M], sum over keys of [v | 1]^T phi(k), divided by exp(maximum). This way round no
            product reads the features transposed, which takes nearly twice the time on CPUs.
        maximum: float32 [N], the largest log scale so far; None for a feature map without.
    """

    sums: Array
    maximum: Array | None


def fast_chunk_size(causal: bool, backend: str | None = None) -> int:
    """Return the default C: causal chunks that stay in a CPU's caches cost least; an accelerator wants large ones."""
    return (64 if causal else 512) if (backend or jax.default_backend()) == "cpu" else 256


def empty_state(features: FeatureMap, rows: int, dim: int, value_dim: int) -> State:
    """Return the state that has seen nothing, for `rows` = B * H pairs of batch row and head."""
    shapes = jax.eval_shape(features, jax.ShapeDtypeStruct((rows, 1, dim), jnp.float32))
    sums = jnp.zeros((rows, value_dim + 1, shapes.values.shape[-1]), jnp.float32)
    return State(sums, None if shapes.log_scale is None else jnp.full((rows,), NEVER, jnp.float32))


def visible_features(features: Features, visible: Bool[Array, "N C"] | None) -> Features:
    """Silence masked keys: phi becomes 0 (kernel_epsilon makes phi(0) > 0), the log scale log 0."""
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
    """Return the scores inside a chunk, of all pairs."""
    if local_kernel is None or phi_q.local is None or phi_k.local is None:
        return jnp.einsum("nim,njm->nij", phi_q.values, phi_k.values)
    return local_kernel(jnp.einsum("niw,njw->nij", phi_q.local, phi_k.local))


def read_state(state: State, phi_q: Float[Array, "N C M"]) -> Float[Array, "N C F"]:
    """Return the sums that the state has for each query, divided by exp(maximum)."""
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
    """Normalise, by the policy for denominators at the top of linear.py."""
    denominator = denominator[..., None]
    if min_denominator is None:
        something = denominator > _NOTHING
        return jnp.where(something, numerator / jnp.where(something, denominator, 1.0), 0.0)
    nearest = jnp.where(denominator < 0, -min_denominator, min_denominator)
    return numerator / jnp.where(jnp.abs(denominator) < min_denominator, nearest, denominator)
