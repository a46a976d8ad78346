"""Which run a folder holds, whether this config, dataset and machine may go on with it, and from where."""

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proteinlm.config import Config
from proteinlm.data.batches.batches import TrainBatches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.devices import sharding
from proteinlm.errors import InputError
from proteinlm.runs.checkpoints import Checkpoints
from proteinlm.runs.folder import (
    CHECKPOINTS,
    CONFIG_FILE,
    LOCK_FILE,
    RunLock,
    numbered,
    read_run_files,
    write_run_files,
)
from proteinlm.training.step import TrainStep

# What may differ between a run and its resumption without changing a single loss. The mesh is compared as it came out,
# in `sharding.describe`: -1 and 8 are the same on eight devices.
_FREE_FIELDS = (
    "eval_every", "checkpoint_every", "keep_checkpoints", "keep_best", "log_every", "skip_bad_steps",
    "mesh",
)  # fmt: skip


@dataclass
class Beginning:
    """Where a run begins.

    Attributes:
        state: of the trainer.
        step: number of optimizer steps done.
        inexact: what makes the run differ from one that never stopped.
        unfinished: sums of the steps since the last log line, from `Meter.unfinished`.
    """

    state: dict[str, Any]
    step: int = 0
    inexact: list[str] = field(default_factory=list)
    unfinished: dict[str, float] = field(default_factory=dict)


def claim_run(run: Path, config: Config, dataset: ProteinDataset, lock: RunLock, *, inexact: bool = False) -> None:
    """Make the run's folder and lock it, or refuse it when it is in use or holds another run.

    Where it has checkpoints, `first_state` compares with the newest of them; nothing is written before.

    Args:
        run: the folder.
        config: what shall be trained.
        dataset: on what.
        lock: of the folder.
        inexact: take it although config or dataset are others; `first_state` then says so.
    """
    is_run = (run / CONFIG_FILE).is_file()
    if not is_run and run.exists() and {path.name for path in run.iterdir()} - {LOCK_FILE}:
        raise InputError(f"{run} is not empty and is not the folder of a training run: name another one.")
    run.mkdir(parents=True, exist_ok=True)
    lock.take()
    if not is_run:
        write_run_files(run, config, dataset.path, dataset.fingerprint)
    elif not inexact and not numbered(run / CHECKPOINTS):
        saved, origin = read_run_files(run)
        found = differences(saved, config)
        if origin["fingerprint"] != dataset.fingerprint:
            found.append(
                f"it was trained on another dataset ({origin['dataset']}); {dataset.path} holds other sequences or "
                "another order"
            )
        _refuse(found, str(run))


def accept(run: Path, config: Config, dataset: ProteinDataset, start: int) -> None:
    """Write config.json and run.json of a run that goes on at step `start`; those of a finished one stay."""
    if start >= config.num_steps:
        with contextlib.suppress(InputError):
            read_run_files(run)
            return
    write_run_files(run, config, dataset.path, dataset.fingerprint)


def first_state(
    config: Config, run: Path, trainer: TrainStep, checkpoints: Checkpoints, batches: TrainBatches, *, inexact: bool
) -> Beginning:
    """Return where a run begins: its newest checkpoint, with the data moved to its position, or a new state.

    Raises:
        InputError: it cannot go on exactly and need not (`inexact` False), or the arrays of the checkpoint have other
            names or shapes than the config's.
    """
    steps = checkpoints.steps()
    if not steps:
        return Beginning(trainer.init())
    start = steps[-1]
    position = checkpoints.position(start)
    found = differences(checkpoints.config(start), config)
    found += _differ(position["devices"], sharding.describe(trainer.mesh))
    if position["plan"]["dataset"] != batches.get_state()["plan"]["dataset"]:
        found.append("it was trained on another dataset, or on this one in another order")
    if not inexact:
        _refuse(found, f"checkpoint {start} of {run}")
    found += _move(batches, position)
    state = checkpoints.restore(start, trainer.abstract_state)[0]
    return Beginning(state, start, found, position["window"])


def position_of(batches: TrainBatches, trainer: TrainStep, unfinished: dict[str, float]) -> dict[str, Any]:
    """Return what a checkpoint says besides arrays: the position in the data, the devices, what is not logged yet."""
    return {
        **batches.get_state(),
        "window": unfinished,
        "batches_per_epoch": batches.batches_per_epoch,
        "devices": sharding.describe(trainer.mesh),
    }


def _move(batches: TrainBatches, position: dict[str, Any]) -> list[str]:
    """Move the data to a position; where that is one of other batches, as far into the same epoch, and say so."""
    plan = batches.get_state()["plan"]
    if position["plan"] == plan:
        batches.set_state({"step": position["step"], "plan": plan})
        return []
    there, here = position["batches_per_epoch"], batches.batches_per_epoch
    step = round(position["step"] * here / there)
    batches.set_state({"step": step, "plan": plan})
    return [
        f"the data go on at batch {step % here} of {here} of epoch {step // here}, as far into it as batch "
        f"{position['step'] % there} of {there} was; some proteins come twice in it and some not at all"
    ]


def differences(saved: Config, config: Config) -> list[str]:
    """Return "FIELD is OLD there, NEW here" for each field that would change a loss."""
    free = (*_FREE_FIELDS, "num_steps") if config.optimizer.schedule == "constant" else _FREE_FIELDS
    # Which checkpoints are the best is told from their losses on one sample of valid.
    if not saved.keep_best and not config.keep_best:
        free += ("eval_examples",)
    there, here = (json.loads(c.to_json()) for c in (saved, config))
    for plain in (there, here):
        for name in free:
            del plain[name]
        # Batches are the same whoever reads them.
        del plain["batches"]["num_threads"]
    return _differ(there, here)


def _refuse(found: list[str], what: str) -> None:
    if found:
        raise InputError(
            f"{what} cannot be resumed exactly: {'; '.join(found)}. Name another folder, or train with what it was "
            "trained with; --allow-inexact-resume goes on all the same."
        )


def _differ(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(set(old) | set(new))
        return [x for name in names for x in _differ(old.get(name), new.get(name), f"{path}.{name}" if path else name)]
    return [] if old == new else [f"{path} is {old} there, {new} here"]
