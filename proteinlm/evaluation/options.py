"""The options of `proteinlm evaluate`. Modules that take long to import (JAX, NumPy) are not imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from proteinlm.evaluation.breakdowns import BREAKDOWNS


def _breakdown_names() -> Any:
    """Return the type of --by: any number of names in the registry, read when the command line is parsed."""
    return tuple[Literal[tuple(BREAKDOWNS)], ...]


_BY_HELP = (
    "Breakdowns of accuracy and perplexity, each written as evaluation_by_NAME.csv, .npz, .png and .pdf: "
    f"{'; '.join(f'{name} ({breakdown.description})' for name, breakdown in BREAKDOWNS.items())}."
)


@dataclass(frozen=True)
class EvaluateOptions:
    """Runs and splits to score, and tables to write."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
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
