"""Folders that the workers of one run of the tests share: the first one that needs a folder makes it."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of this name that `make` has filled, by this worker or by another one; nobody changes it later.

    One that is half made, since a worker died, is made again.
    """
    base = factory.getbasetemp()
    # Each worker of pytest-xdist has a folder of its own in the one of the whole run.
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, made = base / name, base / f"{name}.made"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
