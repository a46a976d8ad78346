"""The environment of each start of a run: versions, git commit, machine, devices, command; in RUN/environment.json."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from proteinlm.output.saving import write_json
from proteinlm.output.version import __version__

ENVIRONMENT_FILE = "environment.json"
# Packages on which a loss or the format of a file may depend.
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "libtpu")
_VARIABLES = ("JAX_PLATFORMS", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES", "LIBTPU_INIT_ARGS")


def environment(devices: dict[str, Any]) -> dict[str, Any]:
    """Return the environment of this process, as JSON types.

    Args:
        devices: from `sharding.describe`.
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
    """Return {"commit", "dirty"} of a git checkout; None for another folder, such as that of an installed package."""
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
        run: folder of the run.
        step: number of optimizer steps done at the start.
        now: from `environment`.

    Returns:
        "PACKAGE was OLD, is NEW" for each version that changed since the previous start.
    """
    starts = read_environment(run)
    write_json(run / ENVIRONMENT_FILE, {"starts": [*starts, {"step": step, **now}]})
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
