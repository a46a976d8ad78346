"""Figures of the contents of a dataset: amino acids coloured by class, lengths, families.

Each function takes the statistics of the splits and returns a Figure in the style of proteinlm/output/figures.py.
"""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from proteinlm import alphabet
from proteinlm.data.dataset.statistics import PUBLISHED, SplitStatistics
from proteinlm.output.figures import PAGE, PALETTE, style

CLASSES = {
    "aliphatic": ("AGILPV", "#BBBBBB"),
    "acidic": ("DE", PALETTE[1]),
    "small hydroxy": ("ST", PALETTE[2]),
    "basic": ("HKR", PALETTE[0]),
    "aromatic": ("FWY", PALETTE[6]),
    "amide": ("NQ", PALETTE[5]),
    "sulfur": ("CM", PALETTE[7]),
}
"""Classes of amino acids on UniProt's statistics pages, as in figure 9 of the Performer paper: letters and colour."""

_LINES = ("-", "--", "-.", (0, (1, 1)))


def amino_acid_figure(statistics: Mapping[str, SplitStatistics]) -> Figure:
    """Draw the frequency of each amino acid in all splits together (figure 9 of the Performer paper).

    Bars are sorted from the most to the least frequent of the 20 and coloured by class. The last bar is B, Z, X, O and
    U together. Markers show the published frequencies.
    """
    counts = sum((s.residues for s in statistics.values()), np.zeros(alphabet.NUM_RESIDUES, np.int64))
    shares = 100 * counts / max(1, counts.sum())
    standard = shares[: alphabet.NUM_STANDARD]
    order = np.argsort(-standard, kind="stable")
    letters = [alphabet.STANDARD_RESIDUES[i] for i in order]
    colours = {letter: colour for members, colour in CLASSES.values() for letter in members}
    edge = {"edgecolor": "0.15", "linewidth": 0.5}
    with style():
        figure = Figure(figsize=(PAGE, 2.9))
        axes = figure.subplots()
        axes.bar(range(len(order)), standard[order], width=0.8, color=[colours[x] for x in letters], **edge)
        # This bar is too low to be seen; its distance to the others leaves room for its number.
        rest, place = shares[alphabet.NUM_STANDARD :].sum(), len(order) + 0.4
        axes.bar(place, rest, width=0.8, color="white", hatch="////", **edge)
        axes.annotate(
            f"{rest:.2g} %", (place, rest), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=6
        )
        for (name, published), marker, offset in zip(PUBLISHED.items(), "vD", (-0.17, 0.17), strict=True):
            places = np.arange(len(order)) + offset
            axes.plot(
                places, [published[x] for x in letters], marker, markersize=3.6, markerfacecolor="white",
                markeredgecolor="black", markeredgewidth=0.8, label=name,
            )  # fmt: skip
        axes.set_xticks([*range(len(order)), place], [*letters, "others"])
        axes.set_xlim(-0.7, place + 0.7)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("Share of residues (%)")
        axes.set_xlabel("Amino acid")
        patches = [
            Patch(facecolor=colour, label=f"{name} ({' '.join(members)})", **edge)
            for name, (members, colour) in CLASSES.items()
        ]
        patches.append(Patch(facecolor="white", hatch="////", label="others (B Z X O U)", **edge))
        axes.add_artist(axes.legend(handles=patches, loc="upper right", ncols=2, bbox_to_anchor=(0.8, 1.02)))
        axes.legend(loc="upper right", bbox_to_anchor=(1.0, 1.02), title="as published", title_fontsize=7)
    return figure


def length_figure(statistics: Mapping[str, SplitStatistics]) -> Figure:
    """Draw the distribution of the lengths in each split, in bins of a third of a doubling."""
    filled = _filled(statistics)
    shortest = min((min(s.lengths) for s in filled.values()), default=1)
    longest = max((max(s.lengths) for s in filled.values()), default=1)
    # Below 8, a third of a doubling is less than one residue, so some edges coincide.
    edges = np.unique(np.round(2 ** np.arange(0, np.log2(longest + 1) + 1 / 3, 1 / 3)).astype(np.int64))
    edges[-1] = max(edges[-1], longest + 1)
    edges = edges[np.searchsorted(edges, shortest, "right") - 1 :]
    with style():
        figure = Figure(figsize=(PAGE, 2.7))
        axes = figure.subplots()
        for index, (split, s) in enumerate(filled.items()):
            values = np.fromiter(s.lengths.keys(), np.int64, len(s.lengths))
            counts = np.fromiter(s.lengths.values(), np.int64, len(s.lengths))
            shares = np.histogram(values, edges, weights=counts)[0] / counts.sum()
            row = s.row()
            axes.stairs(
                100 * shares, edges, color=PALETTE[index % len(PALETTE)],
                linestyle=_LINES[index % len(_LINES)], linewidth=1.4,
                label=f"{split}: {row['count']:,} sequences, median {row['median']:,.10g}",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("Length (residues)")
        axes.set_ylabel("Share of sequences (%)")
        _legend(axes)
    return figure


def family_figure(statistics: Mapping[str, SplitStatistics]) -> Figure:
    """Draw, for each split, the fraction of its sequences that have a family, and the sizes of its families."""
    filled = _filled(statistics)
    with style():
        figure = Figure(figsize=(PAGE, 2.5))
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
        for index, (split, s) in enumerate(filled.items()):
            colour = PALETTE[index % len(PALETTE)]
            share = 100 * s.with_families / s.count
            left.barh(index, 100, color="0.93")
            left.barh(index, share, color=colour)
            left.annotate(
                f"{share:.0f} %, {len(s.families):,} families", (2, index), va="center", fontsize=7,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.9},
            )  # fmt: skip
            sizes = sorted(s.families.values(), reverse=True)
            if sizes:
                right.plot(
                    range(1, len(sizes) + 1), sizes, color=colour, linestyle=_LINES[index % len(_LINES)],
                    marker="o", markersize=2.5, markevery=[0], label=split,
                )  # fmt: skip
        left.set_yticks(range(len(filled)), list(filled))
        left.invert_yaxis()
        left.set_xlim(0, 100)
        left.set_xlabel("Sequences that have a family (%)")
        right.set_xscale("log")
        right.set_yscale("log")
        for axis in (right.xaxis, right.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        right.set_xlabel("Rank of the family by size")
        right.set_ylabel("Sequences of the family")
        _legend(right)
    return figure


def _filled(statistics: Mapping[str, SplitStatistics]) -> dict[str, SplitStatistics]:
    return {split: s for split, s in statistics.items() if s.count}


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
