"""TPUs that are not here: their devices to compile for, their memory, the time that XLA's schedule takes."""

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from proteinlm.errors import InputError

# Cycles a second: the published peak in bfloat16 over what the matrix units of a core do in a cycle (2 x 128 x 128
# each): v2 1 unit, v3 2, v4 and v5e 4 (https://cloud.google.com/tpu/docs/system-architecture-tpu-vm).
_CLOCK_HZ = {"TPU v2": 0.70e9, "TPU v3": 0.94e9, "TPU v4": 1.05e9, "TPU v5 lite": 1.50e9}

# Without the first three libtpu asks the cloud which TPU this machine is, and says on stderr that it is none. One
# process alone may have a TPU; many may compile for one.
_NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v2-8", "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip


@functools.cache
def devices(topology: str) -> list[Any]:
    """Return the devices of a TPU topology, such as "v2:16x16" or "v5e:4x4"; programs compile for them, none run.

    A device of v2, v3 is a core, of which a chip has two; from v4 on it is a chip.

    Raises:
        InputError: libtpu is not installed, or does not know the topology.
    """
    if not re.match(r"v\d+\w*:\d", topology):
        # libtpu takes an empty name for TPUs of its own choice.
        raise InputError(f"--topology is {topology!r}; it must be a generation and a grid, as v2:16x16 or v5e:4x4.")
    if not any(Path(device).exists() for device in ("/dev/accel0", "/dev/vfio/0")):
        for name, value in _NO_TPU_HERE.items():
            os.environ.setdefault(name, value)
    options = {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices)
    except RuntimeError as error:
        if "not installed" in str(error):
            raise InputError(
                f"planning for {topology} needs libtpu: pip install 'proteinlm[tpu]' (137 MB; no TPU is needed)."
            ) from error
        sentence = " ".join(str(error).split())[:300]
        raise InputError(
            f"libtpu does not know the topology {topology!r} (v2:16x16, v4:4x4x4 and v5e:4x4 are some): {sentence}"
        ) from error


def exceeds_memory(error: Exception) -> bool:
    """Whether an error of compiling says that the program needs more memory than the device has."""
    return "RESOURCE_EXHAUSTED" in str(error)


def bytes_needed(error: Exception) -> int | None:
    """Return how much memory a program that did not fit asked for, if the error says so."""
    found = re.search(r"(?:Used |HLO temporaries \()([\d.]+)([KMGT])", str(error))
    return _bytes(found) if found else None


def memory_limit(device: Any) -> int | None:
    """Return the bytes of a device that a program may use, None where nobody says.

    For a TPU of `devices` it is what the compiler names when it refuses a program that is too large.
    """
    if device.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return int((device.memory_stats() or {})["bytes_limit"])
    except (KeyError, jax.errors.JaxRuntimeError):
        return _limit_of_compiler(device)


def _limit_of_compiler(device: Any) -> int | None:
    huge = jax.ShapeDtypeStruct((2**20, 2**16), jnp.float32, sharding=SingleDeviceSharding(device))
    add: Callable[[jax.Array], jax.Array] = lambda x: x + 1  # noqa: E731
    try:
        jax.jit(add).lower(huge).compile()
    except jax.errors.JaxRuntimeError as error:
        found = re.search(r"(?:available HBM \(|of )([\d.]+)([KMGT])", str(error))
        return _bytes(found) if found else None
    return None


def _bytes(found: re.Match[str]) -> int:
    return int(float(found[1]) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[found[2]])


def seconds_of_schedule(program: str, device_kind: str) -> float | None:
    """Return the time of one device for a compiled program (HLO text), by XLA's own estimate of each operation.

    Cycles of every operation, those of a loop's body as often as it runs, over the clock. Messages between devices are
    not in it. None where the kind of device is unknown or the text has no estimates.
    """
    cycles, clock = cycles_of_schedule(program), _CLOCK_HZ.get(device_kind)
    return cycles / clock if cycles and clock else None


def cycles_of_schedule(program: str) -> int:
    """Return the estimated cycles of a compiled program (HLO text), 0 where it has no estimates.

    A loop whose length is not known before it runs, inside one of n, is taken to run (n - 1) / 2 times on average: so
    do those of causal exact attention, over the blocks before (or after) each.
    """
    computations = _computations(program)

    @functools.cache
    def cycles(name: str, around: int) -> float:
        """Return those of one run of a computation, which is inside a loop of so many."""
        total, lines = 0.0, computations[name]
        for line in lines:
            if found := re.search(r'"estimated_cycles":"(\d+)"', line):
                total += int(found[1])
            if found := re.search(r" while\(%([\w.-]+)\), condition=%([\w.-]+), body=%([\w.-]+)", line):
                trips = _trips(line, found[1], lines, computations[found[2]])
                unknown = (around - 1) / 2 if around > 1 else 1
                total += (unknown if trips is None else trips) * cycles(found[3], trips or 1)
            elif found := re.search(r" (?:call|async-start)\(.*(?:to_apply|calls)=%([\w.-]+)", line):
                total += cycles(found[1], around)
            elif found := re.search(r" conditional\(.*branch_computations=\{([^}]*)\}", line):
                total += max(cycles(branch.strip(" %"), around) for branch in found[1].split(","))
        return total

    return round(cycles("ENTRY", 1)) if "ENTRY" in computations else 0


def _computations(program: str) -> dict[str, list[str]]:
    """Return the lines of each computation by name; that of the whole program is "ENTRY"."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in program.splitlines():
        if start := re.match(r"(?:(ENTRY) )?%?([\w.-]+) \(.*\{$", line):
            lines = found.setdefault(start[1] or start[2], [])
        elif line.startswith(" "):
            lines.append(line)
    return found


def _trips(loop: str, start: str, around: list[str], condition: list[str]) -> int | None:
    """Return how often a loop runs, None where that is known when it runs.

    JAX's loops count upwards, in the first value that they carry, while it is below another value.

    Args:
        loop: its line.
        start: name of the tuple that it begins with.
        around: lines of the computation that it is in.
        condition: lines of its condition.
    """
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop):
        return int(known[1])
    bound = next(
        (found[1] for line in condition if (found := re.search(r"compare\(.*%([\w.-]+)\), direction=LT", line))), ""
    )
    first = re.search(r" tuple\(%([\w.-]+)", _definition(start, around))
    low, high = (_constant(first[1], around) if first else None), _constant(bound, condition)
    return None if low is None or high is None else max(high - low, 0)


def _constant(name: str, lines: list[str]) -> int | None:
    """Return the value of an integer constant, or of its copy."""
    definition = _definition(name, lines)
    if copied := re.search(r" copy\(%([\w.-]+)\)", definition):
        return _constant(copied[1], lines)
    value = re.search(r" constant\((-?\d+)\)", definition)
    return int(value[1]) if value else None


def _definition(name: str, lines: list[str]) -> str:
    return next((line for line in lines if re.match(rf"\s+(?:ROOT )?%{re.escape(name)} = ", line)), "")
