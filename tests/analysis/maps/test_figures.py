import itertools

import numpy as np
import pytest
from legible import check_legible
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize, PowerNorm
from sweeps import sweep

from proteinlm.analysis.maps import figures as map_figures


def attention(layers=2, heads=3, length=30, seed=0):
    weights = np.random.default_rng(seed).dirichlet(np.full(length, 0.2), size=(layers, heads, length))
    return weights.astype(np.float32)


def texts(figure):
    found = figure.findobj(lambda artist: hasattr(artist, "get_text"))
    return " | ".join(" ".join(text.get_text().split()) for text in found)


def test_a_panel_for_each_layer_and_head_says_which():
    maps = attention()
    figure, axes = map_figures.attention_figure(maps, name="P00974", causal=False, layers=[1, 5], heads=[0, 2, 7])
    assert axes.shape == (2, 3)
    assert [panel.get_title() for panel in axes[0]] == ["head 0", "head 2", "head 7"]
    assert [panel.get_ylabel() for panel in axes[:, 0]] == ["layer 1", "layer 5"]
    for row in range(2):
        for column in range(3):
            np.testing.assert_array_equal(axes[row, column].images[0].get_array(), maps[row, column])
    said = texts(figure)
    for part in (
        "P00974, 30 residues",
        "residue attended to",
        "attending residue",
        "attention weight",
        "99.5th",
    ):
        assert part in said
    # One colour scale for all, so that heads can be compared; and residues counted from 1.
    assert len({id(panel.images[0].norm) for panel in axes.flat}) == 1
    assert axes[0, 0].images[0].get_extent() == [0.5, 30.5, 30.5, 0.5]
    assert axes[0, 0].get_xticks()[0] == 1


def test_the_future_is_grey_in_a_causal_map_and_a_zero_weight_is_not():
    maps = attention() * np.tri(30, dtype=np.float32)
    maps[..., 20, 3] = 0
    figure, axes = map_figures.attention_figure(maps, name="p", causal=True)
    drawn = axes[1, 2].images[0].get_array()
    np.testing.assert_array_equal(drawn.mask, ~np.tri(30, dtype=bool))
    assert drawn[20, 3] == 0
    assert "hidden from a causal model" in texts(figure)
    cmap = axes[0, 0].images[0].get_cmap()
    assert tuple(cmap.get_bad()[:3]) == pytest.approx((0.82,) * 3)


def test_the_scale_is_robust_and_says_so():
    maps = np.full((1, 1, 50, 50), 0.02, np.float32)
    maps[0, 0, 0, 0] = 1
    figure, axes = map_figures.attention_figure(maps, name="p", causal=False)
    norm = axes[0, 0].images[0].norm
    assert isinstance(norm, PowerNorm)
    assert norm.vmax == pytest.approx(0.02)
    assert "0.02; largest 1" in texts(figure)


def test_a_map_of_few_weights_keeps_its_largest():
    # The identity: one weight in a hundred, which a percentile would cut to nothing.
    _, axes = map_figures.attention_figure(np.eye(1000, dtype=np.float32)[None, None], name="p", causal=False)
    assert axes[0, 0].images[0].norm.vmax == 1
    figure, _ = map_figures.attention_figure(np.zeros((1, 1, 9, 9), np.float32), name="p", causal=False)
    assert "all are 0" in texts(figure)


def test_even_attention_of_a_long_causal_model_is_not_hidden_by_its_first_rows():
    """Row i gives 1 / (i + 1) to each: the first weight is 1, a thousand times the median."""
    rows = np.arange(1, 1025, dtype=np.float32)
    maps = np.where(np.tri(1024, dtype=bool), 1 / rows[:, None], 0)[None, None]
    _, axes = map_figures.attention_figure(maps, name="p", causal=True)
    assert axes[0, 0].images[0].norm.vmax < 0.03


def test_negative_weights_get_a_linear_scale_that_shows_them():
    maps = attention() - 0.05
    figure, axes = map_figures.attention_figure(maps, name="p", causal=False)
    norm = axes[0, 0].images[0].norm
    assert type(norm) is Normalize
    assert norm.vmin < 0 < norm.vmax
    assert "extremes -0.05" in texts(figure)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("shape", "length"), sweep([((1, 1), 1), ((6, 1), 300), ((1, 8), 5), ((4, 8), 100)], [(1, 1), (6, 1)])
)
def test_every_shape_of_model_can_be_drawn(tmp_path, shape, length):
    figure, axes = map_figures.attention_figure(attention(*shape, length), name="p", causal=False)
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    assert axes.shape == shape
    assert figure.get_figwidth() <= 7.3
    for panel in axes.flat:
        box = panel.get_position()
        assert box.width > 0.02
        assert 0 <= box.x0 < box.x1 <= 1
    ticks = axes[0, 0].get_xticks()
    assert len(ticks) <= 5
    assert len(set(ticks)) == len(ticks)
    assert min(ticks) == 1
    assert max(ticks) <= length


def test_colours_rise_in_lightness_so_that_greyscale_keeps_the_order():
    _, axes = map_figures.attention_figure(attention(1, 1), name="p", causal=False)
    colours = axes[0, 0].images[0].get_cmap()(np.linspace(0, 1, 64))[:, :3]
    assert (np.diff(colours @ [0.2126, 0.7152, 0.0722]) > 0).all()


def test_what_rows_sum_to_and_cells_are_in_the_title():
    figure, axes = map_figures.attention_figure(
        attention(1, 1), name="p", causal=False, num_residues=3000, note="rows sum to 0.5"
    )
    assert "3,000 residues (means over cells of 100 × 100)" in texts(figure)
    assert "rows sum to 0.5" in texts(figure)
    assert axes[0, 0].images[0].get_extent() == [0.5, 3000.5, 3000.5, 0.5]


@pytest.mark.parametrize("causal", [False, True])
def test_heads_have_letters_on_both_sides(causal):
    maps = attention(1, 2)[0]
    letters = "MKVLAACDEF" * 3
    figure, axes = map_figures.heads_figure(maps, letters, name="p", causal=causal, labels=["one", "two"], note="n")
    assert [panel.get_title() for panel in axes] == ["one", "two"]
    for panel, weights in zip(axes, maps, strict=True):
        for labels in (panel.get_xticklabels(), panel.get_yticklabels()):
            assert "".join(label.get_text() for label in labels) == letters
        drawn = panel.images[0].get_array()
        seen = np.tri(30, dtype=bool) if causal else np.ones((30, 30), bool)
        np.testing.assert_array_equal(np.ma.getmaskarray(drawn), ~seen)
        np.testing.assert_array_equal(drawn.data[seen], weights[seen])
    assert ("hidden" in texts(figure)) == causal
    # Each head has its own scale.
    assert axes[0].images[0].norm is not axes[1].images[0].norm


@pytest.mark.few(2)
@pytest.mark.parametrize(("cells", "length"), [(100, 100), (40, 400), (300, 300), (1, 1)])
def test_heads_of_every_length(cells, length):
    figure, axes = map_figures.heads_figure(
        attention(1, 1, cells)[0], "A" * length, name="p", causal=False, labels=["a head"]
    )
    letters = [label.get_text() for label in axes[0].get_xticklabels()]
    assert (letters == ["A"] * length) == (length <= map_figures.LETTERED)
    check_legible(figure)


def test_titles_of_lines_do_not_run_into_each_other(tmp_path):
    label = "layer 12, head 10: vertical 0.34, to K133 <eos>"
    figure, axes = map_figures.lines_figure(
        attention(1, 3, 25)[0], "A" * 25, name="p", causal=False, labels=[label] * 3
    )
    figure.savefig(tmp_path / "lines.png")
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [panel.title.get_window_extent(renderer) for panel in axes]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    assert boxes[0].x0 >= 0


def test_a_line_for_each_weight_as_opaque_as_it_is_large():
    weights = np.zeros((1, 4, 4), np.float32)
    weights[0, 0, 1], weights[0, 2, 3], weights[0, 3, 0] = 0.5, 0.25, -0.125
    figure, axes = map_figures.lines_figure(weights, "MKVL", name="p", causal=False, labels=["a head"])
    positive, negative = axes[0].collections
    ends = [[tuple(point) for point in line] for line in positive.get_segments()]
    assert ends == [[(0, 3), (1, 4)], [(0, 1), (1, 2)]]
    np.testing.assert_allclose(positive.get_colors()[:, 3], [0.5, 1.0])
    assert [[tuple(point) for point in line] for line in negative.get_segments()] == [[(0, 4), (1, 1)]]
    np.testing.assert_allclose(negative.get_colors()[:, 3], [0.25])
    said = texts(figure)
    for part in ("M 1", "L 4", "full opacity: 0.5 (dashed: negative)", "first 4 residues of p", "not renormalised"):
        assert part in said
    figure, _ = map_figures.lines_figure(weights * 0, "MKVL", name="p", causal=True, labels=["none"])
    assert "all weights are 0" in texts(figure)
    assert "none to later residues" in texts(figure)


NOTE = "rows sum to 0.012 to 1.4 (mean 0.93) and are shown as they are: PolySketch's own approximation has such sums"
LABELS = [
    "layer 12, head 10: vertical 0.34, to K133 <eos>",
    "layer 0, head 1: diagonal 0.62, offset −1",
    "layer 0, head 2",
]


@pytest.mark.few(2)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "length"), [((1, 1), 1), ((2, 1), 58), ((1, 2), 12), ((4, 8), 40)])
def test_what_attention_figures_say_fits_in_them(shape, length, causal):
    maps = attention(*shape, length) - (0.01 if causal else 0)
    figure, _ = map_figures.attention_figure(maps, name="A0A1B2C3D4", causal=causal, note=NOTE)
    check_legible(figure)
    assert NOTE in texts(figure)


@pytest.mark.few(2)
@pytest.mark.parametrize(("number", "length"), [(1, 1), (1, 160), (3, 12), (3, 40), (2, 100), (2, 150), (5, 30)])
def test_heads_are_legible_on_a_page(number, length):
    letters = ("MW" * length)[:length]
    labels = (LABELS * 2)[:number]
    figure, axes = map_figures.heads_figure(
        attention(1, number, length)[0], letters, name="A0A1B2C3D4", causal=length == 40, labels=labels, note=NOTE
    )
    written = check_legible(figure)
    assert NOTE in texts(figure)
    assert figure.get_figheight() <= 9
    assert figure.get_figwidth() <= 7.3
    assert min(label.get_fontsize() for label in axes[0].get_xticklabels()) >= 4
    assert sum(text in ("M", "W") for text in written) == 2 * number * length


@pytest.mark.few(2)
@pytest.mark.parametrize("top", [0.0149, 0.0999, 0.5, 1.0, 3e-5])
def test_numbers_of_a_short_colour_bar_lie_apart_and_on_it(top):
    maps = np.full((3, 20, 20), top, np.float32)
    maps[:, 0, :5] = 0
    figure, axes = map_figures.heads_figure(maps, "A" * 20, name="p", causal=False, labels=["x"] * 3)
    check_legible(figure)
    ticks = [axes[0].images[0].colorbar.ax.get_xticks(), axes[0].images[0].norm.vmax]
    assert len(ticks[0]) == 4
    assert max(ticks[0]) <= ticks[1] * (1 + 1e-6)


@pytest.mark.parametrize(("number", "length"), [(1, 1), (1, 25), (2, 3), (3, 25)])
def test_what_lines_say_fits(number, length):
    maps = attention(1, number, length)[0] - 0.01
    figure, _ = map_figures.lines_figure(
        maps, "A" * length, name="A0A1B2C3D4", causal=True, labels=LABELS[:number], note=NOTE
    )
    check_legible(figure)
    assert NOTE in texts(figure)
    assert ("the first residue of" in texts(figure)) == (length == 1)
