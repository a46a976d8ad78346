"""Starting and resuming a run: claim its folder, compare config, dataset and devices, restore the newest checkpoint."""

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

# Fields that may differ when a run is resumed, because no loss depends on them. The mesh is compared by
# `sharding.describe`: -1 and 8 are the same on eight devices.
_FREE_FIELDS = (
    "eval_every", "checkpoint_every", "keep_checkpoints", "keep_best", "log_every", "skip_bad_steps",
    "mesh",
)  # fmt: skip


@dataclass
class Beginning:
    """The state in which a run starts or resumes.

    Attributes:
        state: state of `TrainStep`.
        step: number of optimizer steps done.
        inexact: differences that make an inexact resume, one sentence each.
        unfinished: sums of the steps since the last log line, from `Meter.unfinished`.
    """

    state: dict[str, Any]
    step: int = 0
    inexact: list[str] = field(default_factory=list)
    unfinished: dict[str, float] = field(default_factory=dict)


def claim_run(run: Path, config: Config, dataset: ProteinDataset, lock: RunLock, *, inexact: bool = False) -> None:
    """Create and lock the folder of a run.

    If the folder has checkpoints, nothing is compared and nothing written here: `first_state` compares the newest one.

    Args:
        run: folder of the run.
        config: config to train.
        dataset: dataset to train on.
        lock: lock of the folder.
        inexact: accept a folder with another config or dataset; `first_state` reports the differences.

    Raises:
        InputError: the folder is in use, is not empty without being a run, or holds another run.
    """
    is_run = (run / CONFIG_FILE).is_file()
    if not is_run and run.exists() and {path.name for path in run.iterdir()} - {LOCK_FILE}:
        raise InputError(f"{run} is not empty and is not the folder of a training run: give another folder.")
    run.mkdir(parents=True, exist_ok=True)
    lock.take()
    if not is_run:
        write_run_files(run, config, dataset.path, dataset.fingerprint)
    elif not inexact and not numbered(run / CHECKPOINTS):
        saved, origin = read_run_files(run)
        different = differences(saved, config)
        if origin["fingerprint"] != dataset.fingerprint:
            different.append(
                f"it was trained on another dataset ({origin['dataset']}); {dataset.path} has other sequences or "
                "another order"
            )
        _refuse(different, str(run))


def accept(run: Path, config: Config, dataset: ProteinDataset, start: int) -> None:
    """Write config.json and run.json of a run that resumes at step `start`; a finished run keeps its files."""
    if start >= config.num_steps:
        with contextlib.suppress(InputError):
            read_run_files(run)
            return
    write_run_files(run, config, dataset.path, dataset.fingerprint)


def first_state(
    config: Config, run: Path, train_step: TrainStep, checkpoints: Checkpoints, batches: TrainBatches, *, inexact: bool
) -> Beginning:
    """Restore the newest checkpoint of a run and set the position in the data, or make a new state.

    Args:
        config: config to train.
        run: folder of the run.
        train_step: programs of the config.
        checkpoints: checkpoints of the run.
        batches: batches of the config; their position is set.
        inexact: resume although losses will differ from those of a run that never stopped.

    Raises:
        InputError: the resume would be inexact and `inexact` is False; or the arrays of the checkpoint have other names
            or shapes than those of the config.
    """
    steps = checkpoints.steps()
    if not steps:
        return Beginning(train_step.init())
    start = steps[-1]
    position = checkpoints.position(start)
    different = differences(checkpoints.config(start), config)
    different += _differ(position["devices"], sharding.describe(train_step.mesh))
    if position["plan"]["dataset"] != batches.get_state()["plan"]["dataset"]:
        different.append("it was trained on another dataset, or on this one in another order")
    if not inexact:
        _refuse(different, f"checkpoint {start} of {run}")
    different += _move(batches, position)
    state = checkpoints.restore(start, train_step.abstract_state)[0]
    return Beginning(state, start, different, position["window"])


def position_of(batches: TrainBatches, train_step: TrainStep, unfinished: dict[str, float]) -> dict[str, Any]:
    """Return the part of a checkpoint that is no array: position in the data, devices, sums that are not logged yet."""
    return {
        **batches.get_state(),
        "window": unfinished,
        "batches_per_epoch": batches.batches_per_epoch,
        "devices": sharding.describe(train_step.mesh),
    }


def _move(batches: TrainBatches, position: dict[str, Any]) -> list[str]:
    """Set the position in the data; for other batches, set it to the same share of the same epoch and say so."""
    plan = batches.get_state()["plan"]
    if position["plan"] == plan:
        batches.set_state({"step": position["step"], "plan": plan})
        return []
    there, here = position["batches_per_epoch"], batches.batches_per_epoch
    step = round(position["step"] * here / there)
    batches.set_state({"step": step, "plan": plan})
    return [
        f"the data continue at batch {step % here} of {here} of epoch {step // here}, the same share of the epoch as "
        f"batch {position['step'] % there} of {there}; in it, some proteins are read twice and some not at all"
    ]


def differences(saved: Config, config: Config) -> list[str]:
    """Return "FIELD is OLD there, NEW here" for each field on which losses depend."""
    free = (*_FREE_FIELDS, "num_steps") if config.optimizer.schedule == "constant" else _FREE_FIELDS
    # The best checkpoints are those with the lowest losses on one sample of valid.
    if not saved.keep_best and not config.keep_best:
        free += ("eval_examples",)
    there, here = (json.loads(c.to_json()) for c in (saved, config))
    for plain in (there, here):
        for name in free:
            del plain[name]
        # Batches do not depend on the number of threads that read them.
        del plain["batches"]["num_threads"]
    return _differ(there, here)


def _refuse(different: list[str], name: str) -> None:
    if different:
        raise InputError(
            f"{name} cannot be resumed exactly: {'; '.join(different)}. Give another folder, or the options of before; "
            "--allow-inexact-resume resumes in spite of the differences."
        )


def _differ(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted(set(old) | set(new))
        return [x for name in names for x in _differ(old.get(name), new.get(name), f"{path}.{name}" if path else name)]
    return [] if old == new else [f"{path} is {old} there, {new} here"]
