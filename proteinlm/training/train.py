"""Training: from a config and a dataset to checkpoints and curves. The loop reads from top to bottom.

The whole state of a run is one tree (model, optimizer, step) and the position in the data. Every random number is a
pure function of (config.seed, step), so a run that died goes on to the same losses.
"""

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteinlm.config import Config
from proteinlm.data.batches.batches import TrainBatches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.devices import processes, sharding
from proteinlm.errors import Interrupted
from proteinlm.evaluation.evaluate import EvaluationStep, evaluate_split, make_evaluation_step
from proteinlm.evaluation.metrics import Sums
from proteinlm.models.randomness import redraws_until
from proteinlm.runs.checkpoints import Checkpoints
from proteinlm.runs.environment import environment, write_environment
from proteinlm.runs.folder import RunLock, write_readme
from proteinlm.runs.logs import METRICS_FILE, MetricsLog, TextLog, progress_line, read_metrics
from proteinlm.runs.trackers import check_trackers, open_trackers
from proteinlm.training.meter import Meter
from proteinlm.training.profiling import Profile
from proteinlm.training.resume import accept, claim_run, first_state, position_of
from proteinlm.training.step import TrainStep, count_parameters


@dataclass(frozen=True)
class TrainResult:
    """Where a run ended."""

    step: int
    num_parameters: int
    valid: Sums | None


def train(
    config: Config,
    dataset_path: str | Path,
    run: str | Path,
    *,
    allow_inexact_resume: bool = False,
    track: str = "",
    profile: str = "",
) -> TrainResult:
    """Train to `config.num_steps`, or go on where the run in this folder stopped.

    Args:
        config: the experiment.
        dataset_path: folder that `proteinlm ingest` wrote.
        run: folder of the run; made when missing, resumed when it holds this run.
        allow_inexact_resume: go on too where config, dataset or devices are others than the run's, and say which.
        track: "tensorboard", "wandb" or both, with a comma between them.
        profile: steps to trace, as for `profiling.Profile`.

    Raises:
        InputError: the folder is in use, or holds a run of another config or dataset; the loss is no longer finite.
        Interrupted: SIGTERM or Ctrl-C, after saving.
    """
    run = Path(run)
    traced, trackers = Profile(profile), check_trackers(track)
    dataset = ProteinDataset.open(dataset_path)
    processes.agree(config, dataset.fingerprint, **{"--allow-inexact-resume": allow_inexact_resume})
    # A config that does not fit the devices says so here, before the folder is made.
    trainer = TrainStep(config)
    share, shares = sharding.row_share(trainer.mesh)
    first = processes.is_first()
    with contextlib.ExitStack() as stack:
        batches = TrainBatches(dataset, config.batches, process_index=share, process_count=shares)
        stack.callback(batches.close)
        lock = RunLock(run)
        stack.callback(lock.release)
        # Up to here a signal acts as usual, as there is nothing to save; and a folder that is not ours is left alone.
        processes.first_alone(lambda: claim_run(run, config, dataset, lock, inexact=allow_inexact_resume))
        text = stack.enter_context(TextLog(run if first else None))
        stop = stack.enter_context(_stop_signals(text))
        checkpoints = Checkpoints(run, keep=config.keep_checkpoints, keep_best=config.keep_best)
        stack.callback(checkpoints.close)
        begin = first_state(config, run, trainer, checkpoints, batches, inexact=allow_inexact_resume)
        state, start = begin.state, begin.step
        traced.plan(run, start, config.num_steps)
        processes.first_alone(lambda: accept(run, config, dataset, start))
        if first:
            _describe_start(config, dataset, run, start, begin.inexact, text, sharding.describe(trainer.mesh))
        trains = start < config.num_steps
        log = MetricsLog(
            run,
            start,
            silent=not first,
            trackers=open_trackers(trackers, run, start, config) if first and trains else (),
        )
        stack.callback(log.close)
        if begin.inexact and trains:
            log.write("resume", start, inexact=begin.inexact)
        line = stack.enter_context(progress_line(config.num_steps, start, run.resolve().name, text))
        evaluation_step = make_evaluation_step(config, trainer.graph, trainer.mesh)
        meter = Meter(config, log, line, checkpoints, begin.unfinished)
        vote = processes.Vote(trainer.mesh)
        stack.callback(traced.stop)
        # Batches and steps go together, unless a resume was not exact.
        ahead = batches.get_state()["step"] - start
        valid = None
        for step in range(start, config.num_steps):
            done = step + 1
            if first and traced.starts(done):
                with meter.paused():
                    traced.start()
            if _redraws(config, step) > _redraws(config, step - 1):
                meter.announce("redraw")
                state = trainer.redraw(state)
            batch = sharding.place_batch(next(batches), trainer.mesh)
            meter.announce(batch["tokens"].shape)
            state, metrics = trainer.step(state, batch)
            # The device works on this step while the metrics of the step before are fetched.
            meter.add(done, step + ahead, metrics)
            last = done == config.num_steps
            # A signal may come to one process alone; all leave at the same step.
            leave = vote.of(stop.requested)
            if first and traced.ends(done):
                with meter.paused():
                    traced.stop()
            comparable = None
            # After a signal there may be little time left: save without an evaluation. The next one comes in its turn.
            if last or (config.eval_every and done % config.eval_every == 0 and not leave):
                with meter.paused():
                    valid, comparable = _evaluate(config, dataset, evaluation_step, state, done, log, whole=last)
            is_best = comparable is not None and checkpoints.is_among_best(comparable)
            if last or leave or is_best or done % config.checkpoint_every == 0:
                with meter.paused():
                    position = position_of(batches, trainer, meter.unfinished())
                    checkpoints.save(done, state, position, config, comparable)
            if leave and not last:
                raise Interrupted(done, leave)
        return TrainResult(config.num_steps, count_parameters(state["model"]), valid)


def _redraws(config: Config, step: int) -> int:
    return redraws_until(step, config.redraw_every, config.redraw_growth)


def _describe_start(
    config: Config, dataset: ProteinDataset, run: Path, start: int, inexact: list[str], text: TextLog, devices: dict
) -> None:
    """Say where the run begins, and write what its folder says of itself."""
    if start >= config.num_steps:
        text.say(f"{run} is finished, at step {start}")
        return
    reached = max((row["step"] for row in read_metrics(run)), default=0) if (run / METRICS_FILE).is_file() else 0
    again = f"; the steps to {reached} in its {METRICS_FILE} happen again" if reached > start else ""
    if start:
        text.say(f"resuming {run} at step {start}{again}")
    else:
        text.say(f"training {run} from the beginning{', as it has no checkpoint' if again else ''}{again}")
    for difference in inexact:
        text.say(f"not exact: {difference}")
    for change in write_environment(run, start, environment(devices)):
        text.say(f"{change} since this run was last started: losses may differ in their last digits")
    write_readme(run, dataset.path)


def _evaluate(
    config: Config, dataset: ProteinDataset, evaluation_step: EvaluationStep, state: Any, done: int, log: MetricsLog, *,
    whole: bool,
) -> tuple[Sums | None, float | None]:  # fmt: skip
    """Log accuracy and perplexity on valid: on `eval_examples` of it, or on the whole at the end.

    Returns:
        The sums, and the loss on the first `eval_examples`, by which checkpoints are compared; None without valid.
    """
    if not dataset.counts.get("valid"):
        return None, None
    limit = None if whole or not config.eval_examples else config.eval_examples
    result = evaluate_split(config, dataset, "valid", evaluation_step, state["model"], limit=limit)
    sums = result.residues.total()
    # The whole has the others' sample in it: rows are numbered in the dataset's order.
    compared = result.rows < (config.eval_examples or result.rows.size)
    residues = result.residues
    sample = Sums(residues.nll[compared], residues.correct[compared], residues.count[compared]).loss
    log.write(
        "valid",
        done,
        loss=sums.loss,
        accuracy=sums.accuracy,
        perplexity=sums.perplexity,
        tokens=int(sums.count),
        sequences=result.num_rows,
        sample_loss=sample,
        sample_sequences=int((compared & (result.all_tokens.count > 0)).sum()),
        counted="residues",
    )
    return sums, sample


@dataclass
class _Stop:
    requested: int = 0


@contextlib.contextmanager
def _stop_signals(text: TextLog):
    """Turn the first SIGTERM or Ctrl-C into a request to save and leave; a second one acts as usual."""
    stop = _Stop()
    before = {}

    def request(number, _frame):
        stop.requested = number
        for each, handler in before.items():
            signal.signal(each, handler)
        text.say("saving, then leaving; once more to leave at once")

    # Signals can be handled in the main thread alone; elsewhere (a notebook's worker) they stay as they are.
    with contextlib.suppress(ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
