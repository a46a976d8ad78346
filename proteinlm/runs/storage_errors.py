"""What Orbax and TensorStore raise, log and print when something goes wrong, as one sentence each."""

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proteinlm.errors import InputError


def of_main_thread(record: logging.LogRecord) -> bool:
    """Drop what threads of Orbax log while they write: errors, with pages of traceback, that `wait` raises anyway."""
    return record.thread == threading.main_thread().ident


def reason_of(error: Exception, folder: Path) -> str:
    """Return what is wrong with a checkpoint: of TensorStore's long sentences, the code and the file."""
    files = re.findall(r'local file "([^"]+)"', f"{error}")
    code = re.match(r"[A-Z_]+(?=:)", f"{error}")
    if files and code:
        return f"{code[0]} in {os.path.relpath(files[-1], folder)}"
    lines = f"{error}".splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


@contextlib.contextmanager
def quiet_callbacks() -> Iterator[None]:
    """Drop what TensorStore's threads print of the other arrays, once reading one has failed and nobody waits."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if f"{unraisable.exc_value}" != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook
    # After an error it stays: the threads go on for a while.
    yield
    sys.unraisablehook = before


@contextlib.contextmanager
def full_disk_is_said(what: str, whole: list[int]) -> Iterator[None]:
    """Turn the many errors of a full disk (TensorStore's are ValueErrors, with pages of traceback logged) into one."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    except Exception as error:
        text = f"{error}"
        if not any(word in text for word in ("No space left", "RESOURCE_EXHAUSTED", "Disk quota exceeded")):
            raise
        kept = f"the newest whole one is of step {whole[-1]}" if whole else "there is none before it"
        raise InputError(
            f"the disk is full: {what} could not be written; {kept}. Make room, then the same command resumes."
        ) from error
    finally:
        logging.disable(before)
