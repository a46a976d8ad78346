"""Whether what a figure says can be read: no text reaches beyond the image, and none lies over another."""

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
