"""The options of `proteinlm evaluate`; nothing heavy is imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class EvaluateOptions:
    """What to score, and what to write of it."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs."""
    splits: tuple[str, ...] = ("test", "ood")
    """Splits to score: train, valid, test, ood."""
    dataset: Path | None = None
    """Another dataset than the one that the run was trained on."""
    step: int | Literal["best", "last"] = "last"
    """Checkpoint to score: a step, best (lowest loss on valid of those kept) or last (the newest)."""
    by: tuple[Literal["residue", "position", "family", "length", "identity"], ...] = ()
    """Breakdowns, each written as evaluation_by_NAME.csv, .npz, .png and .pdf. identity is that to the nearest
    sequence of train; the dataset must have been made with --split-identity."""
    calibration: bool = False
    """Hold the probability of the first choice against accuracy: evaluation_calibration.csv, .json, .npz, .png and
    .pdf."""
    table: bool = False
    """Write one table over the runs, as Table 2 of the Performer paper: table.csv, table.tex, table.md."""
    paper: bool = False
    """In that table, the paper's numbers (on TrEMBL) beside ours."""
    output: Path | None = None
    """Folder of that table; by default the run's, or the one that holds all runs."""
