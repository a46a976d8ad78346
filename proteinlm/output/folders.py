"""Output folders that appear only when they are complete. One process at a time writes a folder, under a lock."""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from proteinlm.errors import InputError
from proteinlm.output.files import is_unicode, refuse_occupied, sync

DATASET = "dataset"
"""Name of the unfinished dataset, in the partial folder."""
# A Path keeps one of the two slashes of a URL.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{2,}:/|gs:/|s3:/")


def partial_folder(output: Path) -> Path:
    """Return the hidden folder of unfinished work: beside `output`, or beside the folder that `output` links to."""
    real = Path(os.path.realpath(output))
    return real.with_name(f".{real.name}.partial")


def refuse_output(output: Path) -> None:
    """Raise an error if an output cannot become a folder; nothing is made.

    Raises:
        InputError: as `files.refuse_occupied`; or the output is a URL, a mount point or the working folder, or its name
            is not valid in its file system.
    """
    if _URL.match(os.fspath(output)):
        raise InputError(
            f"{output} is a URL; the dataset needs a folder of this machine: name one, and copy the dataset from there."
        )
    if not is_unicode(output):
        raise InputError(f"{os.fspath(output)!r} is no name in UTF-8: name another output folder.")
    if os.path.ismount(output) or Path(os.path.realpath(output)) in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{output} is the working folder, above it, or a mount point: name a new folder in it.")
    folder = partial_folder(output)
    for path in (Path(os.path.realpath(output)), folder, folder.with_suffix(".lock")):
        try:
            os.stat(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _not_makable(output, error) from error
    # A finished ingest was killed while it removed its scratch files: remove the rest.
    if folder.is_dir() and not (folder / DATASET).exists() and output.is_dir() and any(output.iterdir()):
        with _locked(folder, output):
            shutil.rmtree(folder, ignore_errors=True)
    refuse_occupied(output, "the dataset")


@contextlib.contextmanager
def output_folder(output: Path, keep: Callable[[BaseException], bool]) -> Iterator[None]:
    """Make and lock `partial_folder(output)`, which may hold the work of an interrupted ingest.

    At the end of the block the folder DATASET in it is renamed to `output`, and the rest is removed. After an error the
    whole partial folder is removed, unless `keep(error)`.
    """
    refuse_output(output)
    folder, real = partial_folder(output), Path(os.path.realpath(output))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_makable(output, error) from error
    with _locked(folder, output):
        try:
            yield
            for path in [*(folder / DATASET).iterdir(), folder / DATASET]:
                sync(path)
            if real.is_dir():
                real.rmdir()
            os.rename(folder / DATASET, real)
            sync(real.parent)
        except BaseException as error:
            if not keep(error):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _not_makable(output: Path, error: OSError) -> InputError:
    return InputError(f"{output} cannot be made ({error.strerror}): name another output folder.")


@contextlib.contextmanager
def _locked(folder: Path, output: Path) -> Iterator[None]:
    path = folder.with_suffix(".lock")
    while True:
        with open(path, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(f"another ingest is writing {output}: wait for it or name another folder.") from None
            # The process that had the lock before may have removed the file in the meantime.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
