"""Files that appear only when they are complete, and checks of paths for output."""

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from proteinlm.errors import InputError


@contextlib.contextmanager
def whole_file(path: str | os.PathLike, mode: str = "w") -> Iterator[IO]:
    """Open a file for writing that gets its name when the block ends without an error.

    Args:
        path: the final name; a missing folder is made.
        mode: "w" (UTF-8 text) or "wb".
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, mode, encoding=None if "b" in mode else "utf-8") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def sync_file_system(folder: Path) -> None:
    """Wait until all data written to the file system of a folder is on its disk.

    Raises:
        OSError: something could not be written.
    """
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        # Outside Linux: sync all file systems.
        os.sync()
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        if syncfs(number):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(number)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def is_unicode(path: str | os.PathLike) -> bool:
    """Return whether a name is valid UTF-8. Python represents other bytes of a name as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in os.fspath(path))


def refuse_occupied(path: Path, what: str) -> None:
    """Raise an error if a path is a file or a folder that is not empty; nothing is made.

    Raises:
        InputError: with `what` ("the dataset"), the content that the folder is meant for.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; {what} needs a folder: name another one.")
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} is not empty; {what} needs an empty folder: name another one or remove it first.")


def require_writable(folder: Path, why: str) -> None:
    """Make a folder if it is missing, and check that files can be written to it.

    Raises:
        InputError: with the reason of the system, and `why`: the content of the folder, and what was not done.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as handle:
            # About the size of the tables; a disk that is nearly full has less.
            handle.write(bytes(1 << 16))
            handle.flush()
            os.fsync(handle.fileno())
    except FileExistsError as error:
        raise InputError(f"{folder} is a file, {why} Name a folder.") from error
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}), {why}") from error
