import numpy as np
import pytest

from proteinlm.analysis.windows import figures as window_figures


@pytest.mark.parametrize(("causal", "seen"), [(False, "other proteins"), (True, "earlier proteins")])
def test_shares_are_drawn_in_percent_and_printed(causal, seen):
    shares = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4))
    shares[1, 2] = np.nan
    figure, axes = window_figures.share_figure(shares, np.array([0.3, 0.65, 0.05]), num_windows=1, causal=causal)
    for place, panel in enumerate(axes):
        drawn = panel.images[0].get_array()
        np.testing.assert_allclose(drawn.filled(np.nan), 100 * shares[..., place])
        printed = [text.get_text() for text in panel.texts]
        assert printed == ["–" if np.isnan(v) else f"{v:.0f}" for v in (100 * shares[..., place]).ravel()]
        assert panel.images[0].get_clim() == (0, 100)
    assert [panel.get_title().split("\n")[0] for panel in axes] == ["own protein", seen, "special tokens"]
    assert "30.0 %" in axes[0].get_title()
    assert "1 window " in figure.get_suptitle()


def test_many_heads_are_drawn_without_numbers():
    _, axes = window_figures.share_figure(np.full((36, 16, 3), 1 / 3), np.ones(3) / 3, num_windows=2, causal=False)
    assert not axes[0].texts


@pytest.mark.parametrize("causal", [False, True])
def test_pairs_and_control_share_a_scale_that_is_even_about_none(causal):
    rng = np.random.default_rng(1)
    scores, control = 4 * rng.normal(size=(4, 4)), rng.normal(size=(3, 3))
    scores[0, 1] = np.nan
    figure, (left, right) = window_figures.score_figure(
        scores, control, lengths=np.array([20, 30, 40, 50]), control_lengths=np.array([25, 35, 45]),
        name="window 3", null="residues shuffled", same_pairs=True, causal=causal,
    )  # fmt: skip
    drawn = left.images[0].get_array()
    assert drawn.mask[0, 1]
    np.testing.assert_array_equal(drawn[1:], scores[1:])
    np.testing.assert_array_equal(right.images[0].get_array(), control)
    low, high = left.images[0].get_clim()
    assert -low == high == np.nanmax(np.abs(scores))
    assert right.images[0].get_clim() == (low, high)
    assert [text.get_text() for text in left.get_yticklabels()] == ["1 (20)", "2 (30)", "3 (40)", "4 (50)"]
    assert [text.get_text() for text in right.texts] == [
        f"{value:+.1f}".replace("-0.0", "+0.0") for value in control.ravel()
    ]
    assert right.get_title() == "one draw of the control:\nresidues shuffled"
    assert "pair's own control" in figure.axes[2].get_xlabel()
    assert ("sees only earlier proteins" in figure.get_suptitle()) == causal


def test_what_chance_does_does_not_fill_the_scale():
    values = np.full((2, 2), 0.4)
    figure, (left, _) = window_figures.score_figure(
        values, values, lengths=np.ones(2, int), control_lengths=np.ones(2, int), name="w", null="n", same_pairs=False,
        causal=False,
    )  # fmt: skip
    assert left.images[0].get_clim() == (-3, 3)
    assert "mean of the control's pairs" in figure.axes[2].get_xlabel()


def test_names_of_proteins_are_written_where_they_belong():
    _, (left, right) = window_figures.score_figure(
        np.ones((2, 2)), np.ones((3, 3)), lengths=np.array([20, 30]), control_lengths=np.array([20, 30, 9]),
        name="w", null="n", same_pairs=True, causal=False, labels=["P1$_$", "a_very_long_name_of_a_protein"],
    )  # fmt: skip
    assert [text.get_text() for text in left.get_yticklabels()] == ["1 P1$_$ (20)", "2 a_very_lo…_protein (30)"]
    assert [text.get_text() for text in left.get_xticklabels()] == ["1", "2"]
    assert [text.get_text() for text in right.get_yticklabels()] == ["1 (20)", "2 (30)", "3 (9)"]
