"""Sums and counts to accuracy, perplexity and bits per residue, each with its definition beside it.

A model's step returns sums; they are added up in float64 and divided once, here.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

# Random numbers drawn at a time by the bootstrap: about 100 MB of memory, whatever the number of sequences
# below.
_DRAWS = 4_000_000
ENDS = (2.5, 97.5)
"""Percentiles of the resamples that are the ends of a 95 % interval."""
FEWEST = 5
"""Sequences that an interval needs: a bootstrap of fewer shows what is least certain as the most."""


@dataclass(frozen=True)
class Sums:
    """Sums over tokens: of all of them (each field a float), or of each sequence (each field [n]).

    Attributes:
        nll: negative log likelihood, in nats.
        correct: tokens that were the model's first choice.
        count: tokens.
    """

    nll: Any = 0.0
    correct: Any = 0.0
    count: Any = 0.0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.nll + other.nll, self.correct + other.correct, self.count + other.count)

    def total(self) -> "Sums":
        """Return the sums of all sequences together, added up in float64."""
        return Sums(*(float(np.sum(x, dtype=np.float64)) for x in (self.nll, self.correct, self.count)))

    @property
    def loss(self) -> float:
        """Mean negative log likelihood of all tokens, in nats; NaN if there are none."""
        total = self.total()
        return total.nll / total.count if total.count else math.nan

    @property
    def accuracy(self) -> float:
        """Share of all tokens, 0 to 1, that were the model's first choice; NaN if there are none."""
        total = self.total()
        return total.correct / total.count if total.count else math.nan

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log likelihood; inf beyond float64, NaN if there are no tokens."""
        return _exp(self.loss)

    @property
    def bits_per_residue(self) -> float:
        """Mean negative log likelihood in bits a token; NaN if there are no tokens."""
        return self.loss / math.log(2)


@dataclass(frozen=True)
class Score:
    """One row of the table of results: numbers, and what they are numbers of.

    Attributes:
        split: train, valid, test or ood.
        objective: causal or masked.
        model: which model or baseline.
        tokens: which tokens count: "residues" or "residues+eos" (masked: the selected ones among them).
        accuracy: share of tokens, 0 to 1.
        perplexity: exp of the mean negative log likelihood.
        bits_per_residue: the same mean in bits a token.
        num_tokens: how many tokens count.
        num_sequences: how many sequences (concat: windows) have such a token.
        accuracy_low: lower end of the 95 % interval of `bootstrap`; NaN for fewer than FEWEST sequences.
        accuracy_high: its upper end; likewise the others.
        perplexity_low: likewise.
        perplexity_high: likewise.
    """

    split: str
    objective: str
    model: str
    tokens: str
    accuracy: float
    perplexity: float
    bits_per_residue: float
    num_tokens: int
    num_sequences: int
    accuracy_low: float
    accuracy_high: float
    perplexity_low: float
    perplexity_high: float


@dataclass(frozen=True)
class Intervals:
    """Ends of 95 % intervals, (low, high); NaN for fewer than FEWEST sequences."""

    accuracy: tuple[float, float]
    perplexity: tuple[float, float]


NO_INTERVALS = Intervals((math.nan, math.nan), (math.nan, math.nan))


def score(
    sums: Sums,
    *,
    split: str,
    objective: str,
    model: str,
    tokens: str,
    num_resamples: int = 1000,
    seed: int = 0,
    intervals: Intervals | None = None,
) -> Score:
    """Return a row of the table from the sums of each sequence.

    Args:
        sums: of each sequence, fields [n]; those in which nothing counts are left out. If none is left every
            figure is NaN and both numbers are 0.
        split: see `Score`.
        objective: see `Score`.
        model: see `Score`.
        tokens: see `Score`.
        num_resamples: of the bootstrap.
        seed: of the bootstrap.
        intervals: where the bootstrap was made before, as by `bootstrap_cells`.
    """
    total = sums.total()
    intervals = intervals or bootstrap(sums, num_resamples=num_resamples, seed=seed)
    return Score(
        split=split,
        objective=objective,
        model=model,
        tokens=tokens,
        accuracy=total.accuracy,
        perplexity=total.perplexity,
        bits_per_residue=total.bits_per_residue,
        num_tokens=round(total.count),
        num_sequences=len(_by_sequence(sums)),
        accuracy_low=intervals.accuracy[0],
        accuracy_high=intervals.accuracy[1],
        perplexity_low=intervals.perplexity[0],
        perplexity_high=intervals.perplexity[1],
    )


def bootstrap(sums: Sums, *, num_resamples: int = 1000, seed: int = 0) -> Intervals:
    """Return 95 % percentile intervals by the bootstrap over sequences (Efron and Tibshirani 1993, ch. 13).

    Tokens of one sequence hang together, so whole sequences are drawn: n of n with replacement, which gives
    multinomial counts. (Poisson weights would save knowing n; they are right when n is large, but in a small
    split the number of sequences would vary and might be 0.) Sums are weighted by the counts and divided once
    a resample. Time is O(num_resamples n); memory O(n), and about 100 MB for the draws.

    Args:
        sums: of each sequence, fields [n]; those in which nothing counts are left out.
        num_resamples: how many times n sequences are drawn.
        seed: of the draws.
    """
    values = _by_sequence(sums)
    return _ends(resampled(values, num_resamples, seed)) if len(values) >= FEWEST else NO_INTERVALS


def bootstrap_cells(sums: Sums, *, num_resamples: int = 1000, seed: int = 0) -> list[Intervals]:
    """Return the intervals of each cell of a breakdown by tokens, where a sequence has tokens in many cells.

    The same draws of whole sequences serve all cells, as one evaluation has all of them. A resample that misses every
    sequence of a rare cell says nothing of it and is left out there. With one cell this is `bootstrap`.

    Args:
        sums: of each sequence and cell, fields [n, C]; sequences in which nothing counts are left out.
        num_resamples: as for `bootstrap`.
        seed: likewise.
    """
    values = np.stack([np.asarray(x, np.float64) for x in (sums.nll, sums.correct, sums.count)], axis=2)
    values = values[(values[:, :, 2] > 0).any(axis=1)]
    sequences = (values[:, :, 2] > 0).sum(axis=0)
    if len(values) < FEWEST:
        return [NO_INTERVALS] * len(sequences)
    drawn = resampled(values.reshape(len(values), -1), num_resamples, seed).reshape(num_resamples, *values.shape[1:])
    return [
        _ends(drawn[drawn[:, cell, 2] > 0, cell]) if number >= FEWEST else NO_INTERVALS
        for cell, number in enumerate(sequences)
    ]


def resampled(values: np.ndarray, num_resamples: int, seed: int) -> np.ndarray:
    """Return the sums of n of n sequences drawn with replacement: values float64 [n, K] to [num_resamples, K]."""
    n = len(values)
    generator = np.random.default_rng(seed)
    sums = np.empty((num_resamples, values.shape[1]))
    block = max(1, _DRAWS // n)
    for start in range(0, num_resamples, block):
        rows = min(block, num_resamples - start)
        drawn = generator.integers(0, n, (rows, n))
        drawn += np.arange(rows)[:, None] * n
        counts = np.bincount(drawn.reshape(-1), minlength=rows * n).reshape(rows, n)
        sums[start : start + rows] = counts @ values
    return sums


def _ends(drawn: np.ndarray) -> Intervals:
    """Return the intervals of resampled sums of nll, correct and count, [R, 3]."""
    loss, accuracy = drawn[:, 0] / drawn[:, 2], drawn[:, 1] / drawn[:, 2]
    low, high = np.percentile(loss, ENDS)
    return Intervals(_pair(np.percentile(accuracy, ENDS)), (_exp(low), _exp(high)))


def _by_sequence(sums: Sums) -> np.ndarray:
    """Return float64 [n, 3] of the sequences in which something counts."""
    arrays = [np.asarray(x, np.float64) for x in (sums.nll, sums.correct, sums.count)]
    if arrays[0].ndim != 1 or any(x.shape != arrays[0].shape for x in arrays):
        shapes = [x.shape for x in arrays]
        raise ValueError(f"nll, correct and count of sums have shapes {shapes}; expected [n], one n")
    values = np.stack(arrays, axis=1)
    return values[values[:, 2] > 0]


def _pair(ends: np.ndarray) -> tuple[float, float]:
    return float(ends[0]), float(ends[1])


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
