import numpy as np
import pytest
from scipy import stats

from proteinlm.alphabet import STANDARD_RESIDUES
from proteinlm.analysis.amino_acids.blosum import BLOSUMS, closest_pairs, compare, normalised_blosum
from proteinlm.errors import InputError


def at(matrix, pair):
    return matrix[STANDARD_RESIDUES.index(pair[0]), STANDARD_RESIDUES.index(pair[1])]


def symmetric(rng, size=20):
    matrix = rng.normal(size=(size, size))
    return matrix + matrix.T


def test_normalised_blosum_by_hand():
    blosum = normalised_blosum()
    # BLOSUM62: DD 6, EE 5, DE 2; FF 6, YY 7, FY 3; WW 11, CC 9, WC -2; II = VV = 4, IV 3.
    assert at(blosum, "DE") == pytest.approx(2 / 30**0.5)
    assert at(blosum, "YF") == pytest.approx(3 / 42**0.5)
    assert at(blosum, "WC") == pytest.approx(-2 / 99**0.5)
    assert at(blosum, "IV") == pytest.approx(0.75)
    np.testing.assert_allclose(np.diag(blosum), 1)
    np.testing.assert_array_equal(blosum, blosum.T)


def test_each_blosum_has_its_own_values():
    matrices = [normalised_blosum(name) for name in BLOSUMS]
    for i, first in enumerate(matrices):
        assert first.shape == (20, 20)
        assert all(np.abs(first - second).max() > 0.01 for second in matrices[:i])
    np.testing.assert_array_equal(normalised_blosum("blosum45"), matrices[0])
    # D with D, E with E, D with E: 7 6 2; 8 6 2; 6 5 2; 10 8 2; 7 6 1.
    by_hand = (2 / 42**0.5, 2 / 48**0.5, 2 / 30**0.5, 2 / 80**0.5, 1 / 42**0.5)
    for matrix, expected in zip(matrices, by_hand, strict=True):
        assert at(matrix, "DE") == pytest.approx(expected)


def test_an_unknown_matrix_is_refused_with_the_choice():
    with pytest.raises(InputError, match=r"'PAM30'.*BLOSUM45.*BLOSUM90"):
        normalised_blosum("PAM30")


def test_correlations_are_scipys_over_the_190_pairs():
    rng = np.random.default_rng(1)
    first, second = symmetric(rng), normalised_blosum()
    found = compare(first, second, permutations=99)
    upper = np.triu_indices(20, 1)
    assert found.num_pairs == 190
    assert found.pearson == pytest.approx(stats.pearsonr(first[upper], second[upper]).statistic)
    assert found.spearman == pytest.approx(stats.spearmanr(first[upper], second[upper]).statistic)


def test_the_diagonal_does_not_count_and_directions_are_averaged():
    rng = np.random.default_rng(2)
    first, second = symmetric(rng), symmetric(rng)
    expected = compare(first, second, permutations=99)
    skewed = rng.normal(size=(20, 20))
    changed = first + (skewed - skewed.T) + np.diag(rng.normal(size=20) * 100)
    assert compare(changed, second, permutations=99).pearson == pytest.approx(expected.pearson)


def test_p_values_are_small_for_a_planted_likeness_and_repeat_with_the_seed():
    rng = np.random.default_rng(3)
    blosum = normalised_blosum()
    noisy = blosum + 0.3 * symmetric(rng)
    found = compare(noisy, blosum, permutations=999)
    assert found.pearson > 0.3
    assert found.pearson_p == pytest.approx(0.001)
    assert found.spearman_p <= 0.005
    assert compare(noisy, blosum, permutations=999) == found
    # One-sided: the opposite likeness is no evidence.
    assert compare(-noisy, blosum, permutations=999).pearson_p > 0.99


def test_p_values_are_uniform_without_a_likeness():
    rng = np.random.default_rng(4)
    # Amino acids with tendencies of their own: pairs that share one are alike, which a test that shuffled
    # pairs instead of amino acids would take for evidence.
    p_values = []
    for number in range(300):
        tendencies = [rng.normal(size=20) * 2 for _ in range(2)]
        first, second = (symmetric(rng) + own[:, None] + own[None, :] for own in tendencies)
        p_values.append(compare(first, second, permutations=199, seed=number).pearson_p)
    assert stats.kstest(p_values, "uniform").pvalue > 0.01
    assert 0.02 < np.mean(np.array(p_values) <= 0.05) < 0.09


def test_amino_acids_without_values_are_left_out():
    rng = np.random.default_rng(5)
    first, second = symmetric(rng), symmetric(rng)
    gone = [3, 17]
    first[gone] = np.nan
    first[:, gone] = np.nan
    kept = np.setdiff1d(np.arange(20), gone)
    found = compare(first, second, permutations=99)
    assert found.num_pairs == 18 * 17 / 2
    assert found.pearson == pytest.approx(
        compare(first[np.ix_(kept, kept)], second[np.ix_(kept, kept)], permutations=99).pearson
    )
    # A single missing pair costs one amino acid, not all.
    second[0, 1] = second[1, 0] = np.nan
    assert compare(first, second, permutations=9).num_pairs == 17 * 16 / 2


def test_nothing_to_compare():
    with pytest.raises(InputError, match="only 0 amino acids"):
        compare(np.full((20, 20), np.nan), normalised_blosum())
    flat = compare(np.ones((20, 20)), normalised_blosum(), permutations=9)
    assert np.isnan(flat.pearson)
    assert flat.to_dict()["pearson"] is None
    assert flat.to_dict()["num_pairs"] == 190


def test_closest_pairs_are_ranked():
    blosum = normalised_blosum()
    similarity = blosum.copy()
    d, e = (STANDARD_RESIDUES.index(letter) for letter in "DE")
    similarity[d, e] = similarity[e, d] = 2
    pairs = closest_pairs(similarity, blosum, number=3)
    assert [entry["pair"] for entry in pairs] == ["DE", "IV", "IL"]
    assert pairs[0] == {
        "pair": "DE", "rank": 1, "similarity": 2.0, "blosum": pytest.approx(2 / 30**0.5),
        "blosum_rank": 1 + int((blosum[np.triu_indices(20, 1)] > 2 / 30**0.5 + 1e-12).sum()),
    }  # fmt: skip
    similarity[0] = np.nan
    assert len(closest_pairs(similarity, blosum, number=999)) == 19 * 18 / 2
