import dataclasses

import numpy as np
import pytest
from legible import check_legible
from matplotlib.colors import to_hex

from proteinlm import alphabet
from proteinlm.evaluation.breakdowns import BREAKDOWNS, Group
from proteinlm.evaluation.figures import drawn_labels, plot_breakdown
from proteinlm.evaluation.metrics import Sums
from proteinlm.evaluation.tables import group_arrays, score_sequence_groups, score_token_groups

BY_RESIDUE = BREAKDOWNS["residue"]


def scores_by(by, splits=("test", "ood"), n=60):
    scores = []
    for seed, split in enumerate(splits):
        generator = np.random.default_rng(seed)
        groups = (
            [Group(f"PF{i:05d}") for i in range(n)] if by == "family"
            else [Group("no alignment"), Group("0.00-0.05", 0.0, 0.05), Group("0.25-0.30", 0.25, 0.3)]
            if by == "identity" else BREAKDOWNS[by].groups(500)
        )  # fmt: skip
        about = {"split": split, "objective": "masked", "model": "m", "tokens": "residues"}
        shape = (n, len(groups)) if by in ("residue", "position") else (n,)
        count = generator.integers(1, 20, shape).astype(float)
        sums = Sums(count * generator.uniform(1, 4, shape), np.floor(count * generator.uniform(0, 1, shape)), count)
        if len(shape) == 2:
            scores += score_token_groups(by, sums, groups, about)
        else:
            scores += score_sequence_groups(by, sums, np.arange(n) % len(groups), groups, about)
    return scores


@pytest.mark.few(2)
@pytest.mark.parametrize("by", ["residue", "position", "identity", "family"])
def test_points_and_whiskers_are_the_groups(by):
    scores = scores_by(by)
    drawn = group_arrays(scores)
    names = drawn_labels(BREAKDOWNS[by], drawn)
    figure, axes = plot_breakdown(BREAKDOWNS[by], drawn, "a title")
    shown = {c.group.label for c in scores if c.group.label in names}
    assert len(names) == len(shown) == min(len({c.group.label for c in scores}), 30 if by == "family" else 99)
    for number, split in enumerate(("test", "ood")):
        own = {c.group.label: c.score for c in scores if c.score.split == split}
        for axis, values in zip(
            axes[:2], ([100 * own[n].accuracy for n in names], [own[n].perplexity for n in names]), strict=True
        ):
            np.testing.assert_allclose(axis.containers[number].lines[0].get_ydata(), values)
        np.testing.assert_array_equal(axes[2].lines[number].get_ydata(), [own[n].num_tokens for n in names])
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["test", "ood"]
    assert all(axis.get_ylabel() for axis in axes)
    assert figure.get_suptitle() == "a title"


def test_the_order_of_the_axis():
    assert drawn_labels(BY_RESIDUE, group_arrays(scores_by("residue"))) == list(alphabet.RESIDUES)
    assert drawn_labels(BREAKDOWNS["identity"], group_arrays(scores_by("identity")))[0] == "no alignment"
    names = drawn_labels(BREAKDOWNS["position"], group_arrays(scores_by("position")[::-1]))
    assert names == [group.label for group in BREAKDOWNS["position"].groups(500)]
    drawn = group_arrays(scores_by("family"))
    tokens = [drawn["tokens"][drawn["cell"] == name].sum() for name in drawn_labels(BREAKDOWNS["family"], drawn)]
    assert tokens == sorted(tokens, reverse=True)


def test_a_group_of_one_split_or_without_an_interval_is_still_drawn():
    scores = [c for c in scores_by("residue") if c.score.split == "test" or c.group.label != "W"]
    nan = dataclasses.replace(
        scores[0].score, accuracy_low=np.nan, accuracy_high=np.nan, perplexity_low=np.nan, perplexity_high=np.inf
    )
    scores[0] = dataclasses.replace(scores[0], score=nan)
    figure, axes = plot_breakdown(BY_RESIDUE, group_arrays(scores), "a title")
    first, second = (len(axes[0].containers[i].lines[0].get_ydata()) for i in range(2))
    assert (first, second) == (25, 24)
    figure.canvas.draw()


@pytest.mark.few(2)
@pytest.mark.parametrize("by", ["residue", "position", "identity", "family"])
@pytest.mark.parametrize("splits", [("ood",), ("test", "ood")])
def test_all_text_fits_and_a_split_keeps_its_colour(by, splits):
    figure, axes = plot_breakdown(
        BREAKDOWNS[by], group_arrays(scores_by(by, splits)), "run, step 1; objective masked; " * 5
    )
    check_legible(figure)
    colours = [to_hex(container.lines[0].get_color()) for container in axes[0].containers]
    assert colours == [{"test": "#0072b2", "ood": "#d55e00"}[split] for split in splits]
    for axis in axes:
        low, high = axis.get_ylim()
        assert sum(low <= tick <= high for tick in axis.get_yticks()) >= 2


@pytest.mark.parametrize(("value", "written"), [(1e10, "1e10"), (np.inf, "∞"), (4321.0, "4,321")])
def test_a_rare_letter_does_not_flatten_the_others_and_is_marked_at_the_edge(value, written):
    drawn = group_arrays(scores_by("residue", n=200))
    rare = (drawn["cell"] == "O") & (drawn["split"] == "ood")
    before = plot_breakdown(BY_RESIDUE, {**drawn, "tokens": np.where(rare, 99, drawn["tokens"])}, "t")[1][1].get_ylim()
    drawn["tokens"][rare] = 99
    drawn["perplexity"][rare], drawn["perplexity_high"][rare] = value, np.inf
    figure, axes = plot_breakdown(BY_RESIDUE, drawn, "t")
    assert axes[1].get_ylim() == before
    marks = [text for text in axes[1].texts if text.get_text() == written]
    assert len(marks) == 1
    assert marks[0].get_position()[0] == drawn_labels(BY_RESIDUE, drawn).index("O")
    check_legible(figure)
