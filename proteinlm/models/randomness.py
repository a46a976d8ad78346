"""Random keys as pure functions of (seed, purpose, step): checkpoints hold none, and a resumed run repeats them."""

import math

import jax

_PURPOSES = {"parameters": 0, "dropout": 1, "masks": 2, "features": 3}


def random_key(seed: int, purpose: str, step: int | jax.Array = 0) -> jax.Array:
    """Return the key of a purpose ("parameters", "dropout", "masks", "features") at a step.

    Evaluation uses step 0 of "masks" and folds in each row's key, so that the mask of a sequence is always the same.
    """
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _PURPOSES[purpose]), step)


def redraws_until(step: int, every: int, growth: float = 1.0) -> int:
    """Return the number of redraws of random features in the first `step` steps.

    The n-th redraw comes after every (1 + growth + ... + growth^(n-1)) steps, rounded.

    Args:
        step: number of optimizer steps so far.
        every: number of steps before the first redraw; 0 means that there is none.
        growth: ratio of each interval between redraws to the one before, at least 1.
    """
    if not every or step < every:
        return 0
    if growth == 1:
        return step // every

    def step_of_redraw(number: int) -> int:
        return round(every * (growth**number - 1) / (growth - 1))

    # The inverse of `step_of_redraw`; rounding may change it by one.
    number = int(math.log1p(step * (growth - 1) / every) / math.log(growth))
    while step_of_redraw(number + 1) <= step:
        number += 1
    while step_of_redraw(number) > step:
        number -= 1
    return number
