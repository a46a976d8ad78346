"""Profiling: a trace of some steps of a run by jax.profiler, in RUN/profile."""

import re
from pathlib import Path

import jax

from proteinlm.errors import InputError

PROFILE_FOLDER = "profile"
# The first step is compiled, and the second may wait for the first batches to be read.
_FIRST = 3


class Profile:
    """The range of steps to trace, first and last included, numbered as in metrics.jsonl."""

    def __init__(self, text: str):
        """Parse the option --profile.

        Args:
            text: "START:STOP"; or "N" for N steps after the first two of this start; "" traces nothing.

        Raises:
            InputError: the text is none of these.
        """
        numbers = re.fullmatch(r"(?:(\d+):)?(\d+)", text)
        self._first = self._last = self._number = 0
        if numbers and numbers[1]:
            self._first, self._last = int(numbers[1]), int(numbers[2])
        elif numbers:
            self._number = int(numbers[2])
        if text and not (self._number or 0 < self._first <= self._last):
            raise InputError(f"--profile is {text!r}; give START:STOP, two steps (as 10:15), or a number of steps.")
        self._text, self._folder, self._running = text, Path(), False

    def plan(self, run: Path, start: int, num_steps: int) -> None:
        """Choose the steps of this start of the run.

        Args:
            run: folder of the run.
            start: number of steps done before this start.
            num_steps: last step.

        Raises:
            InputError: this start does not train the steps to trace.
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
        """Start the trace. The device should be idle."""
        jax.profiler.start_trace(self._folder)
        self._running = True

    def stop(self) -> None:
        """Write the trace, if one was started. The device should have finished the last step."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()
