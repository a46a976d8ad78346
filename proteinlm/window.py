"""The numbers of the steps since the last line of the log; what is not finite is skipped, or ends the run."""

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from proteinlm.checkpoint import Checkpoints
from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.logs import MetricsLog, ProgressLine
from proteinlm.metrics import Sums
from proteinlm.optimizer import learning_rate_schedule
from proteinlm.randomness import redraws_until


class Window:
    """Sums over the steps since the last line of the log.

    Attributes:
        in_flight: the step that the device works on, the number of its batch, and its metrics to come.
    """

    def __init__(self, config: Config, log: MetricsLog, line: ProgressLine, checkpoints: Checkpoints):
        self._config, self._log, self._line, self._checkpoints = config, log, line, checkpoints
        self._schedule: Callable[[int], Any] = learning_rate_schedule(config.optimizer, config.num_steps)
        self.in_flight: tuple[int, int, dict] | None = None
        self._steps, self._sums, self._tokens = 0, Sums(), 0
        self._rate = math.nan
        self._time, self._tokens_timed = math.nan, 0

    def restart(self) -> None:
        """Begin to measure time anew, after an evaluation."""
        self._time, self._tokens_timed = time.monotonic(), 0

    def settle(self) -> None:
        """Fetch the metrics of the step in flight; numbers that are not finite end the run before any save.

        Where the config skips bad steps, one of which loss or gradient are not finite is recorded instead.
        """
        if self.in_flight is None:
            return
        (step, batch, metrics), self.in_flight = self.in_flight, None
        values = jax.device_get(metrics)
        if not all(math.isfinite(float(values[name])) for name in ("loss", "gradient_norm", "parameter_norm")):
            self._skip(step, batch, values)
        else:
            self._steps += 1
            self._sums += Sums(float(values["nll"]), float(values["correct"]), float(values["count"]))
        self._tokens += int(values["tokens"])
        self._tokens_timed += int(values["tokens"])
        if math.isnan(self._time):
            # The first step of a run is mostly compilation: time begins after it.
            self.restart()
        due = step % self._config.log_every == 0 or step == self._config.num_steps
        if due and self._tokens_timed:
            self._rate = self._tokens_timed / max(time.monotonic() - self._time, 1e-9)
        self._line.update(step, self._sums.loss, self._sums.accuracy, self._rate)
        if due:
            self._write(step, values)

    def _skip(self, step: int, batch: int, values: dict[str, np.ndarray]) -> None:
        row = 1
        while step - row in self._log.skipped[-row:]:
            row += 1
        # Parameters that are not finite would make every later step bad.
        if row > self._config.skip_bad_steps or not math.isfinite(float(values["parameter_norm"])):
            raise InputError(_not_finite(step, batch, row, values, self._config, self._checkpoints.steps()))
        self._log.write(
            "skipped", step, batch=batch, loss=float(values["loss"]), gradient_norm=float(values["gradient_norm"]),
            in_a_row=row, in_all=len(self._log.skipped) + 1,
        )  # fmt: skip

    def _write(self, step: int, values: dict[str, np.ndarray]) -> None:
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
            tokens_per_second=self._rate,
        )
        self._steps, self._sums, self._tokens = 0, Sums(), 0
        self.restart()


def _not_finite(step: int, batch: int, row: int, values: dict[str, Any], config: Config, steps: list[int]) -> str:
    good = f"the last good checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint before it"
    clip = f"a lower optimizer.clip (now {config.optimizer.clip:g})" if config.optimizer.clip else "optimizer.clip 0.5"
    skipped = f" The {row - 1} steps before it were skipped (skip_bad_steps)." if row > 1 else ""
    return (
        f"step {step} (batch {batch}) is not finite: loss {float(values['loss']):g}, gradient norm "
        f"{float(values['gradient_norm']):g}, norm of the updated parameters {float(values['parameter_norm']):g}; "
        f"{good}.{skipped} Try a lower optimizer.learning_rate (now {config.optimizer.learning_rate:g}), a longer "
        f"optimizer.warmup_steps (now {config.optimizer.warmup_steps}), {clip}, or model.dtype float32, in a new run "
        "folder; or, where single batches are to blame, a larger skip_bad_steps in this one."
    )
