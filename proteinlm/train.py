"""Training: from a config and a dataset to checkpoints and curves. The loop reads from top to bottom.

The whole state of a run is one tree (model, optimizer, step) and the position in the data. Every random number is a
pure function of (config.seed, step), so a run that died goes on to the same losses.
"""

import contextlib
import json
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from proteinlm import sharding
from proteinlm.checkpoint import CONFIG_FILE, Checkpoints, read_run_files, write_run_files
from proteinlm.config import Config
from proteinlm.data.batches import TrainBatches, batch_shapes
from proteinlm.data.dataset import ProteinDataset
from proteinlm.errors import InputError, Interrupted
from proteinlm.evaluate import evaluate_split, make_evaluation_step
from proteinlm.logs import MetricsLog, ProgressLine, console, progress_line
from proteinlm.metrics import Sums
from proteinlm.models.transformer import ProteinLM
from proteinlm.objective import make_example, mean_loss, token_sums
from proteinlm.optimizer import learning_rate_schedule, make_optimizer
from proteinlm.randomness import random_key

# What may differ between a run and its resumption without changing a single loss.
_FREE_FIELDS = ("eval_every", "eval_examples", "checkpoint_every", "keep_checkpoints", "log_every")


@dataclass(frozen=True)
class TrainResult:
    """Where a run ended."""

    step: int
    num_parameters: int
    valid: Sums | None


class Trainer:
    """The compiled parts of training for one config: initial state, train step, redraw."""

    def __init__(self, config: Config):
        """Prepare for a config; nothing is compiled until it is called."""
        self.config = config
        self.optimizer = make_optimizer(config.optimizer, config.num_steps)
        self.graph = nnx.split(nnx.eval_shape(self._make_model))[0]
        self.init = jax.jit(self._init)
        self.step = jax.jit(self._step, donate_argnums=0)
        self.redraw = jax.jit(self._redraw, donate_argnums=0)

    def _make_model(self) -> ProteinLM:
        return ProteinLM(self.config.model, causal=self.config.causal, key=random_key(self.config.seed, "parameters"))

    def _init(self) -> dict[str, Any]:
        state = nnx.split(self._make_model())[1]
        parameters, _ = nnx.split_state(state, nnx.Param, ...)
        return {"model": state, "optimizer": self.optimizer.init(parameters), "step": jnp.zeros((), jnp.int32)}

    def _example(self, batch: dict[str, jax.Array], step: jax.Array):
        key = random_key(self.config.seed, "masks")
        return make_example(batch["tokens"], batch["keys"], self.config.objective, key, step)

    def _step(self, state: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        """One optimizer step: (state, batch) -> (state, sums over the batch's counted tokens)."""
        inputs, targets, weights = self._example(batch, state["step"])
        dropout_key = random_key(self.config.seed, "dropout", state["step"])
        parameters, others = nnx.split_state(state["model"], nnx.Param, ...)

        def loss_of(parameters: Any):
            model = nnx.merge(self.graph, parameters, others)
            sums = token_sums(model(inputs, dropout_key=dropout_key), targets, weights)
            return mean_loss(sums), sums

        (loss, sums), gradient = jax.value_and_grad(loss_of, has_aux=True)(parameters)
        updates, optimizer = self.optimizer.update(gradient, state["optimizer"], parameters)
        parameters: Any = optax.apply_updates(parameters, updates)
        metrics = {
            "loss": loss,
            "nll": sums.nll.sum(),
            "correct": sums.correct.sum(),
            "count": sums.count.sum(),
            "gradient_norm": optax.tree.norm(gradient),
            "parameter_norm": optax.tree.norm(parameters),
            "tokens": (batch["tokens"] != 0).sum(),
        }
        state = {"model": nnx.merge_state(parameters, others), "optimizer": optimizer, "step": state["step"] + 1}
        return state, metrics

    def _redraw(self, state: dict[str, Any]) -> dict[str, Any]:
        """Draw new random features: a pure function of (config.seed, step)."""
        model = nnx.merge(self.graph, state["model"])
        model.redraw(random_key(self.config.seed, "features", state["step"]))
        return {**state, "model": nnx.split(model)[1]}


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
    mesh = sharding.make_mesh()
    sharding.check_batch_size(config.batches.batch_size, mesh)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(_stop_signals())
        batches = TrainBatches(
            dataset, config.batches, process_index=jax.process_index(), process_count=jax.process_count()
        )
        stack.callback(batches.close)
        _claim_run(run, config, dataset)
        trainer = Trainer(config)
        checkpoints = Checkpoints(run, keep=config.keep_checkpoints)
        stack.callback(checkpoints.close)
        state, start = _first_state(config, run, trainer, checkpoints, batches, mesh)
        log = MetricsLog(run, start)
        stack.callback(log.close)
        line = stack.enter_context(progress_line(config.num_steps, start, run.resolve().name))
        evaluation_step = make_evaluation_step(config, trainer.graph)
        window = _Window(config, log, line, checkpoints)
        valid = None
        for step in range(start, config.num_steps):
            if config.redraw_every and step and step % config.redraw_every == 0:
                state = trainer.redraw(state)
            state, metrics = trainer.step(state, sharding.place_batch(next(batches), mesh))
            # The device works on this step while the numbers of the one before come back.
            window.settle()
            window.in_flight = (step + 1, metrics)
            done = step + 1
            last = done == config.num_steps
            if last or (config.eval_every and done % config.eval_every == 0 and not stop.requested):
                window.settle()
                valid = _evaluate(config, dataset, evaluation_step, state, done, log, whole=last)
                window.restart()
            if last or stop.requested or done % config.checkpoint_every == 0:
                window.settle()
                checkpoints.save(done, state, batches.get_state(), config)
            if stop.requested and not last:
                raise Interrupted(done, stop.requested)
        return TrainResult(config.num_steps, count_parameters(state["model"]), valid)


def _first_state(
    config: Config, run: Path, trainer: Trainer, checkpoints: Checkpoints, batches: TrainBatches, mesh
) -> tuple[dict[str, Any], int]:
    """Return the newest checkpoint's state and step, the data moved to its position; or a new state and 0."""
    steps = checkpoints.steps()
    if not steps:
        return sharding.replicate(trainer.init(), mesh), 0
    start = steps[-1]
    _check_same(checkpoints.config(start), config, f"checkpoint {start} of {run}")
    template = jax.tree.map(lambda x: _on_every_device(x, mesh), jax.eval_shape(trainer.init))
    state, position = checkpoints.restore(start, template)
    batches.set_state(position)
    finished = start >= config.num_steps
    console.print(f"{run} is finished, at step {start}" if finished else f"resuming {run} at step {start}")
    return state, start


def count_parameters(state: nnx.State) -> int:
    """Return the number of trained parameters (random features are not trained)."""
    parameters, _ = nnx.split_state(state, nnx.Param, ...)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(parameters))


def _on_every_device(leaf: jax.ShapeDtypeStruct, mesh) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding.replicated(mesh))


def _claim_run(run: Path, config: Config, dataset: ProteinDataset) -> None:
    """Make the run's folder, or refuse it when it holds another run."""
    if (run / CONFIG_FILE).is_file():
        saved, origin = read_run_files(run)
        _check_same(saved, config, str(run))
        if origin["fingerprint"] != dataset.fingerprint:
            raise InputError(
                f"{run} was trained on another dataset ({origin['dataset']}); {dataset.path} holds other sequences or "
                "another order. Name another folder, or the same dataset to resume."
            )
    elif run.exists() and any(run.iterdir()):
        raise InputError(f"{run} is not empty and is not the folder of a training run: name another one.")
    run.mkdir(parents=True, exist_ok=True)
    write_run_files(run, config, dataset.path, dataset.fingerprint)


def _check_same(saved: Config, config: Config, what: str) -> None:
    """Refuse to resume with a config that would change a loss."""
    free = (*_FREE_FIELDS, "num_steps") if config.optimizer.schedule == "constant" else _FREE_FIELDS
    there, here = (json.loads(c.to_json()) for c in (saved, config))
    for name in free:
        del there[name], here[name]
    if here != there:
        name, old, new = next(_differences(there, here))
        raise InputError(
            f"{what} holds a run of another config: {name} is {old} there, {new} here. Name another folder, or train "
            "with the same config to resume."
        )


def _differences(old: Any, new: Any, path: str = ""):
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(set(old) | set(new)):
            yield from _differences(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif old != new:
        yield path, old, new


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


@dataclass(frozen=True)
class Plan:
    """What a run would take, found by compiling its train step.

    Attributes:
        shapes: (rows, length) of the batches.
        state_bytes: parameters, random features and optimizer state.
        temporary_bytes: XLA's count for the largest batch, activations and gradients included.
    """

    num_parameters: int
    shapes: list[tuple[int, int]]
    state_bytes: int
    temporary_bytes: int

    @property
    def total_bytes(self) -> int:
        """State and temporaries together: the peak of one step."""
        return self.state_bytes + self.temporary_bytes


def plan(config: Config) -> Plan:
    """Compile the train step for this machine's device, without any data, and count."""
    trainer = Trainer(config)
    state = jax.eval_shape(trainer.init)
    shapes = batch_shapes(config.batches)
    rows, length = max(shapes, key=lambda shape: shape[0] * shape[1])
    batch = {
        "tokens": jax.ShapeDtypeStruct((rows, length), jnp.uint8),
        "keys": jax.ShapeDtypeStruct((rows, 2), jnp.uint32),
    }
    memory: Any = trainer.step.lower(state, batch).compile().memory_analysis()
    state_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return Plan(count_parameters(state["model"]), shapes, state_bytes, int(memory.temp_size_in_bytes))


def describe_plan(config: Config) -> str:
    """Return what `--dry-run` prints: parameters, batches, memory of one step on this machine's device."""
    found = plan(config)
    device = jax.devices()[0]
    shapes = ", ".join(f"{rows} x {length}" for rows, length in found.shapes)
    lines = [
        f"parameters          {found.num_parameters:,}",
        f"batch               {shapes} (rows x tokens, {config.batches.form})",
        f"state               {_bytes(found.state_bytes)} (parameters, random features, optimizer)",
        f"temporaries         {_bytes(found.temporary_bytes)} (XLA's count for the largest batch, all rows here)",
        f"memory of one step  {_bytes(found.total_bytes)} on one device of kind {device.device_kind}",
    ]
    return "\n".join(lines)


def _bytes(number: int) -> str:
    return f"{number / 2**30:,.2f} GiB" if number >= 2**30 else f"{number / 2**20:,.1f} MiB"
