"""Training metrics between two log lines: sums, tokens per second, and the policy for NaN and Inf."""

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.evaluation.metrics import Sums
from proteinlm.models.randomness import redraws_until
from proteinlm.runs.checkpoints import Checkpoints
from proteinlm.runs.logs import MetricsLog, ProgressLine
from proteinlm.training.optimizer import learning_rate_schedule

_SUMS = ("nll", "correct", "count")
_FINITE = ("loss", "gradient_norm", "parameter_norm")


class Meter:
    """Sums over the steps since the last log line, and tokens per second over the time between two lines.

    The metrics of a step are fetched after the next step was dispatched, so that the device always has work. A step of
    a log line is waited for, so that the line has the time of its steps. Time in `paused` does not count. A line has no
    rate (NaN) if a program was compiled since the line before.
    """

    def __init__(
        self,
        config: Config,
        log: MetricsLog,
        line: ProgressLine,
        checkpoints: Checkpoints,
        unfinished: Mapping[str, float] = MappingProxyType({}),
    ):
        """Start with the sums of an unfinished line (from `unfinished`), as a checkpoint stores them."""
        self._config, self._log, self._line, self._checkpoints = config, log, line, checkpoints
        self._schedule: Callable[[int], Any] = learning_rate_schedule(config.optimizer, config.num_steps)
        # Compile the schedule's small programs here, not in the time of the first steps.
        jax.block_until_ready(self._schedule(0))
        self._in_flight: tuple[int, int, dict] | None = None
        self._compiled: set[Hashable] = set()
        self._rate = math.nan
        self._start_line(**unfinished)

    def _start_line(
        self, steps: float = 0, tokens: float = 0, nll: float = 0.0, correct: float = 0.0, count: float = 0.0
    ) -> None:
        self._steps, self._tokens, self._sums = int(steps), int(tokens), Sums(nll, correct, count)
        self._start, self._paused, self._tokens_before, self._compiles = time.monotonic(), 0.0, self._tokens, False

    def unfinished(self) -> dict[str, float]:
        """Return the sums that are in no log line yet, in JSON's types; {} where there are none."""
        if not self._tokens:
            return {}
        sums = {name: float(getattr(self._sums, name)) for name in _SUMS}
        return {"steps": self._steps, "tokens": self._tokens, **sums}

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the step in flight, and exclude the time of the block, such as an evaluation, from the rate."""
        self.settle()
        start = time.monotonic()
        yield
        self._paused += time.monotonic() - start

    def announce(self, program: Hashable) -> None:
        """Announce the next compiled program. A new one is compiled first; the current line then has no rate."""
        self._compiles |= program not in self._compiled
        self._compiled.add(program)

    def add(self, step: int, batch: int, metrics: dict[str, Any]) -> None:
        """Take the metrics of a dispatched step, and settle the step before; settle this one too for a log line.

        Args:
            step: number of the step, from 1.
            batch: number of its batch, from 0.
            metrics: scalars from `TrainStep.step`.
        """
        self.settle()
        self._in_flight = step, batch, metrics
        if self._due(step):
            self.settle()

    def settle(self) -> None:
        """Wait for the step in flight, add its metrics to the sums, and write a log line where one is due.

        Raises:
            InputError: loss, gradient or parameters are not finite, in more steps in a row than
                `config.skip_bad_steps`; nothing of such a step is saved.
        """
        if self._in_flight is None:
            return
        (step, batch, metrics), self._in_flight = self._in_flight, None
        values = jax.device_get(metrics)
        if not all(math.isfinite(float(values[name])) for name in _FINITE):
            self._skip(step, batch, values)
        else:
            self._steps += 1
            self._sums += Sums(*(float(values[name]) for name in _SUMS))
        self._tokens += int(values["tokens"])
        rate, now = math.nan, time.monotonic()
        if self._due(step) and not self._compiles:
            self._rate = rate = (self._tokens - self._tokens_before) / (now - self._start - self._paused)
        self._line.update(step, self._sums.loss, self._sums.accuracy, self._rate)
        if self._due(step):
            self._write(step, values, rate)
            self._start_line()
            self._start = now

    def _due(self, step: int) -> bool:
        return step % self._config.log_every == 0 or step == self._config.num_steps

    def _skip(self, step: int, batch: int, values: dict[str, np.ndarray]) -> None:
        row = 1
        while step - row in self._log.skipped[-row:]:
            row += 1
        # After a step with parameters that are not finite, every later step would be bad.
        if row > self._config.skip_bad_steps or not math.isfinite(float(values["parameter_norm"])):
            self._log.write("not_finite", step, batch=batch, **{name: float(values[name]) for name in _FINITE})
            raise InputError(_not_finite(step, batch, row, values, self._config, self._checkpoints.steps()))
        self._log.write(
            "skipped", step, batch=batch, loss=float(values["loss"]), gradient_norm=float(values["gradient_norm"]),
            in_a_row=row, in_all=len(self._log.skipped) + 1,
        )  # fmt: skip

    def _write(self, step: int, values: dict[str, np.ndarray], rate: float) -> None:
        config = self._config
        self._log.write(
            "train",
            step,
            loss=self._sums.loss,
            accuracy=self._sums.accuracy,
            perplexity=self._sums.perplexity,
            counted="residues+eos" if config.causal else "selected residues",
            counted_tokens=int(self._sums.count),
            tokens=self._tokens,
            steps=self._steps,
            learning_rate=float(self._schedule(step - 1)),
            redraws=redraws_until(step - 1, config.redraw_every, config.redraw_growth),
            gradient_norm=float(values["gradient_norm"]),
            parameter_norm=float(values["parameter_norm"]),
            tokens_per_second=rate,
        )


def _not_finite(step: int, batch: int, row: int, values: dict[str, Any], config: Config, steps: list[int]) -> str:
    good = f"the last good checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint before it"
    clip = f"a lower optimizer.clip (now {config.optimizer.clip:g})" if config.optimizer.clip else "optimizer.clip 0.5"
    skipped = f" The {row - 1} steps before it were skipped (skip_bad_steps)." if row > 1 else ""
    return (
        f"step {step} (batch {batch}) is not finite: loss {float(values['loss']):g}, gradient norm "
        f"{float(values['gradient_norm']):g}, norm of the updated parameters {float(values['parameter_norm']):g}; "
        f"{good}.{skipped} Try a lower optimizer.learning_rate (now {config.optimizer.learning_rate:g}), a longer "
        f"optimizer.warmup_steps (now {config.optimizer.warmup_steps}), {clip}, or model.dtype float32, in a new run "
        "folder; or, if only single batches fail, a larger skip_bad_steps in this folder."
    )
