import numpy as np
import pytest
from matplotlib.colors import Normalize, PowerNorm

from proteinlm.analysis import plots
from proteinlm.analysis.blosum import normalised_blosum
from proteinlm.data.alphabet import STANDARD_RESIDUES


def attention(layers=2, heads=3, length=30, seed=0):
    weights = np.random.default_rng(seed).dirichlet(np.full(length, 0.2), size=(layers, heads, length))
    return weights.astype(np.float32)


def texts(figure):
    return " | ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_a_panel_for_each_layer_and_head_says_which():
    maps = attention()
    figure, axes = plots.attention_figure(maps, name="P00974", causal=False, layers=[1, 5], heads=[0, 2, 7])
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
    figure, axes = plots.attention_figure(maps, name="p", causal=True)
    drawn = axes[1, 2].images[0].get_array()
    np.testing.assert_array_equal(drawn.mask, ~np.tri(30, dtype=bool))
    assert drawn[20, 3] == 0
    assert "hidden from a causal model" in texts(figure)
    cmap = axes[0, 0].images[0].get_cmap()
    assert tuple(cmap.get_bad()[:3]) == pytest.approx((0.82,) * 3)


def test_the_scale_is_robust_and_says_so():
    maps = np.full((1, 1, 50, 50), 0.02, np.float32)
    maps[0, 0, 0, 0] = 1
    figure, axes = plots.attention_figure(maps, name="p", causal=False)
    norm = axes[0, 0].images[0].norm
    assert isinstance(norm, PowerNorm)
    assert norm.vmax == pytest.approx(0.02)
    assert "0.02; largest 1" in texts(figure)


def test_a_map_of_few_weights_keeps_its_largest():
    # The identity: one weight in a hundred, which a percentile would cut to nothing.
    _, axes = plots.attention_figure(np.eye(1000, dtype=np.float32)[None, None], name="p", causal=False)
    assert axes[0, 0].images[0].norm.vmax == 1
    figure, _ = plots.attention_figure(np.zeros((1, 1, 9, 9), np.float32), name="p", causal=False)
    assert "all are 0" in texts(figure)


def test_negative_weights_get_a_linear_scale_that_shows_them():
    maps = attention() - 0.05
    figure, axes = plots.attention_figure(maps, name="p", causal=False)
    norm = axes[0, 0].images[0].norm
    assert type(norm) is Normalize
    assert norm.vmin < 0 < norm.vmax
    assert "extremes -0.05" in texts(figure)


@pytest.mark.parametrize(("shape", "length"), [((1, 1), 1), ((1, 8), 5), ((4, 8), 100), ((6, 1), 300)])
def test_every_shape_of_model_can_be_drawn(tmp_path, shape, length):
    figure, axes = plots.attention_figure(attention(*shape, length), name="p", causal=False)
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


def test_similarity_stands_beside_blosum_in_classes():
    similarity = np.random.default_rng(0).uniform(-1, 1, (20, 20))
    similarity[3, 7] = np.nan
    figure, axes = plots.similarity_figure(
        normalised_blosum(), similarity, reference_label="left", similarity_label="right", title="Both"
    )
    letters = [text.get_text() for text in axes[1].get_xticklabels()]
    assert sorted(letters) == sorted(STANDARD_RESIDUES)
    assert letters == [text.get_text() for text in axes[0].get_yticklabels()]
    assert abs(letters.index("D") - letters.index("E")) == 1
    drawn = axes[1].images[0].get_array()
    order = [STANDARD_RESIDUES.index(letter) for letter in letters]
    off = ~np.eye(20, dtype=bool)
    gap = np.isnan(similarity[np.ix_(order, order)])
    np.testing.assert_array_equal(drawn.mask, gap | ~off)
    np.testing.assert_array_equal(drawn[off & ~gap], similarity[np.ix_(order, order)][off & ~gap])
    said = texts(figure)
    for part in ("left", "right", "Both", "aromatic", "acidic"):
        assert part in said


def test_colours_rise_in_lightness_so_that_greyscale_keeps_the_order():
    _, axes = plots.attention_figure(attention(1, 1), name="p", causal=False)
    colours = axes[0, 0].images[0].get_cmap()(np.linspace(0, 1, 64))[:, :3]
    assert (np.diff(colours @ [0.2126, 0.7152, 0.0722]) > 0).all()
