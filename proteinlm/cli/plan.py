"""`proteinlm plan`: options, and the text that it prints."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro

from proteinlm.cli.options import read_config

_DESCRIPTION = """Compile the train step of a config, without data, and print its memory, FLOPs and time. Compiling the
paper's models for a pod takes minutes.

Example: proteinlm plan trembl_performer_relu_masked --topology v2:16x16 --rows-per-device 64"""


def plan(arguments: Sequence[str]) -> None:
    """Run `proteinlm plan`."""
    from proteinlm.config import Config

    name, config, arguments = read_config("plan", arguments)

    @dataclass(frozen=True)
    class Plan:
        topology: str | None = None
        """TPUs to compile for, such as v2:16x16, v4:4x4x4, v5e:16x16 (needs the extra tpu, but no TPU); by default
        the devices of this machine."""
        rows_per_device: int | None = None
        """Rows of a batch on each device (or on each group of devices that share rows, over mesh.tensor and
        mesh.sequence), in place of --batches.batch-size."""
        fit: bool = False
        """Find the largest batch that fits into memory; this compiles several batch sizes."""
        scale: Literal["full", "tiny"] = "full"
        """tiny: the same experiment with small sizes."""
        config: Annotated[tyro.conf.AvoidSubcommands[Config], tyro.conf.arg(name="")] = field(default_factory=Config)

    options = tyro.cli(
        Plan, args=arguments, default=Plan(config=config), prog=f"proteinlm plan {name}", description=_DESCRIPTION
    )
    from proteinlm.training.planning import describe_plan, describe_trial, fit, plan

    if not options.fit:
        print(describe_plan(plan(options.config, options.topology, options.rows_per_device)))
        return

    def print_trial(trial: Any) -> None:
        print(describe_trial(trial), file=sys.stderr, flush=True)

    first_rows = 8 if options.rows_per_device is None else options.rows_per_device
    largest, beyond = fit(options.config, options.topology, print_trial, first_rows)
    print(describe_plan(largest))
    if beyond:
        print(f"largest batch       {largest.rows:,} rows: {beyond.share} do not fit")
