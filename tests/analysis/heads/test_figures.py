import numpy as np
import pytest
from legible import check_legible
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from proteinlm.analysis.heads.figures import COLOURS, kinds_figure
from proteinlm.analysis.heads.kinds import KINDS


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def test_a_cell_says_its_kind_strength_and_detail():
    kinds = np.array([["diagonal", "vertical"], ["diffuse", "none"]])
    strengths = np.array([[0.62, 0.3], [np.nan, np.nan]])
    details = np.array([["-1", "<bos>"], ["", ""]])
    figure, axes = kinds_figure(kinds, strengths, details, title="Kinds")
    said = texts(figure)
    for part in ("D: −1", "0.62", "V: <bos>", "0.30", "–", "Kinds", "layer", "D  diagonal: 1", "no weights: 1"):
        assert part in said
    drawn = axes.images[0].get_array()
    assert drawn.shape == (2, 2, 3)
    np.testing.assert_allclose(drawn[0, 1], to_rgb(COLOURS["vertical"]))


def test_kinds_differ_in_greyscale_and_each_has_a_colour():
    assert set(COLOURS) == {*KINDS, "none"}
    grey = sorted(np.dot(to_rgb(colour), (0.2126, 0.7152, 0.0722)) for colour in COLOURS.values())
    assert np.diff(grey).min() > 0.04


@pytest.mark.parametrize("shape", [(1, 1), (3, 4), pytest.param((36, 8), marks=pytest.mark.slow), (2, 24)])
def test_every_shape_of_model(tmp_path, shape):
    rng = np.random.default_rng(0)
    title = "Kinds of heads over 1,000 proteins\n(beside D: its offset; beside V: the position or amino acid looked at)"
    figure, axes = kinds_figure(rng.choice(KINDS, shape), rng.uniform(size=shape), np.full(shape, "<bos>"), title=title)
    check_legible(figure)
    figure.savefig(tmp_path / "figure.png")
    assert 0 < axes.get_position().width <= 1
    # No cell is narrower than what is written in it.
    renderer = FigureCanvasAgg(figure).get_renderer()
    cell = axes.get_window_extent(renderer).width / shape[1]
    assert max(text.get_window_extent(renderer).width for text in axes.texts) <= cell
