"""Planning: memory, FLOPs and time of a train step, by compiling it for this machine or for a TPU topology."""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from proteinlm.config import Config
from proteinlm.data.batches.batches import batch_shapes
from proteinlm.devices import sharding, topologies
from proteinlm.errors import InputError, check_range
from proteinlm.training.flops import Work, work_of
from proteinlm.training.step import TrainStep, count_parameters

ROWS = (*range(1, 16), *(part << power for power in range(1, 12) for part in range(8, 16)))
"""Numbers of rows per device that `fit` tries: all below 16, then eight for every doubling."""


@dataclass(frozen=True)
class Plan:
    """Memory, FLOPs and time of one train step. Bytes are those of the device that holds most.

    Attributes:
        num_parameters: number of trained parameters.
        device_kind: name of the hardware.
        num_devices: number of devices in the mesh.
        shapes: all (rows, tokens) of a batch; the other numbers are of the largest.
        rows: rows of the largest batch, on all devices together.
        length: tokens of a row of that batch.
        rows_per_device: rows of that batch on each group of `group` devices, which share them (mesh.tensor and
            mesh.sequence).
        state_bytes: bytes of parameters, random features and optimizer state.
        temporary_bytes: bytes of temporaries by XLA, activations and gradients included; None if XLA found no program
            that fits.
        total_bytes: bytes that one step needs: for a topology XLA's peak, which it compares with the limit; otherwise
            state and temporaries; if nothing fits, the bytes that XLA asked for, or None if it gave no number.
        limit_bytes: bytes that a program may use; None if unknown.
        work: matrix products of one step, recomputation included, on all devices together.
        model_flops: three times the FLOPs of a forward pass: the least that a step computes, without recomputation.
        xla_bytes: bytes accessed by XLA's cost analysis, on one device, with each loop body counted once.
        seconds: time of one step, from the compiler's estimate of each operation (topologies.seconds_of_schedule).
        compile_seconds: time of tracing and compilation.
        group: number of devices that share their rows.
        is_peak: whether `total_bytes` is XLA's own peak.
    """

    num_parameters: int
    device_kind: str
    num_devices: int
    shapes: list[tuple[int, int]]
    rows: int
    length: int
    rows_per_device: int
    state_bytes: int
    temporary_bytes: int | None
    total_bytes: int | None
    limit_bytes: int | None
    work: Work
    model_flops: int
    xla_bytes: float | None
    seconds: float | None
    compile_seconds: float
    group: int = 1
    is_peak: bool = False

    @property
    def share(self) -> str:
        """The rows per device, or per group of devices, in words."""
        holder = "a device" if self.group == 1 else f"a group of {self.group} devices"
        return f"{self.rows_per_device} rows {holder}"

    @property
    def fits(self) -> bool:
        """Whether XLA found a program that fits the device, within the limit if it is known."""
        return self.temporary_bytes is not None and (self.total_bytes or 0) <= (self.limit_bytes or math.inf)

    @property
    def tokens(self) -> int:
        """Tokens of the largest batch, padding included."""
        return self.rows * self.length


def plan(config: Config, topology: str | None = None, rows_per_device: int | None = None) -> Plan:
    """Compile the train step of a config and return its memory, FLOPs and time.

    Args:
        config: the experiment.
        topology: name of a TPU topology (topologies.devices); None for the devices of this machine.
        rows_per_device: replaces `config.batches.batch_size`; devices that share a row count as one.

    Raises:
        InputError: there is no such topology, the config does not fit its devices, or `rows_per_device` is below 1.
    """
    _check_rows(rows_per_device)
    start = time.perf_counter()
    devices = jax.devices() if topology is None else topologies.devices(topology)
    mesh = sharding.make_mesh(config.mesh, devices)
    if rows_per_device is not None:
        size = rows_per_device * sharding.row_blocks(mesh)
        config = dataclasses.replace(config, batches=dataclasses.replace(config.batches, batch_size=size))
    train_step = TrainStep(_as_on(devices[0].platform, config), mesh)
    shapes = batch_shapes(config.batches)
    rows, length = max(shapes, key=lambda shape: shape[0] * shape[1])
    work, model_flops = step_work(train_step, rows, length)
    state = train_step.abstract_state
    result = Plan(
        num_parameters=count_parameters(state["model"]),
        device_kind=devices[0].device_kind,
        num_devices=mesh.size,
        shapes=shapes,
        rows=rows,
        length=length,
        rows_per_device=rows // sharding.row_blocks(mesh),
        state_bytes=sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)
        ),
        temporary_bytes=None,
        total_bytes=None,
        limit_bytes=topologies.memory_limit(devices[0]),
        work=work,
        model_flops=model_flops,
        xla_bytes=None,
        seconds=None,
        compile_seconds=0.0,
        group=mesh.size // sharding.row_blocks(mesh),
    )
    try:
        compiled = train_step.step.lower(state, train_step.abstract_batch(rows, length)).compile()
    except jax.errors.JaxRuntimeError as error:
        if not topologies.exceeds_memory(error):
            raise
        taken = time.perf_counter() - start
        return dataclasses.replace(result, total_bytes=topologies.bytes_needed(error), compile_seconds=taken)
    memory: Any = compiled.memory_analysis()
    temporary = int(memory.temp_size_in_bytes)
    costs: Any = compiled.cost_analysis() or {}
    seconds = None
    if topology is not None:
        seconds = topologies.seconds_of_schedule(compiled.as_text() or "", result.device_kind)
    return dataclasses.replace(
        result,
        temporary_bytes=temporary,
        # The results of a step take the memory of its arguments. Temporaries can exceed the peak, because not all of
        # them are in memory at the same time.
        total_bytes=int(memory.peak_memory_in_bytes) if topology else result.state_bytes + temporary,
        is_peak=topology is not None,
        xla_bytes=costs.get("bytes accessed"),
        seconds=seconds,
        compile_seconds=time.perf_counter() - start,
    )


def _check_rows(rows: int | None) -> None:
    if rows is not None:
        check_range("--rows-per-device", rows, at_least=1)


def step_work(train_step: TrainStep, rows: int, length: int) -> tuple[Work, int]:
    """Return (work of one step, FLOPs of three forward passes), on all devices together."""
    state, batch = train_step.abstract_state, train_step.abstract_batch(rows, length)
    forward = work_of(lambda state, tokens: nnx.merge(train_step.graph, state)(tokens), state["model"], batch["tokens"])
    return work_of(train_step.step, state, batch), 3 * forward.flops


def _as_on(platform: str, config: Config) -> Config:
    """Return the config with the choices that attention makes by backend set to those of `platform`."""
    attention = config.model.attention.on_platform(platform, causal=config.causal)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, attention=attention))


def fit(
    config: Config, topology: str | None = None, report: Callable[[Plan], None] = lambda _: None, start: int = 8
) -> tuple[Plan, Plan | None]:
    """Find the largest batch that fits, among `ROWS` per device, by compiling for some of them.

    Args:
        config: the experiment; its batch size is not used.
        topology: as in `plan`.
        report: called with the plan of each compiled size.
        start: number of rows per device of the first size.

    Returns:
        (plan of the largest size that fits, plan of the next size, which does not fit, or None if there is none).

    Raises:
        InputError: as in `plan`; or the smallest batch does not fit; or the memory of the device is unknown.
    """
    _check_rows(start)
    parts = config.accumulate
    # Sizes that divide into the parts of `accumulate`; if none does, multiples of the number of parts.
    sizes = [rows for rows in ROWS if rows % parts == 0] or [rows * parts for rows in ROWS]
    low, high = -1, len(sizes)
    plans: dict[int, Plan] = {}
    index = _nearest(sizes, start)
    while True:
        plans[index] = trial = plan(config, topology, sizes[index])
        report(trial)
        if trial.limit_bytes is None:
            raise InputError(
                f"the memory of a {trial.device_kind} is unknown: give --rows-per-device in place of --fit."
            )
        low, high = (index, high) if trial.fits else (low, index)
        if high - low == 1:
            break
        # Temporaries grow almost in proportion to the rows; near the limit XLA recomputes in order to save memory.
        guess = (low + high) // 2
        if trial.total_bytes and trial.total_bytes > trial.state_bytes:
            share = (trial.limit_bytes - trial.state_bytes) / (trial.total_bytes - trial.state_bytes)
            guess = _nearest(sizes, trial.rows_per_device * share)
        index = min(max(guess, low + 1), high - 1)
    if low < 0:
        smallest = plans[0]
        raise InputError(
            f"the smallest batch, {smallest.share} of {smallest.length} tokens each, does not fit the "
            f"{describe_bytes(smallest.limit_bytes)} of a {smallest.device_kind}. Shorten batches.length, split the "
            "model (mesh.fsdp, mesh.tensor), or set model.remat to full."
        )
    return plans[low], plans.get(high)


def _nearest(sizes: list[int], rows: float) -> int:
    """Return the index of the largest size that is at most `rows`, or 0."""
    return max((i for i, size in enumerate(sizes) if size <= rows), default=0)


def describe_plan(result: Plan) -> str:
    """Return the text of a plan that `proteinlm plan` and `train --dry-run` print."""
    shapes = ", ".join(f"{rows:,} x {length:,}" for rows, length in result.shapes)
    limit = f" of {describe_bytes(result.limit_bytes)}" if result.limit_bytes else ""
    total = "more than the device has" if result.total_bytes is None else describe_bytes(result.total_bytes)
    verdict = "fits" if result.fits else "DOES NOT FIT"
    lines = [
        f"parameters          {result.num_parameters:,}",
        f"devices             {result.num_devices:,} x {result.device_kind}",
        f"batch               {shapes} (rows x tokens); {result.share}",
        f"tokens per step     {result.tokens:,} (the largest batch, padding included)",
        f"state               {describe_bytes(result.state_bytes)} a device (parameters, random features, optimizer)",
    ]
    counted = "" if result.total_bytes is None else " (what XLA asked for)"
    if result.temporary_bytes is not None:
        note = "sum, although not all are in memory at the same time" if result.is_peak else "XLA's count"
        lines.append(f"temporaries         {describe_bytes(result.temporary_bytes)} a device ({note}; largest batch)")
        counted = " (XLA's peak, state included)" if result.is_peak else " (state and temporaries)"
    lines += [
        f"memory of one step  {total}{limit} a device: {verdict}{counted}",
        f"FLOPs of one step   {result.work.flops:.3e} (matrix products of all devices, each run of a loop)",
        f"  of the model      {result.model_flops:.3e} (3 x forward pass: without recomputation)",
        f"bytes of products   {result.work.product_bytes:.3e} (operands and results of matrix products, all devices)",
    ]
    if result.work.unknown_loops:
        lines.append(f"                    {result.work.unknown_loops} loops of unknown length, counted once")
    if result.xla_bytes is not None:
        lines.append(f"bytes by XLA        {result.xla_bytes:.3e} (one device, each loop body counted once)")
    if result.seconds is not None:
        rate = result.tokens / result.seconds
        lines.append(
            f"time by XLA         {1e3 * result.seconds:,.1f} ms a step, {rate:,.0f} tokens/s in all (estimated cycles "
            "of each operation; without communication between devices)"
        )
    lines.append(f"compiled in         {result.compile_seconds:.0f} s")
    return "\n".join(lines)


def describe_trial(result: Plan) -> str:
    """Return one line about one size of `fit`."""
    total = "" if result.total_bytes is None else f", {describe_bytes(result.total_bytes)}"
    verdict = "fits" if result.fits else "does not fit"
    return f"{result.share}{total}: {verdict} ({result.compile_seconds:.0f} s)"


def describe_bytes(number: int | None) -> str:
    """Return a number of bytes in GiB or MiB."""
    if number is None:
        return "unknown"
    return f"{number / 2**30:,.2f} GiB" if number >= 2**30 else f"{number / 2**20:,.1f} MiB"
