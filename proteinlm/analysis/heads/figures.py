"""A figure of the kinds of attention heads, as a grid of layers and heads."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from proteinlm.output import figures

# Colours differ in hue and in lightness. A letter in each cell states the kind as well.
COLOURS = {
    "diagonal": "#0072B2",
    "vertical": "#D55E00",
    "block": "#56B4E9",
    "scattered": "#F0E442",
    "diffuse": "#E6E6E6",
    "none": "#FFFFFF",
}


def kinds_figure(
    kinds: np.ndarray,
    strengths: Float[np.ndarray, "layers H"],
    details: np.ndarray,
    *,
    title: str,
) -> tuple[Figure, Axes]:
    """Draw the kind of each head in a grid, with a row for each layer and a column for each head.

    The colour and letter of a cell state the kind; white is a head without weights. Beside the letter is a detail of
    the kind, and below it the strength of the pattern.

    Args:
        kinds: names [layers, H], from kinds.KINDS or "none".
        strengths: the statistic of the kind's pattern, or evenness, 0 to 1; NaN is not written.
        details: strings [layers, H]: the offset of a diagonal, the token of a vertical head; can be empty.
        title: title of the figure.

    Returns:
        The Figure and its Axes.
    """
    layers, heads = kinds.shape
    width = max((figures.PAGE - 0.7) / heads, 0.42)
    width, height = min(width, 0.9), 0.36
    colours = np.array([[to_rgb(COLOURS[kind]) for kind in row] for row in kinds])
    with figures.style():
        across = max(width * heads + 0.7, 4.4)
        title = figures.wrapped(title, across - 0.2, 9)
        label = figures.wrapped(
            "head (numbers: share of attention in the pattern; of scattered and diffuse heads, evenness)",
            across - 0.9,
            8,
        )
        room = figures.line_heights(title, 9) + figures.line_heights(label, 8)
        figure = Figure(figsize=(across, height * layers + 0.95 + room))
        axes = figure.subplots()
        axes.imshow(colours, aspect="auto", interpolation="nearest")
        for layer, head in np.ndindex(layers, heads):
            cell = kinds[layer, head], strengths[layer, head], details[layer, head]
            _write_cell(axes, layer, head, *cell, inches=(across - 0.7) / heads)
        axes.set_xticks(range(heads))
        axes.set_yticks(range(layers))
        axes.set_xticks(np.arange(heads - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(layers - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1.5)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(label)
        axes.set_ylabel("layer")
        ncols = 5 if across > 6 else 3
        figure.legend(handles=_legend(kinds), loc="outside lower center", ncols=ncols, handlelength=1.0)
        figure.suptitle(title, fontsize=9)
    return figure, axes


def _write_cell(axes, layer, head, kind, strength, detail, *, inches):
    luminance = np.dot(to_rgb(COLOURS[kind]), (0.2126, 0.7152, 0.0722))
    colour = "white" if luminance < 0.4 else "black"
    letter = "" if kind == "none" else kind[0].upper() if kind != "diffuse" else "–"
    first = (f"{letter}: {detail}" if detail else letter).replace("-", "−")
    # A long detail has a smaller font in a narrow cell.
    points = min(7.0, 7.0 * 0.9 * inches / max(figures.text_width(first, 7.0), 1e-6))
    axes.text(head, layer - 0.05, first, ha="center", va="bottom", fontsize=points, color=colour)
    if not np.isnan(strength):
        axes.text(head, layer + 0.05, f"{strength:.2f}", ha="center", va="top", fontsize=6, color=colour)


def _legend(kinds: np.ndarray) -> Sequence[Patch]:
    counts = {kind: int((kinds == kind).sum()) for kind in COLOURS}
    signs = {kind: "–" if kind == "diffuse" else kind[0].upper() for kind in COLOURS}
    return [
        Patch(facecolor=colour, edgecolor="0.6", linewidth=0.4, label=_entry(signs[kind], kind, counts[kind]))
        for kind, colour in COLOURS.items()
        if kind != "none" or counts[kind]
    ]


def _entry(sign, kind, count):
    return f"{sign}  {kind}: {count}" if kind != "none" else f"no weights: {count}"
