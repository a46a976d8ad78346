"""Figures of contacts: a map of predicted and true contacts, and tables of precision."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Integer
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from proteinlm.analysis.contacts.measure import CLOSEST, CUTOFF, CUTS, RANGES
from proteinlm.output import figures

RIGHT, WRONG = figures.PALETTE[0], figures.PALETTE[4]
"""Colours of right and wrong predictions. Blue is dark and orange light in greyscale too."""
_DEFINITION = f"contact: C-beta atoms nearer than {CUTOFF:g} Å, residues {CLOSEST} or more apart"


def contact_figure(
    contacts: Bool[np.ndarray, "L L"],
    resolved: Bool[np.ndarray, " L"],
    predicted: Integer[np.ndarray, "n 2"],
    *,
    name: str,
    predictor: str,
    notes: Sequence[str] = (),
) -> tuple[Figure, Axes]:
    """Draw true contacts below the diagonal and predicted ones above it.

    Args:
        contacts: True for pairs of residues in contact; those fewer than 6 apart are neither judged nor drawn.
        resolved: True for residues with coordinates; rows and columns of the others are grey.
        predicted: pairs of residues counted from 0, in any order; drawn as right or wrong.
        name: name of the protein, for the title.
        predictor: name of the predictor, for the title.
        notes: warnings below the title.

    Returns:
        The Figure and its Axes.
    """
    length = len(contacts)
    first, second = np.sort(np.asarray(predicted), 1).T
    right = contacts[first, second]
    low, high = np.nonzero(np.triu(contacts, CLOSEST))
    side = 4.6
    texts = (
        f"Contacts of {name}",
        f"above the diagonal: the {len(predicted)} highest pairs of",
        predictor,
        _DEFINITION,
    )
    title = figures.wrapped("\n".join(texts), side - 0.3, 9)
    below = figures.wrapped("\n".join(map(_sentence, notes)), side - 1, 7)
    height = 1.06 * figures.line_heights(title, 9) + (1.07 * figures.line_heights(below, 7) if below else 0)
    with figures.style():
        figure = Figure(figsize=(side, side + 0.45 + height), layout=ConstrainedLayoutEngine(h_pad=0.07))
        panel = figure.subplots()
        for start, stop in _runs(~resolved):
            panel.axhspan(start + 0.5, stop + 0.5, color=figures.HIDDEN, linewidth=0, zorder=0)
            panel.axvspan(start + 0.5, stop + 0.5, color=figures.HIDDEN, linewidth=0, zorder=0)
        # A mark is as large as its cell, but large enough to be visible.
        points = max(0.8 * (side - 0.7) * 72 / length, 1.6)
        panel.scatter(low + 1, high + 1, s=points**2, marker="s", color="0.25", linewidths=0)
        panel.scatter(second[right] + 1, first[right] + 1, s=points**2, marker="s", color=RIGHT, linewidths=0)
        panel.scatter(
            second[~right] + 1, first[~right] + 1, s=points**2, marker="x", color=WRONG, linewidths=max(points / 5, 0.7)
        )
        panel.plot([0.5, length + 0.5], [0.5, length + 0.5], color="0.6", linewidth=0.6)
        panel.set(xlim=(0.5, length + 0.5), ylim=(length + 0.5, 0.5), aspect="equal")
        panel.set(xlabel="residue, by position", ylabel="residue, by position")
        panel.spines[:].set(visible=True, linewidth=0.5)
        marks = (
            ("s", "0.25", "contact in the structure (below)"),
            ("s", RIGHT, f"right, {right.sum()} (above)"),
            ("x", WRONG, f"wrong, {(~right).sum()} (above)"),
        )
        handles: list = [
            Line2D([], [], marker=marker, color=colour, linestyle="", markersize=5, label=label)
            for marker, colour, label in marks
        ]
        if not resolved.all():
            handles.append(Patch(color=figures.HIDDEN, label="not resolved"))
        figure.legend(handles=handles, loc="outside lower center", ncols=2, columnspacing=1.5, handletextpad=0.4)
        # A title of the axes would be off centre, and a long line would be cut.
        figure.suptitle(title, fontsize=9, parse_math=False)
        if below:
            panel.set_title(below, fontsize=7, parse_math=False)
    return figure, panel


def precision_figure(
    table: Mapping[str, Float[np.ndarray, "ranges cuts"]],
    by_head: Float[np.ndarray, "layers H"],
    *,
    name: str,
    note: str = "",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> tuple[Figure, np.ndarray]:
    """Draw a table of precision by predictor, range and cut, and the long-range precision at L of every head.

    Args:
        table: [3, 3] for each predictor, from `measure.precisions`, in rows from the top; NaN is grey.
        by_head: long-range precision at L of each head.
        name: name of the protein, for the title.
        note: second line of the title.
        layers, heads: the numbers beside the heads; None counts from 0.

    Returns:
        The Figure and its two Axes.
    """
    values = np.stack([np.asarray(rows).reshape(-1) for rows in table.values()])
    both = np.concatenate([values.ravel(), by_head.ravel()])
    top = float(np.nanmax(both)) if np.isfinite(both).any() else 1.0
    cmap = colormaps[figures.SEQUENTIAL].with_extremes(bad=figures.HIDDEN)
    num_layers, num_heads = by_head.shape
    texts = (f"Contacts of {name} found by attention", _DEFINITION, note)
    title = figures.wrapped("\n".join(text for text in texts if text), figures.PAGE - 0.3, 9)
    height = 1.35 + figures.line_heights(title, 9) + max(0.28 * len(table) + 0.3, min(0.22 * num_layers, 5))
    with figures.style():
        figure = Figure(figsize=(figures.PAGE, height))
        left, right = figure.subplots(1, 2, width_ratios=(len(RANGES) * len(CUTS), max(4, min(num_heads, 9))))
        image = left.imshow(np.ma.masked_invalid(values), cmap=cmap, vmin=0, vmax=top or 1, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            dark = np.isfinite(value) and value < 0.6 * top
            text = "–" if np.isnan(value) else f"{value:.2f}"
            left.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
        left.set_xticks(range(values.shape[1]), [*CUTS] * len(RANGES))
        left.set_yticks(range(len(table)), list(table))
        left.tick_params(length=0)
        for number, (label, (low, high)) in enumerate(RANGES.items()):
            span = f"{low} to {high}" if np.isfinite(high) else f"{low} or more"
            centre = len(CUTS) * number + (len(CUTS) - 1) / 2
            left.text(centre, -0.65, f"{label}\n{span} apart", ha="center", va="bottom", fontsize=7)
            if number:
                left.axvline(len(CUTS) * number - 0.5, color="white", linewidth=2)
        left.set_xlabel("number of highest pairs taken")
        right.imshow(np.ma.masked_invalid(by_head), cmap=cmap, vmin=0, vmax=top or 1, aspect="auto")
        step = max(1, num_layers // 12)
        right.set_yticks(range(0, num_layers, step), list(range(num_layers) if layers is None else layers)[::step])
        step = max(1, num_heads // 8)
        right.set_xticks(range(0, num_heads, step), list(range(num_heads) if heads is None else heads)[::step])
        right.tick_params(length=0)
        right.set(xlabel="head", ylabel="layer")
        right.set_title("each head: long range, L pairs", fontsize=7)
        bar = figure.colorbar(image, ax=[left, right], location="bottom", aspect=50, shrink=0.5, pad=0.04)
        bar.set_label("precision (share of the pairs that are contacts)")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        figure.suptitle(title, fontsize=9, parse_math=False)
    return figure, np.array([left, right])


def _sentence(text):
    return text[:1].upper() + text[1:]


def _runs(flags):
    """Return (start, stop) of each sequence of consecutive True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return edges.reshape(-1, 2)
