"""Files that appear whole or not at all."""

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
    """Open a file for writing that takes its name only when the block ends without an error.

    Args:
        path: the final name; its folder is made when missing.
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
    """Wait until everything that was written to the file system of a folder is on its disk.

    Raises:
        OSError: something could not be written.
    """
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        # Not on Linux: all file systems.
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
    """Wait until a file, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def is_unicode(path: str | os.PathLike) -> bool:
    """Tell whether a name can be written down in UTF-8; Python keeps other bytes of names as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in os.fspath(path))


def refuse_occupied(path: Path, what: str) -> None:
    """Refuse a path that is a file or a folder with something in it; nothing is made.

    Raises:
        InputError: `what` ("the dataset") says for whom the folder is meant.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file; {what} needs a folder: name another one.")
    if path.is_dir() and any(path.iterdir()):
        raise InputError(f"{path} is not empty; {what} needs an empty folder: name another one or remove it first.")


def empty_folder(path: str | os.PathLike, what: str) -> Path:
    """Return `path` as a folder that exists and is empty; errors as for `refuse_occupied`."""
    path = Path(path)
    refuse_occupied(path, what)
    path.mkdir(parents=True, exist_ok=True)
    return path


def require_writable(folder: Path, why: str) -> None:
    """Make a folder where it is missing, and refuse one that nothing can be written in.

    Raises:
        InputError: with what the system says, and `why`: what belongs there, and what was not done for it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as handle:
            # More than a disk that is nearly full has, about as much as tables are.
            handle.write(bytes(1 << 16))
            handle.flush()
            os.fsync(handle.fileno())
    except FileExistsError as error:
        raise InputError(f"{folder} is a file, {why} Name a folder.") from error
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}), {why}") from error
