"""What a dataset holds: the paper's Table 1, amino acids, families, the baseline that knows only frequencies.

All of it follows from sums that one pass makes: sequences of each length, residues of each kind, sequences of each
family. Medians are exact, and the sums of two parts of a split add up to those of the whole.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from proteinlm import alphabet

CONCAT_LENGTH = 8192
"""Tokens of a window of the paper's concatenated form."""

TREMBL_2023_04 = {
    "A": 9.03, "R": 5.84, "N": 3.79, "D": 5.47, "C": 1.29, "Q": 3.80, "E": 6.24, "G": 7.27, "H": 2.22, "I": 5.53,
    "L": 9.85, "K": 4.93, "M": 2.33, "F": 3.88, "P": 4.99, "S": 6.82, "T": 5.55, "W": 1.30, "Y": 2.88, "V": 6.86,
}  # fmt: skip
"""Per cent of the 88,161,770,578 residues of UniProtKB/TrEMBL 2023_04 (https://www.ebi.ac.uk/uniprot/TrEMBLstats)."""

SWISS_PROT_50_8 = {
    "A": 7.87945, "C": 1.51600, "D": 5.35222, "E": 6.68298, "F": 3.97062, "G": 6.95071, "H": 2.29198, "I": 5.90092,
    "K": 5.94422, "L": 9.63728, "M": 2.37718, "N": 4.14386, "P": 4.82904, "Q": 3.95639, "R": 5.40978, "S": 6.83364,
    "T": 5.40687, "V": 6.73417, "W": 1.14135, "Y": 3.04133,
}  # fmt: skip
"""Per cent of the 20 residues in Swiss-Prot 50.8 (October 2006), the background of HMMER 3."""

PUBLISHED = {"TrEMBL 2023_04": TREMBL_2023_04, "Swiss-Prot 50.8": SWISS_PROT_50_8}
"""Frequencies that others counted, per cent, by name."""


def count_residues(sequences: Iterable[bytes]) -> np.ndarray:
    """Count residues, int64 [25] in the order of `alphabet.RESIDUES`."""
    letters = np.frombuffer(b"".join(sequences), np.uint8)
    counts = np.zeros(256, np.int64)
    # bincount widens to 8 bytes a letter: in pieces, so that memory stays small.
    for start in range(0, len(letters), 1 << 20):
        counts += np.bincount(letters[start : start + (1 << 20)], minlength=256)
    return counts[np.frombuffer(alphabet.RESIDUES.encode(), np.uint8)]


@dataclass
class SplitStatistics:
    """Sums over the sequences of one split; two of them add up, in any order.

    Attributes:
        lengths: number of sequences of each length in residues, from which every row of Table 1 follows
            exactly.
        residues: int64 [25], counts in the order of `alphabet.RESIDUES`.
        families: number of sequences that have each family.
        with_families: number of sequences that have any.
    """

    lengths: dict[int, int] = field(default_factory=dict)
    residues: np.ndarray = field(default_factory=lambda: np.zeros(alphabet.NUM_RESIDUES, np.int64))
    families: dict[str, int] = field(default_factory=dict)
    with_families: int = 0

    def add(self, lengths: np.ndarray, residues: np.ndarray) -> None:
        """Add sequences: their lengths, int [n], and their residue counts, int64 [25]."""
        values, counts = np.unique(lengths, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self.lengths[value] = self.lengths.get(value, 0) + count
        self.residues = self.residues + residues

    def add_families(self, families: Iterable[bytes]) -> None:
        """Add the families of sequences: of each, the ids joined by `;`, or nothing."""
        # Few texts are different: most proteins of a family have the same domains.
        for text, count in Counter(families).items():
            if text:
                self.with_families += count
                for family in set(text.decode().split(";")):
                    self.families[family] = self.families.get(family, 0) + count

    def update(self, other: "SplitStatistics") -> None:
        """Add the sums of other sequences."""
        for value, count in other.lengths.items():
            self.lengths[value] = self.lengths.get(value, 0) + count
        self.residues = self.residues + other.residues
        for family, count in other.families.items():
            self.families[family] = self.families.get(family, 0) + count
        self.with_families += other.with_families

    @property
    def count(self) -> int:
        """Number of sequences."""
        return sum(self.lengths.values())

    @property
    def num_residues(self) -> int:
        """Residues of all sequences."""
        return sum(value * count for value, count in self.lengths.items())

    def row(self) -> dict[str, float]:
        """Return count, and min, max, mean, std (population) and median of the lengths; NaN for none."""
        n = self.count
        if not n:
            return _row(0)
        # Whole numbers of any size: the mean and the variance round once, at the end.
        total = self.num_residues
        squares = sum(value * value * count for value, count in self.lengths.items())
        return {
            "count": n,
            "min": min(self.lengths),
            "max": max(self.lengths),
            "mean": total / n,
            "std": ((n * squares - total * total) / (n * n)) ** 0.5,
            "median": (self._ranked((n - 1) // 2) + self._ranked(n // 2)) / 2,
        }

    def _ranked(self, rank: int) -> int:
        seen = 0
        for value in sorted(self.lengths):
            seen += self.lengths[value]
            if seen > rank:
                return value
        raise IndexError(f"rank {rank} of {seen} sequences")

    def windows(self, length: int) -> int:
        """Return how many whole windows of `length` tokens the sequences make, <eos> after each."""
        return (self.num_residues + self.count) // length

    def concat_row(self, length: int = CONCAT_LENGTH) -> dict[str, float]:
        """Return the row of Table 1 for whole windows of `length` tokens: all are that long."""
        count = self.windows(length)
        return _row(count, min=length, max=length, mean=length, std=0, median=length) if count else _row(0)

    def to_json(self) -> dict[str, Any]:
        """Return what statistics.json holds for a split."""
        row = {name: None if value != value else value for name, value in self.row().items()}
        residues = dict(zip(alphabet.RESIDUES, self.residues.tolist(), strict=True))
        return {
            **row,
            "residues": residues,
            "lengths": [list(pair) for pair in sorted(self.lengths.items())],
            "with_families": self.with_families,
            "families": dict(sorted(self.families.items())),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SplitStatistics":
        """Read what `to_json` wrote."""
        residues = np.array([data["residues"][letter] for letter in alphabet.RESIDUES], np.int64)
        lengths = {int(value): int(count) for value, count in data["lengths"]}
        # Older datasets lack the families; only a datasheet, made by ingest itself, needs them.
        return cls(lengths, residues, dict(data.get("families", {})), int(data.get("with_families", 0)))


def _row(count: int, **figures: float) -> dict[str, float]:
    """Return a row of Table 1; without figures, NaN for each."""
    names = ("min", "max", "mean", "std", "median")
    return {"count": count, **(figures or dict.fromkeys(names, float("nan")))}


def table(statistics: Mapping[str, SplitStatistics]) -> pd.DataFrame:
    """Return Table 1: one row a split, columns count, min, max, mean, std, median (residues)."""
    return _frame({split: s.row() for split, s in statistics.items()})


def concat_table(statistics: Mapping[str, SplitStatistics], length: int = CONCAT_LENGTH) -> pd.DataFrame:
    """Return Table 1 of the concatenated form: whole windows of `length` tokens, <eos> after each sequence."""
    return _frame({split: s.concat_row(length) for split, s in statistics.items()})


def _frame(rows: dict[str, dict[str, float]]) -> pd.DataFrame:
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame["count"] = frame["count"].astype(np.int64)
    return frame.rename_axis("split")


def table_1(statistics: Mapping[str, SplitStatistics], *, concat_length: int | None = None) -> pd.DataFrame:
    """Return the paper's Table 1 as text: the split in the first column, "-" where an empty one has no figure.

    Args:
        statistics: of each split.
        concat_length: adds a row a split for its concatenated form, windows of so many tokens.
    """
    rows = [(split, s.row()) for split, s in statistics.items()]
    if concat_length is not None:
        rows += [(f"{split}, concatenated", s.concat_row(concat_length)) for split, s in statistics.items()]
    whole, exact = "{:,.0f}".format, "{:,.2f}".format
    formats = (whole, whole, whole, exact, exact, "{:,.10g}".format)
    cells = [
        [name, *("-" if value != value else show(value) for value, show in zip(row.values(), formats, strict=True))]
        for name, row in rows
    ]
    return pd.DataFrame(cells, columns=["split", *_row(0)])


def family_table(statistics: Mapping[str, SplitStatistics]) -> pd.DataFrame:
    """Return the families of each split: one row a split.

    Columns: sequences; with_families, those that have any; families, different ones; largest, sequences of the most
    frequent one, 0 for none; not_in_train, families that no sequence of train has.
    """
    seen = statistics["train"].families.keys() if "train" in statistics else {}.keys()
    rows = {
        split: {
            "sequences": s.count,
            "with_families": s.with_families,
            "families": len(s.families),
            "largest": max(s.families.values(), default=0),
            "not_in_train": len(s.families.keys() - seen),
        }
        for split, s in statistics.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("split")


def frequencies(statistics: Mapping[str, SplitStatistics]) -> pd.DataFrame:
    """Return the share of each residue (rows, order of `alphabet.RESIDUES`) in each split; NaN if empty."""
    columns = {}
    for split, s in statistics.items():
        total = s.residues.sum()
        columns[split] = s.residues / total if total else np.full(alphabet.NUM_RESIDUES, np.nan)
    return pd.DataFrame(columns, index=pd.Index(list(alphabet.RESIDUES), name="residue"))


def render(statistics: Mapping[str, SplitStatistics]) -> tuple[Table, Table]:
    """Return Table 1 and the amino-acid frequencies (per cent) for the terminal."""
    lengths = Table(title="Sequences without copies; lengths in residues")
    frame = table_1(statistics)
    for name in frame.columns:
        lengths.add_column(name, justify="left" if name == "split" else "right")
    for row in frame.itertuples(index=False):
        lengths.add_row(*row)
    shares = Table(title="Amino acids, per cent")
    shares.add_column("residue")
    for split in statistics:
        shares.add_column(split, justify="right")
    for letter, row in frequencies(statistics).iterrows():
        shares.add_row(str(letter), *("-" if value != value else f"{100 * value:.2f}" for value in row))
    return lengths, shares


@dataclass(frozen=True)
class EmpiricalBaseline:
    """The guess that knows nothing but how often each residue occurs (the paper's "empirical baseline").

    Attributes:
        log_probs: float64 [25], natural logarithms, in the order of `alphabet.RESIDUES`.
    """

    log_probs: np.ndarray

    @classmethod
    def fit(cls, residue_counts: np.ndarray) -> "EmpiricalBaseline":
        """Fit on counts, int [25], with one added to each, so that no residue is impossible."""
        counts = np.asarray(residue_counts, np.float64)
        if counts.shape != (alphabet.NUM_RESIDUES,):
            raise ValueError(f"residue_counts has shape {counts.shape}; expected ({alphabet.NUM_RESIDUES},)")
        counts = counts + 1
        return cls(np.log(counts) - np.log(counts.sum()))

    @property
    def argmax(self) -> int:
        """Index of the residue that it always predicts."""
        return int(np.argmax(self.log_probs))

    def nll(self, residue_counts: np.ndarray) -> float:
        """Return the summed negative log likelihood (nats) of residues given by their counts, [25]."""
        return float(-(np.asarray(residue_counts, np.float64) @ self.log_probs))

    def accuracy(self, residue_counts: np.ndarray) -> float:
        """Return the share of residues that it guesses; NaN for none."""
        counts = np.asarray(residue_counts)
        total = counts.sum()
        return float(counts[self.argmax] / total) if total else float("nan")

    def perplexity(self, residue_counts: np.ndarray) -> float:
        """Return exp of the mean cross entropy; NaN for no residues."""
        total = np.asarray(residue_counts).sum()
        return float(np.exp(self.nll(residue_counts) / total)) if total else float("nan")
