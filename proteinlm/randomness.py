"""Random keys: each is a pure function of (seed, purpose, step), so none needs saving, and resuming repeats them."""

import jax

_PURPOSES = {"parameters": 0, "dropout": 1, "masks": 2, "features": 3}


def random_key(seed: int, purpose: str, step: int | jax.Array = 0) -> jax.Array:
    """Return the key of a purpose ("parameters", "dropout", "masks", "features") at a step.

    Evaluation uses step 0 of "masks" with each row's own key folded in, so that a sequence's mask is always the same.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _PURPOSES[purpose]), step)
