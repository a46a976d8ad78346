"""Figures of breakdowns: accuracy, perplexity and number of tokens over the cells, a colour and a marker a split."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.ticker import FuncFormatter, NullFormatter

from proteinlm.breakdowns import Cell
from proteinlm.data import alphabet
from proteinlm.figures import PAGE, PALETTE, style

_LABELS = {
    "residue": "Residue",
    "position": "Position (residues from the beginning of the sequence or window)",
    "length": "Length of the sequence (residues)",
    "identity": "Identity to the nearest sequence of train",
    "family": "Pfam families of the protein",
}
_MARKERS = "osD^"
_PANELS = ("Accuracy (%)", "Perplexity", "Tokens")
FAMILIES_DRAWN = 30


def arrays(cells: Sequence[Cell]) -> dict[str, np.ndarray]:
    """Return what is drawn, an entry a cell: split, cell, low, high, accuracy and perplexity with intervals, tokens."""
    names = ("accuracy", "accuracy_low", "accuracy_high", "perplexity", "perplexity_low", "perplexity_high")
    return {
        "split": np.array([c.score.split for c in cells], str),
        "cell": np.array([c.cell for c in cells], str),
        "low": np.array([c.low for c in cells], float),
        "high": np.array([c.high for c in cells], float),
        **{name: np.array([getattr(c.score, name) for c in cells], float) for name in names},
        "tokens": np.array([c.score.num_tokens for c in cells], np.int64),
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
    """Draw a breakdown; whiskers are 95 % intervals, and a cell of one sequence has none.

    Args:
        by: name of the breakdown.
        drawn: from `arrays`.
        title: which run, objective and tokens.

    Returns:
        (Figure, Axes [3]).
    """
    labels = drawn_cells(by, drawn)
    splits = list(dict.fromkeys(drawn["split"].tolist()))
    with style():
        figure = matplotlib.figure.Figure(figsize=(PAGE, 5.0 if by == "family" else 4.4))
        axes = figure.subplots(3, 1, sharex=True, height_ratios=(2, 2, 1))
        for number, split in enumerate(splits):
            shift = 0.22 * (number - (len(splits) - 1) / 2)
            look = {"color": PALETTE[number], "marker": _MARKERS[number], "markersize": 3.2, "linestyle": "none"}
            chosen = [np.flatnonzero((drawn["split"] == split) & (drawn["cell"] == name)) for name in labels]
            places = np.array([x + shift for x, found in enumerate(chosen) if len(found)])
            rows = np.array([found[0] for found in chosen if len(found)], int)
            for axis, name, scale in ((axes[0], "accuracy", 100), (axes[1], "perplexity", 1)):
                value, low, high = (scale * drawn[f"{name}{end}"][rows] for end in ("", "_low", "_high"))
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
        if _is_wide(drawn["perplexity"]):
            _log(axes[1])
        _log(axes[2])
        turned = by != "residue" and len(labels) > 9
        axes[2].set_xticks(range(len(labels)), [_shown(name) for name in labels], rotation=90 if turned else 0)
        axes[2].set_xlim(-0.7, len(labels) - 0.3)
        number = len(set(drawn["cell"].tolist()))
        rest = f" (the {len(labels)} of {number:,} with most tokens)" if number > len(labels) else ""
        axes[2].set_xlabel(_LABELS[by] + rest)
        axes[0].legend(loc="upper left", bbox_to_anchor=(1, 1), title="split")
        figure.suptitle(title, fontsize=8)
    return figure, axes


def _shown(name: str) -> str:
    """Shorten the names of many families; ranges with a dash as in print."""
    if name.startswith("PF"):
        parts = name.split("+")
        return name if len(parts) <= 2 else f"{parts[0]}+{len(parts) - 1} more"
    return name.replace("-", "–")


def _is_wide(values: np.ndarray) -> bool:
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and finite.max() > 10 * finite.min()


def _log(axis: Any) -> None:
    """Make the axis logarithmic, with room around its points and numbers that are written out."""
    axis.set_yscale("log")
    axis.margins(y=0.12)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
