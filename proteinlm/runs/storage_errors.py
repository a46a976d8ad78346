"""Errors of Orbax and TensorStore as one sentence each; their long logs and tracebacks are suppressed."""

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
    """Logging filter that drops records of Orbax's threads: they log long tracebacks of errors that `wait` raises."""
    return record.thread == threading.main_thread().ident


def reason_of(error: Exception, folder: Path) -> str:
    """Return the reason of an error in a few words: for TensorStore's long messages, the code and the file."""
    files = re.findall(r'local file "([^"]+)"', f"{error}")
    code = re.match(r"[A-Z_]+(?=:)", f"{error}")
    if files and code:
        return f"{code[0]} in {os.path.relpath(files[-1], folder)}"
    lines = f"{error}".splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


@contextlib.contextmanager
def quiet_callbacks() -> Iterator[None]:
    """Suppress messages that TensorStore's threads print about the other arrays after reading one array has failed."""
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if f"{unraisable.exc_value}" != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook
    # Not restored after an error: the threads print for a while longer.
    yield
    sys.unraisablehook = before


@contextlib.contextmanager
def full_disk_as_input_error(target: str, complete_steps: list[int]) -> Iterator[None]:
    """Raise one InputError for the various errors of a full disk (TensorStore raises ValueErrors and logs tracebacks).

    Args:
        target: name of the file or folder that is written, for the message.
        complete_steps: steps of the complete checkpoints, for the message.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    except Exception as error:
        text = f"{error}"
        if not any(word in text for word in ("No space left", "RESOURCE_EXHAUSTED", "Disk quota exceeded")):
            raise
        if complete_steps:
            newest = f"the newest complete checkpoint is of step {complete_steps[-1]}"
        else:
            newest = "there is no complete checkpoint"
        raise InputError(
            f"the disk is full: {target} could not be written; {newest}. Make room, then the same command resumes."
        ) from error
    finally:
        logging.disable(before)
