import dataclasses

import numpy as np
import pytest
from legible import check_legible
from matplotlib.colors import to_hex

from proteinlm import alphabet
from proteinlm.evaluation.breakdowns import sequence_cells, token_cells, token_labels
from proteinlm.evaluation.figures import FAMILIES_DRAWN, arrays, drawn_cells, plot_breakdown
from proteinlm.evaluation.metrics import Sums


def cells_by(by, splits=("test", "ood"), n=60):
    cells = []
    for seed, split in enumerate(splits):
        generator = np.random.default_rng(seed)
        labels = (
            [(f"PF{i:05d}", np.nan, np.nan) for i in range(n)] if by == "family"
            else [("no alignment", np.nan, np.nan), ("0.00-0.05", 0.0, 0.05), ("0.25-0.30", 0.25, 0.3)]
            if by == "identity" else token_labels(by, 500)
        )  # fmt: skip
        about = {"split": split, "objective": "masked", "model": "m", "tokens": "residues"}
        shape = (n, len(labels)) if by in ("residue", "position") else (n,)
        count = generator.integers(1, 20, shape).astype(float)
        sums = Sums(count * generator.uniform(1, 4, shape), np.floor(count * generator.uniform(0, 1, shape)), count)
        if len(shape) == 2:
            cells += token_cells(by, sums, labels, about)
        else:
            cells += sequence_cells(by, sums, np.arange(n) % len(labels), labels, about)
    return cells


@pytest.mark.parametrize("by", ["residue", "position", "identity", "family"])
def test_points_and_whiskers_are_the_cells(by):
    cells = cells_by(by)
    drawn = arrays(cells)
    names = drawn_cells(by, drawn)
    figure, axes = plot_breakdown(by, drawn, "a title")
    shown = {c.cell for c in cells if c.cell in names}
    assert len(names) == len(shown) == min(len({c.cell for c in cells}), FAMILIES_DRAWN if by == "family" else 99)
    for number, split in enumerate(("test", "ood")):
        own = {c.cell: c.score for c in cells if c.score.split == split}
        for axis, values in zip(
            axes[:2], ([100 * own[n].accuracy for n in names], [own[n].perplexity for n in names]), strict=True
        ):
            np.testing.assert_allclose(axis.containers[number].lines[0].get_ydata(), values)
        np.testing.assert_array_equal(axes[2].lines[number].get_ydata(), [own[n].num_tokens for n in names])
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["test", "ood"]
    assert all(axis.get_ylabel() for axis in axes)
    assert figure.get_suptitle() == "a title"


def test_the_order_of_the_axis():
    assert drawn_cells("residue", arrays(cells_by("residue"))) == list(alphabet.RESIDUES)
    assert drawn_cells("identity", arrays(cells_by("identity")))[0] == "no alignment"
    names = drawn_cells("position", arrays(cells_by("position")[::-1]))
    assert names == [label for label, *_ in token_labels("position", 500)]
    drawn = arrays(cells_by("family"))
    tokens = [drawn["tokens"][drawn["cell"] == name].sum() for name in drawn_cells("family", drawn)]
    assert tokens == sorted(tokens, reverse=True)


def test_a_cell_of_one_split_or_without_an_interval_is_still_drawn():
    cells = [c for c in cells_by("residue") if c.score.split == "test" or c.cell != "W"]
    nan = dataclasses.replace(
        cells[0].score, accuracy_low=np.nan, accuracy_high=np.nan, perplexity_low=np.nan, perplexity_high=np.inf
    )
    cells[0] = dataclasses.replace(cells[0], score=nan)
    figure, axes = plot_breakdown("residue", arrays(cells), "a title")
    first, second = (len(axes[0].containers[i].lines[0].get_ydata()) for i in range(2))
    assert (first, second) == (25, 24)
    figure.canvas.draw()


@pytest.mark.parametrize("by", ["residue", "position", "identity", "family"])
@pytest.mark.parametrize("splits", [("ood",), ("test", "ood")])
def test_all_text_fits_and_a_split_keeps_its_colour(by, splits):
    figure, axes = plot_breakdown(by, arrays(cells_by(by, splits)), "run, step 1; objective masked; " * 5)
    check_legible(figure)
    colours = [to_hex(container.lines[0].get_color()) for container in axes[0].containers]
    assert colours == [{"test": "#0072b2", "ood": "#d55e00"}[split] for split in splits]
    for axis in axes:
        low, high = axis.get_ylim()
        assert sum(low <= tick <= high for tick in axis.get_yticks()) >= 2


@pytest.mark.parametrize(("value", "written"), [(1e10, "1e10"), (np.inf, "∞"), (4321.0, "4,321")])
def test_a_rare_letter_does_not_flatten_the_others_and_is_marked_at_the_edge(value, written):
    drawn = arrays(cells_by("residue", n=200))
    rare = (drawn["cell"] == "O") & (drawn["split"] == "ood")
    before = plot_breakdown("residue", {**drawn, "tokens": np.where(rare, 99, drawn["tokens"])}, "t")[1][1].get_ylim()
    drawn["tokens"][rare] = 99
    drawn["perplexity"][rare], drawn["perplexity_high"][rare] = value, np.inf
    figure, axes = plot_breakdown("residue", drawn, "t")
    assert axes[1].get_ylim() == before
    marks = [text for text in axes[1].texts if text.get_text() == written]
    assert len(marks) == 1
    assert marks[0].get_position()[0] == drawn_cells("residue", drawn).index("O")
    check_legible(figure)
