import numpy as np
import pytest
from legible import check_legible
from matplotlib import colormaps

from proteinlm.alphabet import STANDARD_RESIDUES
from proteinlm.analysis.amino_acids import figures as similarity_figures
from proteinlm.analysis.amino_acids.blosum import normalised_blosum


def texts(figure):
    found = figure.findobj(lambda artist: hasattr(artist, "get_text"))
    return " | ".join(" ".join(text.get_text().split()) for text in found)


def test_similarity_stands_beside_blosum_in_classes():
    similarity = np.random.default_rng(0).uniform(-1, 1, (20, 20))
    similarity[3, 7] = np.nan
    figure, axes = similarity_figures.similarity_figure(
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


def test_an_order_that_is_given_is_that_of_both_and_classes_are_marked():
    order = np.random.default_rng(1).permutation(20).tolist()
    similarity = np.random.default_rng(0).uniform(-1, 1, (20, 20))
    figure, axes = similarity_figures.similarity_figure(
        normalised_blosum(), similarity, reference_label="left", similarity_label="right", order=order
    )
    off = ~np.eye(20, dtype=bool)
    for panel, matrix in zip(axes, (normalised_blosum(), similarity), strict=True):
        assert [text.get_text() for text in panel.get_xticklabels()] == [STANDARD_RESIDUES[place] for place in order]
        np.testing.assert_array_equal(panel.images[0].get_array()[off], matrix[np.ix_(order, order)][off])
        marked = {line.get_label(): list(line.get_xdata()) for line in panel.lines}
        assert marked["acidic"] == [place for place, index in enumerate(order) if STANDARD_RESIDUES[index] in "DE"]
        assert sum(map(len, marked.values())) == 20
        assert len({line.get_marker() for line in panel.lines}) == len(marked)
    assert "aromatic" in texts(figure)


@pytest.mark.parametrize("order", [None, list(range(20))])
def test_both_scales_are_centred_on_0_and_all_text_fits(order):
    similarity = np.random.default_rng(0).uniform(-0.2, 0.6, (20, 20))
    figure, axes = similarity_figures.similarity_figure(
        normalised_blosum(), similarity, reference_label="normalised BLOSUM62 score",
        similarity_label="attention similarity (Pearson r over 1,024 heads)", title="a long title " * 12, order=order,
    )  # fmt: skip
    off = ~np.eye(20, dtype=bool)
    for panel, matrix in zip(axes, (normalised_blosum(), similarity), strict=True):
        low, high = panel.images[0].get_clim()
        assert low == -high
        assert high == np.abs(matrix[off]).max()
    check_legible(figure)


def test_colours_of_similarity_tell_negative_from_positive_in_greyscale():
    colours = colormaps[similarity_figures.CENTRED](np.linspace(0, 1, 64))[:, :3]
    assert (np.diff(colours @ [0.2126, 0.7152, 0.0722]) > 0).all()


def test_a_similarity_of_no_value_is_drawn():
    figure, _ = similarity_figures.similarity_figure(
        normalised_blosum(), np.full((20, 20), np.nan), reference_label="left", similarity_label="right"
    )
    check_legible(figure)
