"""A figure of amino-acid similarity beside a substitution matrix."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from proteinlm.alphabet import STANDARD_RESIDUES
from proteinlm.output import figures

CENTRED = "cividis"

GROUPS = (
    ("aliphatic", "ILVMA"),
    ("aromatic", "FWY"),
    ("polar", "STNQ"),
    ("acidic", "DE"),
    ("basic", "KRH"),
    ("other", "CGP"),
)
"""The 20 amino acids by class, in the order of the axes of a similarity matrix."""


def similarity_figure(
    reference: Float[np.ndarray, "a a"],
    similarity: Float[np.ndarray, "a a"],
    *,
    reference_label: str,
    similarity_label: str,
    title: str | None = None,
    order: Sequence[int] | None = None,
) -> tuple[Figure, np.ndarray]:
    """Draw a substitution matrix and a model's amino-acid similarity side by side (Performer paper, figure 13).

    Both matrices have the same order: by class, with lines between the classes, or the order given, with a mark above
    each amino acid for its class. Each scale is centred on 0 and ends at the matrix's largest absolute value off the
    diagonal. The diagonal, 1 by definition, is white. The colours (cividis) go from dark blue through grey at 0 to
    yellow: they diverge in hue while their lightness rises. The two ends of the usual diverging maps look the same in
    greyscale.

    Args:
        reference, similarity: [20, 20] in the order of alphabet.STANDARD_RESIDUES; NaN is white.
        reference_label, similarity_label: labels of the two colour bars.
        title: title of the figure.
        order: indices of all 20 amino acids in STANDARD_RESIDUES (`clustering.clustered_order`); None means by class.

    Returns:
        The Figure and its two Axes.
    """
    by_class = order is None
    order = [STANDARD_RESIDUES.index(letter) for _, group in GROUPS for letter in group] if order is None else order
    letters = [STANDARD_RESIDUES[index] for index in order]
    cmap = colormaps[CENTRED].with_extremes(bad="white")
    with figures.style():
        figure = Figure(figsize=(figures.PAGE, 4.0))
        axes = figure.subplots(1, 2)
        for panel, matrix, label in zip(
            axes, (reference, similarity), (reference_label, similarity_label), strict=True
        ):
            values = np.array(matrix, np.float64)[np.ix_(order, order)]
            np.fill_diagonal(values, np.nan)
            shown = np.ma.masked_invalid(values)
            # A matrix without values, or of zeros, has no scale.
            limit = float(np.ma.abs(shown).max()) if shown.count() else 0.0
            limit = limit or 1.0
            image = panel.imshow(shown, cmap=cmap, vmin=-limit, vmax=limit)
            panel.set_xticks(range(len(letters)), letters)
            panel.set_yticks(range(len(letters)), letters)
            panel.spines[["top", "right"]].set_visible(True)
            panel.tick_params(length=0, pad=2)
            if by_class:
                _draw_groups(panel)
            else:
                _mark_classes(panel, letters)
            bar = figure.colorbar(
                image,
                ax=panel,
                location="bottom",
                aspect=30,
                fraction=0.05,
                pad=0.02,
                shrink=0.8,
                label=figures.wrapped(label, figures.PAGE / 2 - 0.3, 8),
            )
            bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        if title:
            figure.suptitle(figures.wrapped(title, figures.PAGE - 0.2, 9), fontsize=9)
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


MARKS = ("o", "^", "s", "v", "P", "x")
"""A marker for each of GROUPS, so that classes can be distinguished in greyscale."""


def _mark_classes(panel: Axes, letters: Sequence[str]):
    """Mark each column with the class of its amino acid, with a legend above."""
    for (name, group), mark, colour in zip(GROUPS, MARKS, figures.PALETTE, strict=False):
        columns = [column for column, letter in enumerate(letters) if letter in group]
        panel.plot(
            columns,
            [-1.1] * len(columns),
            mark,
            color=colour,
            markersize=3.5,
            clip_on=False,
            linestyle="none",
            label=name,
        )
    panel.set_ylim(len(letters) - 0.5, -0.5)
    panel.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.05), ncols=3, fontsize=6.5, handletextpad=0.1, columnspacing=1.0
    )
