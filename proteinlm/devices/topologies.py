"""TPU topologies to compile for without a TPU: devices, memory limits, and times estimated from XLA's schedule."""

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

# Clock rate: published peak in bfloat16 divided by the FLOPs per cycle of a core's matrix units (2 x 128 x 128 each; v2
# has 1 unit, v3 2, v4 and v5e 4 (https://cloud.google.com/tpu/docs/system-architecture-tpu-vm).
_CLOCK_HZ = {"TPU v2": 0.70e9, "TPU v3": 0.94e9, "TPU v4": 1.05e9, "TPU v5 lite": 1.50e9}

# Without the first three, libtpu asks the cloud for the TPU of this machine and prints on stderr that there is none.
# The last one lets several processes compile at the same time.
_NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v2-8", "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}  # fmt: skip


@functools.cache
def devices(topology: str) -> list[Any]:
    """Return the devices of a TPU topology, such as "v2:16x16" or "v5e:4x4", to compile for; they cannot run programs.

    A device of v2 and v3 is a core (a chip has two); from v4 on a device is a chip.

    Raises:
        InputError: libtpu is not installed, or does not support the topology.
    """
    if not re.match(r"v\d+\w*:\d", topology):
        # For an empty name, libtpu would choose a topology itself.
        raise InputError(
            f"--topology is {topology!r}; it must be a generation and a grid, such as v2:16x16 or v5e:4x4."
        )
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
            f"libtpu does not support the topology {topology!r} (examples: v2:16x16, v4:4x4x4, v5e:4x4): {sentence}"
        ) from error


def exceeds_memory(error: Exception) -> bool:
    """Return whether a compilation failed because the program needs more memory than the device has."""
    return "RESOURCE_EXHAUSTED" in str(error)


def bytes_needed(error: Exception) -> int | None:
    """Return the bytes of memory that a program needs which did not fit, or None if the error has no number."""
    size = re.search(r"(?:Used |HLO temporaries \()([\d.]+)([KMGT])", str(error))
    return _bytes(size) if size else None


def memory_limit(device: Any) -> int | None:
    """Return the bytes of a device that a program may use, or None if they are unknown.

    For a TPU of `devices`, the number is from the compiler's error message for a program that is too large.
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
        size = re.search(r"(?:available HBM \(|of )([\d.]+)([KMGT])", str(error))
        return _bytes(size) if size else None
    return None


def _bytes(size: re.Match[str]) -> int:
    return int(float(size[1]) * 2 ** {"K": 10, "M": 20, "G": 30, "T": 40}[size[2]])


def seconds_of_schedule(program: str, device_kind: str) -> float | None:
    """Return the seconds that one device needs for a compiled program (HLO text), by XLA's estimate of each operation.

    The time is the sum of the cycles, with each loop body counted as often as it runs, divided by the clock rate.
    Communication between devices is not included. None if the kind of device is unknown or the text has no estimates.
    """
    cycles, clock = cycles_of_schedule(program), _CLOCK_HZ.get(device_kind)
    return cycles / clock if cycles and clock else None


def cycles_of_schedule(program: str) -> int:
    """Return the estimated cycles of a compiled program (HLO text), or 0 if it has no estimates.

    A loop of unknown length inside a loop of n counts as (n - 1) / 2 runs on average, as in causal exact attention,
    whose inner loop is over the blocks before (or after) each block.
    """
    computations = _computations(program)

    @functools.cache
    def cycles(name: str, around: int) -> float:
        """Return the cycles of one run of a computation that is inside a loop of `around` iterations."""
        total, lines = 0.0, computations[name]
        for line in lines:
            if match := re.search(r'"estimated_cycles":"(\d+)"', line):
                total += int(match[1])
            if match := re.search(r" while\(%([\w.-]+)\), condition=%([\w.-]+), body=%([\w.-]+)", line):
                trips = _trips(line, match[1], lines, computations[match[2]])
                unknown = (around - 1) / 2 if around > 1 else 1
                total += (unknown if trips is None else trips) * cycles(match[3], trips or 1)
            elif match := re.search(r" (?:call|async-start)\(.*(?:to_apply|calls)=%([\w.-]+)", line):
                total += cycles(match[1], around)
            elif match := re.search(r" conditional\(.*branch_computations=\{([^}]*)\}", line):
                total += max(cycles(branch.strip(" %"), around) for branch in match[1].split(","))
        return total

    return round(cycles("ENTRY", 1)) if "ENTRY" in computations else 0


def _computations(program: str) -> dict[str, list[str]]:
    """Return the lines of each computation by its name; the main computation has the name "ENTRY"."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in program.splitlines():
        if start := re.match(r"(?:(ENTRY) )?%?([\w.-]+) \(.*\{$", line):
            lines = computations.setdefault(start[1] or start[2], [])
        elif line.startswith(" "):
            lines.append(line)
    return computations


def _trips(loop: str, start: str, around: list[str], condition: list[str]) -> int | None:
    """Return the number of iterations of a loop, or None if it is unknown before the loop runs.

    A loop of JAX increments its first carried value while it is below a bound.

    Args:
        loop: line of the loop.
        start: name of the tuple of initial values.
        around: lines of the computation that contains the loop.
        condition: lines of the loop's condition.
    """
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop):
        return int(known[1])
    bound = next(
        (match[1] for line in condition if (match := re.search(r"compare\(.*%([\w.-]+)\), direction=LT", line))), ""
    )
    first = re.search(r" tuple\(%([\w.-]+)", _definition(start, around))
    low, high = (_constant(first[1], around) if first else None), _constant(bound, condition)
    return None if low is None or high is None else max(high - low, 0)


def _constant(name: str, lines: list[str]) -> int | None:
    """Return the value of an integer constant or of a copy of one; None for anything else."""
    definition = _definition(name, lines)
    if copied := re.search(r" copy\(%([\w.-]+)\)", definition):
        return _constant(copied[1], lines)
    value = re.search(r" constant\((-?\d+)\)", definition)
    return int(value[1]) if value else None


def _definition(name: str, lines: list[str]) -> str:
    return next((line for line in lines if re.match(rf"\s+(?:ROOT )?%{re.escape(name)} = ", line)), "")
