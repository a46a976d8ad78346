"""One writer of what happens in a run: metrics.jsonl always, a progress line on the terminal."""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from proteinlm.errors import InputError
from proteinlm.files import whole_file

METRICS_FILE = "metrics.jsonl"
console = Console(stderr=True)


def print_table(table: Table) -> None:
    """Print a table on standard output; where that is no terminal, wide enough that nothing is cut."""
    Console(width=None if sys.stdout.isatty() else 200).print(table)


class MetricsLog:
    """Lines of JSON, one an event, each with "kind" (train or valid) and "step"; appended and flushed at once."""

    def __init__(self, run: Path, resume_step: int, *, silent: bool = False):
        """Open RUN/metrics.jsonl, and drop the lines of steps after `resume_step`: they will happen again.

        Args:
            run: the run's folder.
            resume_step: where it goes on; 0 at the beginning.
            silent: write nothing, in a process beside the one that does.
        """
        self.path = Path(os.devnull) if silent else run / METRICS_FILE
        if silent:
            self._handle = open(os.devnull, "a", encoding="utf-8")  # noqa: SIM115
            return
        if self.path.exists():
            kept = [row for row in read_metrics(run) if row["step"] <= resume_step]
            with whole_file(self.path) as handle:
                handle.writelines(json.dumps(row) + "\n" for row in kept)
        self._handle = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 (open for the whole run)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one line; a value that is not finite is written as null, as JSON has no NaN."""
        row = {"kind": kind, "step": step}
        for name, value in values.items():
            value = value.item() if hasattr(value, "item") else value
            row[name] = None if isinstance(value, float) and not math.isfinite(value) else value
        self._handle.write(json.dumps(row) + "\n")
        self._handle.flush()

    def close(self) -> None:
        """Flush to the disk and close."""
        self._handle.flush()
        if self.path != Path(os.devnull):
            os.fsync(self._handle.fileno())
        self._handle.close()


def read_metrics(run: Path) -> list[dict]:
    """Return the lines of RUN/metrics.jsonl; a last line cut short by a kill is left out.

    Raises:
        InputError: there is no such file, or a line before the last is not JSON.
    """
    path = Path(run) / METRICS_FILE
    if not path.is_file():
        raise InputError(f"{run} has no {METRICS_FILE}: it is not the folder of a training run.")
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise InputError(f"{path}, line {number}, is not JSON: {error}.") from error
    return rows


class ProgressLine:
    """The line on the terminal: step, loss, accuracy, tokens per second, time left.

    Where the output is not a terminal, a plain line every half minute, so that a log file tells the same.
    """

    PLAIN_EVERY_SECONDS = 30.0

    def __init__(self, total: int, done: int, description: str):
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
        """Show the newest numbers."""
        numbers = f"loss {loss:.3f}  accuracy {100 * accuracy:.1f} %"
        if not math.isnan(tokens_per_second):
            numbers += f"  {tokens_per_second:,.0f} tokens/s"
        self._progress.update(self._task, completed=step, numbers=numbers)
        now = time.monotonic()
        if not console.is_terminal and (now - self._last_plain > self.PLAIN_EVERY_SECONDS or step == self._total):
            self._last_plain = now
            left = (now - self._start) / max(step - self._done_at_start, 1) * (self._total - step)
            console.print(
                f"{self._description}: step {step} of {self._total}  {numbers}  {left:,.0f} s left", highlight=False
            )

    def start(self) -> None:
        """Begin to show."""
        self._progress.start()

    def stop(self) -> None:
        """Leave the line as it is."""
        self._progress.stop()


@contextlib.contextmanager
def progress_line(total: int, done: int, description: str) -> Iterator[ProgressLine]:
    """Show a progress line for the length of a block."""
    line = ProgressLine(total, done, description)
    line.start()
    try:
        yield line
    finally:
        line.stop()
