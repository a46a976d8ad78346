"""`proteinlm train`: options, and the call of training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from proteinlm.cli.options import Processes, read_config
from proteinlm.errors import InputError

_DESCRIPTION = """Train a protein language model, or continue the run in the folder where it stopped. Every field of
the config is an option.

Example: proteinlm train quickstart_causal --dataset data/sprot --run runs/causal --model.num-layers 12"""


def train(arguments: Sequence[str]) -> None:
    """Run `proteinlm train`."""
    from proteinlm.config import Config

    name, config, arguments = read_config("train", arguments)

    @dataclass(frozen=True)
    class Train:
        dataset: Path | None = None
        """Folder of the dataset, as `proteinlm ingest` wrote it; needed except with --dry-run."""
        run: Path | None = None
        """Folder of the run. A new folder starts a run; the folder of this same run continues it.
        Needed except with --dry-run."""
        scale: Literal["full", "tiny"] = "full"
        """tiny: the same experiment with small sizes, seconds on a laptop. Other options override it."""
        dry_run: bool = False
        """Print the plan of `proteinlm plan` for this machine, and do not train."""
        allow_inexact_resume: bool = False
        """Continue the run even if batches, dataset, devices or other settings differ from the run's, and list the
        differences. The losses then differ from those of a run without interruption."""
        track: str = ""
        """Also send the metrics to tensorboard, wandb or tensorboard,wandb (needs the extra logging)."""
        profile: str = ""
        """Write a profile of the steps START:STOP, or of this number of steps near the beginning, to RUN/profile."""
        processes: Annotated[Processes, tyro.conf.arg(name="")] = field(default_factory=Processes)
        config: Annotated[tyro.conf.AvoidSubcommands[Config], tyro.conf.arg(name="")] = field(default_factory=Config)

    options = tyro.cli(
        Train, args=arguments, default=Train(config=config), prog=f"proteinlm train {name}", description=_DESCRIPTION
    )
    from proteinlm.training.planning import describe_plan, plan
    from proteinlm.training.train import train

    if options.dry_run:
        print(describe_plan(plan(options.config)))
        return
    if options.dataset is None or options.run is None:
        raise InputError("training needs --dataset (a folder that proteinlm ingest wrote) and --run (a folder).")
    options.processes.join()
    train(
        options.config, options.dataset, options.run,
        allow_inexact_resume=options.allow_inexact_resume, track=options.track, profile=options.profile,
    )  # fmt: skip
