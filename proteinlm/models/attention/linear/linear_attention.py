"""Linear attention for any feature map.

With features phi, the output of residue i is (Performer paper, equation 4; Appendix B.1 for the causal form)

    out_i = sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j)

The values are extended to [V | 1], so that one pass gives numerator and denominator. The sums over keys are a state
[E + 1, M], whose size does not depend on L. The causal form is a scan over chunks: inside a chunk scores are explicit;
all earlier keys contribute through the state. Features are computed inside the body of the scan, which the backward
pass computes again. Only the states at chunk boundaries and the sums for the output are kept, and no earlier state is
reconstructed by subtraction. State and sums are float32 for inputs of any dtype; products have the backend's default
precision for float32 (on TPUs less than float32, unless jax.default_matmul_precision is set).

Stabilisers. A feature map may return its features divided by exp(c), with one number c per residue (`log_scale`). For
queries c cancels. For keys the scan carries M_i, the largest c_j of the keys that are visible to residue i, for each
batch row and head: the score of (i, j) is (phi_i.phi_j) exp(c_j - M_i), and the state is rescaled by exp(M_old - M_new)
at chunk boundaries. All exponents are at most 0, so nothing overflows, and nothing depends on a later key or on another
row of the batch. Without a log_scale all of this is skipped.

Denominators. `min_denominator` None is for kernels that are never negative: a denominator below 1e-18 means that no key
is visible (or that all features underflow), and the output is 0. A number is for kernels of any sign: the denominator
keeps its sign (0 counts as positive) and is moved to at least that distance from 0, which bounds values and gradients;
the weights of such a row do not sum to 1. In both cases a residue without visible keys gets 0, with gradient 0.
`constant` is added to the sum of scores first (1 + sum in PolySketchFormer).

Scores inside a chunk. If phi(x).phi(y) is a function of a shorter product, kernel(l(x).l(y)), the causal form uses it:
l is `Features.local`, the function is `local_kernel` (PolySketchFormer, section 3.1: (x.y)^2 in O(C^2 r), without the
r^2 features). With `exact_blocks` the scores inside a chunk differ from phi's (section 3.2: exact scores), so the
chunks are part of the result, causal or not.
"""

import abc
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from proteinlm.models.attention.base import Attention
from proteinlm.models.attention.blocks import join, split, split_mask, with_ones
from proteinlm.models.attention.linear.segments import segmented_attention
from proteinlm.models.attention.linear.sequence_parallel import state_before, state_of_all
from proteinlm.models.attention.linear.state import (
    NEVER,
    FeatureMap,
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


class LinearAttention(Attention):
    """Base class of mechanisms that are a feature map and nothing else."""

    @abc.abstractmethod
    def _options(self) -> LinearOptions: ...

    def _attend(self, q: Array, k: Array, v: Array, causal: bool, key_mask: Array | None) -> Array:
        return linear_attention(q, k, v, self._options(), causal=causal, key_mask=key_mask)[0]

    def _attend_segments(self, q: Array, k: Array, v: Array, causal: bool, segments: Array) -> Array:
        return segmented_attention(q, k, v, segments, self._options(), causal=causal)

    def _attend_spread(self, q: Array, k: Array, v: Array, causal: bool, key_mask: Array | None, axis: str) -> Array:
        return linear_attention(q, k, v, self._options(), causal=causal, key_mask=key_mask, axis=axis)[0]

    def _prefill(self, q: Array, k: Array, v: Array, key_mask: Array | None, max_length: int) -> tuple[Array, State]:
        return linear_attention(q, k, v, self._options(), causal=True, key_mask=key_mask)

    def _step(self, q: Array, k: Array, v: Array, state: State) -> tuple[Array, State]:
        return linear_attention(q, k, v, self._options(), causal=True, state=state)


def linear_attention(
    q: Float[Array, "B L H D"],
    k: Float[Array, "B L H D"],
    v: Float[Array, "B L H E"],
    options: LinearOptions,
    *,
    causal: bool,
    key_mask: Bool[Array, "B L"] | None = None,
    state: State | None = None,
    axis: str | None = None,
) -> tuple[Float[Array, "B L H E"], State]:
    """Attend in time O(L M E) and memory O(L), plus a state for each chunk in the backward pass.

    Args:
        q: queries, k: keys, v: values; any float dtype.
        options: features, chunk size and denominators.
        causal: residue i attends to the keys of the state and to residues 0 to i; otherwise to all residues.
        key_mask: False for keys that are not visible.
        state: the state after earlier keys (from `empty_state` or an earlier call); None: there are none.
        axis: mesh axis whose devices hold the rows' residues (sequence_parallel.py), in place of a given state. With
            exact blocks a device holds a whole number of chunks.

    Returns:
        (output in the values' dtype, state after these keys).
    """
    batch, length, heads, width = v.shape
    chunk = min(options.chunk_size or fast_chunk_size(causal), length)
    empty = empty_state(options.features, batch * heads, q.shape[-1], width)
    state, after = empty if state is None else state, empty
    if axis is not None and (causal or options.exact_blocks):
        of_device = absorbed(k, v, options.features, key_mask=key_mask, chunk_size=fast_chunk_size(False))
        state = state_before(of_device, axis)
        after = empty if causal else state_before(of_device, axis, after=True)
    queries, keys, values = (split(x, chunk) for x in (q, k, v))
    visible = split_mask(key_mask, batch, length, heads, chunk)

    features, local_kernel, dtype = options.features_of, options.local_kernel, v.dtype

    def causal_step(state: State, inputs: tuple) -> tuple[State, Array]:
        q, k, v, visible = inputs
        phi_q = features(q)
        phi_k = visible_features(features(k), visible)
        v_one = with_ones(v)
        sums, running = _causal_chunk(state, phi_q, phi_k, v_one, local_kernel)
        sums = checkpoint_name(sums, "sums")
        return absorb(state, phi_k, v_one), options.output(sums, phi_q.log_scale, running, dtype)

    def read_step(state: State, q: Array) -> tuple[State, Array]:
        phi_q = features(q)
        scale = None if state.maximum is None else state.maximum[:, None]
        sums = checkpoint_name(read_state(state, phi_q.values), "sums")
        return state, options.output(sums, phi_q.log_scale, scale, dtype)

    def block_step(state: State, inputs: tuple) -> tuple[State, Array]:
        """Return sums over the chunk itself, in both directions, and over the chunks before it."""
        q, k, v, visible = inputs
        phi_q, phi_k = features(q), features(k)
        phi_k, v_one = visible_features(phi_k, visible), with_ones(v)
        sums = jnp.einsum("nij,nje->nie", local_scores(phi_q, phi_k, local_kernel), v_one)
        return absorb(state, phi_k, v_one), sums + read_state(state, phi_q.values)

    def beyond_step(state: State, inputs: tuple) -> tuple[State, Array]:
        q, k, v, visible, sums = inputs
        sums = sums + read_state(state, features(q).values)
        phi_k = visible_features(features(k), visible)
        return absorb(state, phi_k, with_ones(v)), options.output(sums, None, None, dtype)

    # For each chunk only its sums are kept, which are as large as the output, so their products are not computed again.
    recomputed = partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("sums"))
    if causal:
        state, out = jax.lax.scan(recomputed(causal_step), state, (queries, keys, values, visible))
    elif options.exact_blocks:
        # One scan sums the chunks before, one the chunks after: nothing is subtracted.
        state, sums = jax.lax.scan(jax.checkpoint(block_step), state, (queries, keys, values, visible))
        inputs = (queries, keys, values, visible, sums)
        _, out = jax.lax.scan(jax.checkpoint(beyond_step), after, inputs, reverse=True)
    else:
        state = _absorb_all(state, options.features, keys, values, visible)
        state = state if axis is None else state_of_all(state, axis)
        _, out = jax.lax.scan(recomputed(read_step), state, queries)
    return join(out, batch, length, heads), state


def absorbed(
    k: Float[Array, "B L H D"],
    v: Float[Array, "B L H E"],
    features: FeatureMap,
    *,
    key_mask: Bool[Array, "B L"] | None,
    chunk_size: int,
) -> State:
    """Return the state after these keys alone; arguments as those of `linear_attention`."""
    batch, length, heads, width = v.shape
    chunk = min(chunk_size, length)
    empty = empty_state(features, batch * heads, k.shape[-1], width)
    visible = split_mask(key_mask, batch, length, heads, chunk)
    return _absorb_all(empty, features, split(k, chunk), split(v, chunk), visible)


def _causal_chunk(
    state: State,
    phi_q: Features,
    phi_k: Features,
    v_one: Float[Array, "N C F"],
    local_kernel: Callable[[Array], Array] | None,
) -> tuple[Float[Array, "N C F"], Float[Array, "N C"] | None]:
    """Return sums over the state and the chunk's keys up to each query, divided by exp(M_i), and M_i."""
    length = phi_q.values.shape[1]
    past = jnp.tril(jnp.ones((length, length), bool))[None]
    scores = local_scores(phi_q, phi_k, local_kernel)
    from_state = read_state(state, phi_q.values)
    if phi_k.log_scale is None or state.maximum is None:
        return jnp.einsum("nij,nje->nie", jnp.where(past, scores, 0.0), v_one) + from_state, None
    # M_i is a factor that cancels, so its gradient is 0.
    running = jax.lax.cummax(stop_gradient(phi_k.log_scale), axis=1)
    running = jnp.maximum(running, stop_gradient(state.maximum)[:, None])
    # The log scale of a later key may exceed M_i: later keys are masked before exp, which would overflow.
    decay = jnp.exp(jnp.where(past, phi_k.log_scale[:, None, :] - running[:, :, None], NEVER))
    from_state = from_state * jnp.exp(state.maximum[:, None] - running)[..., None]
    return jnp.einsum("nij,nje->nie", scores * decay, v_one) + from_state, running


def _absorb_all(
    state: State,
    features: FeatureMap,
    keys: Float[Array, "S N C D"],
    values: Float[Array, "S N C E"],
    visible: Bool[Array, "S N C"] | None,
) -> State:
    """Add the chunks to the state, one after another."""

    def step(state: State, inputs: tuple) -> tuple[State, None]:
        k, v, visible = inputs
        return absorb(state, visible_features(features(k.astype(jnp.float32)), visible), with_ones(v)), None

    return jax.lax.scan(jax.checkpoint(step), state, (keys, values, visible))[0]
