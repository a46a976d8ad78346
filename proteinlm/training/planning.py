"""What a run would take, found by compiling its train step without any data, for this machine or for TPUs elsewhere."""

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
"""The rows a device that `fit` tries: all up to 16, then eight steps to every doubling."""


@dataclass(frozen=True)
class Plan:
    """What a run would take. Bytes are those of the device that holds most.

    Attributes:
        device_kind: name of the hardware; `num_devices` of them share the work.
        rows: of the largest batch, on all devices together.
        length: tokens of such a row.
        state_bytes: parameters, random features and optimizer state.
        rows_per_device: rows of that batch on each group of `group` devices, which share them (mesh.tensor and
            mesh.sequence).
        temporary_bytes: XLA's count for the largest batch, activations and gradients included; None where XLA found no
            program that fits.
        total_bytes: what one step needs: for a topology XLA's own peak, which it holds against the limit, otherwise
            state and temporaries together; where nothing fits what XLA asked for, None if it did not say.
        is_peak: whether `total_bytes` is XLA's own peak.
        limit_bytes: what a program may use; None where nobody says.
        work: products of one step, recomputation included, on all devices together.
        model_flops: three times the products of a forward pass: what a step must compute, without recomputation.
        xla_bytes: bytes accessed by XLA's cost analysis, one device, each loop's body counted once.
        seconds: of one step, by the compiler's estimates of each operation (topologies.seconds_of_schedule).
        compile_seconds: how long it took to find all this out.
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
        """Rows, and whose they are, in words."""
        holder = "a device" if self.group == 1 else f"a group of {self.group} devices"
        return f"{self.rows_per_device} rows {holder}"

    @property
    def fits(self) -> bool:
        """Whether XLA found a program that fits the device, within its limit where one is known."""
        return self.temporary_bytes is not None and (self.total_bytes or 0) <= (self.limit_bytes or math.inf)

    @property
    def tokens(self) -> int:
        """Tokens of the largest batch, padding included."""
        return self.rows * self.length


def plan(config: Config, topology: str | None = None, rows_per_device: int | None = None) -> Plan:
    """Compile the train step and count.

    Args:
        config: the experiment.
        topology: of TPUs (topologies.devices); None for the devices of this machine.
        rows_per_device: in place of `config.batches.batch_size`; devices that share a row count as one.

    Raises:
        InputError: there is no such topology, the config does not fit its number of devices, or there are no rows.
    """
    _check_rows(rows_per_device)
    start = time.perf_counter()
    devices = jax.devices() if topology is None else topologies.devices(topology)
    mesh = sharding.make_mesh(config.mesh, devices)
    if rows_per_device is not None:
        size = rows_per_device * sharding.row_blocks(mesh)
        config = dataclasses.replace(config, batches=dataclasses.replace(config.batches, batch_size=size))
    trainer = TrainStep(_as_on(devices[0].platform, config), mesh)
    shapes = batch_shapes(config.batches)
    rows, length = max(shapes, key=lambda shape: shape[0] * shape[1])
    work, model_flops = step_work(trainer, rows, length)
    state = trainer.abstract_state
    found = Plan(
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
        compiled = trainer.step.lower(state, trainer.abstract_batch(rows, length)).compile()
    except jax.errors.JaxRuntimeError as error:
        if not topologies.exceeds_memory(error):
            raise
        taken = time.perf_counter() - start
        return dataclasses.replace(found, total_bytes=topologies.bytes_needed(error), compile_seconds=taken)
    memory: Any = compiled.memory_analysis()
    temporary = int(memory.temp_size_in_bytes)
    costs: Any = compiled.cost_analysis() or {}
    seconds = None
    if topology is not None:
        seconds = topologies.seconds_of_schedule(compiled.as_text() or "", found.device_kind)
    return dataclasses.replace(
        found,
        temporary_bytes=temporary,
        # The step's results lie where its arguments were. Temporaries are more than the peak where some never lie
        # beside others.
        total_bytes=int(memory.peak_memory_in_bytes) if topology else found.state_bytes + temporary,
        is_peak=topology is not None,
        xla_bytes=costs.get("bytes accessed"),
        seconds=seconds,
        compile_seconds=time.perf_counter() - start,
    )


def _check_rows(rows: int | None) -> None:
    if rows is not None:
        check_range("--rows-per-device", rows, at_least=1)


def step_work(trainer: TrainStep, rows: int, length: int) -> tuple[Work, int]:
    """Return the products of one step as it is computed, and of three forward passes, on all devices together."""
    state, batch = trainer.abstract_state, trainer.abstract_batch(rows, length)
    forward = work_of(lambda state, tokens: nnx.merge(trainer.graph, state)(tokens), state["model"], batch["tokens"])
    return work_of(trainer.step, state, batch), 3 * forward.flops


def _as_on(platform: str, config: Config) -> Config:
    """Return the config with what attention chooses by the backend as it would be there, not as it is here."""
    attention = config.model.attention.on_platform(platform, causal=config.causal)
    return dataclasses.replace(config, model=dataclasses.replace(config.model, attention=attention))


def fit(
    config: Config, topology: str | None = None, tell: Callable[[Plan], None] = lambda _: None, start: int = 8
) -> tuple[Plan, Plan | None]:
    """Find the largest batch that fits, among `ROWS` a device, by compiling for some.

    Args:
        config: the experiment; its batch size is not read.
        topology: as of `plan`.
        tell: called with every plan on the way.
        start: rows a device to begin with.

    Returns:
        (the plan of the largest that fits, that of the next size, which does not, None where there is no larger size).

    Raises:
        InputError: as of `plan`; or not even the smallest batch fits; or no limit is known.
    """
    _check_rows(start)
    parts = config.accumulate
    # Sizes that divide into the parts; where none of the usual ones does, multiples.
    sizes = [rows for rows in ROWS if rows % parts == 0] or [rows * parts for rows in ROWS]
    low, high = -1, len(sizes)
    plans: dict[int, Plan] = {}
    place = _nearest(sizes, start)
    while True:
        plans[place] = found = plan(config, topology, sizes[place])
        tell(found)
        if found.limit_bytes is None:
            raise InputError(f"nobody says how much memory a {found.device_kind} has; give --rows-per-device instead.")
        low, high = (place, high) if found.fits else (low, place)
        if high - low == 1:
            break
        # Temporaries grow nearly as rows do; near the limit XLA computes again what it would else keep.
        guess = (low + high) // 2
        if found.total_bytes and found.total_bytes > found.state_bytes:
            share = (found.limit_bytes - found.state_bytes) / (found.total_bytes - found.state_bytes)
            guess = _nearest(sizes, found.rows_per_device * share)
        place = min(max(guess, low + 1), high - 1)
    if low < 0:
        smallest = plans[0]
        raise InputError(
            f"not even {smallest.share} fit, of {smallest.length} tokens each: a {smallest.device_kind} has "
            f"{describe_bytes(smallest.limit_bytes)}. Shorten batches.length, or split the work (mesh.fsdp, "
            "mesh.tensor, model.remat full)."
        )
    return plans[low], plans.get(high)


def _nearest(sizes: list[int], rows: float) -> int:
    """Return the place of the largest size that is at most `rows`."""
    return max((i for i, size in enumerate(sizes) if size <= rows), default=0)


def describe_plan(found: Plan) -> str:
    """Return what `proteinlm plan` and `train --dry-run` print."""
    shapes = ", ".join(f"{rows:,} x {length:,}" for rows, length in found.shapes)
    limit = f" of {describe_bytes(found.limit_bytes)}" if found.limit_bytes else ""
    total = "more than there is" if found.total_bytes is None else describe_bytes(found.total_bytes)
    verdict = "fits" if found.fits else "DOES NOT FIT"
    lines = [
        f"parameters          {found.num_parameters:,}",
        f"devices             {found.num_devices:,} x {found.device_kind}",
        f"batch               {shapes} (rows x tokens); {found.share}",
        f"tokens per step     {found.tokens:,} (the largest batch, padding included)",
        f"state               {describe_bytes(found.state_bytes)} a device (parameters, random features, optimizer)",
    ]
    counted = "" if found.total_bytes is None else " (what XLA asked for)"
    if found.temporary_bytes is not None:
        what = "all, also those that never lie in memory together" if found.is_peak else "XLA's count"
        lines.append(f"temporaries         {describe_bytes(found.temporary_bytes)} a device ({what}; largest batch)")
        counted = " (XLA's peak, state included)" if found.is_peak else " (state and temporaries)"
    lines += [
        f"memory of one step  {total}{limit} a device: {verdict}{counted}",
        f"FLOPs of one step   {found.work.flops:.3e} (products, loops counted as often as they run, all devices)",
        f"  of the model      {found.model_flops:.3e} (3 x forward: without what is computed again)",
        f"bytes of products   {found.work.product_bytes:.3e} (operands and results, all devices)",
    ]
    if found.work.unknown_loops:
        lines.append(f"                    {found.work.unknown_loops} loops of unknown length are counted once")
    if found.xla_bytes is not None:
        lines.append(f"bytes by XLA        {found.xla_bytes:.3e} (one device, but the body of each loop counted once)")
    if found.seconds is not None:
        rate = found.tokens / found.seconds
        lines.append(
            f"time by XLA         {1e3 * found.seconds:,.1f} ms a step, {rate:,.0f} tokens/s in all (estimated cycles "
            "of each operation; without messages between devices)"
        )
    lines.append(f"compiled in         {found.compile_seconds:.0f} s")
    return "\n".join(lines)


def describe_trial(found: Plan) -> str:
    """Return one line about a step of the search."""
    total = "" if found.total_bytes is None else f", {describe_bytes(found.total_bytes)}"
    verdict = "fits" if found.fits else "does not fit"
    return f"{found.share}{total}: {verdict} ({found.compile_seconds:.0f} s)"


def describe_bytes(number: int | None) -> str:
    """Return a number of bytes in GiB or MiB."""
    if number is None:
        return "unknown"
    return f"{number / 2**30:,.2f} GiB" if number >= 2**30 else f"{number / 2**20:,.1f} MiB"
