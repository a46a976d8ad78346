"""Learning curves: perplexity and accuracy over steps of several runs in one figure; train dashed, validation solid."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.figure
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from proteinlm.output.figures import PAGE, PALETTE, style

# Largest number of points over the width of an axis at which dashes can still be seen.
_POINTS = 80
# Seven colours (without the faint yellow) and eight markers: 56 different pairs.
_COLOURS = PALETTE[:7]
_MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Curve:
    """The label of a run and its lines of metrics.jsonl."""

    label: str
    metrics: list[dict]


def train_points(metrics: Sequence[dict], spacing: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (step, perplexity, accuracy) of training, one point for each `spacing` steps that have lines.

    Lines of one point are averaged, weighted by their tokens. The step of a point is that of its last line.
    """
    rows = [row for row in metrics if row["kind"] == "train" and row["loss"] is not None]
    if not rows:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    step, loss, accuracy, count = (
        np.array([row[name] for row in rows], float) for name in ("step", "loss", "accuracy", "counted_tokens")
    )
    first = np.unique((step - 1) // spacing, return_index=True)[1]
    tokens = np.add.reduceat(count, first)
    last = np.append(first[1:], len(rows)) - 1
    nll, correct = (np.add.reduceat(x * count, first) / tokens for x in (loss, accuracy))
    return step[last], np.exp(nll), correct


def plot_curves(curves: Sequence[Curve]) -> matplotlib.figure.Figure:
    """Draw perplexity and accuracy over steps, with one colour and one marker a run."""
    with style():
        rows = -(-(len(curves) + 2) // 4)
        figure = matplotlib.figure.Figure(figsize=(PAGE, 2.7 + 0.18 * rows))
        axes = figure.subplots(1, 2)
        handles = []
        longest = max((row["step"] for curve in curves for row in curve.metrics), default=1)
        for index, curve in enumerate(curves):
            colour, marker = _COLOURS[index % len(_COLOURS)], _MARKERS[index % len(_MARKERS)]
            step, *values = train_points(curve.metrics, longest / _POINTS)
            for axis, value, scale, train in zip(axes, ("perplexity", "accuracy"), (1, 100), values, strict=True):
                axis.plot(step, scale * train, "--", color=colour, linewidth=0.9)
                valid = [row for row in curve.metrics if row["kind"] == "valid" and row[value] is not None]
                # At most about 24 markers a line, so that they do not overlap.
                axis.plot(
                    [row["step"] for row in valid], [scale * row[value] for row in valid], "-", color=colour,
                    marker=marker, markersize=3.5, markevery=max(1, len(valid) // 12),
                )  # fmt: skip
            handles.append(Line2D([], [], color=colour, marker=marker, markersize=3.5, label=curve.label))
        for axis, label in zip(axes, ("Perplexity per token", "Accuracy (%)"), strict=True):
            axis.set_xlabel("Optimizer step")
            axis.set_ylabel(label)
            axis.set_xlim(left=0)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        handles += [
            Line2D([], [], color="0.3", linestyle="--", linewidth=0.9, label="train"),
            Line2D([], [], color="0.3", linestyle="-", label="validation"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure
