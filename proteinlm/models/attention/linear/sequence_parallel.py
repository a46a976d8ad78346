"""Linear attention of rows that are split over several devices: devices exchange states, not residues.

Inside jax.shard_map each device of a mesh axis holds L residues of every row, in the order of the axis. A residue gets
the keys of other devices as a state (state.py), whose size does not depend on L: of the devices before its own in
causal attention, of all devices otherwise. Results are those of whole rows, except that states are added in another
order.
"""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from proteinlm.models.attention.linear.state import NEVER, State


def state_before(of_device: State, axis: str, *, after: bool = False) -> State:
    """Return the state of the keys on the devices before this one; on the first device, the empty state.

    There are log2(devices) rounds. In each, a device adds the state of the device 1, 2, 4, ... before it, so that it
    never holds more than two states.

    Args:
        of_device: state of this device's keys.
        axis: name of the mesh axis.
        after: take the devices after this one instead.
    """
    devices, index = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    index = devices - 1 - index if after else index

    def from_device(state: State, back: int) -> State:
        pairs = [(i, i + back) for i in range(devices - back)]
        pairs = [(devices - 1 - i, devices - 1 - j) for i, j in pairs] if after else pairs
        # A device that receives nothing gets zeros, which are right for sums but wrong for a log scale.
        sums = jax.lax.ppermute(state.sums, axis, pairs)
        if state.maximum is None:
            return State(sums, None)
        maximum = jax.lax.ppermute(stop_gradient(state.maximum), axis, pairs)
        return State(sums, jnp.where(index >= back, maximum, NEVER))

    state, back = from_device(of_device, 1), 1
    while back < devices - 1:
        state = _add(from_device(state, back), state)
        back *= 2
    return state


def state_of_all(of_device: State, axis: str) -> State:
    """Return the state of the keys on all devices of the axis, from the state of each device's keys."""
    if of_device.maximum is None:
        return State(jax.lax.psum(of_device.sums, axis), None)
    maximum = jax.lax.pmax(stop_gradient(of_device.maximum), axis)
    return State(jax.lax.psum(_rescaled(of_device, maximum), axis), maximum)


def _add(first: State, second: State) -> State:
    if first.maximum is None or second.maximum is None:
        return State(first.sums + second.sums, None)
    maximum = jnp.maximum(first.maximum, second.maximum)
    return State(_rescaled(first, maximum) + _rescaled(second, maximum), maximum)


def _rescaled(state: State, maximum: jax.Array) -> jax.Array:
    """Return the sums divided by exp of another maximum, at least as large as the state's maximum."""
    assert state.maximum is not None
    return state.sums * jnp.exp(state.maximum - maximum)[:, None, None]
