"""The folder of a run: its config and dataset, the lock of the training that writes it, and its README.md."""

import fcntl
import json
import os
import shlex
import socket
from pathlib import Path
from typing import IO

from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.output.files import whole_file
from proteinlm.output.saving import write_json
from proteinlm.output.version import __version__

LOCK_FILE = ".lock"
CONFIG_FILE = "config.json"
RUN_FILE = "run.json"
CHECKPOINTS = "checkpoints"
README_FILE = "README.md"
# Each file of a run's folder and its contents, for README.md.
_FILES = {
    "`README.md`": "this page",
    "`config.json`": "every field of the experiment, as `proteinlm train` reads it",
    "`run.json`": "the dataset's folder and fingerprint",
    "`environment.json`": "each start of the run: step, command, versions, git commit, machine, devices",
    "`metrics.jsonl`": (
        'one line an event; "kind" is train (sums over the steps since the last line), valid (residues of valid, no '
        "dropout), skipped (a step whose loss or gradient was not finite), not_finite (a step that ended the run) or "
        "resume (a start that does not repeat the losses of an uninterrupted run)"
    ),
    "`train.log`": "messages of the terminal, with times",
    "`checkpoints/STEP/`": (
        "everything that is needed to resume: parameters, random features, optimizer, position in the data, config"
    ),
    "`curves.png`, `curves.pdf`, `report.md`": "written by `proteinlm report`",
    "`evaluation.json`, `evaluation.csv`": "scores, written by `proteinlm evaluate`",
    "`sequences.parquet`": "one row for each evaluated sequence, written by `proteinlm evaluate`",
    "`evaluation_by_*`, `evaluation_calibration.*`": "written by `proteinlm evaluate --by NAME` and `--calibration`",
    "`table.*`": "Table 2, written by `proteinlm evaluate --table`",
    "`analysis/`": "written by `proteinlm analyze`",
    "`profile/`": "a trace for TensorBoard's profiler or Perfetto, written by `--profile`",
    "`tensorboard/`, `wandb/`": "written by `--track`",
    "`.lock`": "locked while a training writes into this folder",
}


def write_run_files(run: Path, config: Config, dataset: Path, fingerprint: str) -> None:
    """Write RUN/config.json and RUN/run.json (folder and fingerprint of the dataset)."""
    with whole_file(run / CONFIG_FILE) as handle:
        handle.write(config.to_json() + "\n")
    write_json(run / RUN_FILE, {"dataset": str(dataset.absolute()), "fingerprint": fingerprint})


def read_run_files(run: Path) -> tuple[Config, dict[str, str]]:
    """Return the config and {"dataset", "fingerprint"} of the folder of a run.

    Raises:
        InputError: it is not the folder of a training run, or one of the two files is damaged.
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
                "the checkpoints hold the same information: `proteinlm train` with the config and dataset of this run "
                "writes the file again"
            )
        else:
            advice = "the run has no checkpoint to resume from: remove the folder, or name another one"
        reason = f"{error}" if isinstance(error, InputError) else repr(error)
        raise InputError(f"{run / name} cannot be read ({reason.rstrip('.')}): {advice}.") from error


def numbered(folder: Path) -> list[int]:
    """Return the steps that have a folder in RUN/checkpoints, ascending; their contents are not checked."""
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal() and path.is_dir())


class RunLock:
    """A lock of a run's folder, so that one training at a time writes it; it ends with the process that holds it."""

    def __init__(self, run: Path):
        self._run = run
        self._handle: IO[str] | None = None

    def take(self) -> None:
        """Take the lock; the folder must exist.

        Raises:
            InputError: another training holds it.
        """
        handle = open(self._run / LOCK_FILE, "a+", encoding="utf-8")  # noqa: SIM115 (open as long as the lock is held)
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
            # The file system has no locks.
            handle.close()
            return
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        handle.flush()
        self._handle = handle

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def write_readme(run: Path, dataset: Path) -> None:
    """Write RUN/README.md: commands that use the run, and the contents of each file."""
    folder = shlex.quote(str(run.absolute()))
    data = shlex.quote(str(dataset.absolute()))
    with whole_file(run / README_FILE) as handle:
        handle.write(
            f"""# {run.resolve().name}

A training run of proteinlm {__version__}. To resume it where it stopped, or after a crash:

    proteinlm train {folder}/config.json --dataset {data} --run {folder}

Then:

    proteinlm evaluate {folder}
    proteinlm analyze {folder}
    proteinlm report {folder}

| file | contents |
|---|---|
"""
            + "".join(f"| {name} | {text} |\n" for name, text in _FILES.items())
        )
