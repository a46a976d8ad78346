"""How a command ends: the message and the exit code of an error, and of a pipe that its reader closed."""

import errno
import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from proteinlm.errors import InputError, Interrupted

# Errors of the system that a disk or a path can cause in any command. All others are bugs and get a traceback.
_ERRORS_OF_PATHS = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR,
    errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG,
)  # fmt: skip
_FULL = (errno.ENOSPC, errno.EDQUOT)

CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit code of a command whose reader closed the pipe (as in `proteinlm train --help | head`): 141, as of `cat`."""


def is_closed_pipe(error: BaseException) -> bool:
    """Return whether the error says that standard output or standard error has lost its reader; redirect it then.

    A broken pipe of another kind, to a worker process or a socket, is an error like any other.
    """
    if isinstance(error, SystemExit):
        # Rich turns the error of the stream into SystemExit(1).
        return isinstance(error.__context__, BrokenPipeError)
    closed = [stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)]
    if isinstance(error, BrokenPipeError):
        for stream in closed:
            _redirect(stream)
    return isinstance(error, BrokenPipeError) and bool(closed)


def flush() -> bool:
    """Write out both standard streams; return False, and redirect the stream, if one has lost its reader.

    Otherwise Python would print an error of its own at the end of the process.
    """
    complete = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            complete = False
            _redirect(stream)
    return complete


def _redirect(stream: TextIO) -> None:
    """Let a stream write to the null device from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _has_no_reader(stream: TextIO) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
    except (AttributeError, OSError, ValueError):
        # No poll on this system, or no file behind the stream (a notebook, pytest).
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


def exit_code(command: str, arguments: Sequence[str], error: BaseException) -> int:
    """Print the message of an error and return the exit code; raise errors that are bugs of this package.

    In a distributed run this process ends here, so that the others do not wait for it.
    """
    # Not imported for this: without an import, the process has joined no others.
    processes = sys.modules.get("proteinlm.devices.processes")
    message = _message(error, arguments)
    gone = processes.who_is_gone(error) if processes and not message else None
    if gone:
        message = gone, 1
    if message and message[0]:
        print(f"proteinlm {command}: {message[0]}", file=sys.stderr)
    if processes and not isinstance(error, Interrupted):
        if not message:
            traceback.print_exception(error)
        processes.leave(message[1] if message else 1, gone=bool(gone))
    if not message:
        raise error
    return message[1]


def _message(error: BaseException, arguments: Sequence[str]) -> tuple[str, int] | None:
    """Return the message and the exit code for an error that is not a bug; None for all others."""
    if is_closed_pipe(error):
        return "", CLOSED_PIPE
    if isinstance(error, InputError):
        return f"{error}", 2
    if isinstance(error, Interrupted):
        return f"{error}", 128 + error.signal_number
    if isinstance(error, KeyboardInterrupt):
        return "interrupted.", 128 + signal.SIGINT
    if isinstance(error, OSError) and error.errno in _ERRORS_OF_PATHS:
        remedy = "; make room, then give the same command again" if error.errno in _FULL else ""
        return f"{error.strerror}: {error.filename or _output_in_words(arguments)}{remedy}.", 2
    return None


def _output_in_words(arguments: Sequence[str]) -> str:
    """Return where the command writes, for an error of the system that does not name a file."""
    for word, following in pairwise((*arguments, "")):
        name, _, value = word.partition("=")
        if name in ("--output", "--run") and (value or following):
            return f"while writing in {value or following}"
    # Commands without such an option write into the folders of the runs.
    folders = [word for word in arguments if Path(word).is_dir()]
    return f"while writing in {' or '.join(folders)}" if folders else "while writing"
