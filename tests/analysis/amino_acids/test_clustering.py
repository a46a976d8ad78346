import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from proteinlm.alphabet import STANDARD_RESIDUES
from proteinlm.analysis.amino_acids.blosum import normalised_blosum
from proteinlm.analysis.amino_acids.clustering import clustered_order


def test_planted_clusters_stand_together():
    rng = np.random.default_rng(0)
    group = rng.permutation(np.arange(20) % 4)
    similarity = np.where(group[:, None] == group[None, :], 0.9, 0.1) + 0.01 * rng.normal(size=(20, 20))
    found = clustered_order(similarity)
    assert sorted(found) == list(range(20))
    assert (np.diff(group[found]) != 0).sum() == 3


def test_of_two_trees_orders_the_one_with_like_neighbours():
    # Points on a line come out in their order, whichever way round.
    points = np.array([5.0, 0.0, 3.0, 1.0, 9.0])
    found = points[clustered_order(-np.abs(points[:, None] - points[None, :]))]
    assert list(found) in (sorted(points), sorted(points)[::-1])


def test_blosums_families_stand_together():
    letters = "".join(STANDARD_RESIDUES[place] for place in clustered_order(normalised_blosum()))
    for family in ("DE", "FYW", "KR", "ILVM"):
        places = sorted(letters.index(letter) for letter in family)
        assert places[-1] - places[0] < len(family) + 1


def test_amino_acids_without_values_come_last():
    similarity = normalised_blosum()
    similarity[[4, 11]] = similarity[:, [4, 11]] = np.nan
    found = clustered_order(similarity)
    assert found[-2:] == [4, 11]
    assert sorted(found) == list(range(20))
    one = normalised_blosum()
    one[2, 7] = np.nan
    assert clustered_order(one)[-1] in (2, 7)
    assert clustered_order(np.full((20, 20), np.nan)) == list(range(20))


@settings(max_examples=30, deadline=None)
@given(
    arrays.arrays(float, (6, 6), elements=st.one_of(st.floats(-1, 1), st.just(float("nan")))),
)
def test_always_a_permutation_that_the_diagonal_does_not_change(similarity):
    found = clustered_order(similarity)
    assert sorted(found) == list(range(6))
    changed = similarity.copy()
    np.fill_diagonal(changed, np.nan)
    assert clustered_order(changed) == found


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_amino_acids(size):
    assert sorted(clustered_order(np.zeros((size, size)))) == list(range(size))
