"""A trace of some steps of a run, by jax.profiler, in RUN/profile."""

import re
from pathlib import Path

import jax

from proteinlm.errors import InputError

PROFILE_FOLDER = "profile"
# The first step compiles and the second may still wait for the first batches.
_FIRST = 3


class Profile:
    """Steps to trace, as metrics.jsonl numbers them, both ends included; none for the text ""."""

    def __init__(self, text: str):
        """Read "START:STOP", or "N": N steps after the first two of this start.

        Raises:
            InputError: it is neither.
        """
        found = re.fullmatch(r"(?:(\d+):)?(\d+)", text)
        self._first = self._last = self._number = 0
        if found and found[1]:
            self._first, self._last = int(found[1]), int(found[2])
        elif found:
            self._number = int(found[2])
        if text and not (self._number or 0 < self._first <= self._last):
            raise InputError(f"--profile is {text!r}; give START:STOP, two steps (as 10:15), or a number of steps.")
        self._text, self._folder, self._running = text, Path(), False

    def plan(self, run: Path, start: int, num_steps: int) -> None:
        """Learn where this start of the run begins and where it ends.

        Raises:
            InputError: it does not have these steps.
        """
        if not self._text:
            return
        if start >= num_steps:
            raise InputError(f"--profile {self._text} has no step to trace: the run is finished, at step {start}.")
        if self._number:
            self._first, self._last = start + _FIRST, start + _FIRST + self._number - 1
        if self._first <= start or self._last > num_steps:
            raise InputError(
                f"--profile {self._text} asks for the steps {self._first} to {self._last}, but this start trains the "
                f"steps {start + 1} to {num_steps}."
            )
        self._folder = run / PROFILE_FOLDER

    def starts(self, step: int) -> bool:
        """Return whether `step` is the first to trace."""
        return step == self._first

    def ends(self, step: int) -> bool:
        """Return whether `step` is the last to trace."""
        return step == self._last

    def start(self) -> None:
        """Begin to trace; the device should have nothing left to do."""
        jax.profiler.start_trace(self._folder)
        self._running = True

    def stop(self) -> None:
        """Write the trace, if one is being made; the device should be through with the last step."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
