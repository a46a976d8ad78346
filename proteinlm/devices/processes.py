"""A run of several processes, one or more per host: joining, equal options, and stopping together."""

import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from proteinlm.config import Config
from proteinlm.errors import InputError, check_range
from proteinlm.output.console import console
from proteinlm.output.version import __version__

# Bytes of an error message that the first process broadcasts.
_MESSAGE_BYTES = 4096
# Seconds that the processes wait for one another at the start; JAX's own default.
_JOIN_SECONDS = 300
# Seconds of waiting before a process prints that it waits.
_SILENT_SECONDS = 3.0
# Seconds that a process which stops early waits for others to stop too.
_SHUTDOWN_SECONDS = 3.0
# Largest number of differing options in a message.
_MAX_DIFFERENCES = 8
# Messages of XLA, Gloo, NCCL and JAX's coordination service when another process does not answer.
_GONE = re.compile(
    r"Gloo|NCCL|by peer|Socket closed|Broken pipe|coordination service|heartbeat|UNAVAILABLE|DEADLINE_EXCEEDED",
    re.IGNORECASE,
)


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    automatic: bool = False,
) -> None:
    """Join the other processes of a run. Call it before any array exists; without arguments it does nothing.

    Args:
        coordinator: HOST:PORT of process 0, the same in every process.
        num_processes: number of processes.
        process_id: number of this process, from 0.
        automatic: read the other three from the cluster (TPU pods, Slurm, Open MPI, Kubernetes).

    Raises:
        InputError: some of the three are missing or wrong, or JAX reports that the processes did not connect.
    """
    options = {"--coordinator": coordinator, "--num-processes": num_processes, "--process-id": process_id}
    missing = [name for name, value in options.items() if value is None]
    if len(missing) == len(options) and not automatic:
        return
    if missing and not automatic:
        raise InputError(f"{' and '.join(missing)} must be given too; or only --distributed, on a cluster.")
    if num_processes is not None:
        check_range("--num-processes", num_processes, at_least=1)
    if num_processes is not None and process_id is not None and not 0 <= process_id < num_processes:
        raise InputError(
            f"--process-id is {process_id}; with --num-processes {num_processes} it is 0 to {num_processes - 1}."
        )
    if coordinator is not None:
        port = _port_of(coordinator)
        if process_id == 0:
            _check_free(port)
    others = "the other processes" if process_id == 0 else "process 0"
    address = "" if coordinator is None else f" at {coordinator}"
    try:
        # When process 0 does not answer in time, JAX aborts this process: this line is then the explanation.
        with _message_after_a_while(f"waiting for {others}{address}, {_JOIN_SECONDS} s at most"):
            jax.distributed.initialize(coordinator, num_processes, process_id, initialization_timeout=_JOIN_SECONDS)
        console.quiet = not is_first()
    except (RuntimeError, ValueError) as error:
        if automatic and re.search("(should|must) be defined", str(error)):
            raise InputError(
                "--distributed found no cluster (TPU pod, Slurm, Open MPI, Kubernetes): give --coordinator HOST:PORT, "
                "--num-processes and --process-id instead."
            ) from error
        raise InputError(
            f"the processes of the run did not connect: {str(error).rstrip('.')}. Give each of them "
            "--coordinator HOST:PORT (host of process 0, a free port), --num-processes and --process-id."
        ) from error


def _port_of(coordinator: str) -> int:
    """Return the port of HOST:PORT, where HOST is a known name, an IPv4 address or [an IPv6 address]."""
    parts = re.fullmatch(r"(\[[^\[\]\s]+\]|[^:\s\[\]]+):(\d{1,5})", coordinator)
    if not parts or not 1 <= int(parts[2]) <= 65535:
        raise InputError(
            f"--coordinator is {coordinator!r}; it must be HOST:PORT of process 0, such as host0:1234, with a port "
            "from 1 to 65535."
        )
    host = parts[1].strip("[]")
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise InputError(f"--coordinator is {coordinator!r}, but the host {host} is unknown: {error}.") from error
    return int(parts[2])


def _check_free(port: int) -> None:
    """Refuse a port of this machine at which another program listens: JAX may crash on it (a segmentation fault)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise InputError(
                f"process 0 cannot listen at port {port} of --coordinator ({error}): give another port."
            ) from error


@contextlib.contextmanager
def _message_after_a_while(text: str) -> Iterator[None]:
    """Print a message on stderr when the block takes longer than `_SILENT_SECONDS`."""
    timer = threading.Timer(_SILENT_SECONDS, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def agree(config: Config, fingerprint: str, **others: Any) -> None:
    """Check that all processes have the same options; otherwise their copies of the model would silently diverge.

    Args:
        config: config of the run.
        fingerprint: fingerprint of its dataset.
        others: further options that must be equal, in JSON's types.

    Raises:
        InputError: in every process, with the options that differ.
    """
    if jax.process_count() == 1:
        return
    plain = json.loads(config.to_json())
    # Batches do not depend on the number of threads that read them.
    del plain["batches"]["num_threads"]
    versions = {"proteinlm": __version__, "jax": jax.__version__}
    options = {"version of": versions, **plain, "the dataset's fingerprint": fingerprint[:16], **others}
    options_of_all = [_flat(json.loads(text)) for text in _texts_of_all(json.dumps(options))]
    first = options_of_all[0]
    for index, other in enumerate(options_of_all):
        names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        if names:
            different = [
                f"{name} is {first.get(name, 'absent')} in process 0, {other.get(name, 'absent')} in process {index}"
                for name in names[:_MAX_DIFFERENCES]
            ]
            more = f"; and {len(names) - _MAX_DIFFERENCES} more" if len(names) > _MAX_DIFFERENCES else ""
            raise InputError(
                f"the processes have different options: {'; '.join(different)}{more}. Give each of them the same "
                "command, except for --process-id."
            )


def _flat(plain: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested JSON objects by their dotted names."""
    if not isinstance(plain, dict):
        return {path: plain}
    start = f"{path} " if path == "version of" else f"{path}." if path else ""
    return {name: leaf for key, value in plain.items() for name, leaf in _flat(value, start + key).items()}


def _texts_of_all(text: str) -> list[str]:
    """Return the texts of all processes, in the order of their numbers."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(encoded.size))).reshape(-1)
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: encoded.size] = encoded
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


def who_is_gone(error: BaseException) -> str | None:
    """Return a message if an error means that another process of the run has died, None for any other error."""
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return None
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    text = next((str(each) for each in chain if _GONE.search(str(each)) and not isinstance(each, InputError)), None)
    if text is None:
        return None
    who = f"process {1 - jax.process_index()}" if jax.process_count() == 2 else "another process"
    closed = re.search(r"connection (?:closed|reset)", text, re.IGNORECASE)
    silent = re.search("DEADLINE|heartbeat", text)
    why = closed[0].lower() if closed else "no answer" if silent else " ".join(text.split())[:200]
    return f"{who} has died ({why}); the same command on every process resumes from the run's newest checkpoint."


def leave(code: int, *, gone: bool = False) -> None:
    """Exit at once if this process is one of several; JAX would wait minutes for the others.

    Args:
        code: exit code.
        gone: another process has died, so that a common shutdown is impossible.
    """
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    if not gone:
        # The shutdown returns when all processes stop; it would not return in one that stops alone.
        shutdown = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        shutdown.start()
        shutdown.join(_SHUTDOWN_SECONDS)
    elif is_first() and jax.process_count() > 2:
        # When the first process exits, JAX aborts the others with a page of C++: let them print their messages first.
        time.sleep(_SHUTDOWN_SECONDS)
    os._exit(code)


def is_first() -> bool:
    """Return whether this is process 0, which writes files that only one process may write."""
    return jax.process_index() == 0


def first_alone(act: Callable[[], None]) -> None:
    """Call a function in process 0 while the other processes wait.

    Raises:
        InputError: in the other processes, with the message of the exception in process 0, which raises it unchanged.
    """
    if jax.process_count() == 1:
        act()
        return
    failed: Exception | None = None
    if is_first():
        try:
            act()
        except Exception as error:
            failed = error
    padded = np.zeros(_MESSAGE_BYTES, np.uint8)
    text = f"{failed}".encode()[:_MESSAGE_BYTES] if failed else b""
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    message = np.asarray(multihost_utils.broadcast_one_to_all(padded)).tobytes().rstrip(b"\0")
    if failed:
        raise failed
    if message:
        raise InputError(message.decode(errors="replace"))


class Vote:
    """The maximum of a number over all processes, so that all of them act on a signal at the same step.

    With several processes, a small reduction is dispatched after each train step and read one step later, when the
    device has finished it, so that nothing waits. A single process gets its own number at once.
    """

    def __init__(self, mesh: Mesh):
        self._each = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._largest = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._pending: jax.Array | None = None

    def of(self, number: int) -> int:
        """Send a number; return the maximum of the previous call (0 at first), or, in a single process, the number."""
        if jax.process_count() == 1:
            return number
        before = 0 if self._pending is None else int(self._pending)
        local = np.full(len(self._each.addressable_devices), number, np.int32)
        self._pending = self._largest(jax.make_array_from_process_local_data(self._each, local))
        return before
