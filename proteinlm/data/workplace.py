"""A folder that appears whole or not at all, written by one process at a time."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from proteinlm.errors import InputError
from proteinlm.files import refuse_occupied


@contextlib.contextmanager
def workplace(output: Path) -> Iterator[Path]:
    """Give a hidden folder beside `output` that takes its name at the end, and is removed after an error."""
    refuse_occupied(output, "the dataset")
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
