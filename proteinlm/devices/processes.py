"""Several processes, one or more a host, that train as one: joining them, and what they must agree on."""

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

from proteinlm import __version__
from proteinlm.config import Config
from proteinlm.errors import InputError, check_range
from proteinlm.output.console import console

# Bytes of a sentence that goes from the first process to the others.
_SENTENCE = 4096
# Seconds that the processes wait for one another at the start; JAX's own default.
_PATIENCE = 300
# Seconds before a process says that it waits.
_SILENCE = 3.0
# Seconds for which a process that leaves early waits for others that leave too.
_GOOD_BYE = 3.0
# Fields that are named where processes were told different things.
_NAMED = 8
# How XLA, its messengers and JAX's service say that another process does not answer.
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
    """Join the other processes of a run; nothing to do for a run of one. Call it before any array is made.

    Args:
        coordinator: HOST:PORT of process 0, the same for all.
        num_processes: how many there are.
        process_id: which this one is, from 0.
        automatic: find all three out from the cluster (TPU pods, Slurm, Open MPI, Kubernetes).

    Raises:
        InputError: some of the three are missing, or the processes do not find one another.
    """
    options = {"--coordinator": coordinator, "--num-processes": num_processes, "--process-id": process_id}
    missing = [name for name, value in options.items() if value is None]
    if len(missing) == len(options) and not automatic:
        return
    if missing and not automatic:
        raise InputError(f"{' and '.join(missing)} must be given too; or --distributed alone on a cluster.")
    if num_processes is not None:
        check_range("--num-processes", num_processes, at_least=1)
    if num_processes is not None and process_id is not None and not 0 <= process_id < num_processes:
        raise InputError(
            f"--process-id is {process_id}; with --num-processes {num_processes} it is 0 to {num_processes - 1}."
        )
    if coordinator is not None:
        _check_address(coordinator)
    others = "the other processes" if process_id == 0 else "process 0"
    address = "" if coordinator is None else f" at {coordinator}"
    try:
        # When process 0 does not answer in time, JAX aborts this process: this line is then the explanation.
        with _message_after_a_while(f"waiting for {others}{address}, {_PATIENCE} s at most"):
            jax.distributed.initialize(coordinator, num_processes, process_id, initialization_timeout=_PATIENCE)
        console.quiet = not is_first()
    except (RuntimeError, ValueError) as error:
        if automatic and re.search("(should|must) be defined", str(error)):
            raise InputError(
                "--distributed found no cluster here (TPU pod, Slurm, Open MPI, Kubernetes): give --coordinator "
                "HOST:PORT, --num-processes and --process-id instead."
            ) from error
        raise InputError(
            f"the processes of the run did not find one another: {str(error).rstrip('.')}. Give each of them "
            "--coordinator HOST:PORT (host of process 0, a free port), --num-processes and --process-id."
        ) from error


def _check_address(coordinator: str) -> None:
    """Refuse what is not HOST:PORT, where HOST is a known name, an IPv4 address or [an IPv6 address]."""
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
        raise InputError(f"--coordinator is {coordinator!r}, but no host {host} is known here: {error}.") from error


@contextlib.contextmanager
def _message_after_a_while(text: str) -> Iterator[None]:
    """Print a message on stderr when the block takes longer than `_SILENCE`."""
    timer = threading.Timer(_SILENCE, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def agree(config: Config, fingerprint: str, **others: Any) -> None:
    """Refuse to go on where the processes were not told the same: replicas of a model would drift apart unseen.

    Args:
        config: of the run.
        fingerprint: of its dataset.
        others: options that all must have alike, in JSON's types.

    Raises:
        InputError: in all of them, with the fields that differ.
    """
    if jax.process_count() == 1:
        return
    plain = json.loads(config.to_json())
    # Batches are the same however many threads read them.
    del plain["batches"]["num_threads"]
    versions = {"proteinlm": __version__, "jax": jax.__version__}
    said = {"version of": versions, **plain, "the dataset's fingerprint": fingerprint[:16], **others}
    everyone = [_flat(json.loads(text)) for text in _texts_of_all(json.dumps(said))]
    first = everyone[0]
    for index, other in enumerate(everyone):
        names = [name for name in {**first, **other} if first.get(name) != other.get(name)]
        if names:
            found = [
                f"{name} is {first.get(name, 'absent')} in process 0, {other.get(name, 'absent')} in process {index}"
                for name in names[:_NAMED]
            ]
            more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise InputError(
                f"the processes were not told the same: {'; '.join(found)}{more}. Give all of them the same command, "
                "but for --process-id."
            )


def _flat(plain: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested objects by their dotted names."""
    if not isinstance(plain, dict):
        return {path: plain}
    start = f"{path} " if path == "version of" else f"{path}." if path else ""
    return {name: leaf for key, value in plain.items() for name, leaf in _flat(value, start + key).items()}


def _texts_of_all(text: str) -> list[str]:
    """Return each process's text, by process."""
    given = np.frombuffer(text.encode(), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(given.size))).reshape(-1)
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: given.size] = given
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


def who_is_gone(error: BaseException) -> str | None:
    """Return a sentence where an error says that another process of the run is gone, None for any other error."""
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
    return f"{who} is gone ({why}); the same command on every process goes on from the run's newest checkpoint."


def leave(code: int, *, gone: bool = False) -> None:
    """End this process at once if it is one of several, without JAX's wait of minutes for the others.

    Args:
        code: of the exit.
        gone: another one is gone: there is no good-bye to wait for.
    """
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    if not gone:
        # Where all leave, they say good-bye to one another; one alone cannot.
        parting = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        parting.start()
        parting.join(_GOOD_BYE)
    elif is_first() and jax.process_count() > 2:
        # When the first is gone, JAX ends the others with a page of C++: they shall have had their say.
        time.sleep(_GOOD_BYE)
    os._exit(code)


def is_first() -> bool:
    """Return whether this process is the one that writes what is written once."""
    return jax.process_index() == 0


def first_alone(act: Callable[[], None]) -> None:
    """Let the first process act while the others wait.

    Raises:
        InputError: in all of them, with its sentence, where the first met an error.
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
    sentence = np.zeros(_SENTENCE, np.uint8)
    text = f"{failed}".encode()[:_SENTENCE] if failed else b""
    sentence[: len(text)] = np.frombuffer(text, np.uint8)
    told = np.asarray(multihost_utils.broadcast_one_to_all(sentence)).tobytes().rstrip(b"\0")
    if failed:
        raise failed
    if told:
        raise InputError(told.decode(errors="replace"))


class Vote:
    """Agreement on a number: all processes learn at the same step the largest that any of them says.

    With several processes a small reduction is queued behind each train step and read one step later, when the device
    is through with it: nobody waits. A process alone has its own word at once.
    """

    def __init__(self, mesh: Mesh):
        self._each = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._largest = jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._asked: jax.Array | None = None

    def of(self, number: int) -> int:
        """Say a number; return the largest of the call before (0 at the first), or, alone, the number itself."""
        if jax.process_count() == 1:
            return number
        before = 0 if self._asked is None else int(self._asked)
        local = np.full(len(self._each.addressable_devices), number, np.int32)
        self._asked = self._largest(jax.make_array_from_process_local_data(self._each, local))
        return before
