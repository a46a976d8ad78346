import numpy as np
import pytest
from structure_files import hairpin

from proteinlm.analysis import contact_figures, contacts


def test_true_contacts_lie_below_and_predictions_above():
    places = np.array(hairpin("A" * 30))
    places[3] = np.nan
    touching = contacts.contact_map(places)
    predicted = np.array([(0, 29), (28, 1), (0, 20), (5, 24)])
    _, panel = contact_figures.contact_figure(
        touching, ~np.isnan(places).any(1), predicted, name="hairpin", predictor="a head"
    )
    true, right, wrong = (collection.get_offsets() for collection in panel.collections)
    expected = {(i + 1, j + 1) for i, j in zip(*np.nonzero(np.triu(touching, 6)), strict=True)}
    # x is the smaller: below the diagonal, where y grows downwards.
    assert {tuple(point) for point in np.asarray(true).astype(int)} == expected
    assert {tuple(point) for point in np.asarray(right).astype(int)} == {(30, 1), (29, 2), (25, 6)}
    assert {tuple(point) for point in np.asarray(wrong).astype(int)} == {(21, 1)}
    assert panel.get_ylim()[0] > panel.get_ylim()[1]
    assert "4 highest pairs of a head" in panel.get_title()
    # One band each way for the residue without a place.
    assert len(panel.patches) == 2


@pytest.mark.parametrize("layers", [1, 24])
def test_the_table_prints_what_it_is_given(layers):
    table = {"chance": np.full((3, 3), 0.05), "best": np.arange(9).reshape(3, 3) / 10}
    table["best"][2, 2] = np.nan
    by_head = np.linspace(0, 0.5, layers * 12).reshape(layers, 12)
    _, (left, right) = contact_figures.precision_figure(table, by_head, name="p")
    printed = [text.get_text() for text in left.texts]
    assert printed[:18] == ["0.05"] * 9 + [f"{v / 10:.2f}" for v in range(8)] + ["–"]
    assert [text.get_text() for text in left.get_yticklabels()] == ["chance", "best"]
    np.testing.assert_array_equal(right.images[0].get_array(), by_head)
    assert left.images[0].get_clim() == right.images[0].get_clim() == (0, pytest.approx(0.7))
