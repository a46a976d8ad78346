"""Figures of breakdowns: accuracy, perplexity and number of tokens over the cells, a colour and a marker a split."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from proteinlm import alphabet
from proteinlm.evaluation.breakdowns import Cell
from proteinlm.evaluation.metrics import FEWEST
from proteinlm.output.figures import PAGE, split_look, style, wrapped

_LABELS = {
    "residue": "Residue",
    "position": "Position (residues from the beginning of the sequence or window)",
    "length": "Length of the sequence (residues; ranges without a sequence left out)",
    "identity": "Identity to the nearest sequence of train",
    "family": "Pfam families of the protein",
}
_PANELS = ("Accuracy (%)", "Perplexity", "Tokens")
FAMILIES_DRAWN = 30
FEW_TOKENS = 100
"""Cells with fewer set no limits of the axis of perplexity: one of a rare letter would flatten all others."""


def arrays(cells: Sequence[Cell]) -> dict[str, np.ndarray]:
    """Return what is drawn, an entry a cell: split, cell, low, high, accuracy and perplexity with intervals, tokens,
    sequences.
    """
    names = ("accuracy", "accuracy_low", "accuracy_high", "perplexity", "perplexity_low", "perplexity_high")
    return {
        "split": np.array([c.score.split for c in cells], str),
        "cell": np.array([c.cell for c in cells], str),
        "low": np.array([c.low for c in cells], float),
        "high": np.array([c.high for c in cells], float),
        **{name: np.array([getattr(c.score, name) for c in cells], float) for name in names},
        "tokens": np.array([c.score.num_tokens for c in cells], np.int64),
        "sequences": np.array([c.score.num_sequences for c in cells], np.int64),
    }


def drawn_cells(by: str, drawn: Mapping[str, np.ndarray]) -> list[str]:
    """Return the cells of any split in the order of the axis; of families, those with most tokens.

    Args:
        by: name of the breakdown.
        drawn: from `arrays`.
    """
    first = {name: place for place, name in reversed(list(enumerate(drawn["cell"].tolist())))}
    if by == "residue":
        return sorted(first, key=alphabet.RESIDUES.index)
    if by == "family":
        tokens = {name: int(drawn["tokens"][drawn["cell"] == name].sum()) for name in first}
        return sorted(first, key=lambda name: (-tokens[name], name))[:FAMILIES_DRAWN]
    # What is no range (no alignment) stands first.
    return sorted(first, key=lambda name: float(np.nan_to_num(drawn["low"][first[name]], nan=-1.0)))


def plot_breakdown(by: str, drawn: Mapping[str, np.ndarray], title: str) -> tuple[Any, Any]:
    """Draw a breakdown; whiskers are 95 % intervals, and a cell of few sequences has none.

    The axis of perplexity shows the cells of FEW_TOKENS or more; what lies above is marked at the edge by its number.

    Args:
        by: name of the breakdown.
        drawn: from `arrays`.
        title: which run, objective and tokens.

    Returns:
        (Figure, Axes [3]).
    """
    labels = drawn_cells(by, drawn)
    turned = by != "residue" and len(labels) > 9
    splits = list(dict.fromkeys(drawn["split"].tolist()))
    with style():
        figure = matplotlib.figure.Figure(figsize=(PAGE, 5.4 if turned else 4.4))
        axes = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1))
        for number, split in enumerate(splits):
            shift = 0.22 * (number - (len(splits) - 1) / 2)
            colour, marker = split_look(split)
            look = {"color": colour, "marker": marker, "markersize": 3.2, "linestyle": "none"}
            chosen = [np.flatnonzero((drawn["split"] == split) & (drawn["cell"] == name)) for name in labels]
            places = np.array([x + shift for x, found in enumerate(chosen) if len(found)])
            rows = np.array([found[0] for found in chosen if len(found)], int)
            for axis, name, scale in ((axes[0], "accuracy", 100), (axes[1], "perplexity", 1)):
                value, low, high = (scale * drawn[f"{name}{end}"][rows] for end in ("", "_low", "_high"))
                value = np.where(np.isfinite(value), value, np.nan)
                # Ends that are NaN draw no whisker; percentiles of a skewed cell may lie on one side of its value.
                whiskers = np.nan_to_num(np.maximum([value - low, high - value], 0), posinf=0)
                axis.errorbar(places, value, yerr=whiskers, elinewidth=0.8, capsize=1.5, label=split, **look)
            axes[2].plot(places, drawn["tokens"][rows], **look)
        for axis, label in zip(axes, _PANELS, strict=True):
            axis.set_ylabel(label)
            axis.grid(axis="y", color="0.9", linewidth=0.6)
            axis.set_axisbelow(True)
        # A little below 0, so that points at 0 are whole.
        axes[0].set_ylim(bottom=-0.04 * axes[0].get_ylim()[1])
        _limit_perplexity(axes[1], drawn)
        _mark_beyond(axes[1], drawn, labels, splits)
        _log(axes[2])
        axes[2].set_xticks(range(len(labels)), [_shown(name) for name in labels], rotation=90 if turned else 0)
        axes[2].set_xlim(-0.7, len(labels) - 0.3)
        number = len(set(drawn["cell"].tolist()))
        rest = f" (the {len(labels)} of {number:,} with most tokens)" if number > len(labels) else ""
        note = f"\nWhiskers: 95 % interval over sequences; none where they are fewer than {FEWEST}"
        axes[2].set_xlabel(_LABELS[by] + rest + note)
        axes[0].legend(loc="upper left", bbox_to_anchor=(1, 1), title="split")
        figure.suptitle(wrapped(title, PAGE - 0.2, 8), fontsize=8)
    return figure, axes


def _shown(name: str) -> str:
    """Shorten the names of many families; ranges with a dash as in print."""
    if name.startswith("PF"):
        parts = name.split("+")
        return name if len(parts) <= 2 else f"{parts[0]}+{len(parts) - 1} more"
    return name.replace("-", "–")


def _limit_perplexity(axis: Any, drawn: Mapping[str, np.ndarray]) -> None:
    """Fit the axis to the cells of FEW_TOKENS and more with their whiskers; to all cells where none has as many."""
    many = drawn["tokens"] >= FEW_TOKENS
    many = many if many.any() else np.ones_like(many)
    values = np.concatenate([drawn[name][many] for name in ("perplexity", "perplexity_low", "perplexity_high")])
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


def _mark_beyond(axis: Any, drawn: Mapping[str, np.ndarray], labels: Sequence[str], splits: Sequence[str]) -> None:
    """Mark cells above or below the axis by an arrow at its edge and their number, split below split."""
    low, high = axis.get_ylim()
    for number, split in enumerate(splits):
        colour, _ = split_look(split)
        for x, name in enumerate(labels):
            value = drawn["perplexity"][(drawn["split"] == split) & (drawn["cell"] == name)]
            if not len(value) or np.isnan(value[0]) or low <= value[0] <= high:
                continue
            above = value[0] > high
            places = {"color": colour, "transform": axis.get_xaxis_transform(), "clip_on": False}
            shift = 0.22 * (number - (len(splits) - 1) / 2)
            axis.plot([x + shift], [1.0 if above else 0.0], "^" if above else "v", markersize=4, **places)
            y = (0.94 - 0.13 * number) if above else (0.06 + 0.13 * number)
            axis.text(
                x, y, _number(value[0]), fontsize=5.5, ha="center", va="top" if above else "bottom", **places
            )  # fmt: skip


def _number(value: float) -> str:
    """Write a number in few letters: 12.3, 1,230, 1e10, ∞."""
    if not np.isfinite(value):
        return "∞"
    if value < 100:
        return f"{value:.3g}"
    if value < 1e4:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _log(axis: Any, limits: tuple[float, float] | None = None) -> None:
    """Make the axis logarithmic, with room around its points and two to four numbers that are written out."""
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
