"""Figures of attention within and across the proteins of a concatenated window."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Integer
from matplotlib import colormaps
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from proteinlm import figures


def share_figure(
    shares: Float[np.ndarray, "layers H 3"],
    even: Float[np.ndarray, " 3"],
    *,
    num_windows: int,
    causal: bool,
) -> tuple[Figure, np.ndarray]:
    """Draw how each head divides residues' attention over own protein, other proteins and special tokens.

    Args:
        shares: [layers, H, 3]; NaN (a head that gives nothing) is drawn grey.
        even: [3], the same if attention were even; written above each panel.
        num_windows: how many windows were summed over, for the title.
        causal: whether only earlier proteins are seen, for the title.

    Returns:
        The Figure, and its three Axes.
    """
    num_layers, num_heads, _ = shares.shape
    cmap = colormaps[figures.SEQUENTIAL].with_extremes(bad=figures.HIDDEN)
    width = min(figures.PAGE, max(4.8, 3 * 0.3 * num_heads + 1.6))
    with figures.style():
        figure = Figure(figsize=(width, max(min(0.3 * num_layers, 6), 0.9) + 1.6))
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        image = None
        names = ("own protein", "earlier proteins" if causal else "other proteins", "special tokens")
        for panel, name, share, alone in zip(axes, names, np.moveaxis(shares, -1, 0), even, strict=True):
            image = panel.imshow(np.ma.masked_invalid(100 * share), cmap=cmap, vmin=0, vmax=100, aspect="auto")
            if num_heads <= 8:
                for (row, column), value in np.ndenumerate(100 * share):
                    text = "–" if np.isnan(value) else f"{value:.0f}"
                    colour = "white" if value < 60 else "black"
                    panel.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)
            panel.set_title(f"{name}\n(even attention: {100 * alone:.1f} %)", fontsize=8)
            panel.set_xlabel("head")
            panel.tick_params(length=0)
        axes[0].set_ylabel("layer")
        axes[0].set_yticks(range(0, num_layers, max(1, num_layers // 12)))
        axes[0].set_xticks(range(0, num_heads, max(1, num_heads // 8)))
        assert image is not None
        bar = figure.colorbar(image, ax=axes, location="bottom", aspect=50, shrink=0.6, pad=0.04)
        bar.set_label("share of residues' attention (%)")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        plural = "" if num_windows == 1 else "s"
        figure.suptitle(f"Where attention goes in {num_windows} window{plural} of several proteins", fontsize=9)
    return figure, axes


def score_figure(
    scores: Float[np.ndarray, "P P"],
    control: Float[np.ndarray, "Q Q"],
    *,
    lengths: Integer[np.ndarray, " P"],
    control_lengths: Integer[np.ndarray, " Q"],
    name: str,
    null: str,
    causal: bool,
    labels: Sequence[str] | None = None,
) -> tuple[Figure, np.ndarray]:
    """Draw the scores of the pairs of proteins of one window beside those of its control.

    The middle of the scale is 1, where attention is what the control has at the same distances, and it runs by factors:
    twice and half are equally far from it. Both matrices share it; it spans all values drawn. Few proteins have their
    scores printed as well.

    Args:
        scores, control: from `interactions.pair_scores`, averaged over heads; NaN is drawn grey.
        lengths, control_lengths: residues of each protein, written beside the rows.
        name: the window, for the title.
        null: what the control shuffles, for the title of its panel.
        causal: whether only earlier proteins are seen; the caption says so.
        labels: of the proteins of the window; None counts from 1.

    Returns:
        The Figure, and its two Axes.
    """
    cmap = colormaps[figures.SEQUENTIAL].with_extremes(bad=figures.HIDDEN)
    # A score of 0 or less (kernels whose weights can be negative) is drawn at the bottom of the scale.
    drawn = [np.log2(np.where(matrix > 2**-6, matrix, np.where(np.isnan(matrix), np.nan, 2**-6)))
             for matrix in (scores, control)]  # fmt: skip
    both = np.concatenate([matrix[~np.isnan(matrix)] for matrix in drawn])
    top = max(float(np.abs(both).max(initial=0)), 0.05)
    with figures.style():
        figure = Figure(figsize=(figures.PAGE, 4.5))
        axes = figure.subplots(1, 2)
        image = None
        titles = ("this window", f"control: {null}")
        own = list(labels) if labels is not None else [str(number + 1) for number in range(len(scores))]
        names = (own, own if labels is None else [str(number + 1) for number in range(len(control))])
        for panel, matrix, sizes, title, label in zip(
            axes, drawn, (lengths, control_lengths), titles, names, strict=True
        ):
            image = panel.imshow(np.ma.masked_invalid(matrix), cmap=cmap, norm=Normalize(-top, top))
            number = len(matrix)
            if number <= 8:
                for (row, column), value in np.ndenumerate(matrix):
                    colour = "white" if value < 0.2 * top else "black"
                    text = "" if np.isnan(value) else f"{2**value:.2f}"
                    panel.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
            step = max(1, -(-number // 16))
            ticks = range(0, number, step)
            beside = [label[i] if i < len(label) else str(i + 1) for i in ticks]
            panel.set_xticks(ticks, beside)
            panel.set_yticks(ticks, [f"{text} ({sizes[i]})" for i, text in zip(ticks, beside, strict=True)])
            panel.set_title(title, fontsize=8)
            panel.tick_params(length=0)
            panel.spines[:].set(visible=True, linewidth=0.4)
            panel.set_xlabel("protein attended to, by its place in the window")
        axes[0].set_ylabel("attending protein (residues)")
        assert image is not None
        bar = figure.colorbar(image, ax=axes, location="bottom", aspect=50, shrink=0.6, pad=0.03)
        ticks = np.linspace(-top, top, 5)
        bar.set_ticks(list(ticks), labels=[f"{2**tick:.2f}" for tick in ticks])
        bar.ax.axvline(0, color="white", linewidth=1.5)
        bar.set_label("attention over that of the control at the same distances (1: the same)")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        grey = "grey: not scored" + (
            "; a causal model sees only earlier proteins, so that half of the pairs is not there" if causal else ""
        )
        figure.suptitle(f"Attention across the proteins of {name}, mean over heads\n({grey})", fontsize=9)
    return figure, axes
