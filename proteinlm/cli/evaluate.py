"""`proteinlm evaluate`: options, and the call of the evaluation. Modules that are slow to import wait for the call."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from proteinlm.cli.options import Processes
from proteinlm.evaluation.breakdowns import BREAKDOWNS


def _breakdown_names() -> Any:
    """Return the type of --by: any number of names in the registry, read when the command line is parsed."""
    return tuple[Literal[tuple(BREAKDOWNS)], ...]


_BY_HELP = (
    "Breakdowns of accuracy and perplexity, each written as evaluation_by_NAME.csv, .npz, .png and .pdf: "
    f"{'; '.join(f'{name} ({breakdown.description})' for name, breakdown in BREAKDOWNS.items())}."
)


@dataclass(frozen=True)
class Evaluate:
    """Score trained runs on whole splits: accuracy, perplexity and bits per residue with 95 % intervals.

    The empirical baseline (residue frequencies of train) and the uniform guess are scored on the same tokens. Each
    run's folder gets evaluation.csv, evaluation.json and, unless its rows are windows, sequences.parquet (one row for
    each sequence). Breakdowns and calibration come from the same pass over the split.

    Example: proteinlm evaluate runs/causal runs/masked --splits test ood --by residue length --calibration --table
    """

    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ]
    """Folders of runs."""
    splits: tuple[str, ...] = ("test", "ood")
    """Splits to score: train, valid, test, ood."""
    dataset: Path | None = None
    """Folder of a dataset; by default the one that the run was trained on."""
    step: int | Literal["best", "last"] = "last"
    """Checkpoint to score: its step, best (the kept one with the lowest loss on valid) or last (the newest)."""
    by: Annotated[tuple[str, ...], tyro.conf.arg(constructor_factory=_breakdown_names, help=_BY_HELP)] = ()
    calibration: bool = False
    """Compare the probability of the first choice with accuracy: evaluation_calibration.csv, .json, .npz, .png and
    .pdf."""
    table: bool = False
    """Write one table over the runs, as Table 2 of the Performer paper: table.csv, table.tex, table.md."""
    paper: bool = False
    """Add the paper's numbers (on TrEMBL) to that table, beside ours."""
    output: Path | None = None
    """Folder of that table; by default that of the run, or the one that holds all runs."""
    processes: Annotated[Processes, tyro.conf.arg(name="")] = field(default_factory=Processes)


def evaluate(arguments: Sequence[str]) -> None:
    """Run `proteinlm evaluate`."""
    options = tyro.cli(Evaluate, args=arguments, prog="proteinlm evaluate")
    from proteinlm.evaluation.evaluate import evaluate_command

    options.processes.join()
    evaluate_command(
        options.runs, options.splits, options.dataset, options.step,
        by=options.by, calibrate=options.calibration, table=options.table, paper=options.paper, output=options.output,
    )  # fmt: skip
