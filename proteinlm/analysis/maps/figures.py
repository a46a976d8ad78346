"""Figures of attention matrices (Performer paper, figures 10 to 12). Each function returns the Figure and its Axes.

The lightness of the colour scale (viridis) rises monotonically, so that it can be read in greyscale and with any colour
vision. Colour bars state the quantity and where the scale is cut.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from proteinlm.output import figures

LETTERED = 160
"""Largest number of residues whose letters fit along the side of a panel."""

MOST_ROWS = 3
"""Largest number of staggered rows of letters."""

PAGE_HEIGHT = 9.0
SIDE_ROOM = 0.65
"""Space in inches beside a panel with letters, for its labels and numbers."""


def attention_figure(
    maps: Float[np.ndarray, "layers H L L"],
    *,
    name: str,
    causal: bool,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    num_residues: int | None = None,
    note: str = "",
) -> tuple[Figure, np.ndarray]:
    """Draw attention matrices, a row for each layer and a column for each head (Performer paper, figure 10).

    All panels share one colour scale. It is proportional to the square root of the weight, so that diffuse heads are
    visible beside sharp ones, and ends at the 99.5th percentile of the weights drawn. If weights are negative, the
    scale is linear and its label states the ends.

    Args:
        maps: attention weights [layers, heads, query, key] of residues.
        name: name of the protein, for the title.
        causal: whether later residues are hidden; they are drawn grey instead of as zero.
        layers, heads: the numbers beside the panels; None counts from 0.
        num_residues: number of residues of the protein, where the maps are means over cells of residues
            (`ProteinProbe.pooled`); None if a cell is a residue.
        note: second line of the title, about the sums of rows.

    Returns:
        The Figure, and its Axes as an array [layers, heads].
    """
    num_layers, num_heads, cells, _ = maps.shape
    length = num_residues or cells
    layers = range(num_layers) if layers is None else layers
    heads = range(num_heads) if heads is None else heads
    visible = _visible(cells, causal)
    norm, label, extend = _weight_scale(maps[:, :, visible])
    with figures.style():
        hidden = " (grey: later residues, hidden from a causal model)" if causal else ""
        across = _width(num_heads)
        title = figures.wrapped(_title(name, length, cells, note), across - 0.2, 9)
        label = figures.wrapped(label, across - 1.0, 8)
        below = figures.wrapped(f"residue attended to, by position{hidden}", across - 0.2, 8)
        room = figures.line_heights(title, 9) + figures.line_heights(label, 8) + figures.line_heights(below, 8)
        figure, axes = _panels(num_layers, num_heads, room)
        image = None
        for row, layer in enumerate(layers):
            for column, head in enumerate(heads):
                panel = axes[row, column]
                image = _draw_map(panel, maps[row, column], visible, norm, length)
                panel.set_xticks(_position_ticks(length))
                panel.set_yticks(_position_ticks(length))
                panel.tick_params(length=2, pad=1.5, width=0.4)
                panel.label_outer()
                if row == 0:
                    panel.set_title(f"head {head}")
                if column == 0:
                    panel.set_ylabel(f"layer {layer}", fontsize=9)
        assert image is not None
        shrink = 0.7 if num_heads > 2 else 1.0
        _colour_bar(figure, image, axes, label, location="top", extend=extend, aspect=60, shrink=shrink)
        figure.suptitle(title, fontsize=9)
        figure.supxlabel(below, fontsize=8)
        figure.supylabel("attending residue, by position", fontsize=8)
    return figure, axes


def _title(name, length, cells, note):
    title = f"Attention of {name}, {length:,} residue{'' if length == 1 else 's'}"
    if cells < length:
        title += f" (means over cells of {-(-length // cells)} × {-(-length // cells)})"
    return f"{title}\n{note}" if note else title


def _visible(cells, causal):
    return np.tri(cells, dtype=bool) if causal else np.ones((cells, cells), bool)


def _draw_map(panel, weights, visible, norm, length):
    """Draw one matrix, with residues counted from 1."""
    image = panel.imshow(
        np.ma.masked_where(~visible, weights),
        cmap=colormaps[figures.SEQUENTIAL].with_extremes(bad=figures.HIDDEN), norm=norm,
        interpolation="antialiased", interpolation_stage="data",
        extent=(0.5, length + 0.5, length + 0.5, 0.5), rasterized=True,
    )  # fmt: skip
    # The margin keeps the frame off the first and last residues.
    panel.set_xlim(0.5 - 0.015 * length, length + 0.5 + 0.015 * length)
    panel.set_ylim(length + 0.5 + 0.015 * length, 0.5 - 0.015 * length)
    panel.spines[:].set(visible=True, linewidth=0.4)
    return image


def heads_figure(
    maps: Float[np.ndarray, "N L L"],
    letters: str,
    *,
    name: str,
    causal: bool,
    labels: Sequence[str],
    note: str = "",
) -> tuple[Figure, np.ndarray]:
    """Draw some heads large, with the residues' letters along both sides (Performer paper, figure 11).

    Each head has its own colour scale, made as in `attention_figure`. The figure fits on a page. Letters are at least 4
    points large; those of longer proteins are in two or three staggered rows. The other two sides number every tenth or
    twentieth residue. With more than LETTERED residues there are numbers and no letters.

    Args:
        maps: attention weights [head, query, key] of residues, or means over cells of residues.
        letters: the residues, one letter each.
        name: name of the protein, for the title.
        causal: whether later residues are hidden; they are drawn grey.
        labels: the text above each head.
        note: second line of the title, about the sums of rows.

    Returns:
        The Figure, and its Axes as an array [N].
    """
    number, cells, _ = maps.shape
    length = len(letters)
    visible = _visible(cells, causal)
    lettered = length <= LETTERED and cells == length
    columns, side = _sides(number, length)
    lettered = length <= LETTERED and cells == length and _letter_rows(side, length) <= MOST_ROWS
    labels = [figures.wrapped(label, side, 8) for label in labels]
    scales = [_weight_scale(weights[visible]) for weights in maps]
    captions = [figures.wrapped(scale, side, 7) for _, scale, _ in scales]
    below = figures.wrapped("residue attended to" + (" (grey: hidden from a causal model)" if causal else ""), side, 8)
    across = max(columns * (side + SIDE_ROOM), 4.0)
    title = figures.wrapped(_title(name, length, cells, note), across - 0.2, 9)
    around = max(figures.line_heights(text, 7.5) for text in labels) + figures.line_heights(below, 8) + 0.65
    around += max(figures.line_heights(text, 7) for text in captions)
    tall = -(-number // columns) * (side + around) + figures.line_heights(title, 9) + 0.15
    with figures.style():
        figure = Figure(figsize=(across, min(tall, PAGE_HEIGHT)))
        grid = figure.subplots(-(-number // columns), columns, squeeze=False)
        axes = grid.ravel()[:number]
        for spare in grid.ravel()[number:]:
            spare.remove()
        for panel, weights, label, caption, (norm, _, extend) in zip(axes, maps, labels, captions, scales, strict=True):
            image = _draw_map(panel, weights, visible, norm, length)
            # Placed explicitly above the numbers: matplotlib finds this position only after the layout.
            panel.set_title(label, fontsize=8, y=1.0, pad=13 if lettered else 5)
            if lettered:
                _letter_axes(panel, letters, side)
            else:
                panel.set_xticks(_position_ticks(length))
                panel.set_yticks(_position_ticks(length))
            panel.set_xlabel(below)
            panel.set_ylabel("attending residue")
            _colour_bar(figure, image, panel, caption, location="bottom", extend=extend, aspect=40, shrink=0.8)
        figure.suptitle(title, fontsize=9)
        # One layout more than drawing does: square panels with much text around them need two.
        layout = figure.get_layout_engine()
        assert layout is not None
        layout.execute(figure)
    return figure, axes


def _sides(number: int, length: int) -> tuple[int, float]:
    """Return the number of columns of panels that fit on a page, and the side of a panel in inches."""
    if number == 1:
        return 1, min(max(0.064 * length, 2.8), figures.PAGE - SIDE_ROOM)
    columns = 2
    while -(-number // columns) * (figures.PAGE / columns - SIDE_ROOM + 1.2) > PAGE_HEIGHT:
        columns += 1
    return columns, figures.PAGE / columns - SIDE_ROOM


def _letter_rows(side: float, length: int) -> int:
    """Return the number of staggered rows in which letters of 4 points do not overlap along a side, in inches."""
    return max(1, math.ceil(4.0 * length / (72 * side)))


def _letter_axes(panel: Axes, letters: str, side: float):
    """Write a letter for each residue below and on the left, and round numbers above and on the right."""
    rows = _letter_rows(side, len(letters))
    points = max(4.0, min(7.0, 0.95 * 72 * side / len(letters)))
    positions = range(1, len(letters) + 1)
    panel.set_xticks(positions, list(letters), fontsize=points)
    panel.set_yticks(positions, list(letters), fontsize=points)
    panel.tick_params(length=0, pad=1)
    for axis in (panel.xaxis, panel.yaxis):
        for index, tick in enumerate(axis.get_major_ticks()):
            tick.set_pad(1 + (index % rows) * points)
    step = 10 if 72 * side * 10 / len(letters) > 16 else 20
    tens = [1, *(position for position in positions if position % step == 0)]
    for other in (panel.secondary_xaxis("top"), panel.secondary_yaxis("right")):
        other.set_ticks(tens)
        other.tick_params(length=2, width=0.4, labelsize=6, pad=1)
        other.spines[:].set_visible(False)


def _colour_bar(figure, image, axes, label, **placed):
    """Draw a colour bar with three or four numbers, so that they do not overlap where the bar is short."""
    bar = figure.colorbar(image, ax=axes, pad=0.02, **placed)
    top = image.norm.vmax
    if isinstance(image.norm, PowerNorm) and top is not None:
        # Evenly spaced on the square-root scale.
        bar.set_ticks([0.0, *(_two_digits(top * share**2) for share in (1 / 3, 2 / 3, 1))])
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
    else:
        bar.locator = MaxNLocator(4)
        bar.update_ticks()
    bar.set_label(label, fontsize=7 if placed["location"] == "bottom" else 8)
    bar.outline.set_visible(False)


def _two_digits(value: float) -> float:
    """Return a positive value rounded down to two digits; a value rounded up would lie beyond the scale."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.floor(value / unit + 1e-9) * unit:.2g}")


def lines_figure(
    maps: Float[np.ndarray, "N T T"],
    letters: str,
    *,
    name: str,
    causal: bool,
    labels: Sequence[str],
    note: str = "",
) -> tuple[Figure, np.ndarray]:
    """Draw the attention among the first residues as lines between two columns (Performer paper, figure 12).

    Weights are those of the whole protein; they are not renormalised over the residues drawn. The opacity of a line is
    its weight divided by the largest weight drawn of this head, which is written below, and its width grows with the
    opacity. Negative weights are dashed and have another colour.

    Args:
        maps: attention weights [head, query, key] of the first T residues.
        letters: the first T residues.
        name: name of the protein, for the title.
        causal: whether the model is causal, for the title: lines then go up or across only.
        labels: the text above each head.
        note: second line of the title, about the sums of rows.

    Returns:
        The Figure, and its Axes as an array [N].
    """
    number, length, _ = maps.shape
    names = [f"{letter} {position}" for position, letter in enumerate(letters, 1)]
    with figures.style():
        width = min(max(figures.COLUMN, 2.4 * number), 2 * figures.PAGE)
        across = max(width, figures.PAGE * 0.6)
        residues = f"{length} residues" if length > 1 else "residue"
        order = ", none to later residues" if causal else ""
        title = f"Attention of the first {residues} of {name}{order}, not renormalised"
        title = figures.wrapped(f"{title}\n{note}" if note else title, across - 0.2, 9)
        figure = Figure(figsize=(across, 0.17 * length + 1.2 + figures.line_heights(title, 9)))
        axes = figure.subplots(1, number, squeeze=False)[0]
        for panel, weights, label in zip(axes, maps, labels, strict=True):
            largest = float(np.abs(weights).max())
            _draw_lines(panel, weights, largest)
            panel.set_ylim(length + 0.5, 0.5)
            panel.set_xlim(0, 1)
            panel.set_yticks(range(1, length + 1), names)
            other = panel.secondary_yaxis("right")
            other.set_ticks(range(1, length + 1), names)
            for side in (panel, other):
                side.spines[:].set_visible(False)
                side.tick_params(length=0, pad=2, labelsize=6.5)
            panel.set_xticks([0, 1], ["attending", "attended to"])
            panel.tick_params(axis="x", pad=4)
            full = f"full opacity: {largest:.2g}" if largest else "all weights are 0"
            inches = across / number - 0.5
            full += " (dashed: negative)" if (weights < 0).any() else ""
            panel.set_xlabel(figures.wrapped(full, inches, 8))
            # In two lines, since panels are narrow.
            panel.set_title(figures.wrapped(label.replace(": ", "\n"), inches, 8), fontsize=8)
        figure.suptitle(title, fontsize=9)
    return figure, axes


def _draw_lines(panel, weights, largest):
    queries, keys = np.nonzero(weights)
    # The strongest lines are drawn last, on top.
    order = np.argsort(np.abs(weights[queries, keys]), kind="stable")
    queries, keys = queries[order], keys[order]
    values = weights[queries, keys]
    for chosen, colour, dashes in (
        (values > 0, figures.PALETTE[0], "solid"),
        (values < 0, figures.PALETTE[1], "dashed"),
    ):
        ends = [[(0, query + 1), (1, key + 1)] for query, key in zip(queries[chosen], keys[chosen], strict=True)]
        opacity = np.minimum(np.abs(values[chosen]) / largest, 1.0) if largest else np.zeros(0)
        colours = [(*to_rgb(colour), value) for value in opacity]
        # Weak lines are thin, so that hundreds of them do not merge.
        widths = 0.25 + opacity
        panel.add_collection(LineCollection(ends, colors=colours, linewidths=widths, linestyles=dashes))


def _weight_scale(weights):
    """Return (norm, label of the colour bar, the ends at which the scale is cut)."""
    low, high = float(weights.min()), float(weights.max())
    if low < -1e-3 * max(high, 0.0):
        bottom, top = (float(limit) for limit in np.percentile(weights, (0.25, 99.75)))
        label = f"attention weight, cut at {bottom:.2g} and {top:.2g} (extremes {low:.2g}, {high:.2g})"
        return Normalize(bottom, top), label, "both"
    top = float(np.percentile(weights, 99.5))
    # No cut at the percentile if the few weights above it carry most of the attention.
    top = high if weights[weights > top].sum() > 0.5 * weights.sum() else top
    if top <= 0:
        return Normalize(0, 1), "attention weight (all are 0)", "neither"
    if top >= high:
        return PowerNorm(0.5, 0, high), "attention weight (square-root scale)", "neither"
    label = f"attention weight (square-root scale, cut at the 99.5th percentile, {top:.2g}; largest {high:.2g})"
    return PowerNorm(0.5, 0, top), label, "max"


def _side(columns):
    """Return the side of a panel in inches: a page fits eight panels, and none is wider than a quarter of a page."""
    return min((figures.PAGE - 0.8) / columns, figures.PAGE / 4)


def _width(columns):
    return max(_side(columns) * columns + 0.8, figures.PAGE / 2 + 0.8)


def _panels(rows, columns, room):
    """Return the figure and its axes; `room` is the height in inches of the text above and below."""
    size = (_width(columns), _side(columns) * rows + 1.2 + room)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.025, wspace=0.01, hspace=0.01)
    figure = Figure(figsize=size, layout=layout)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    return figure, axes


def _position_ticks(length):
    """Return 1 and about two round positions, as many as fit in a small panel."""
    step = next(step for step in (1, 2, 5, *(m * 10**e for e in range(1, 9) for m in (1, 2, 5))) if 2.5 * step > length)
    return [1, *(position for position in range(step, length + 1, step) if position > max(1, 0.3 * length))]
