"""Several processes, one or more a host, that train as one: joining them, and what they must agree on."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from proteinlm.errors import InputError
from proteinlm.logs import console

# Bytes of a sentence that goes from the first process to the others.
_SENTENCE = 4096


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
    given = {"--coordinator": coordinator, "--num-processes": num_processes, "--process-id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given) and not automatic:
        return
    if missing and not automatic:
        raise InputError(f"{' and '.join(missing)} must be given too; or --distributed alone on a cluster.")
    if num_processes is not None and process_id is not None and not 0 <= process_id < num_processes:
        raise InputError(
            f"--process-id is {process_id}; with --num-processes {num_processes} it is 0 to {num_processes - 1}."
        )
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
        console.quiet = not is_first()
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the processes of the run did not find one another: {error}. Name process 0's --coordinator HOST:PORT, "
            "--num-processes and --process-id on each."
        ) from error


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
