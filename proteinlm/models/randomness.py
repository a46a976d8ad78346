"""Random keys: each is a pure function of (seed, purpose, step), so none needs saving, and resuming repeats them."""

import math

import jax

_PURPOSES = {"parameters": 0, "dropout": 1, "masks": 2, "features": 3}


def random_key(seed: int, purpose: str, step: int | jax.Array = 0) -> jax.Array:
    """Return the key of a purpose ("parameters", "dropout", "masks", "features") at a step.

    Evaluation uses step 0 of "masks" with each row's own key folded in, so that a sequence's mask is always the same.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _PURPOSES[purpose]), step)


def redraws_until(step: int, every: int, growth: float = 1.0) -> int:
    """Return how often random features were redrawn when `step` steps are done.

    The n-th redraw comes after every (1 + growth + ... + growth^(n-1)) steps, rounded.

    Args:
        step: optimizer steps done.
        every: steps before the first redraw; 0 means that there is none.
        growth: each interval is so many times the one before, at least 1.
    """
    if not every or step < every:
        return 0
    if growth == 1:
        return step // every

    def place(number: int) -> int:
        return round(every * (growth**number - 1) / (growth - 1))

    # From the inverse of `place`, which rounding may have moved by one.
    number = int(math.log1p(step * (growth - 1) / every) / math.log(growth))
    while place(number + 1) <= step:
        number += 1
    while place(number) > step:
        number -= 1
    return number
