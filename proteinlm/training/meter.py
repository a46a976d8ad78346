"""The numbers of the steps since the last line of the log; what is not finite is skipped, or ends the run."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass
class _Flight:
    """A step that was sent off: its number and its batch's, metrics to come, and times of the host's clock in seconds.

    Attributes:
        host: that the host needed to send it off.
        ended: when it was through, if that was so at once (as on a CPU), else None.
        timed: whether its time is that of a step, not of a compilation.
        fresh: whether nothing was in flight before it.
    """

    step: int
    batch: int
    metrics: dict
    host: float
    ended: float | None
    timed: bool
    fresh: bool


class Window:
    """Sums over the steps since the last line of the log, and the time in which these steps ran.

    A step's time is from the end of the step before it to its own: what an evaluation, a checkpoint, a trace or a
    compilation took is not in it. Where the host saw an end late, since nothing waited for the device, the time that it
    needed to send the steps off is the least that they took.
    """

    def __init__(
        self,
        config: Config,
        log: MetricsLog,
        line: ProgressLine,
        checkpoints: Checkpoints,
        unfinished: Mapping[str, float] = MappingProxyType({}),
    ):
        """Begin with the sums that a checkpoint has from `unfinished`."""
        self._config, self._log, self._line, self._checkpoints = config, log, line, checkpoints
        self._schedule: Callable[[int], Any] = learning_rate_schedule(config.optimizer, config.num_steps)
        # Its own small programs are compiled here, not in the time of the first steps.
        jax.block_until_ready(self._schedule(0))
        self._flight: _Flight | None = None
        self._steps, self._tokens = int(unfinished.get("steps", 0)), int(unfinished.get("tokens", 0))
        self._sums = Sums(*(float(unfinished.get(name, 0.0)) for name in _SUMS))
        self._compiled: set[Any] = set()
        self._compiles = False
        self._rate = math.nan
        self._seconds = self._host = 0.0
        self._tokens_timed = 0
        self.pause()

    def unfinished(self) -> dict[str, float]:
        """Return in JSON's types the sums that are in no line of the log yet; {} where there are none."""
        if not self._tokens:
            return {}
        sums = {name: float(getattr(self._sums, name)) for name in _SUMS}
        return {"steps": self._steps, "tokens": self._tokens, **sums}

    def pause(self) -> None:
        """Leave out the time since the last step, when something else was done; no step may be in flight."""
        self._since = self._sent = time.monotonic()
        self._fresh = True

    def prepare(self, program: Any) -> None:
        """Hear which program comes next; one that was not seen before is compiled, which is no time of a step."""
        if program not in self._compiled:
            self._compiled.add(program)
            self.settle()
            self._compiles = True

    def launch(self, step: int, batch: int, metrics: dict) -> None:
        """Take a step that was sent off, with the number of its batch and its metrics; settle the one before."""
        now = time.monotonic()
        ended = now if metrics["loss"].is_ready() else None
        flight = _Flight(step, batch, metrics, now - self._sent, ended, not self._compiles, self._fresh)
        self.settle()
        self._flight, self._compiles, self._fresh = flight, False, False
        self._sent = time.monotonic()

    def settle(self) -> None:
        """Fetch the metrics of the step in flight; numbers that are not finite end the run before any save.

        Where the config skips bad steps, one of which loss or gradient are not finite is recorded instead.
        """
        if self._flight is None:
            return
        flight, self._flight = self._flight, None
        waits = not flight.metrics["loss"].is_ready()
        step, values = flight.step, jax.device_get(flight.metrics)
        if not all(math.isfinite(float(values[name])) for name in _FINITE):
            self._skip(step, flight.batch, values)
        else:
            self._steps += 1
            self._sums += Sums(*(float(values[name]) for name in _SUMS))
        self._tokens += int(values["tokens"])
        self._measure(flight, int(values["tokens"]), waits)
        due = step % self._config.log_every == 0 or step == self._config.num_steps
        rate = self._tokens_timed / max(self._seconds, self._host) if self._tokens_timed else math.nan
        if due and self._tokens_timed:
            self._rate = rate
        self._line.update(step, self._sums.loss, self._sums.accuracy, self._rate)
        if due:
            self._write(step, values, rate)

    def _measure(self, flight: _Flight, tokens: int, waits: bool) -> None:
        ended = time.monotonic() if flight.ended is None else flight.ended
        if flight.timed:
            # A first step that ended before the next was sent off: when, nobody saw.
            late = flight.fresh and flight.ended is None and not waits
            self._seconds += flight.host if late else ended - self._since
            self._host += flight.host
            self._tokens_timed += tokens
        self._since = ended

    def _skip(self, step: int, batch: int, values: dict[str, np.ndarray]) -> None:
        row = 1
        while step - row in self._log.skipped[-row:]:
            row += 1
        # Parameters that are not finite would make every later step bad.
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
        self._steps, self._sums, self._tokens = 0, Sums(), 0
        self._seconds, self._host, self._tokens_timed = 0.0, 0.0, 0


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
