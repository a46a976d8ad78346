"""Which run a folder holds, and whether this config and dataset may go on with it."""

import json
from pathlib import Path
from typing import Any

from proteinlm.checkpoint import CONFIG_FILE, read_run_files, write_run_files
from proteinlm.config import Config
from proteinlm.data.dataset import ProteinDataset
from proteinlm.errors import InputError

# What may differ between a run and its resumption without changing a single loss.
_FREE_FIELDS = ("eval_every", "eval_examples", "checkpoint_every", "keep_checkpoints", "log_every")


def claim_run(run: Path, config: Config, dataset: ProteinDataset) -> None:
    """Make the run's folder, or refuse it when it holds another run."""
    if (run / CONFIG_FILE).is_file():
        saved, origin = read_run_files(run)
        check_same(saved, config, str(run))
        if origin["fingerprint"] != dataset.fingerprint:
            raise InputError(
                f"{run} was trained on another dataset ({origin['dataset']}); {dataset.path} holds other sequences or "
                "another order. Name another folder, or the same dataset to resume."
            )
    elif run.exists() and any(run.iterdir()):
        raise InputError(f"{run} is not empty and is not the folder of a training run: name another one.")
    run.mkdir(parents=True, exist_ok=True)
    write_run_files(run, config, dataset.path, dataset.fingerprint)


def check_same(saved: Config, config: Config, what: str) -> None:
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
