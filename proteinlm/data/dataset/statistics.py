"""Statistics of a dataset: Table 1 of the Performer paper, amino acids, families, and the empirical baseline.

All follow from sums of one pass: the number of sequences of each length, of residues of each kind, and of sequences of
each family. Medians are exact, and the sums of two parts of a split add up to those of the split.
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
"""Number of tokens in a window of the concatenated form in the Performer paper."""

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
"""Published frequencies, per cent, by name."""


def count_residues(sequences: Iterable[bytes]) -> np.ndarray:
    """Return the number of residues of each kind, int64 [25], in the order of `alphabet.RESIDUES`."""
    letters = np.frombuffer(b"".join(sequences), np.uint8)
    counts = np.zeros(256, np.int64)
    # bincount converts letters to 8 bytes each: it is called on pieces, to save memory.
    for start in range(0, len(letters), 1 << 20):
        counts += np.bincount(letters[start : start + (1 << 20)], minlength=256)
    return counts[np.frombuffer(alphabet.RESIDUES.encode(), np.uint8)]


@dataclass
class SplitStatistics:
    """Sums over the sequences of one split; the sums of several parts can be added in any order.

    Attributes:
        lengths: number of sequences of each length in residues, from which every row of Table 1 follows
            exactly.
        residues: int64 [25], counts in the order of `alphabet.RESIDUES`.
        families: number of sequences that have each family.
        with_families: number of sequences that have a family.
    """

    lengths: dict[int, int] = field(default_factory=dict)
    residues: np.ndarray = field(default_factory=lambda: np.zeros(alphabet.NUM_RESIDUES, np.int64))
    families: dict[str, int] = field(default_factory=dict)
    with_families: int = 0

    def add(self, lengths: np.ndarray, residues: np.ndarray) -> None:
        """Add sequences, given by their lengths, int [n], and their residue counts, int64 [25]."""
        values, counts = np.unique(lengths, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self.lengths[value] = self.lengths.get(value, 0) + count
        self.residues = self.residues + residues

    def add_families(self, families: Iterable[bytes]) -> None:
        """Add the families of sequences: for each, the ids joined by `;`, or an empty text."""
        # There are few distinct texts, since most proteins of a family have the same domains.
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
        """Number of residues in all sequences."""
        return sum(value * count for value, count in self.lengths.items())

    def row(self) -> dict[str, float]:
        """Return count, and min, max, mean, std (population) and median of the lengths; NaN without sequences."""
        n = self.count
        if not n:
            return _row(0)
        # Python integers are exact, so mean and variance are rounded only once, at the end.
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
        """Return the number of full windows of `length` tokens in the stream of sequences with <eos> after each."""
        return (self.num_residues + self.count) // length

    def concat_row(self, length: int = CONCAT_LENGTH) -> dict[str, float]:
        """Return the row of Table 1 for full windows of `length` tokens."""
        count = self.windows(length)
        return _row(count, min=length, max=length, mean=length, std=0, median=length) if count else _row(0)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of statistics.json for a split."""
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
        """Read an entry of `to_json`."""
        residues = np.array([data["residues"][letter] for letter in alphabet.RESIDUES], np.int64)
        lengths = {int(value): int(count) for value, count in data["lengths"]}
        # Older datasets lack the families; only a datasheet, made by ingest itself, needs them.
        return cls(lengths, residues, dict(data.get("families", {})), int(data.get("with_families", 0)))


def _row(count: int, **figures: float) -> dict[str, float]:
    """Return a row of Table 1; all figures are NaN if none is given."""
    names = ("min", "max", "mean", "std", "median")
    return {"count": count, **(figures or dict.fromkeys(names, float("nan")))}


def table(statistics: Mapping[str, SplitStatistics]) -> pd.DataFrame:
    """Return Table 1: one row for each split; columns count, min, max, mean, std, median (residues)."""
    frame = pd.DataFrame.from_dict({split: s.row() for split, s in statistics.items()}, orient="index")
    frame["count"] = frame["count"].astype(np.int64)
    return frame.rename_axis("split")


def table_1(statistics: Mapping[str, SplitStatistics], *, concat_length: int | None = None) -> pd.DataFrame:
    """Return Table 1 of the Performer paper as text: the split in the first column, "-" for figures of an empty split.

    Args:
        statistics: statistics of each split.
        concat_length: number of tokens in a window; adds a row for the concatenated form of each split.
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
    """Return counts of families, one row for each split.

    Columns: sequences; with_families, sequences that have a family; families, distinct families; largest, sequences of
    the most frequent family, 0 without families; not_in_train, families that no sequence of train has.
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
    """Return the fraction of each residue (rows, in the order of `alphabet.RESIDUES`) in each split; NaN if empty."""
    columns = {}
    for split, s in statistics.items():
        total = s.residues.sum()
        columns[split] = s.residues / total if total else np.full(alphabet.NUM_RESIDUES, np.nan)
    return pd.DataFrame(columns, index=pd.Index(list(alphabet.RESIDUES), name="residue"))


def render(statistics: Mapping[str, SplitStatistics]) -> tuple[Table, Table]:
    """Return Table 1 and the amino-acid frequencies (per cent) as tables for the terminal."""
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
    """The empirical baseline of the Performer paper: it predicts each residue with its frequency in a split.

    Attributes:
        log_probs: float64 [25], natural logarithms, in the order of `alphabet.RESIDUES`.
    """

    log_probs: np.ndarray

    @classmethod
    def fit(cls, residue_counts: np.ndarray) -> "EmpiricalBaseline":
        """Fit to counts, int [25], with one added to each, so that no residue has probability 0."""
        counts = np.asarray(residue_counts, np.float64)
        if counts.shape != (alphabet.NUM_RESIDUES,):
            raise ValueError(f"residue_counts has shape {counts.shape}; expected ({alphabet.NUM_RESIDUES},)")
        counts = counts + 1
        return cls(np.log(counts) - np.log(counts.sum()))

    @property
    def argmax(self) -> int:
        """Index of the most frequent residue, which is always predicted."""
        return int(np.argmax(self.log_probs))

    def nll(self, residue_counts: np.ndarray) -> float:
        """Return the sum of the negative log-likelihoods (nats) of residues, given by their counts, [25]."""
        return float(-(np.asarray(residue_counts, np.float64) @ self.log_probs))

    def accuracy(self, residue_counts: np.ndarray) -> float:
        """Return the fraction of residues that are predicted correctly; NaN without residues."""
        counts = np.asarray(residue_counts)
        total = counts.sum()
        return float(counts[self.argmax] / total) if total else float("nan")

    def perplexity(self, residue_counts: np.ndarray) -> float:
        """Return exp of the mean cross entropy; NaN without residues."""
        total = np.asarray(residue_counts).sum()
        return float(np.exp(self.nll(residue_counts) / total)) if total else float("nan")
