"""Figures of attention and of amino-acid similarity; each function returns the Figure and its Axes.

Colours are a scale whose lightness rises all the way (viridis), so that it reads the same in greyscale and
with any colour vision. Colour bars say what is shown and where the scale was cut.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from proteinlm import figures
from proteinlm.data.alphabet import STANDARD_RESIDUES

HIDDEN = "0.82"
"""Light grey: pairs that have no value."""

GROUPS = (
    ("aliphatic", "ILVMA"),
    ("aromatic", "FWY"),
    ("polar", "STNQ"),
    ("acidic", "DE"),
    ("basic", "KRH"),
    ("special", "CGP"),
)
"""The 20 amino acids by class; the order of the axes of a similarity matrix."""


def attention_figure(
    maps: Float[np.ndarray, "layers H L L"],
    *,
    name: str,
    causal: bool,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> tuple[Figure, np.ndarray]:
    """Draw attention matrices, a row for each layer and a column for each head (Performer paper, figure 10).

    One colour scale serves all panels. It runs with the square root of the weight, so that diffuse heads are
    seen beside sharp ones, and ends at the 99.5th percentile of the weights drawn. Kernels whose weights can
    be negative get a linear scale that says where its ends are.

    Args:
        maps: weights [layers, heads, query, key] of residues.
        name: the protein, for the title.
        causal: whether later residues are hidden; they are drawn grey instead of as zero.
        layers, heads: the numbers to write beside the panels; None counts from 0.

    Returns:
        The Figure, and its Axes as an array [layers, heads].
    """
    num_layers, num_heads, length, _ = maps.shape
    layers = range(num_layers) if layers is None else layers
    heads = range(num_heads) if heads is None else heads
    visible = np.tri(length, dtype=bool) if causal else np.ones((length, length), bool)
    norm, label, extend = _weight_scale(maps[:, :, visible])
    cmap = colormaps[figures.SEQUENTIAL].with_extremes(bad=HIDDEN)
    with figures.style():
        figure, axes = _panels(num_layers, num_heads)
        image = None
        for row, layer in enumerate(layers):
            for column, head in enumerate(heads):
                panel = axes[row, column]
                image = panel.imshow(
                    np.ma.masked_where(~visible, maps[row, column]),
                    cmap=cmap, norm=norm, interpolation="antialiased", interpolation_stage="data",
                    extent=(0.5, length + 0.5, length + 0.5, 0.5), rasterized=True,
                )  # fmt: skip
                panel.set_xticks(_position_ticks(length))
                panel.set_yticks(_position_ticks(length))
                # A margin, so that the frame does not cover the first and last residues.
                panel.set_xlim(0.5 - 0.015 * length, length + 0.5 + 0.015 * length)
                panel.set_ylim(length + 0.5 + 0.015 * length, 0.5 - 0.015 * length)
                panel.spines[:].set(visible=True, linewidth=0.4)
                panel.tick_params(length=2, pad=1.5, width=0.4)
                panel.label_outer()
                if row == 0:
                    panel.set_title(f"head {head}")
                if column == 0:
                    panel.set_ylabel(f"layer {layer}", fontsize=9)
        assert image is not None
        bar = figure.colorbar(image, ax=axes, location="top", extend=extend, aspect=60, shrink=0.7, pad=0.02)
        bar.set_label(label)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        hidden = " (grey: later residues, hidden from a causal model)" if causal else ""
        figure.suptitle(f"Attention of {name}, {length} residues", fontsize=9)
        figure.supxlabel(f"residue attended to, by position{hidden}", fontsize=8)
        figure.supylabel("attending residue, by position", fontsize=8)
    return figure, axes


def _weight_scale(weights):
    """Return (norm, label of the colour bar, which ends of it are cut)."""
    low, high = float(weights.min()), float(weights.max())
    if low < -1e-3 * max(high, 0.0):
        bottom, top = (float(limit) for limit in np.percentile(weights, (0.25, 99.75)))
        label = f"attention weight, cut at {bottom:.2g} and {top:.2g} (extremes {low:.2g}, {high:.2g})"
        return Normalize(bottom, top), label, "both"
    top = float(np.percentile(weights, 99.5))
    # Where nearly all weights are 0, the percentile is no limit to draw with.
    top = top if top > 0.01 * high else high
    if top <= 0:
        return Normalize(0, 1), "attention weight (all are 0)", "neither"
    if top >= high:
        return PowerNorm(0.5, 0, high), "attention weight (square-root scale)", "neither"
    label = f"attention weight (square-root scale, cut at the 99.5th percentile, {top:.2g}; largest {high:.2g})"
    return PowerNorm(0.5, 0, top), label, "max"


def _panels(rows, columns):
    # A panel is as wide as eight of them on a page allow, but never larger than a quarter of the page.
    side = min((figures.PAGE - 0.8) / columns, figures.PAGE / 4)
    size = (max(side * columns + 0.8, figures.PAGE / 2 + 0.8), side * rows + 1.35)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.025, wspace=0.01, hspace=0.01)
    figure = Figure(figsize=size, layout=layout)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    return figure, axes


def _position_ticks(length):
    """Return the first residue and two or so round positions: small panels have room for no more."""
    step = next(step for step in (1, 2, 5, *(m * 10**e for e in range(1, 9) for m in (1, 2, 5))) if 2.5 * step > length)
    return [1, *(place for place in range(step, length + 1, step) if place > max(1, 0.3 * length))]


def similarity_figure(
    reference: Float[np.ndarray, "a a"],
    similarity: Float[np.ndarray, "a a"],
    *,
    reference_label: str,
    similarity_label: str,
    title: str | None = None,
) -> tuple[Figure, np.ndarray]:
    """Draw a substitution matrix and a model's amino-acid similarity side by side (Performer paper, figure
    13).

    The amino acids stand in classes, divided by lines. Each matrix has its own scale, over its off-diagonal
    values; the diagonal, 1 by definition, is grey.

    Args:
        reference, similarity: [20, 20] in the order of alphabet.STANDARD_RESIDUES; NaN is drawn grey.
        reference_label, similarity_label: what the two colour bars say.
        title: a line above both.

    Returns:
        The Figure, and its two Axes.
    """
    order = [STANDARD_RESIDUES.index(letter) for _, group in GROUPS for letter in group]
    letters = [STANDARD_RESIDUES[index] for index in order]
    cmap = colormaps[figures.SEQUENTIAL].with_extremes(bad=HIDDEN)
    with figures.style():
        figure = Figure(figsize=(figures.PAGE, 4.0))
        axes = figure.subplots(1, 2)
        for panel, matrix, label in zip(
            axes, (reference, similarity), (reference_label, similarity_label), strict=True
        ):
            values = np.array(matrix, np.float64)[np.ix_(order, order)]
            np.fill_diagonal(values, np.nan)
            image = panel.imshow(np.ma.masked_invalid(values), cmap=cmap)
            panel.set_xticks(range(len(letters)), letters)
            panel.set_yticks(range(len(letters)), letters)
            panel.spines[["top", "right"]].set_visible(True)
            panel.tick_params(length=0, pad=2)
            _draw_groups(panel)
            bar = figure.colorbar(
                image,
                ax=panel,
                location="bottom",
                aspect=30,
                fraction=0.05,
                pad=0.02,
                shrink=0.8,
                label=label,
            )
            bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        if title:
            figure.suptitle(title, fontsize=9)
    return figure, axes


def _draw_groups(panel: Axes):
    start = 0
    for name, group in GROUPS:
        stop = start + len(group)
        if start:
            panel.axhline(start - 0.5, color="white", linewidth=1)
            panel.axvline(start - 0.5, color="white", linewidth=1)
        panel.text((start + stop - 1) / 2, -0.8, name, ha="center", va="bottom", fontsize=6.5)
        start = stop
