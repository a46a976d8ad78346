"""Calibration: the probability of the model's first choice compared with its accuracy (Guo et al. 2017, section 2)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from proteinlm.evaluation.breakdowns import CONFIDENCE_BINS
from proteinlm.evaluation.metrics import ENDS, FEW_TOKENS, FEWEST, Sums, resampled
from proteinlm.evaluation.tables import GroupScore
from proteinlm.output.figures import PAGE, line_heights, split_look, style, wrapped


@dataclass(frozen=True)
class Calibration:
    """The expected calibration error of a split, and its bins.

    Attributes:
        error: sum over bins of share of tokens times |accuracy - mean confidence|, 0 to 1; NaN without tokens.
        low: lower end of its 95 % interval by the bootstrap over sequences. Resampling adds noise, which this error
            counts as miscalibration, so the interval of a small split is biased upwards.
        high: upper end of the interval.
        bins: accuracy and its interval in each bin that has a token.
        confidence: float64, mean confidence in each of these bins.
    """

    error: float
    low: float
    high: float
    bins: list[GroupScore]
    confidence: np.ndarray


def calibration(
    sums: Sums, confidence: np.ndarray, bins: list[GroupScore], *, num_resamples: int = 1000
) -> Calibration:
    """Return the calibration of a split.

    Args:
        sums: of each sequence and bin of confidence, fields [N, C].
        confidence: sums of the probability of the first choice, float64 [N, C].
        bins: scores of the bins that have a token, from `tables.score_token_groups` of the same sums.
        num_resamples: number of resamples of the bootstrap.
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
        float(expected_error(total)), float(low), float(high), bins, total[1, kept] / total[2, kept]
    )  # fmt: skip


def expected_error(sums: np.ndarray) -> np.ndarray:
    """Return the expected calibration error from sums of correct, confidence and count by bin, [..., 3, C] to [...].

    A bin's share of tokens times |accuracy - confidence| is |correct - confidence| divided by the number of all tokens,
    so there is no division by the tokens of an empty bin.
    """
    all_tokens = sums[..., 2, :].sum(-1)
    gaps = np.abs(sums[..., 0, :] - sums[..., 1, :]).sum(-1)
    return np.where(all_tokens > 0, gaps / np.maximum(all_tokens, 1), np.nan)


def plot_reliability(calibrations: Mapping[str, Calibration], title: str) -> tuple[Any, Any]:
    """Draw a reliability diagram for each split, and below it the number of tokens in each bin.

    Args:
        calibrations: one of each split.
        title: title that names run, objective and tokens.

    Returns:
        (Figure, Axes [2, splits]).
    """
    with style():
        across = min(PAGE, 0.4 + 3.4 * len(calibrations))
        title = wrapped(title, across - 0.2, 8)
        figure = matplotlib.figure.Figure(figsize=(across, 4.6 + line_heights(title, 8) + 0.3 / len(calibrations)))
        axes = figure.subplots(2, len(calibrations), squeeze=False, sharex=True, sharey="row", height_ratios=(3, 1))
        for (upper, lower), (split, one) in zip(axes.T, calibrations.items(), strict=True):
            colour, marker = split_look(split)
            _draw(upper, one, colour, marker)
            heading = f"{split}: calibration error {100 * one.error:.2f} %"
            upper.set_title(wrapped(heading, across / len(calibrations) - 0.6, 9))
            lower.bar(
                [100 * row.group.low for row in one.bins], [row.score.num_tokens for row in one.bins],
                width=100 / CONFIDENCE_BINS, align="edge", color=colour, edgecolor="white", linewidth=0.4,
            )  # fmt: skip
            lower.set_xlabel("Probability of the first choice (%)")
        axes[0, 0].set(xlim=(0, 100), ylim=(-2, 102), ylabel="Accuracy (%)")
        axes[1, 0].set_yscale("log")
        axes[1, 0].set_ylim(bottom=0.5)
        axes[1, 0].set_ylabel("Tokens")
        axes[1, 0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        # Below the axes, where no whisker crosses it.
        figure.legend(handles=_legend(), loc="outside lower center", ncols=2 if across > 5 else 1)
        figure.suptitle(title, fontsize=8)
    return figure, axes


def _draw(axis: Any, one: Calibration, colour: str, marker: str) -> None:
    """Draw accuracy over confidence; bins of few tokens have hollow markers, bins of few sequences no interval."""
    scores = [row.score for row in one.bins]
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
    """Return the entries of the legend, in grey since each split has another colour and marker."""
    point = {"color": "0.3", "marker": "o", "markersize": 3.5}
    return [
        Line2D([], [], color="0.5", linestyle="--", linewidth=0.9, label="perfectly calibrated"),
        Line2D([], [], linewidth=0.8, label="model, 95 % interval over sequences", **point),
        Line2D(
            [], [], linewidth=0.8, markerfacecolor="white", label=f"the same, fewer than {FEW_TOKENS} tokens", **point
        ),
        Line2D([], [], linestyle="none", label=f"no interval: fewer than {FEWEST} sequences", **point),
    ]
