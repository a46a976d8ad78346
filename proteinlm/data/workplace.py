"""A folder that appears whole or not at all, written by one process at a time, and by the next one if it is killed."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from proteinlm.errors import InputError
from proteinlm.files import refuse_occupied, sync

DATASET = "dataset"


def partial_folder(output: Path) -> Path:
    """Return the hidden folder beside `output` that holds what is unfinished."""
    return output.absolute().with_name(f".{output.absolute().name}.partial")


def refuse_output(output: Path) -> None:
    """Refuse an output that is a file or a folder with something in it; errors as for `files.refuse_occupied`."""
    folder = partial_folder(output)
    # An ingest that was killed when only its scratch files were left to remove.
    if folder.is_dir() and not (folder / DATASET).exists() and output.is_dir() and any(output.iterdir()):
        with _locked(folder, output):
            shutil.rmtree(folder, ignore_errors=True)
    refuse_occupied(output, "the dataset")


@contextlib.contextmanager
def workplace(output: Path, keep: Callable[[BaseException], bool]) -> Iterator[None]:
    """Hold `partial_folder(output)`, with what an ingest that was killed has left there.

    The folder DATASET in it takes the name of `output` at the end; the rest is removed then, and everything after an
    error, unless `keep(error)`.
    """
    refuse_output(output)
    folder = partial_folder(output)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, output):
        try:
            yield
            for path in [*(folder / DATASET).iterdir(), folder / DATASET]:
                sync(path)
            if output.is_dir():
                output.rmdir()
            os.rename(folder / DATASET, output)
            sync(output.absolute().parent)
        except BaseException as error:
            if not keep(error):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, output: Path) -> Iterator[None]:
    path = folder.with_suffix(".lock")
    while True:
        with open(path, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"another ingest is writing {output}: wait for it or name another folder.") from None
            # Whoever had the lock may have removed its file in the meantime.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
