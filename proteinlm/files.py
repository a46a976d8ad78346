"""Files that appear whole or not at all."""

import contextlib
import os
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
