"""Parameters as training might have left them."""

import jax
from flax import nnx


def shaken(module):
    """Return the module, every parameter moved by a random step of 0.3."""
    state = nnx.state(module, nnx.Param)
    leaves, tree = jax.tree.flatten(state)
    leaves = [x + 0.3 * jax.random.normal(jax.random.key(i), x.shape) for i, x in enumerate(leaves)]
    nnx.update(module, jax.tree.unflatten(tree, leaves))
    return module
