"""Figures of breakdowns: accuracy, perplexity and number of tokens of each group, with one colour a split."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from proteinlm.evaluation.breakdowns import Breakdown, Group
from proteinlm.evaluation.metrics import FEW_TOKENS, FEWEST
from proteinlm.output.figures import PAGE, split_look, style, wrapped

_PANELS = ("Accuracy (%)", "Perplexity", "Tokens")


def drawn_labels(breakdown: Breakdown, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Return the labels of the groups of all splits in the order of the axis.

    Args:
        breakdown: the breakdown; `most_drawn` limits the number of groups, `order` is their order.
        arrays: from `tables.group_arrays`.
    """
    rows = {label: row for row, label in reversed(list(enumerate(arrays["cell"].tolist())))}
    if breakdown.most_drawn is not None:
        tokens = {label: int(arrays["tokens"][arrays["cell"] == label].sum()) for label in rows}
        return sorted(rows, key=lambda label: (-tokens[label], label))[: breakdown.most_drawn]
    groups = [Group(label, float(arrays["low"][row]), float(arrays["high"][row])) for label, row in rows.items()]
    return [group.label for group in sorted(groups, key=breakdown.order)]


def plot_breakdown(breakdown: Breakdown, arrays: Mapping[str, np.ndarray], title: str) -> tuple[Any, Any]:
    """Draw a breakdown. Whiskers are 95 % intervals; groups of few sequences have none.

    The axis of perplexity fits the groups with FEW_TOKENS or more. A value outside it is written at the edge.

    Args:
        breakdown: the breakdown.
        arrays: from `tables.group_arrays`.
        title: title that names run, objective and tokens.

    Returns:
        (Figure, Axes [3]).
    """
    labels = drawn_labels(breakdown, arrays)
    turned = len(labels) > 9 and max(map(len, labels)) > 1
    splits = list(dict.fromkeys(arrays["split"].tolist()))
    with style():
        figure = matplotlib.figure.Figure(figsize=(PAGE, 5.4 if turned else 4.4))
        axes = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1))
        for number, split in enumerate(splits):
            shift = 0.22 * (number - (len(splits) - 1) / 2)
            colour, marker = split_look(split)
            look = {"color": colour, "marker": marker, "markersize": 3.2, "linestyle": "none"}
            matches = [np.flatnonzero((arrays["split"] == split) & (arrays["cell"] == name)) for name in labels]
            xs = np.array([x + shift for x, match in enumerate(matches) if len(match)])
            rows = np.array([match[0] for match in matches if len(match)], int)
            for axis, name, scale in ((axes[0], "accuracy", 100), (axes[1], "perplexity", 1)):
                value, low, high = (scale * arrays[f"{name}{end}"][rows] for end in ("", "_low", "_high"))
                value = np.where(np.isfinite(value), value, np.nan)
                # NaN draws no whisker; both percentiles of a skewed group may lie on one side of its value.
                whiskers = np.nan_to_num(np.maximum([value - low, high - value], 0), posinf=0)
                axis.errorbar(xs, value, yerr=whiskers, elinewidth=0.8, capsize=1.5, label=split, **look)
            axes[2].plot(xs, arrays["tokens"][rows], **look)
        for axis, label in zip(axes, _PANELS, strict=True):
            axis.set_ylabel(label)
            axis.grid(axis="y", color="0.9", linewidth=0.6)
            axis.set_axisbelow(True)
        # A little below 0, so that markers at 0 are not cut.
        axes[0].set_ylim(bottom=-0.04 * axes[0].get_ylim()[1])
        _limit_perplexity(axes[1], arrays)
        _mark_beyond(axes[1], arrays, labels, splits)
        _log(axes[2])
        axes[2].set_xticks(range(len(labels)), [_shown(name) for name in labels], rotation=90 if turned else 0)
        axes[2].set_xlim(-0.7, len(labels) - 0.3)
        number = len(set(arrays["cell"].tolist()))
        rest = f" (the {len(labels)} of {number:,} with most tokens)" if number > len(labels) else ""
        note = f"\nWhiskers: 95 % interval over sequences; none where they are fewer than {FEWEST}"
        axes[2].set_xlabel(breakdown.axis_label + rest + note)
        axes[0].legend(loc="upper left", bbox_to_anchor=(1, 1), title="split")
        figure.suptitle(wrapped(title, PAGE - 0.2, 8), fontsize=8)
    return figure, axes


def _shown(name: str) -> str:
    """Return the label on the axis: several families shortened, ranges with an en dash."""
    if name.startswith("PF"):
        parts = name.split("+")
        return name if len(parts) <= 2 else f"{parts[0]}+{len(parts) - 1} more"
    return name.replace("-", "–")


def _limit_perplexity(axis: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Fit the axis to the groups with FEW_TOKENS or more and their whiskers; to all groups where none has as many."""
    many = arrays["tokens"] >= FEW_TOKENS
    many = many if many.any() else np.ones_like(many)
    values = np.concatenate([arrays[name][many] for name in ("perplexity", "perplexity_low", "perplexity_high")])
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return
    low, high = values.min(), values.max()
    if high > 10 * low:
        room = (high / low) ** 0.12
        _log(axis, (low / room, high * room))
    else:
        room = 0.12 * (high - low) or 0.1 * high
        axis.set_ylim(low - room, high + room)
        axis.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def _mark_beyond(axis: Any, arrays: Mapping[str, np.ndarray], labels: Sequence[str], splits: Sequence[str]) -> None:
    """Mark groups above or below the axis by an arrow at its edge and their value, split below split."""
    low, high = axis.get_ylim()
    for number, split in enumerate(splits):
        colour, _ = split_look(split)
        for x, name in enumerate(labels):
            value = arrays["perplexity"][(arrays["split"] == split) & (arrays["cell"] == name)]
            if not len(value) or np.isnan(value[0]) or low <= value[0] <= high:
                continue
            above = value[0] > high
            look = {"color": colour, "transform": axis.get_xaxis_transform(), "clip_on": False}
            shift = 0.22 * (number - (len(splits) - 1) / 2)
            axis.plot([x + shift], [1.0 if above else 0.0], "^" if above else "v", markersize=4, **look)
            y = (0.94 - 0.13 * number) if above else (0.06 + 0.13 * number)
            axis.text(
                x, y, _number(value[0]), fontsize=5.5, ha="center", va="top" if above else "bottom", **look
            )  # fmt: skip


def _number(value: float) -> str:
    """Return a number in few characters: 12.3, 1,230, 1e10, ∞."""
    if not np.isfinite(value):
        return "∞"
    if value < 100:
        return f"{value:.3g}"
    if value < 1e4:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _log(axis: Any, limits: tuple[float, float] | None = None) -> None:
    """Make the axis logarithmic, with room around its points and two to four labelled ticks."""
    axis.set_yscale("log")
    axis.margins(y=0.12)
    axis.set_ylim(limits or axis.get_ylim())
    low, high = axis.get_ylim()
    for parts in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        ticks = LogLocator(10, subs=list(parts), numticks=7).tick_values(low, high)
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) > 1:
            break
    else:
        ticks = [tick for tick in MaxNLocator(3).tick_values(low, high) if low <= tick <= high]
    axis.yaxis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // 4)]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}" if value < 1e6 else _number(value)))
    axis.yaxis.set_minor_formatter(NullFormatter())
