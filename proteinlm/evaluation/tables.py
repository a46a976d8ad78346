"""Tables of breakdowns: accuracy, perplexity and intervals of each group of a split.

Every counted token of the split is in one group, so counts of groups add up to the split's exactly and sums of
log-likelihoods up to rounding. Small groups are listed too, with their number of tokens and their wide interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from proteinlm.evaluation.breakdowns import Group
from proteinlm.evaluation.metrics import Score, Sums, bootstrap_groups, score


@dataclass(frozen=True)
class GroupScore:
    """One row of a breakdown.

    Attributes:
        by: name of the breakdown.
        group: label and range of the group.
        nll: sum over its tokens, in nats.
        correct: number of its tokens that were the model's first choice.
        score: its accuracy, perplexity and intervals, with split, objective, which tokens count and their number.
    """

    by: str
    group: Group
    nll: float
    correct: float
    score: Score


def score_token_groups(by: str, sums: Sums, groups: Sequence[Group], about: Mapping[str, Any]) -> list[GroupScore]:
    """Return the scores of a breakdown by tokens, without the groups that have no token.

    Args:
        by: name of the breakdown.
        sums: of each sequence and group, fields [N, C].
        groups: the C groups.
        about: split, objective, model and tokens.
    """
    intervals = bootstrap_groups(sums)
    scores = []
    for index, group in enumerate(groups):
        column = Sums(*(np.asarray(x)[:, index] for x in (sums.nll, sums.correct, sums.count)))
        if (total := column.total()).count:
            one = score(column, **about, intervals=intervals[index])
            scores.append(GroupScore(by, group, total.nll, total.correct, one))
    return scores


def score_sequence_groups(
    by: str, sums: Sums, assigned: np.ndarray, groups: Sequence[Group], about: Mapping[str, Any]
) -> list[GroupScore]:
    """Return the scores of a breakdown by sequences; intervals are over the sequences of each group.

    Args:
        by: name of the breakdown.
        sums: of each sequence, fields [N].
        assigned: int [N], index of each sequence's group.
        groups: the groups.
        about: split, objective, model and tokens.

    Raises:
        ValueError: an index is of no group.
    """
    if len(assigned) and not 0 <= assigned.min() <= assigned.max() < len(groups):
        raise ValueError(f"the breakdown by {by} has {len(groups)} groups, but assigns others too")
    order = np.argsort(assigned, kind="stable")
    starts = np.searchsorted(assigned[order], np.arange(len(groups) + 1))
    scores = []
    for index, group in enumerate(groups):
        members = order[starts[index] : starts[index + 1]]
        part = Sums(*(np.asarray(x)[members] for x in (sums.nll, sums.correct, sums.count)))
        if (total := part.total()).count:
            scores.append(GroupScore(by, group, total.nll, total.correct, score(part, **about)))
    return scores


def groups_frame(scores: Sequence[GroupScore], about: Mapping[str, Any]) -> pd.DataFrame:
    """Return a breakdown as a table.

    Its columns are those of `about` (run, step, dataset, rows), by, cell (the label), low, high, nll, correct, and the
    fields of Score.
    """
    columns = [*about, "by", "cell", "low", "high", "nll", "correct", *(field.name for field in fields(Score))]
    rows = [
        {
            **about, "by": s.by, "cell": s.group.label, "low": s.group.low, "high": s.group.high, "nll": s.nll,
            "correct": s.correct, **asdict(s.score),
        }
        for s in scores
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=pd.Index(columns))


def group_arrays(scores: Sequence[GroupScore]) -> dict[str, np.ndarray]:
    """Return the numbers of a figure, one entry a group.

    Its arrays are split, cell (the label), low, high, accuracy and perplexity with the ends of their intervals, tokens
    and sequences (numbers of them).
    """
    names = ("accuracy", "accuracy_low", "accuracy_high", "perplexity", "perplexity_low", "perplexity_high")
    return {
        "split": np.array([s.score.split for s in scores], str),
        "cell": np.array([s.group.label for s in scores], str),
        "low": np.array([s.group.low for s in scores], float),
        "high": np.array([s.group.high for s in scores], float),
        **{name: np.array([getattr(s.score, name) for s in scores], float) for name in names},
        "tokens": np.array([s.score.num_tokens for s in scores], np.int64),
        "sequences": np.array([s.score.num_sequences for s in scores], np.int64),
    }
