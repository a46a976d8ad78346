import numpy as np
import pytest
from structure_files import hairpin

from proteinlm.analysis.contacts import figures as contact_figures
from proteinlm.analysis.contacts import measure as contacts


def test_true_contacts_lie_below_and_predictions_above():
    coordinates = np.array(hairpin("A" * 30))
    coordinates[3] = np.nan
    touching = contacts.contact_map(coordinates)
    predicted = np.array([(0, 29), (28, 1), (0, 20), (5, 24)])
    figure, panel = contact_figures.contact_figure(
        touching, ~np.isnan(coordinates).any(1), predicted, name="hairpin", predictor="a head"
    )
    true, right, wrong = (collection.get_offsets() for collection in panel.collections)
    expected = {(i + 1, j + 1) for i, j in zip(*np.nonzero(np.triu(touching, 6)), strict=True)}
    # x is the smaller: below the diagonal, where y grows downwards.
    assert {tuple(point) for point in np.asarray(true).astype(int)} == expected
    assert {tuple(point) for point in np.asarray(right).astype(int)} == {(30, 1), (29, 2), (25, 6)}
    assert {tuple(point) for point in np.asarray(wrong).astype(int)} == {(21, 1)}
    assert panel.get_ylim()[0] > panel.get_ylim()[1]
    assert "4 highest pairs of\na head" in figure.get_suptitle()
    # One band each way for the residue without a place.
    assert len(panel.patches) == 2


@pytest.mark.few(2)
@pytest.mark.parametrize("text", ["W" * 130, "a word of many " * 12, "1abc.pdb, chain A", "cost $x$ and $y", " "])
def test_no_title_is_cut_at_the_edge_of_the_image(text):
    coordinates = np.array(hairpin("A" * 30))
    map_figure, panel = contact_figures.contact_figure(
        contacts.contact_map(coordinates), np.ones(30, bool), np.array([(0, 29)]), name=text, predictor=text,
        notes=[text],
    )  # fmt: skip
    table_figure, _ = contact_figures.precision_figure(
        {"chance": np.ones((3, 3))}, np.ones((2, 2)), name=text, note=text
    )
    for figure, titles in ((map_figure, [map_figure.texts[0], panel.title]), (table_figure, [table_figure.texts[0]])):
        figure.draw_without_rendering()
        page = figure.bbox
        boxes = [title.get_window_extent() for title in titles]
        for title, box in zip(titles, boxes, strict=True):
            assert page.x0 <= box.x0 <= box.x1 <= page.x1
            assert page.y0 <= box.y0 <= box.y1 <= page.y1
            assert text.replace(" ", "").lower() in title.get_text().replace(" ", "").replace("\n", "").lower()
        assert len(boxes) == 1 or boxes[0].y0 >= boxes[1].y1 or not text.strip()


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
