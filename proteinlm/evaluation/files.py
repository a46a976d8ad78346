"""Files that an evaluation writes beside the scores: breakdowns, calibration, and one row for each sequence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.errors import InputError
from proteinlm.evaluation.breakdowns import BREAKDOWNS, BY_CONFIDENCE, Breakdown, SequenceBreakdown, TokenBreakdown
from proteinlm.evaluation.calibration import Calibration, calibration, plot_reliability
from proteinlm.evaluation.figures import plot_breakdown
from proteinlm.evaluation.sequences import SEQUENCES_FILE, sequence_facts, write_sequences
from proteinlm.evaluation.sums import SplitResult
from proteinlm.evaluation.tables import (
    GroupScore,
    group_arrays,
    groups_frame,
    score_sequence_groups,
    score_token_groups,
)
from proteinlm.output.figures import save_figure
from proteinlm.output.saving import write_arrays, write_csv, write_json


def check_form(run: str, form: str, breakdowns: Sequence[Breakdown]) -> None:
    """Raise InputError where the rows of a run are windows and a breakdown is by properties of whole proteins."""
    by_sequence = [breakdown.name for breakdown in breakdowns if isinstance(breakdown, SequenceBreakdown)]
    if form == "concat" and by_sequence:
        by_token = [name for name, breakdown in BREAKDOWNS.items() if isinstance(breakdown, TokenBreakdown)]
        raise InputError(
            f"the rows of {run} are windows that hold parts of several proteins, so there is no breakdown by "
            f"{' or '.join(by_sequence)}: leave it out of --by (windows have those by {' and '.join(by_token)})."
        )


def facts_of(
    dataset: ProteinDataset, splits: Sequence[str], form: str, breakdowns: Sequence[Breakdown]
) -> dict[str, pa.Table]:
    """Return `sequence_facts` of each split that is not empty; none for windows, which hold several proteins.

    Raises:
        InputError: the dataset lacks a column that a breakdown needs.
    """
    if form == "concat":
        return {}
    by_sequence = [breakdown for breakdown in breakdowns if isinstance(breakdown, SequenceBreakdown)]
    columns = [name for breakdown in by_sequence for name in breakdown.columns]
    facts = {split: sequence_facts(dataset, split, columns) for split in splits if dataset.counts.get(split)}
    for breakdown in by_sequence:
        for table in facts.values():
            breakdown.assign(table)
    return facts


@dataclass(frozen=True)
class ResultFiles:
    """The results of the evaluation of one run, and the files that hold them.

    Attributes:
        folder: output folder.
        about: run, step, dataset, fingerprint and rows, which every file states.
        objective: causal or masked.
        length: number of tokens of the longest row.
        results: sums of each split.
        facts: from `facts_of`.
    """

    folder: Path
    about: Mapping[str, Any]
    objective: str
    length: int
    results: Mapping[str, SplitResult]
    facts: Mapping[str, pa.Table]

    def write(self, breakdowns: Sequence[Breakdown], calibrate: bool) -> list[Path]:
        """Write sequences.parquet (unless rows are windows), breakdowns and calibration; return the paths of tables."""
        written = []
        if self.facts:
            rows = {split: (result.rows, result.residues) for split, result in self.results.items()}
            about = {**self.about, "objective": self.objective, "tokens": "residues", "nll": "sum, in nats"}
            write_sequences(self.folder / SEQUENCES_FILE, rows, self.facts, about)
            written.append(self.folder / SEQUENCES_FILE)
        if self.results:
            written += [self._write_breakdown(breakdown) for breakdown in breakdowns]
            written += [self._write_calibration()] if calibrate else []
        return written

    def group_scores(self, breakdown: Breakdown) -> list[GroupScore]:
        """Return the rows of a breakdown, split after split."""
        return [row for split in self.results for row in self._split_scores(breakdown, split)]

    def calibrations(self) -> dict[str, Calibration]:
        """Return the calibration of each split; they need the sums of `BY_CONFIDENCE`."""
        name = BY_CONFIDENCE.name
        return {
            split: calibration(
                result.groups[name], result.confidence[name], self._split_scores(BY_CONFIDENCE, split)
            )
            for split, result in self.results.items()
        }  # fmt: skip

    def _split_scores(self, breakdown: Breakdown, split: str) -> list[GroupScore]:
        result, name, about = self.results[split], breakdown.name, self._about(split)
        if isinstance(breakdown, TokenBreakdown):
            return score_token_groups(name, result.groups[name], breakdown.groups(self.length), about)
        assigned, groups = breakdown.assign(self.facts[split])
        return score_sequence_groups(name, result.residues, assigned[result.rows], groups, about)

    def _about(self, split: str) -> dict[str, str]:
        return {"split": split, "objective": self.objective, "model": self.about["run"], "tokens": "residues"}

    def _title(self) -> str:
        a, counted = self.about, "all residues" if self.objective == "causal" else "masked residues"
        # A run can be evaluated on other datasets than that of its training, into the same folder.
        dataset = Path(a["dataset"]).name
        return f"{a['run']}, step {a['step']}; {dataset}; objective {self.objective}; {counted} counted; {a['rows']}"

    def _write_breakdown(self, breakdown: Breakdown) -> Path:
        scores = self.group_scores(breakdown)
        stem = self.folder / f"evaluation_by_{breakdown.name}"
        write_csv(stem.with_suffix(".csv"), groups_frame(scores, self.about))
        arrays = group_arrays(scores)
        write_arrays(stem.with_suffix(".npz"), arrays, compress=False)
        save_figure(plot_breakdown(breakdown, arrays, self._title())[0], stem)
        return stem.with_suffix(".csv")

    def _write_calibration(self) -> Path:
        calibrations = self.calibrations()
        stem = self.folder / "evaluation_calibration"
        scores = [row for one in calibrations.values() for row in one.bins]
        frame = groups_frame(scores, self.about)
        frame["confidence"] = np.concatenate([one.confidence for one in calibrations.values()])
        write_csv(stem.with_suffix(".csv"), frame)
        arrays = {**group_arrays(scores), "confidence": frame["confidence"].to_numpy()}
        write_arrays(stem.with_suffix(".npz"), arrays, compress=False)
        rows = [
            {
                **self._about(split), "num_tokens": sum(row.score.num_tokens for row in one.bins),
                "expected_calibration_error": _finite(one.error), "low": _finite(one.low), "high": _finite(one.high),
            }
            for split, one in calibrations.items()
        ]  # fmt: skip
        write_json(stem.with_suffix(".json"), {**self.about, "calibration": rows})
        save_figure(plot_reliability(calibrations, self._title())[0], stem)
        return stem.with_suffix(".csv")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
