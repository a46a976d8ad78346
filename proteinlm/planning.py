"""What a run would take, found by compiling its train step without any data."""

import math
from dataclasses import dataclass
from typing import Any

import jax

from proteinlm.config import Config
from proteinlm.data.batches import batch_arrays, batch_shapes
from proteinlm.trainer import Trainer, count_parameters


@dataclass(frozen=True)
class Plan:
    """What a run would take, found by compiling its train step.

    Attributes:
        shapes: (rows, length) of the batches.
        state_bytes: parameters, random features and optimizer state.
        temporary_bytes: XLA's count for the largest batch, activations and gradients included.
    """

    num_parameters: int
    shapes: list[tuple[int, int]]
    state_bytes: int
    temporary_bytes: int

    @property
    def total_bytes(self) -> int:
        """State and temporaries together: the peak of one step."""
        return self.state_bytes + self.temporary_bytes


def plan(config: Config) -> Plan:
    """Compile the train step for this machine's device, without any data, and count."""
    trainer = Trainer(config)
    state = jax.eval_shape(trainer.init)
    shapes = batch_shapes(config.batches)
    rows, length = max(shapes, key=lambda shape: shape[0] * shape[1])
    arrays = batch_arrays(config.batches, rows, length)
    batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in arrays.items()}
    memory: Any = trainer.step.lower(state, batch).compile().memory_analysis()
    state_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return Plan(count_parameters(state["model"]), shapes, state_bytes, int(memory.temp_size_in_bytes))


def describe_plan(config: Config) -> str:
    """Return what `--dry-run` prints: parameters, batches, memory of one step on this machine's device."""
    found = plan(config)
    device = jax.devices()[0]
    shapes = ", ".join(f"{rows} x {length}" for rows, length in found.shapes)
    lines = [
        f"parameters          {found.num_parameters:,}",
        f"batch               {shapes} (rows x tokens, {config.batches.form})",
        f"state               {_bytes(found.state_bytes)} (parameters, random features, optimizer)",
        f"temporaries         {_bytes(found.temporary_bytes)} (XLA's count for the largest batch, all rows here)",
        f"memory of one step  {_bytes(found.total_bytes)} on one device of kind {device.device_kind}",
    ]
    return "\n".join(lines)


def _bytes(number: int) -> str:
    return f"{number / 2**30:,.2f} GiB" if number >= 2**30 else f"{number / 2**20:,.1f} MiB"
