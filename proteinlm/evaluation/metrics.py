"""Metrics: accuracy, perplexity and bits per residue from sums and counts, and their bootstrap intervals.

A compiled step returns sums. They are added up in float64 and divided once, here.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

# Random numbers that the bootstrap draws at a time: about 100 MB of memory for any smaller number of sequences.
_DRAWS = 4_000_000
ENDS = (2.5, 97.5)
"""Percentiles of the resamples: the ends of a 95 % interval."""
FEWEST = 5
"""Number of sequences that an interval needs. A bootstrap of fewer gives intervals that are far too narrow."""
FEW_TOKENS = 100
"""Groups with fewer tokens have less weight in figures: hollow markers, and no influence on the limits of an axis."""


@dataclass(frozen=True)
class Sums:
    """Sums over tokens: of all tokens (each field a float), or of each sequence (each field [n]).

    Attributes:
        nll: negative log likelihood, in nats.
        correct: number of tokens that were the model's first choice.
        count: number of tokens.
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
    """One row of the table of results.

    Attributes:
        split: train, valid, test or ood.
        objective: causal or masked.
        model: name of the model or the baseline.
        tokens: which tokens count: "residues" or "residues+eos" (masked: the selected ones among them).
        accuracy: share of the tokens that were the first choice, 0 to 1.
        perplexity: exp of the mean negative log likelihood.
        bits_per_residue: the same mean in bits a token.
        num_tokens: number of tokens that count.
        num_sequences: number of sequences (concat: windows) that have such a token.
        accuracy_low: lower end of the 95 % interval of `bootstrap`; NaN for fewer than FEWEST sequences.
        accuracy_high: upper end of that interval.
        perplexity_low: lower end of the interval of perplexity.
        perplexity_high: upper end of the interval of perplexity.
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
        sums: sums of each sequence, fields [n]. Sequences without a counted token are left out. If none remains,
            both numbers are 0 and all others NaN.
        split: see `Score`.
        objective: see `Score`.
        model: see `Score`.
        tokens: see `Score`.
        num_resamples: number of resamples of the bootstrap.
        seed: seed of the bootstrap.
        intervals: intervals that were computed before, as by `bootstrap_groups`; None computes them here.
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

    Tokens of one sequence are not independent, so whole sequences are drawn: n of n with replacement, which gives
    multinomial counts. (Poisson weights would not need n. They are a good approximation for large n, but in a small
    split the number of sequences would vary and could be 0.) Sums are weighted by the counts and divided once
    a resample. Time is O(num_resamples n); memory O(n), and about 100 MB for the draws.

    Args:
        sums: sums of each sequence, fields [n]. Sequences without a counted token are left out.
        num_resamples: number of times that n sequences are drawn.
        seed: seed of the draws.
    """
    values = _by_sequence(sums)
    return _ends(resampled(values, num_resamples, seed)) if len(values) >= FEWEST else NO_INTERVALS


def bootstrap_groups(sums: Sums, *, num_resamples: int = 1000, seed: int = 0) -> list[Intervals]:
    """Return the intervals of each group of a breakdown by tokens, where a sequence has tokens in many groups.

    All groups share the same draws of whole sequences. Resamples without a token of a rare group are left out of that
    group's interval. With one group this is `bootstrap`.

    Args:
        sums: sums of each sequence and group, fields [n, C]. Sequences without a counted token are left out.
        num_resamples: as for `bootstrap`.
        seed: as for `bootstrap`.
    """
    values = np.stack([np.asarray(x, np.float64) for x in (sums.nll, sums.correct, sums.count)], axis=2)
    values = values[(values[:, :, 2] > 0).any(axis=1)]
    sequences = (values[:, :, 2] > 0).sum(axis=0)
    if len(values) < FEWEST:
        return [NO_INTERVALS] * len(sequences)
    drawn = resampled(values.reshape(len(values), -1), num_resamples, seed).reshape(num_resamples, *values.shape[1:])
    return [
        _ends(drawn[drawn[:, group, 2] > 0, group]) if number >= FEWEST else NO_INTERVALS
        for group, number in enumerate(sequences)
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
    """Return nll, correct and count of the sequences that have a counted token, float64 [n, 3]."""
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
