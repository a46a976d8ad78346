"""Figures of attention within and across the proteins of a concatenated window."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Integer
from matplotlib import colormaps
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from proteinlm.output import figures


def share_figure(
    shares: Float[np.ndarray, "layers H 3"],
    even: Float[np.ndarray, " 3"],
    *,
    num_windows: int,
    causal: bool,
) -> tuple[Figure, np.ndarray]:
    """Draw the shares of residues' attention to their own protein, to other proteins and to special tokens, by head.

    Args:
        shares: [layers, H, 3], from `measure.shares`; NaN is grey.
        even: [3], the shares of even attention, written above each panel.
        num_windows: number of windows, for the title.
        causal: whether residues see only earlier proteins, for the title.

    Returns:
        The Figure and its three Axes.
    """
    num_layers, num_heads, _ = shares.shape
    cmap = colormaps[figures.SEQUENTIAL].with_extremes(bad=figures.HIDDEN)
    width = min(figures.PAGE, max(4.8, 3 * 0.3 * num_heads + 1.6))
    with figures.style():
        figure = Figure(figsize=(width, max(min(0.3 * num_layers, 6), 0.9) + 1.6))
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        image = None
        names = ("own protein", "earlier proteins" if causal else "other proteins", "special tokens")
        for panel, name, share, even_share in zip(axes, names, np.moveaxis(shares, -1, 0), even, strict=True):
            image = panel.imshow(np.ma.masked_invalid(100 * share), cmap=cmap, vmin=0, vmax=100, aspect="auto")
            if num_heads <= 8:
                for (row, column), value in np.ndenumerate(100 * share):
                    text = "–" if np.isnan(value) else f"{value:.0f}"
                    colour = "white" if value < 60 else "black"
                    panel.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)
            panel.set_title(f"{name}\n(even attention: {100 * even_share:.1f} %)", fontsize=8)
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
    same_pairs: bool,
    causal: bool,
    labels: Sequence[str] | None = None,
) -> tuple[Figure, np.ndarray]:
    """Draw the scores of the pairs of proteins of one window above their control, beside a draw of the control.

    Both matrices are in standard deviations. Their common scale is centred on 0 and reaches at least 3, so that values
    by chance look faint. For up to 8 proteins the numbers are printed.

    Args:
        scores: t of each pair (interactions.py); NaN is grey.
        control: the same for one draw of the control.
        lengths, control_lengths: number of residues of each protein, written beside the rows.
        name: name of the window, for the title.
        null: the shuffle of the control, for the title of its panel.
        same_pairs: whether the control has the same pairs, and each pair is compared with its own control (otherwise
            all are compared with all); for the label.
        causal: whether residues see only earlier proteins, for the caption.
        labels: names of the window's proteins, beside its rows; None means only their numbers from 1.

    Returns:
        The Figure and its two Axes.
    """
    cmap = colormaps[figures.SEQUENTIAL].with_extremes(bad=figures.HIDDEN)
    both = np.concatenate([matrix[~np.isnan(matrix)] for matrix in (scores, control)])
    top = max(float(np.abs(both).max(initial=0)), 3.0)
    with figures.style():
        figure = Figure(figsize=(figures.PAGE, 4.3 if labels else 4.7))
        axes = figure.subplots(1, 2)
        image = None
        panels = (
            (scores, lengths, "this window\n", labels),
            (control, control_lengths, f"one draw of the control:\n{null}", None),
        )
        for panel, (matrix, sizes, title, names) in zip(axes, panels, strict=True):
            image = panel.imshow(np.ma.masked_invalid(matrix), cmap=cmap, norm=Normalize(-top, top))
            number = len(matrix)
            if number <= 8:
                for (row, column), value in np.ndenumerate(matrix):
                    colour = "white" if value < 0.2 * top else "black"
                    text = "" if np.isnan(value) else f"{round(float(value), 1) + 0.0:+.1f}"
                    panel.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
            ticks = range(0, number, max(1, -(-number // 16)))
            panel.set_xticks(ticks, [str(i + 1) for i in ticks])
            # Names are beside the rows only; columns have numbers.
            rows = [f"{i + 1}" + (f" {_short(names[i])}" if names else "") + f" ({sizes[i]})" for i in ticks]
            panel.set_yticks(ticks, rows, parse_math=False)
            panel.set_title(title, fontsize=8)
            panel.tick_params(length=0)
            panel.spines[:].set(visible=True, linewidth=0.4)
            panel.set_xlabel("protein attended to" if causal else "other protein of the pair")
        subject = "attending protein" if causal else "protein"
        axes[0].set_ylabel(f"{subject}, by its place in the window (residues)")
        assert image is not None
        bar = figure.colorbar(image, ax=axes, location="bottom", aspect=50, shrink=0.6, pad=0.03)
        bar.ax.axvline(0, color="white", linewidth=1.5)
        against = "the pair's own control" if same_pairs else "the mean of the control's pairs"
        bar.set_label(f"score above {against} (standard deviations; 0: the same)")
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        note = "a causal model sees only earlier proteins" if causal else "both directions averaged"
        # The empty line separates the title from those of the panels.
        figure.suptitle(
            f"Attention across the proteins of {name}, mean over heads\n(grey: not scored; {note})\n", fontsize=9
        )
    return figure, axes


def _short(name, most=18):
    """Return a name shortened to leave room for the matrix; the full name is in the summary."""
    name = str(name)
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2 - 1) :]}"
