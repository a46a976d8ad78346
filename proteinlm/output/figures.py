"""Style of the figures, and how they are saved: colour-blind safe, readable in one column and in greyscale."""

import os
from pathlib import Path
from typing import Any

import cycler
import matplotlib
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

# Okabe and Ito's eight colours, which differ for all kinds of colour vision. Blue and vermillion are first, since they
# differ in greyscale too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
SEQUENTIAL = "viridis"
DIVERGING = "RdBu_r"
# Light grey, for cells without a value.
HIDDEN = "0.82"

# Colour and marker of each split, the same in every figure.
SPLIT_LOOKS = {
    "test": (PALETTE[0], "o"),
    "ood": (PALETTE[1], "s"),
    "valid": (PALETTE[2], "D"),
    "train": (PALETTE[3], "^"),
}

# Widths in inches of one and two columns of a journal page.
COLUMN = 3.5
PAGE = 7.2

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler.cycler(color=PALETTE[:7]),
    "lines.linewidth": 1.4,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    # Text in a PDF stays text, so that it can be edited.
    "pdf.fonttype": 42,
}


def style():
    """Return a context manager in which matplotlib draws in the style of this project."""
    return matplotlib.rc_context(STYLE)


def split_look(split: str) -> tuple[str, str]:
    """Return (colour, marker) of a split; black crosses for a name that is not in SPLIT_LOOKS."""
    return SPLIT_LOOKS.get(split, (PALETTE[6], "X"))


def text_width(text: str, points: float) -> float:
    """Return the width in inches of one line of text in this font size."""
    return TextToPath().get_text_width_height_descent(text, FontProperties(size=points), ismath=False)[0] / 72


def wrapped(text: str, inches: float, points: float) -> str:
    """Break text between words, and longer words within, so that no line is wider than `inches`.

    Line breaks of the text are kept. Letters with hinting on a screen are up to 4 % wider than measured here.
    """

    def fits(line: str) -> bool:
        return 1.04 * text_width(line, points) <= inches

    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if line and not fits(longer):
                lines.append(line)
                longer = word
            while not fits(longer) and len(longer) > 1:
                first = next(n for n in range(len(longer) - 1, 0, -1) if n == 1 or fits(longer[:n]))
                lines.append(longer[:first])
                longer = longer[first:]
            line = longer
        lines.append(line)
    return "\n".join(lines)


def line_heights(text: str, points: float) -> float:
    """Return the height in inches of the lines of a text."""
    return 1.25 * points / 72 * (1 + text.count("\n"))


def save_figure(figure, stem: str | os.PathLike) -> tuple[Path, Path]:
    """Write STEM.png and STEM.pdf and return both paths; a file appears only when it is complete."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in ("png", "pdf"):
        path = stem.with_name(f"{stem.name}.{kind}")
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            # Without a date, the same figure has the same bytes in every run.
            metadata = {"CreationDate": None} if kind == "pdf" else {}
            with style():
                figure.savefig(partial, format=kind, metadata=metadata)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        paths.append(path)
    return paths[0], paths[1]
