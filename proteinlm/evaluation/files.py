"""What an evaluation writes beside its scores: breakdowns, calibration, and a row for each sequence."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.errors import InputError
from proteinlm.evaluation.breakdowns import (
    BY_SEQUENCE,
    BY_TOKEN,
    Cell,
    cells_frame,
    sequence_cells,
    sequence_groups,
    token_cells,
    token_labels,
)
from proteinlm.evaluation.calibration import Calibration, bin_labels, calibration, plot_reliability
from proteinlm.evaluation.figures import arrays, plot_breakdown
from proteinlm.evaluation.sequences import SEQUENCES_FILE, sequence_facts, write_sequences
from proteinlm.evaluation.sums import SplitResult
from proteinlm.output.figures import save_figure
from proteinlm.output.files import whole_file


def check_form(run: str, form: str, by: Sequence[str]) -> None:
    """Raise InputError where a run reads windows and a breakdown by what a protein is was asked for."""
    by_sequence = [name for name in by if name in BY_SEQUENCE]
    if form == "concat" and by_sequence:
        raise InputError(
            f"{run} reads windows that hold parts of several proteins, so there is no breakdown by "
            f"{' or '.join(by_sequence)}: leave it out of --by (residue and position are there)."
        )


def facts_of(dataset: ProteinDataset, splits: Sequence[str], form: str, by: Sequence[str]) -> dict[str, pa.Table]:
    """Return `sequence_facts` of each split that is not empty; none for windows, which are of several proteins.

    Raises:
        InputError: a breakdown was asked for that cannot be made of this dataset.
    """
    if form == "concat":
        return {}
    facts = {split: sequence_facts(dataset, split) for split in splits if dataset.counts.get(split)}
    if "identity" in by:
        for found in facts.values():
            sequence_groups("identity", found)
    return facts


@dataclass(frozen=True)
class Details:
    """Everything that an evaluation of a run found.

    Attributes:
        folder: where files go.
        about: run, step, dataset, fingerprint and rows, which every file says.
        objective: causal or masked.
        length: L of the longest row.
        results: of each split.
        facts: from `facts_of`.
    """

    folder: Path
    about: Mapping[str, Any]
    objective: str
    length: int
    results: Mapping[str, SplitResult]
    facts: Mapping[str, pa.Table]

    def write(self, by: Sequence[str], calibrate: bool) -> list[Path]:
        """Write sequences.parquet where rows are sequences, and what was asked for; return the paths of tables."""
        written = []
        if self.facts:
            rows = {split: (found.rows, found.residues) for split, found in self.results.items()}
            about = {**self.about, "objective": self.objective, "tokens": "residues", "nll": "sum, in nats"}
            write_sequences(self.folder / SEQUENCES_FILE, rows, self.facts, about)
            written.append(self.folder / SEQUENCES_FILE)
        if self.results:
            written += [self._write_breakdown(name) for name in dict.fromkeys(by)]
            written += [self._write_calibration()] if calibrate else []
        return written

    def cells(self, by: str) -> list[Cell]:
        """Return the cells of a breakdown, split after split."""
        cells = []
        for split, result in self.results.items():
            if by in BY_TOKEN:
                cells += token_cells(by, result.cells[by], token_labels(by, self.length), self._about(split))
            else:
                groups, labels = sequence_groups(by, self.facts[split])
                cells += sequence_cells(by, result.residues, groups[result.rows], labels, self._about(split))
        return cells

    def calibrations(self) -> dict[str, Calibration]:
        """Return the calibration of each split."""
        found = {}
        for split, result in self.results.items():
            sums, confidence = result.cells["confidence"], result.confidence
            if confidence is None:
                raise ValueError("the evaluation was made without the cells by confidence")
            found[split] = calibration(
                sums, confidence, token_cells("confidence", sums, bin_labels(), self._about(split))
            )
        return found

    def _about(self, split: str) -> dict[str, str]:
        return {"split": split, "objective": self.objective, "model": self.about["run"], "tokens": "residues"}

    def _title(self) -> str:
        a, counted = self.about, "all residues" if self.objective == "causal" else "masked residues"
        # A run can be evaluated on another dataset than its own, into the same folder.
        dataset = Path(a["dataset"]).name
        return f"{a['run']}, step {a['step']}; {dataset}; objective {self.objective}; {counted} counted; {a['rows']}"

    def _write_breakdown(self, by: str) -> Path:
        cells = self.cells(by)
        stem = self.folder / f"evaluation_by_{by}"
        path = stem.with_suffix(".csv")
        _write_csv(path, cells_frame(cells, self.about))
        drawn = arrays(cells)
        _write_arrays(stem.with_suffix(".npz"), drawn)
        save_figure(plot_breakdown(by, drawn, self._title())[0], stem)
        return path

    def _write_calibration(self) -> Path:
        found = self.calibrations()
        stem = self.folder / "evaluation_calibration"
        cells = [cell for one in found.values() for cell in one.cells]
        frame = cells_frame(cells, self.about)
        frame["confidence"] = np.concatenate([one.confidence for one in found.values()])
        _write_csv(stem.with_suffix(".csv"), frame)
        drawn = {**arrays(cells), "confidence": frame["confidence"].to_numpy()}
        _write_arrays(stem.with_suffix(".npz"), drawn)
        rows = [
            {
                **self._about(split), "num_tokens": sum(cell.score.num_tokens for cell in one.cells),
                "expected_calibration_error": _finite(one.error), "low": _finite(one.low), "high": _finite(one.high),
            }
            for split, one in found.items()
        ]  # fmt: skip
        with whole_file(stem.with_suffix(".json")) as handle:
            handle.write(json.dumps({**self.about, "calibration": rows}, indent=2) + "\n")
        save_figure(plot_reliability(found, self._title())[0], stem)
        return stem.with_suffix(".csv")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _write_csv(path: Path, frame: pd.DataFrame) -> None:
    with whole_file(path) as handle:
        frame.to_csv(handle, index=False)


def _write_arrays(path: Path, drawn: Mapping[str, np.ndarray]) -> None:
    with whole_file(path, "wb") as handle:
        np.savez(handle, **drawn)  # pyright: ignore[reportArgumentType]
