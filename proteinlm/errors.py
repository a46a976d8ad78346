"""Errors with a message for the user, the exception of an ordered stop, and the check of a number's range."""

import math


class InputError(ValueError):
    """An error in the user's files, arguments or config.

    The message has one or two sentences that name the file, line, record or field and say what to do. The command line
    prints the message without a traceback and returns exit code 2.
    """


class Interrupted(Exception):  # noqa: N818 (an order to leave, not an error)
    """SIGTERM or Ctrl-C stopped the training after a checkpoint; the same command resumes from it.

    Attributes:
        step: step of the checkpoint.
        signal_number: number of the signal.
    """

    def __init__(self, step: int, signal_number: int):
        super().__init__(f"stopped at step {step} with a checkpoint; the same command resumes from it.")
        self.step, self.signal_number = step, signal_number


def check_range(
    name: str,
    value: float,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> None:
    """Refuse a number that is outside its range, infinite or NaN.

    Args:
        name: full name of the field or option, such as "optimizer.b1" or "--windows".
        value: the number.
        above, at_least, below, at_most: the limits; None is no limit.

    Raises:
        InputError: with the name, the value and the range: "optimizer.b1 is 1.5; it must be at least 0 and below 1."
    """
    if not math.isfinite(value):
        raise InputError(f"{name} is {value}; it must be a finite number.")
    limits = {
        "above": (above, above is None or value > above),
        "at least": (at_least, at_least is None or value >= at_least),
        "below": (below, below is None or value < below),
        "at most": (at_most, at_most is None or value <= at_most),
    }
    if not all(holds for _, holds in limits.values()):
        words = " and ".join(f"{word} {limit}" for word, (limit, _) in limits.items() if limit is not None)
        raise InputError(f"{name} is {value}; it must be {words}.")
