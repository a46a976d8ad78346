"""A folder that appears whole or not at all, written by one process at a time."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from proteinlm.errors import InputError


@contextlib.contextmanager
def workplace(output: Path) -> Iterator[Path]:
    """Give a hidden folder beside `output` that takes its name at the end, and is removed after an error."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; the dataset needs a folder: name another one.")
    if output.is_dir() and any(output.iterdir()):
        raise InputError(f"{output} is not empty; the dataset needs an empty folder: name another one or remove it.")
    folder = output.absolute().with_name(f".{output.absolute().name}.partial")
    folder.mkdir(parents=True, exist_ok=True)
    lock_path = folder.with_suffix(".lock")
    with open(lock_path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another ingest is writing {output}: wait for it or name another folder.") from None
        try:
            # What an ingest that was killed has left.
            shutil.rmtree(folder)
            folder.mkdir()
            yield folder
            if output.is_dir():
                output.rmdir()
            os.rename(folder, output)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock_path.unlink(missing_ok=True)
