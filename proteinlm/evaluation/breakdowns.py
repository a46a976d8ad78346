"""Accuracy and perplexity of parts of a split: by residue, position, family, length, or identity to train.

The cells of a breakdown hold every counted token of the split once, so their sums are the split's. A small cell is
shown, with its number of tokens and the wide interval that it has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.evaluation.metrics import Score, Sums, bootstrap_cells, score
from proteinlm.evaluation.sums import bin_ends

BY_TOKEN = ("residue", "position")
BY_SEQUENCE = ("family", "length", "identity")
BREAKDOWNS = (*BY_TOKEN, *BY_SEQUENCE)

_IDENTITY_STEP = 50
"""Width of a bin of identities, in thousandths."""


@dataclass(frozen=True)
class Cell:
    """One row of a breakdown.

    Attributes:
        by: name of the breakdown.
        cell: label of the part: a residue, a family or several joined by +, a range such as 9-16.
        low: first value of a range; NaN where the part is none.
        high: last value of a range.
        nll: sum over its tokens, in nats.
        correct: how many of its tokens were the model's first choice.
        score: its accuracy, perplexity and intervals, split, objective, which tokens count and how many.
    """

    by: str
    cell: str
    low: float
    high: float
    nll: float
    correct: float
    score: Score


Label = tuple[str, float, float]
"""Label of a cell, and the ends of its range."""


def token_cells(by: str, sums: Sums, labels: Sequence[Label], about: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a breakdown by tokens, those without a token left out.

    Args:
        by: name of the breakdown.
        sums: of each sequence and cell, fields [N, C].
        labels: of the C cells.
        about: split, objective, model and tokens.
    """
    intervals = bootstrap_cells(sums)
    cells = []
    for index, label in enumerate(labels):
        column = Sums(*(np.asarray(x)[:, index] for x in (sums.nll, sums.correct, sums.count)))
        if (total := column.total()).count:
            found = score(column, **about, intervals=intervals[index])
            cells.append(Cell(by, *label, total.nll, total.correct, found))
    return cells


def sequence_cells(
    by: str, sums: Sums, groups: np.ndarray, labels: Sequence[Label], about: Mapping[str, Any]
) -> list[Cell]:
    """Return the cells of a breakdown by sequences: each belongs to one cell, intervals are of the cell's sequences.

    Args:
        by: name of the breakdown.
        sums: of each sequence, fields [N].
        groups: int [N], the cell of each sequence.
        labels: of the cells.
        about: split, objective, model and tokens.
    """
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(len(labels) + 1))
    cells = []
    for index, label in enumerate(labels):
        members = order[starts[index] : starts[index + 1]]
        part = Sums(*(np.asarray(x)[members] for x in (sums.nll, sums.correct, sums.count)))
        if (total := part.total()).count:
            cells.append(Cell(by, *label, total.nll, total.correct, score(part, **about)))
    return cells


def token_labels(by: str, length: int) -> list[Label]:
    """Return the labels of a breakdown by tokens; `length` is the longest row's."""
    if by == "residue":
        return [(letter, np.nan, np.nan) for letter in alphabet.RESIDUES]
    return _ranges(bin_ends(length))


def sequence_groups(by: str, facts: pa.Table) -> tuple[np.ndarray, list[Label]]:
    """Return the cell of each sequence, int [n], and the labels of the cells.

    Args:
        by: family (the set of a protein's families is one cell, so that each protein is in one), length (of the whole
            sequence, cropped or not), or identity (to the nearest sequence of train; bins of 0.05).
        facts: from `sequence_facts`.

    Raises:
        InputError: the dataset has no identities.
    """
    if by == "family":
        names = ["+".join(sorted(families)) or "none" for families in facts["families"].to_pylist()]
        found, groups = np.unique(np.array(names, object).astype(str), return_inverse=True)
        return groups, [(str(name), np.nan, np.nan) for name in found]
    if by == "length":
        lengths = facts["length"].to_numpy()
        ends = bin_ends(int(lengths.max(initial=1)))
        return np.searchsorted(ends, lengths), _ranges(ends)
    if by != "identity":
        raise ValueError(f"there is no breakdown by {by!r}")
    if "identity" not in facts.column_names:
        raise InputError(
            "the breakdown by identity needs each sequence's identity to its nearest one of train, which a dataset has "
            "for valid, test and ood if it was made with proteinlm ingest --split-identity: leave identity out of "
            "--by, or make such a dataset."
        )
    # Stored as float32 of thousandths, -1 here where no alignment counts.
    shares = facts["identity"].fill_null(-1).to_numpy().astype(np.float64)
    thousandths = np.round(1000 * shares).astype(int)
    groups = np.where(thousandths < 0, 0, 1 + np.minimum(thousandths, 999) // _IDENTITY_STEP)
    ranges = [(low / 1000, (low + _IDENTITY_STEP) / 1000) for low in range(0, 1000, _IDENTITY_STEP)]
    labels = [(f"{low:.2f}-{high:.2f}", low, high) for low, high in ranges]
    return groups, [("no alignment", np.nan, np.nan), *labels]


def _ranges(ends: np.ndarray) -> list[Label]:
    starts = [1, *(ends[:-1] + 1)]
    return [(f"{a}-{b}", float(a), float(b)) for a, b in zip(starts, ends, strict=True)]


def cells_frame(cells: Sequence[Cell], about: Mapping[str, Any]) -> pd.DataFrame:
    """Return the cells as a table: `about` (run, step, dataset, rows), by, cell, low, high, nll, correct, Score's."""
    own = ("by", "cell", "low", "high", "nll", "correct")
    columns = [*about, *own, *(field.name for field in fields(Score))]
    rows = [{**about, **{name: getattr(c, name) for name in own}, **asdict(c.score)} for c in cells]
    return pd.DataFrame(rows, columns=pd.Index(columns))
