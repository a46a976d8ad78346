"""Linear attention of rows that are spread over several devices: states travel, and no residue does.

Inside jax.shard_map each device of a mesh axis holds L residues of every row, the axis's order being theirs. What a
residue reads of other devices is the state of their keys (linear_state.py), whose size does not depend on L: of the
devices before its own where attention is causal, of all where it is not. Numbers are those of whole rows, but for the
order in which states are added.
"""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from proteinlm.models.attention.linear.state import NEVER, State


def state_before(own: State, axis: str, *, after: bool = False) -> State:
    """Return the state of the keys on the devices before this one; nothing on the first.

    In log2(devices) rounds, each of which adds what the device 1, 2, 4, ... places before has, so that a device never
    holds more than two states.

    Args:
        own: of this device's keys.
        axis: of the mesh.
        after: of the devices after this one instead.
    """
    devices, place = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    place = devices - 1 - place if after else place

    def from_device(state: State, back: int) -> State:
        pairs = [(i, i + back) for i in range(devices - back)]
        pairs = [(devices - 1 - i, devices - 1 - j) for i, j in pairs] if after else pairs
        # Who receives nothing has zeros: as sums that is right, as a log scale it is not.
        sums = jax.lax.ppermute(state.sums, axis, pairs)
        if state.maximum is None:
            return State(sums, None)
        maximum = jax.lax.ppermute(stop_gradient(state.maximum), axis, pairs)
        return State(sums, jnp.where(place >= back, maximum, NEVER))

    state, back = from_device(own, 1), 1
    while back < devices - 1:
        state = _add(from_device(state, back), state)
        back *= 2
    return state


def state_of_all(own: State, axis: str) -> State:
    """Return the state of the keys on all devices of the axis, `own` being of this one's."""
    if own.maximum is None:
        return State(jax.lax.psum(own.sums, axis), None)
    maximum = jax.lax.pmax(stop_gradient(own.maximum), axis)
    return State(jax.lax.psum(_rescaled(own, maximum), axis), maximum)


def _add(first: State, second: State) -> State:
    if first.maximum is None or second.maximum is None:
        return State(first.sums + second.sums, None)
    maximum = jnp.maximum(first.maximum, second.maximum)
    return State(_rescaled(first, maximum) + _rescaled(second, maximum), maximum)


def _rescaled(state: State, maximum: jax.Array) -> jax.Array:
    """Return the sums divided by exp of another maximum, which is not below the state's own."""
    assert state.maximum is not None
    return state.sums * jnp.exp(state.maximum - maximum)[:, None, None]
