"""What a run's folder says of itself: who writes it now, where it was trained, what each file is."""

import contextlib
import datetime
import fcntl
import importlib.metadata
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from proteinlm import __version__
from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.output.files import whole_file

LOCK_FILE = ".lock"
CONFIG_FILE = "config.json"
RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
ENVIRONMENT_FILE = "environment.json"
README_FILE = "README.md"
# What a loss may depend on, and what reads and writes the files.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "libtpu")
_VARIABLES = ("JAX_PLATFORMS", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES", "LIBTPU_INIT_ARGS")
_FILES = {
    "`README.md`": "this page",
    "`config.json`": "every field of the experiment, as `proteinlm train` reads it",
    "`run.json`": "the dataset's folder and fingerprint",
    "`environment.json`": "each start of the run: step, command, versions, git commit, machine, devices",
    "`metrics.jsonl`": (
        'one line an event; "kind" is train (sums over the steps since the last line), valid (residues of valid, no '
        "dropout), skipped (a step whose loss or gradient was not finite), not_finite (one that ended the run) or "
        "resume (a start that is not exact)"
    ),
    "`train.log`": "what was said on the terminal, with times",
    "`checkpoints/STEP/`": (
        "everything that the run needs to go on: parameters, random features, optimizer, position in the data, config"
    ),
    "`curves.png`, `curves.pdf`, `report.md`": "written by `proteinlm report`",
    "`evaluation.json`, `evaluation.csv`": "scores, written by `proteinlm evaluate`",
    "`sequences.parquet`": "a row for each evaluated sequence, written by it too",
    "`evaluation_by_*`, `evaluation_calibration.*`": "written by `proteinlm evaluate --by NAME` and `--calibration`",
    "`table.*`": "Table 2, written by `proteinlm evaluate --table`",
    "`analysis/`": "written by `proteinlm analyze`",
    "`profile/`": "a trace, written by `--profile`: for TensorBoard's profiler or Perfetto",
    "`tensorboard/`, `wandb/`": "written by `--track`",
    "`.lock`": "held while a training writes here",
}


def write_run_files(run: Path, config: Config, dataset: Path, fingerprint: str) -> None:
    """Write RUN/config.json and RUN/run.json (the dataset's folder and fingerprint)."""
    with whole_file(run / CONFIG_FILE) as handle:
        handle.write(config.to_json() + "\n")
    with whole_file(run / RUN_FILE) as handle:
        handle.write(json.dumps({"dataset": str(dataset.absolute()), "fingerprint": fingerprint}, indent=2) + "\n")


def read_run_files(run: Path) -> tuple[Config, dict[str, str]]:
    """Return the config and {"dataset", "fingerprint"} of a run folder.

    Raises:
        InputError: the folder is not a training run's, or one of the two files is damaged.
    """
    for name in (CONFIG_FILE, RUN_FILE):
        if not (run / name).is_file():
            raise InputError(f"{run} has no {name}: it is not the folder of a training run.")
    name = CONFIG_FILE
    try:
        config = Config.from_json((run / name).read_text(encoding="utf-8"), str(run / name))
        name = RUN_FILE
        origin = json.loads((run / name).read_text(encoding="utf-8"))
        return config, {key: origin[key] for key in ("dataset", "fingerprint")}
    except (ValueError, KeyError, TypeError) as error:
        if numbered(run / CHECKPOINTS):
            advice = (
                "its checkpoints have all that it said: `proteinlm train` with the run's own config and dataset writes "
                "it anew"
            )
        else:
            advice = "the run has no checkpoint to go on from: remove the folder, or name another one"
        found = f"{error}" if isinstance(error, InputError) else repr(error)
        raise InputError(f"{run / name} cannot be read ({found.rstrip('.')}): {advice}.") from error


def numbered(folder: Path) -> list[int]:
    """Return the steps that have a folder among checkpoints, ascending, whatever is in it."""
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal() and path.is_dir())


class RunLock:
    """The right to write a run's folder, for one training at a time; the system takes it back when a process dies."""

    def __init__(self, run: Path):
        self._run = run
        self._handle: IO[str] | None = None

    def take(self) -> None:
        """Take it; the folder must exist.

        Raises:
            InputError: another training has it.
        """
        handle = open(self._run / LOCK_FILE, "a+", encoding="utf-8")  # noqa: SIM115 (held for the whole run)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            handle.close()
            raise InputError(
                f"{self._run} is being written by another training ({holder}): stop that one first, or name another "
                "folder."
            ) from error
        except OSError:
            # A file system without locks.
            handle.close()
            return
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        handle.flush()
        self._handle = handle

    def release(self) -> None:
        """Give it back; nothing to do where it is not held."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def environment(devices: dict[str, Any]) -> dict[str, Any]:
    """Return in JSON's types where a run is trained: versions, commit, machine, devices, command.

    Args:
        devices: as from `sharding.describe`.
    """
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
        "folder": os.getcwd(),
        "versions": {"python": platform.python_version(), "proteinlm": __version__, **versions},
        "git": git_state(Path(__file__).parents[2]),
        "machine": {"host": socket.gethostname(), "system": platform.platform(), "cores": os.cpu_count()},
        "devices": devices,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def git_state(root: Path) -> dict[str, Any] | None:
    """Return {"commit", "dirty"} of a checkout, or None where `root` is none, as for an installed package."""
    if not (root / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(root)]
    try:
        commit, status = (
            subprocess.run([*command, *words], capture_output=True, text=True, check=True, timeout=20).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(status)}


def write_environment(run: Path, step: int, now: dict[str, Any]) -> list[str]:
    """Add a start of the run to RUN/environment.json.

    Args:
        run: the folder.
        step: at which it starts.
        now: from `environment`.

    Returns:
        "PACKAGE was OLD, is NEW" for each that changed since the start before.
    """
    path = run / ENVIRONMENT_FILE
    starts = read_environment(run)
    with whole_file(path) as handle:
        handle.write(json.dumps({"starts": [*starts, {"step": step, **now}]}, indent=2) + "\n")
    if not starts:
        return []
    old, new = starts[-1]["versions"], now["versions"]
    return [
        f"{name} was {old.get(name, 'absent')}, is {new.get(name, 'absent')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def read_environment(run: Path) -> list[dict[str, Any]]:
    """Return the starts of a run, oldest first; none where the file is missing or damaged."""
    try:
        return list(json.loads((run / ENVIRONMENT_FILE).read_text(encoding="utf-8"))["starts"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write_readme(run: Path, dataset: Path) -> None:
    """Write RUN/README.md: what each file is, and how to go on."""
    folder = shlex.quote(str(run.absolute()))
    data = shlex.quote(str(dataset.absolute()))
    with whole_file(run / README_FILE) as handle:
        handle.write(
            f"""# {run.resolve().name}

A training run of proteinlm {__version__}. To go on where it stopped, or after a crash:

    proteinlm train {folder}/config.json --dataset {data} --run {folder}

Then:

    proteinlm evaluate {folder}
    proteinlm analyze {folder}
    proteinlm report {folder}

| file | what it is |
|---|---|
"""
            + "".join(f"| {name} | {text} |\n" for name, text in _FILES.items())
        )
