"""Calibration: how often a model is right when it says how sure it is (Guo et al. 2017, section 2)."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from proteinlm.evaluation.breakdowns import Cell
from proteinlm.evaluation.metrics import ENDS, FEWEST, Sums, resampled
from proteinlm.evaluation.sums import CONFIDENCE_BINS
from proteinlm.output.figures import PAGE, line_heights, split_look, style, wrapped

FEW_TOKENS = 100
"""Bins with fewer are drawn hollow."""


@dataclass(frozen=True)
class Calibration:
    """The expected calibration error of a split, and its bins.

    Attributes:
        error: sum over bins of share of tokens times |accuracy - mean confidence|, 0 to 1; NaN without tokens.
        low: lower end of its 95 % interval by the bootstrap over sequences. Resampling adds noise, which this error
            counts as miscalibration, so that the interval of a small split leans upwards.
        high: its upper end.
        cells: accuracy and its interval in each bin that has a token.
        confidence: float64, mean confidence in each of them.
    """

    error: float
    low: float
    high: float
    cells: list[Cell]
    confidence: np.ndarray


def bin_labels() -> list[tuple[str, float, float]]:
    """Return the labels and the ends of the bins of confidence."""
    ends = np.arange(CONFIDENCE_BINS + 1) / CONFIDENCE_BINS
    return [(f"{a:.2f}-{b:.2f}", float(a), float(b)) for a, b in itertools.pairwise(ends)]


def calibration(sums: Sums, confidence: np.ndarray, cells: list[Cell], *, num_resamples: int = 1000) -> Calibration:
    """Return the calibration of a split.

    Args:
        sums: of each sequence and bin of confidence, fields [N, C].
        confidence: the probability of the first choice, summed likewise, float64 [N, C].
        cells: the bins that have a token, as `breakdowns.token_cells` makes them of the same sums.
        num_resamples: of the bootstrap.
    """
    correct, count = np.asarray(sums.correct), np.asarray(sums.count)
    values = np.concatenate([correct, confidence, count], axis=1)[(count > 0).any(axis=1)]
    total = values.sum(axis=0).reshape(3, -1)
    kept = total[2] > 0
    low = high = math.nan
    if len(values) >= FEWEST:
        drawn = resampled(values, num_resamples, seed=0).reshape(num_resamples, 3, -1)
        low, high = np.percentile(expected_error(drawn), ENDS)
    return Calibration(
        float(expected_error(total)), float(low), float(high), cells, total[1, kept] / total[2, kept]
    )  # fmt: skip


def expected_error(sums: np.ndarray) -> np.ndarray:
    """Return the expected calibration error of sums of correct, confidence and count by bin, [..., 3, C] to [...].

    Share of tokens times |accuracy - confidence| is |correct - confidence| over all tokens: empty bins divide nothing.
    """
    all_tokens = sums[..., 2, :].sum(-1)
    gaps = np.abs(sums[..., 0, :] - sums[..., 1, :]).sum(-1)
    return np.where(all_tokens > 0, gaps / np.maximum(all_tokens, 1), np.nan)


def plot_reliability(found: Mapping[str, Calibration], title: str) -> tuple[Any, Any]:
    """Draw a reliability diagram for each split, and below it the number of tokens in each bin.

    Args:
        found: of each split.
        title: which run, objective and tokens.

    Returns:
        (Figure, Axes [2, splits]).
    """
    with style():
        across = min(PAGE, 0.4 + 3.4 * len(found))
        title = wrapped(title, across - 0.2, 8)
        figure = matplotlib.figure.Figure(figsize=(across, 4.6 + line_heights(title, 8) + 0.3 / len(found)))
        axes = figure.subplots(2, len(found), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 1))
        for (upper, lower), (split, one) in zip(axes.T, found.items(), strict=True):
            colour, marker = split_look(split)
            _draw(upper, one, colour, marker)
            heading = f"{split}: calibration error {100 * one.error:.2f} %"
            upper.set_title(wrapped(heading, across / len(found) - 0.6, 9))
            lower.bar(
                [100 * cell.low for cell in one.cells], [cell.score.num_tokens for cell in one.cells],
                width=100 / CONFIDENCE_BINS, align="edge", color=colour, edgecolor="white", linewidth=0.4,
            )  # fmt: skip
            lower.set_xlabel("Probability of the first choice (%)")
        axes[0, 0].set(xlim=(0, 100), ylim=(-2, 102), ylabel="Accuracy (%)")
        axes[1, 0].set_yscale("log")
        axes[1, 0].set_ylim(bottom=0.5)
        axes[1, 0].set_ylabel("Tokens")
        axes[1, 0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        # Below, where no whisker can cross it.
        figure.legend(handles=_legend(), loc="outside lower center", ncols=2 if across > 5 else 1)
        figure.suptitle(title, fontsize=8)
    return figure, axes


def _draw(axis: Any, one: Calibration, colour: str, marker: str) -> None:
    """Draw accuracy over confidence; bins of few tokens are hollow, and those of few sequences have no interval."""
    scores = [cell.score for cell in one.cells]
    accuracy = np.array([100 * s.accuracy for s in scores])
    ends = 100 * np.array([(s.accuracy_low, s.accuracy_high) for s in scores]).reshape(-1, 2)
    whiskers = np.nan_to_num(np.maximum([accuracy - ends[:, 0], ends[:, 1] - accuracy], 0))
    is_small = np.array([s.num_tokens < FEW_TOKENS for s in scores], bool)
    axis.plot([0, 100], [0, 100], color="0.5", linestyle="--", linewidth=0.9)
    for chosen, face in ((~is_small, colour), (is_small, "white")):
        axis.errorbar(
            100 * one.confidence[chosen], accuracy[chosen], yerr=whiskers[:, chosen], fmt=marker, markersize=3.5,
            color=colour, markerfacecolor=face, elinewidth=0.8, capsize=1.5,
        )  # fmt: skip


def _legend() -> list[Line2D]:
    """Return what lines and points mean, in grey: each split has a colour and a marker of its own."""
    point = {"color": "0.3", "marker": "o", "markersize": 3.5}
    return [
        Line2D([], [], color="0.5", linestyle="--", linewidth=0.9, label="perfectly calibrated"),
        Line2D([], [], linewidth=0.8, label="model, 95 % interval over sequences", **point),
        Line2D(
            [], [], linewidth=0.8, markerfacecolor="white", label=f"the same, fewer than {FEW_TOKENS} tokens", **point
        ),
        Line2D([], [], linestyle="none", label=f"no interval: fewer than {FEWEST} sequences", **point),
    ]
