"""The training loop: from a config and a dataset to checkpoints and curves.

The state of a run is one tree (model, optimizer, step) and the position in the data. Every random number is a pure
function of (config.seed, step), so that a resumed run has the same losses as one that never stopped.
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
    """The end of a training.

    Attributes:
        step: number of optimizer steps done.
        num_parameters: number of trained parameters.
        valid: sums of the last evaluation on valid; None where there was none.
    """

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
    """Train to `config.num_steps`, from the beginning or from the newest checkpoint in the run's folder.

    Args:
        config: the experiment.
        dataset_path: folder of a dataset, written by `proteinlm ingest`.
        run: folder of the run; it is created, or resumed if it holds this run.
        allow_inexact_resume: resume although config, dataset or devices differ from those of the run; the differences
            are printed and logged.
        track: "tensorboard", "wandb" or "tensorboard,wandb".
        profile: steps to trace, as in `profiling.Profile`.

    Raises:
        InputError: the folder is in use, or holds a run with another config or dataset; or too many steps were not
            finite (`config.skip_bad_steps`).
        Interrupted: SIGTERM or Ctrl-C, after a checkpoint was saved.
    """
    run = Path(run)
    tracer, trackers = Profile(profile), check_trackers(track)
    dataset = ProteinDataset.open(dataset_path)
    processes.agree(config, dataset.fingerprint, **{"--allow-inexact-resume": allow_inexact_resume})
    # This refuses a config that does not fit the devices, before the folder is created.
    train_step = TrainStep(config)
    share, shares = sharding.row_share(train_step.mesh)
    first = processes.is_first()
    with contextlib.ExitStack() as stack:
        batches = TrainBatches(dataset, config.batches, process_index=share, process_count=shares)
        stack.callback(batches.close)
        lock = RunLock(run)
        stack.callback(lock.release)
        # Until here a signal acts as usual: nothing is to be saved, and the folder may belong to something else.
        processes.first_alone(lambda: claim_run(run, config, dataset, lock, inexact=allow_inexact_resume))
        text = stack.enter_context(TextLog(run if first else None))
        stop = stack.enter_context(_stop_signals(text))
        checkpoints = Checkpoints(run, keep=config.keep_checkpoints, keep_best=config.keep_best)
        stack.callback(checkpoints.close)
        begin = first_state(config, run, train_step, checkpoints, batches, inexact=allow_inexact_resume)
        state, start = begin.state, begin.step
        tracer.plan(run, start, config.num_steps)
        processes.first_alone(lambda: accept(run, config, dataset, start))
        if first:
            _describe_start(config, dataset, run, start, begin.inexact, text, sharding.describe(train_step.mesh))
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
        evaluation_step = make_evaluation_step(config, train_step.graph, train_step.mesh)
        meter = Meter(config, log, line, checkpoints, begin.unfinished)
        vote = processes.Vote(train_step.mesh)
        stack.callback(tracer.stop)
        # The number of a batch is that of its step, except after an inexact resume.
        offset = batches.get_state()["step"] - start
        valid = None
        for step in range(start, config.num_steps):
            done = step + 1
            if first and tracer.starts(done):
                with meter.paused():
                    tracer.start()
            if _redraws(config, step) > _redraws(config, step - 1):
                meter.announce("redraw")
                state = train_step.redraw(state)
            batch = sharding.place_batch(next(batches), train_step.mesh)
            meter.announce(batch["tokens"].shape)
            state, metrics = train_step.step(state, batch)
            # The device works on this step while the metrics of the step before are fetched.
            meter.add(done, step + offset, metrics)
            last = done == config.num_steps
            # A signal may reach only one of several processes; all stop at the same step.
            leave = vote.of(stop.requested)
            if first and tracer.ends(done):
                with meter.paused():
                    tracer.stop()
            sample_loss = None
            # After a signal there may be little time: save without an evaluation. The next evaluation gives a loss.
            if last or (config.eval_every and done % config.eval_every == 0 and not leave):
                with meter.paused():
                    valid, sample_loss = _evaluate(config, dataset, evaluation_step, state, done, log, whole=last)
            is_best = sample_loss is not None and checkpoints.is_among_best(sample_loss)
            if last or leave or is_best or done % config.checkpoint_every == 0:
                with meter.paused():
                    position = position_of(batches, train_step, meter.unfinished())
                    checkpoints.save(done, state, position, config, sample_loss)
            if leave and not last:
                raise Interrupted(done, leave)
        return TrainResult(config.num_steps, count_parameters(state["model"]), valid)


def _redraws(config: Config, step: int) -> int:
    return redraws_until(step, config.redraw_every, config.redraw_growth)


def _describe_start(
    config: Config, dataset: ProteinDataset, run: Path, start: int, inexact: list[str], text: TextLog, devices: dict
) -> None:
    """Print where the run starts, and write its environment.json and README."""
    if start >= config.num_steps:
        text.say(f"{run} is finished, at step {start}")
        return
    reached = max((row["step"] for row in read_metrics(run)), default=0) if (run / METRICS_FILE).is_file() else 0
    again = f"; steps up to {reached} in its {METRICS_FILE} are repeated" if reached > start else ""
    if start:
        text.say(f"resuming {run} at step {start}{again}")
    else:
        text.say(f"training {run} from the beginning{', because it has no checkpoint' if again else ''}{again}")
    for difference in inexact:
        text.say(f"inexact resume: {difference}")
    for change in write_environment(run, start, environment(devices)):
        text.say(f"{change} since the last start of this run: losses may differ in their last digits")
    write_readme(run, dataset.path)


def _evaluate(
    config: Config, dataset: ProteinDataset, evaluation_step: EvaluationStep, state: Any, done: int, log: MetricsLog, *,
    whole: bool,
) -> tuple[Sums | None, float | None]:  # fmt: skip
    """Evaluate on valid, on the sample of `eval_examples` or on all of it (`whole`), and log the metrics.

    Returns:
        (sums over the residues, loss on the sample, which compares checkpoints); (None, None) if valid is empty.
    """
    if not dataset.counts.get("valid"):
        return None, None
    limit = None if whole or not config.eval_examples else config.eval_examples
    result = evaluate_split(config, dataset, "valid", evaluation_step, state["model"], limit=limit)
    sums = result.residues.total()
    # The sample is the first rows of the split, in the dataset's order.
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
    """Turn the first SIGTERM or Ctrl-C into a request to save and stop; a second one acts as usual."""
    stop = _Stop()
    before = {}

    def request(number, _frame):
        stop.requested = number
        for each, handler in before.items():
            signal.signal(each, handler)
        text.say("saving a checkpoint, then stopping; a second signal stops at once")

    # Only the main thread can handle signals; in another thread (of a notebook) they act as usual.
    with contextlib.suppress(ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
