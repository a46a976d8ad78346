import matplotlib
import matplotlib.figure
import numpy as np
from PIL import Image

from proteinlm.figures import COLUMN, PALETTE, save_figure, style


def drawn():
    with style():
        figure = matplotlib.figure.Figure(figsize=(COLUMN, 2))
        axes = figure.subplots()
        for i in range(3):
            axes.plot([0, 1], [i, i])
        return figure


def test_both_kinds_are_written_whole_and_alike_each_time(tmp_path):
    png, pdf = save_figure(drawn(), tmp_path / "deep" / "fig.v1")
    assert png.name == "fig.v1.png"
    assert pdf.name == "fig.v1.pdf"
    assert sorted(p.name for p in png.parent.iterdir()) == ["fig.v1.pdf", "fig.v1.png"]
    with Image.open(png) as image:
        assert image.size[0] == COLUMN * 200
    first = png.read_bytes(), pdf.read_bytes()
    save_figure(drawn(), tmp_path / "deep" / "fig.v1")
    assert (png.read_bytes(), pdf.read_bytes()) == first
    # Type 42 fonts: the letters of a PDF stay letters.
    assert b"/Type3" not in pdf.read_bytes()


def test_the_style_ends_with_the_block():
    before = matplotlib.rcParams["font.size"]
    with style():
        assert matplotlib.rcParams["font.size"] == 8
    assert matplotlib.rcParams["font.size"] == before


def test_the_first_colours_differ_in_greyscale():
    grey = [np.dot(matplotlib.colors.to_rgb(c), (0.2126, 0.7152, 0.0722)) for c in PALETTE[:3]]
    assert min(abs(a - b) for i, a in enumerate(grey) for b in grey[:i]) > 0.02
