import matplotlib
import matplotlib.figure
import numpy as np
from PIL import Image

from proteinlm.output.figures import COLUMN, PALETTE, save_figure, split_look, style, text_width, wrapped


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


def test_text_is_broken_between_words_to_fit():
    text = "Attention of A0A1B2C3D4, 40 residues, of a model\nand a second line that is long as well"
    for inches in (1.0, 2.0, 3.5):
        lines = wrapped(text, inches, 9).split("\n")
        assert max(text_width(line, 9) for line in lines) <= inches
        assert " ".join(lines) == text.replace("\n", " ")
    assert wrapped(text, 99, 9) == text
    # A word that is wider is broken: a FASTA header may be one.
    lines = wrapped("one_long_word_" * 20 + " short", 1.5, 9).split("\n")
    assert max(text_width(line, 9) for line in lines) <= 1.5
    assert "".join(lines) == "one_long_word_" * 20 + " short"
    assert wrapped("ab", 0.0, 9) == "a\nb"


def test_every_split_has_a_look_of_its_own():
    looks = [split_look(name) for name in ("train", "valid", "test", "ood", "else")]
    assert len({colour for colour, _ in looks}) == len({marker for _, marker in looks}) == 5
