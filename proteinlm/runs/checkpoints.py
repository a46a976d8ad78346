"""Checkpoints: everything that is needed to resume a run, written completely or not at all. Orbax is used here alone.

A checkpoint of a step holds the parameters, the random features, the optimizer's state, the step, the position in the
data and the config. Random keys are not stored: each is a pure function of (config.seed, step). Arrays are stored under
the name of their path in the tree, so a checkpoint can be read without any class of this package.
"""

import contextlib
import json
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from proteinlm.config import Config
from proteinlm.devices import sharding
from proteinlm.errors import InputError
from proteinlm.runs.folder import CHECKPOINTS, numbered
from proteinlm.runs.storage_errors import full_disk_as_input_error, of_main_thread, quiet_callbacks, reason_of


def named_arrays(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by the names of their paths, such as "params/blocks/mlp/up/kernel"."""
    return {sharding.leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def with_named_arrays(template: Any, arrays: dict[str, Any], source: str) -> Any:
    """Return a tree of the structure of `template` with the leaves of `arrays`.

    Args:
        template: tree of arrays or ShapeDtypeStructs.
        arrays: leaves by name, as from `named_arrays`.
        source: the checkpoint, for the message of an error.

    Raises:
        InputError: names, shapes or dtypes differ: the checkpoint is of another config.
    """
    expected = named_arrays(template)
    unmatched = sorted(set(expected) ^ set(arrays))
    if unmatched:
        first = unmatched[0]
        where = "the checkpoint lacks it" if first in expected else "the config has no such array"
        raise InputError(f"{source} is of another config: {len(unmatched)} arrays differ, first {first} ({where}).")
    for name, leaf in expected.items():
        saved = arrays[name]
        if saved.shape != leaf.shape or saved.dtype != leaf.dtype:
            raise InputError(
                f"{source} is of another config: {name} is {saved.dtype}{list(saved.shape)} in the checkpoint, "
                f"{leaf.dtype}{list(leaf.shape)} in the config."
            )
    leaves = [arrays[name] for name in expected]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(template), leaves)


class Checkpoints:
    """The checkpoints of one run: the newest ones, and those with the lowest loss on valid.

    They are written in the background, one at a time, from a copy of the state: `save` returns when the copy is made.
    An error of the background writing is raised by the next call of a method.
    """

    def __init__(self, run: str | Path, *, keep: int = 3, keep_best: int = 0, read_only: bool = False):
        """Open RUN/checkpoints.

        Args:
            run: folder of the run.
            keep: number of the newest checkpoints to keep.
            keep_best: number of checkpoints with the lowest loss on valid to keep besides.
            read_only: for evaluation and analysis; the run may be in training at the same time.
        """
        self._folder = (Path(run) / CHECKPOINTS).absolute()
        self._keep_best, self._read_only = keep_best, read_only
        self._writing: int | None = None
        self._complete_steps: list[int] = []
        policies = ocp.checkpoint_managers
        best = policies.BestN(get_metric_fn=_loss, reverse=True, n=keep_best, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=None if read_only else policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
            best_fn=_loss,
            best_mode="min",
            create=not read_only,
            read_only=read_only,
            # The value that Orbax itself uses for a reader; it warns if another one is given.
            save_interval_steps=0 if read_only else 1,
            # Remove folders that a kill left incomplete; complete ones are not changed.
            cleanup_tmp_directories=not read_only,
            enable_async_checkpointing=not read_only,
        )
        # The model is a separate item, so that evaluation does not read the optimizer's moments.
        handlers = {
            "model": ocp.StandardCheckpointHandler(),
            "rest": ocp.StandardCheckpointHandler(),
            "data": ocp.JsonCheckpointHandler(),
            "config": ocp.JsonCheckpointHandler(),
        }
        self._check_losses()
        with full_disk_as_input_error(f"folder {self._folder}", []):
            self._manager = ocp.CheckpointManager(self._folder, options=options, item_handlers=handlers)
        logging.getLogger("absl").addFilter(of_main_thread)

    def steps(self) -> list[int]:
        """Wait until a checkpoint in writing is complete; return the steps of all complete ones, ascending."""
        self.wait()
        return sorted(self._manager.all_steps())

    def is_among_best(self, loss: float) -> bool:
        """Return whether this loss on valid is among the `keep_best` lowest; False if it is not finite."""
        lowest = sorted(self._losses().values())[: self._keep_best]
        return self._keep_best > 0 and math.isfinite(loss) and (len(lowest) < self._keep_best or loss < lowest[-1])

    def best(self) -> int | None:
        """Return the step with the lowest loss on valid; None if no checkpoint has a loss."""
        losses = self._losses()
        return min(losses, key=lambda step: (losses[step], -step)) if losses else None

    def _losses(self) -> dict[int, float]:
        metrics = {step: self._manager.metrics(step) for step in self.steps()}
        return {step: _loss(values) for step, values in metrics.items() if values}

    def save(
        self, step: int, state: dict[str, Any], data: dict, config: Config, valid_loss: float | None = None
    ) -> None:
        """Start to write one checkpoint, and delete those that are not kept. A step that has one is not written again.

        Args:
            step: number of optimizer steps done.
            state: trees of arrays by name, "model" among them.
            data: position in the data, as JSON types.
            config: config of the run, written beside the arrays.
            valid_loss: loss on valid if this step was evaluated, on the same sample for all checkpoints of a run.

        Raises:
            InputError: the disk is full, or was when the previous checkpoint was written.
        """
        self.wait()
        if step in self._manager.all_steps():
            return
        model, rest = _parts(state)
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(named_arrays(model)),
            rest=ocp.args.StandardSave(named_arrays(rest)),
            data=ocp.args.JsonSave(data),
            config=ocp.args.JsonSave(json.loads(config.to_json())),
        )
        self._complete_steps = self.steps()
        metrics = None if valid_loss is None or not math.isfinite(valid_loss) else {"loss": valid_loss}
        with full_disk_as_input_error(f"checkpoint of step {step} in {self._folder}", self._complete_steps):
            self._writing = step
            self._manager.save(step, args=items, metrics=metrics)

    def wait(self) -> None:
        """Wait until the checkpoint in writing is complete; errors as for `save`."""
        if self._writing is None:
            return
        step, self._writing = self._writing, None
        try:
            with full_disk_as_input_error(f"checkpoint of step {step} in {self._folder}", self._complete_steps):
                self._manager.wait_until_finished()
        except InputError:
            # The checkpoints that would have been deleted after this one still exist.
            self._manager.reload()
            raise

    def restore(self, step: int, template: dict[str, Any]) -> tuple[dict[str, Any], dict]:
        """Return (state, data) of a step; the arrays have the sharding of `template`.

        Raises:
            InputError: the checkpoint cannot be read, or its arrays are not those of the template.
        """
        model, rest = (self._read(step, item, part) for item, part in zip(_ITEMS, _parts(template), strict=True))
        return {**model, **rest}, self.position(step)

    def position(self, step: int) -> dict:
        """Return the position in the data that was saved with a step."""
        with self._reading(step, "data"):
            return self._manager.restore(step, args=ocp.args.Composite(data=ocp.args.JsonRestore()))["data"]

    def restore_model(self, step: int, template: Any) -> Any:
        """Return only the model's tree of a step; errors as for `restore`."""
        return self._read(step, "model", {"model": template})["model"]

    def config(self, step: int) -> Config:
        """Return the config that was saved with a step; unknown and missing fields are errors."""
        with self._reading(step, "config"):
            saved = self._manager.restore(step, args=ocp.args.Composite(config=ocp.args.JsonRestore()))["config"]
        return Config.from_json(json.dumps(saved), f"checkpoint {self._folder / str(step)}")

    def _read(self, step: int, item: str, template: dict[str, Any]) -> dict[str, Any]:
        source = f"checkpoint {self._folder / str(step)}"
        with self._reading(step, item):
            metadata: Any = self._manager.item_metadata(step)[item]
            saved = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in metadata.items()}
            # Shapes are compared before anything is read: Orbax would cut or pad arrays without a warning.
            with_named_arrays(template, saved, source)
            target = {name: _abstract(leaf) for name, leaf in named_arrays(template).items()}
            restored = self._manager.restore(step, args=ocp.args.Composite(**{item: ocp.args.StandardRestore(target)}))
            return with_named_arrays(template, restored[item], source)

    @contextlib.contextmanager
    def _reading(self, step: int, item: str) -> Iterator[None]:
        """Raise one InputError for the various errors of Orbax and TensorStore while a checkpoint is read.

        An earlier checkpoint is not used in its place: the user decides whether to go back.
        """
        self.wait()
        folder = self._folder / str(step)
        if not any((folder / name).is_dir() for name in ("model", "rest", "data", "config")):
            raise self._unreadable(step, "there is no checkpoint in it")
        required = item if item in ("data", "config") else f"{item}/_METADATA"
        if not (folder / required).exists():
            raise self._unreadable(step, f"it has no {required}")
        try:
            with quiet_callbacks():
                yield
        except InputError:
            raise
        except (KeyError, ValueError, AttributeError, FileNotFoundError) as error:
            if any(word in f"{error}" for word in ("PERMISSION_DENIED", "RESOURCE_EXHAUSTED")):
                raise
            raise self._unreadable(step, reason_of(error, folder)) from error

    def _unreadable(self, step: int, reason: str) -> InputError:
        others = [other for other in numbered(self._folder) if other != step]
        before = [other for other in others if other < step]
        if self._read_only:
            there = f"there {'is' if len(others) == 1 else 'are'} {', '.join(map(str, others))}"
            advice = f"name another step with --step ({there})" if others else "there is no other one"
        elif before:
            advice = f"remove or move that folder, and the same command resumes from step {before[-1]}, the one before"
        else:
            advice = (
                "remove or move that folder, and the same command starts from the beginning: there is no earlier "
                "checkpoint"
            )
        return InputError(f"checkpoint {self._folder / str(step)} cannot be read ({reason}): {advice}.")

    def _check_losses(self) -> None:
        """Raise InputError if a loss on valid is damaged: Orbax reads all of them when it opens a folder."""
        for step in numbered(self._folder):
            path = self._folder / str(step) / "metrics" / "metrics"
            try:
                if path.is_file():
                    _loss(json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path}, the loss on valid at step {step}, is damaged ({error!r}): remove that file. The "
                    "checkpoint itself can still be read, but is not compared with others any more."
                ) from error

    def close(self) -> None:
        """Wait until the checkpoint in writing is complete, and release the folder."""
        try:
            self.wait()
        finally:
            self._manager.close()
            logging.getLogger("absl").removeFilter(of_main_thread)


_ITEMS = ("model", "rest")


def _loss(metrics: Any) -> float:
    return metrics["loss"]


def _parts(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the model, and everything else."""
    return {"model": state["model"]}, {name: tree for name, tree in state.items() if name != "model"}


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
