"""Logs of a run: metrics.jsonl (numbers), train.log (messages with times) and the progress line on the terminal."""

import contextlib
import datetime
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from proteinlm.errors import InputError
from proteinlm.output.console import console
from proteinlm.output.files import whole_file
from proteinlm.runs.trackers import Tracker, tagged

METRICS_FILE = "metrics.jsonl"
TEXT_FILE = "train.log"


class MetricsLog:
    """RUN/metrics.jsonl: one line of JSON an event, with "kind" and "step"; the numbers also go to trackers.

    Kinds are train, valid, skipped (a step that was not finite and changed nothing), not_finite (a step that ended the
    run), resume (a start that is not exact). Each line is flushed at once.

    Attributes:
        skipped: steps that were skipped so far, ascending.
    """

    def __init__(self, run: Path, resume_step: int, *, silent: bool = False, trackers: Sequence[Tracker] = ()):
        """Open RUN/metrics.jsonl and remove the lines of steps after `resume_step`, which will be repeated.

        Args:
            run: folder of the run.
            resume_step: step at which the run is resumed; 0 at the beginning.
            silent: write nothing, in all processes but the first.
            trackers: trackers that get the numbers too; they are closed with the log.
        """
        self._trackers = trackers
        self.skipped: list[int] = []
        self.path = Path(os.devnull) if silent else run / METRICS_FILE
        if (run / METRICS_FILE).exists():
            # A line of kind resume at `resume_step` itself is of a start that saved nothing.
            kept = [row for row in read_metrics(run) if row["step"] < resume_step + (row["kind"] != "resume")]
            self.skipped = [row["step"] for row in kept if row["kind"] == "skipped"]
            if not silent:
                with whole_file(self.path) as handle:
                    handle.writelines(json.dumps(row) + "\n" for row in kept)
        self._handle = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 (open for the whole run)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one line; a value that is not finite is written as null, since JSON has no NaN."""
        row = {"kind": kind, "step": step}
        for name, value in values.items():
            value = value.item() if hasattr(value, "item") else value
            row[name] = None if isinstance(value, float) and not math.isfinite(value) else value
        if kind == "skipped":
            self.skipped.append(step)
        self._handle.write(json.dumps(row) + "\n")
        self._handle.flush()
        numbers = tagged(kind, {name: value for name, value in row.items() if name != "step"})
        for tracker in self._trackers:
            tracker.log(step, numbers)

    def close(self) -> None:
        """Write everything to the disk; close the file and the trackers."""
        self._handle.flush()
        if self.path != Path(os.devnull):
            os.fsync(self._handle.fileno())
        self._handle.close()
        for tracker in self._trackers:
            tracker.close()


def read_metrics(run: Path) -> list[dict]:
    """Return the lines of RUN/metrics.jsonl, without a last line that was cut short by a kill.

    Raises:
        InputError: the file does not exist, or a line before the last is not JSON with a kind and a step.
    """
    path = Path(run) / METRICS_FILE
    if not path.is_file():
        raise InputError(f"{run} has no {METRICS_FILE}: it is not the folder of a training run.")
    lines = path.read_bytes().splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not {"kind", "step"} <= set(row):
                raise ValueError("it has no kind and step")
            rows.append(row)
        except ValueError as error:
            if number < len(lines):
                raise InputError(f"{path}, line {number}, is not a line of a metrics file: {error}.") from error
    return rows


class TextLog:
    """Messages on the terminal and, with the time, in RUN/train.log. As a context manager it also logs an error."""

    def __init__(self, run: Path | None):
        """Append to RUN/train.log; if `run` is None, messages go to the terminal alone."""
        self._path = None if run is None else run / TEXT_FILE

    def say(self, text: str) -> None:
        """Write a message to the terminal and to the file."""
        console.print(text, highlight=False, soft_wrap=True)
        self.note(text)

    def note(self, text: str) -> None:
        """Write a message to the file alone."""
        if self._path is not None:
            now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            with open(self._path, "a", encoding="utf-8") as handle:
                handle.write(f"{now}  {text}\n")

    def __enter__(self) -> "TextLog":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.note(f"ended by {type(error).__name__}: {error}")


class ProgressLine:
    """The progress line on the terminal: step, loss, accuracy, tokens per second, time left.

    Every half minute the same numbers go into the text log, and to the output where that is not a terminal.
    """

    PLAIN_EVERY_SECONDS = 30.0

    def __init__(self, total: int, done: int, description: str, text: TextLog | None = None):
        self._text = text or TextLog(None)
        self._total, self._description = total, description
        self._start, self._done_at_start, self._last_plain = time.monotonic(), done, time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(description, total=total, completed=done, numbers="compiling")

    def update(self, step: int, loss: float, accuracy: float, tokens_per_second: float) -> None:
        """Show the numbers of a step; NaN tokens per second are left out."""
        numbers = f"loss {loss:.3f}  accuracy {100 * accuracy:.1f} %"
        if not math.isnan(tokens_per_second):
            numbers += f"  {tokens_per_second:,.0f} tokens/s"
        self._progress.update(self._task, completed=step, numbers=numbers)
        now = time.monotonic()
        if now - self._last_plain > self.PLAIN_EVERY_SECONDS or step == self._total:
            self._last_plain = now
            left = (now - self._start) / max(step - self._done_at_start, 1) * (self._total - step)
            write = self._text.note if console.is_terminal else self._text.say
            write(f"{self._description}: step {step} of {self._total}  {numbers}  {left:,.0f} s left")

    def start(self) -> None:
        """Show the line."""
        self._progress.start()

    def stop(self) -> None:
        """Stop updating the line; it stays on the terminal."""
        self._progress.stop()


@contextlib.contextmanager
def progress_line(total: int, done: int, description: str, text: TextLog | None = None) -> Iterator[ProgressLine]:
    """Show a progress line while the block of a with statement runs."""
    line = ProgressLine(total, done, description, text)
    line.start()
    try:
        yield line
    finally:
        line.stop()
