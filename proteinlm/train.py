"""Training: from a config and a dataset to checkpoints and curves. The loop reads from top to bottom.

The whole state of a run is one tree (model, optimizer, step) and the position in the data. Every random number is a
pure function of (config.seed, step), so a run that died goes on to the same losses.
"""

import contextlib
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from proteinlm import processes, sharding
from proteinlm.checkpoint import Checkpoints
from proteinlm.config import Config
from proteinlm.data.batches import TrainBatches
from proteinlm.data.dataset import ProteinDataset
from proteinlm.errors import InputError, Interrupted
from proteinlm.evaluate import evaluate_split, make_evaluation_step
from proteinlm.logs import MetricsLog, ProgressLine, console, progress_line
from proteinlm.metrics import Sums
from proteinlm.optimizer import learning_rate_schedule
from proteinlm.resume import check_same, claim_run
from proteinlm.trainer import Trainer, count_parameters


@dataclass(frozen=True)
class TrainResult:
    """Where a run ended."""

    step: int
    num_parameters: int
    valid: Sums | None


def train(config: Config, dataset_path: str | Path, run: str | Path) -> TrainResult:
    """Train to `config.num_steps`, or go on where the run in this folder stopped.

    Args:
        config: the experiment.
        dataset_path: folder that `proteinlm ingest` wrote.
        run: folder of the run; made when missing, resumed when it holds this run.

    Raises:
        InputError: the folder holds a run of another config or dataset; the loss is no longer finite.
        Interrupted: SIGTERM or Ctrl-C, after saving.
    """
    run = Path(run)
    dataset = ProteinDataset.open(dataset_path)
    # A config that does not fit the devices says so here, before the folder is made.
    trainer = Trainer(config)
    share, shares = sharding.row_share(trainer.mesh)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(_stop_signals())
        batches = TrainBatches(dataset, config.batches, process_index=share, process_count=shares)
        stack.callback(batches.close)
        processes.first_alone(lambda: claim_run(run, config, dataset))
        checkpoints = Checkpoints(run, keep=config.keep_checkpoints)
        stack.callback(checkpoints.close)
        state, start = _first_state(config, run, trainer, checkpoints, batches)
        log = MetricsLog(run, start, silent=not processes.is_first())
        stack.callback(log.close)
        line = stack.enter_context(progress_line(config.num_steps, start, run.resolve().name))
        evaluation_step = make_evaluation_step(config, trainer.graph, trainer.mesh)
        window = _Window(config, log, line, checkpoints)
        vote = processes.Vote(trainer.mesh)
        valid = None
        for step in range(start, config.num_steps):
            if config.redraw_every and step and step % config.redraw_every == 0:
                state = trainer.redraw(state)
            state, metrics = trainer.step(state, sharding.place_batch(next(batches), trainer.mesh))
            # The device works on this step while the numbers of the one before come back.
            window.settle()
            window.in_flight = (step + 1, metrics)
            done = step + 1
            last = done == config.num_steps
            # A signal may come to one process alone; all leave at the same step.
            leave = vote.of(stop.requested)
            if last or (config.eval_every and done % config.eval_every == 0 and not leave):
                window.settle()
                valid = _evaluate(config, dataset, evaluation_step, state, done, log, whole=last)
                window.restart()
            if last or leave or done % config.checkpoint_every == 0:
                window.settle()
                checkpoints.save(done, state, batches.get_state(), config)
            if leave and not last:
                raise Interrupted(done, leave)
        return TrainResult(config.num_steps, count_parameters(state["model"]), valid)


def _first_state(
    config: Config, run: Path, trainer: Trainer, checkpoints: Checkpoints, batches: TrainBatches
) -> tuple[dict[str, Any], int]:
    """Return the newest checkpoint's state and step, the data moved to its position; or a new state and 0."""
    steps = checkpoints.steps()
    if not steps:
        return trainer.init(), 0
    start = steps[-1]
    check_same(checkpoints.config(start), config, f"checkpoint {start} of {run}")
    state, position = checkpoints.restore(start, trainer.abstract_state)
    batches.set_state(position)
    finished = start >= config.num_steps
    console.print(f"{run} is finished, at step {start}" if finished else f"resuming {run} at step {start}")
    return state, start


def _evaluate(config, dataset, evaluation_step, state, done, log, *, whole: bool) -> Sums | None:
    """Accuracy and perplexity on valid: on `eval_examples` of it, or on the whole at the end."""
    if not dataset.counts.get("valid"):
        return None
    limit = None if whole or not config.eval_examples else config.eval_examples
    result = evaluate_split(config, dataset, "valid", evaluation_step, state["model"], limit=limit)
    sums = result.residues.total()
    log.write(
        "valid",
        done,
        loss=sums.loss,
        accuracy=sums.accuracy,
        perplexity=sums.perplexity,
        tokens=sums.count,
        sequences=result.num_rows,
        counted="residues",
    )
    return sums


class _Window:
    """Sums over the steps since the last line of the log.

    Attributes:
        in_flight: the step that the device works on, and its metrics to come.
    """

    def __init__(self, config: Config, log: MetricsLog, line: ProgressLine, checkpoints: Checkpoints):
        self._config, self._log, self._line, self._checkpoints = config, log, line, checkpoints
        self._schedule: Callable[[int], Any] = learning_rate_schedule(config.optimizer, config.num_steps)
        self.in_flight: tuple[int, dict] | None = None
        self._steps, self._sums, self._tokens = 0, Sums(), 0
        self._rate = math.nan
        self._time, self._tokens_timed = math.nan, 0

    def restart(self) -> None:
        """Begin to measure time anew, after an evaluation."""
        self._time, self._tokens_timed = time.monotonic(), 0

    def settle(self) -> None:
        """Fetch the metrics of the step in flight; numbers that are not finite end the run before any save."""
        if self.in_flight is None:
            return
        (step, metrics), self.in_flight = self.in_flight, None
        values = jax.device_get(metrics)
        checked = ("loss", "gradient_norm", "parameter_norm")
        if not all(math.isfinite(float(values[name])) for name in checked):
            raise InputError(_not_finite(step, values, self._config, self._checkpoints.steps()))
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

    def _write(self, step: int, values: dict[str, np.ndarray]) -> None:
        self._log.write(
            "train",
            step,
            loss=self._sums.loss,
            accuracy=self._sums.accuracy,
            perplexity=self._sums.perplexity,
            counted="residues+eos" if self._config.causal else "selected residues",
            counted_tokens=int(self._sums.count),
            tokens=self._tokens,
            steps=self._steps,
            learning_rate=float(self._schedule(step - 1)),
            gradient_norm=float(values["gradient_norm"]),
            parameter_norm=float(values["parameter_norm"]),
            tokens_per_second=self._rate,
        )
        self._steps, self._sums, self._tokens = 0, Sums(), 0
        self.restart()


def _not_finite(step: int, values: dict[str, Any], config: Config, steps: list[int]) -> str:
    good = f"the last good checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint before it"
    clip = f"a lower optimizer.clip (now {config.optimizer.clip:g})" if config.optimizer.clip else "optimizer.clip 0.5"
    return (
        f"step {step} is not finite: loss {float(values['loss']):g}, gradient norm {float(values['gradient_norm']):g}, "
        f"norm of the updated parameters {float(values['parameter_norm']):g}; {good}. Try a lower "
        f"optimizer.learning_rate (now {config.optimizer.learning_rate:g}), a longer optimizer.warmup_steps (now "
        f"{config.optimizer.warmup_steps}), {clip}, or model.dtype float32, in a new run folder."
    )


@dataclass
class _Stop:
    requested: int = 0


@contextlib.contextmanager
def _stop_signals():
    """Turn the first SIGTERM or Ctrl-C into a request to save and leave; a second one acts as usual."""
    stop = _Stop()
    before = {}

    def request(number, _frame):
        stop.requested = number
        for each, handler in before.items():
            signal.signal(each, handler)
        console.print("saving, then leaving; once more to leave at once")

    # Signals can be handled in the main thread alone; elsewhere (a notebook's worker) they stay as they are.
    with contextlib.suppress(ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
