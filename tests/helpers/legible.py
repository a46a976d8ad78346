"""Checks of figures: texts lie inside the image and do not overlap; PNG and PDF files are complete."""

import itertools
from unittest import mock

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def drawn_texts(figure) -> list[tuple[str, Bbox]]:
    """Draw the figure and return (text, extent in dots) of every text that was drawn."""
    canvas, drawn, draw = FigureCanvasAgg(figure), [], Text.draw

    def record(text, renderer):
        if text.get_visible() and text.get_text().strip():
            drawn.append(text)
        draw(text, renderer)

    with mock.patch.object(Text, "draw", record):
        canvas.draw()
    return [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in drawn]


def check_legible(figure) -> list[str]:
    """Assert that all texts lie inside the figure, and that no two share more than a dot; return them."""
    figure.set_dpi(200)
    texts = drawn_texts(figure)
    assert texts
    edge = figure.bbox
    for text, box in texts:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= edge.x1 + 1 and box.y1 <= edge.y1 + 1
        assert inside, f"{text!r} at {box} reaches beyond {edge}"
    for (one, a), (other, b) in itertools.combinations(texts, 2):
        width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert width <= 1.5 or height <= 1.5, f"{one!r} lies over {other!r}: {a}, {b}"
    return [text for text, _ in texts]


def assert_png_and_pdf(stem):
    """Assert that STEM.png and STEM.pdf are files of these formats, without partial files beside them."""
    assert stem.with_suffix(".png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert stem.with_suffix(".pdf").read_bytes()[:5] == b"%PDF-"
    assert not [path for path in stem.parent.iterdir() if path.name.endswith(".partial")]
