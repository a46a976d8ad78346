import numpy as np
import pytest
from scipy import stats

from proteinlm import alphabet
from proteinlm.analysis.amino_acids import similarity
from proteinlm.analysis.amino_acids.blosum import compare, normalised_blosum
from proteinlm.analysis.amino_acids.table import agreement_by_head, agreement_by_layer, corrected

R = alphabet.NUM_RESIDUES
UPPER = np.triu_indices(20, 1)


@pytest.fixture(scope="module")
def attention():
    """Two layers of four heads over all kinds of residues; head 2 of layer 1 likes BLOSUM's pairs, head 3 is idle."""
    rng = np.random.default_rng(0)
    even = rng.uniform(1, 3, (R, R))
    sums = even * rng.uniform(0.5, 1.5, (2, 4, R, R))
    sums[1, 2, :20, :20] = even[:20, :20] * (1.5 + normalised_blosum())
    sums[1, 3] = 0
    ones = np.ones((2, 4))
    return similarity.AminoAcidAttention(sums, np.round(even * 10).astype(np.int64), even, ones, ones, 3, 100)


def test_rows_of_layers_are_comparisons_of_each_alone(attention):
    blosum = normalised_blosum()
    table = agreement_by_layer(attention, blosum, permutations=99, seed=5)
    assert table["layer"].tolist() == [0, 1]
    assert table["num_heads_used"].tolist() == [4, 3]
    for layer in range(2):
        alike = compare(similarity.head_similarity(attention, layer=layer), blosum, permutations=99, seed=5)
        direct = compare(similarity.pair_enrichment(attention, layer=layer), blosum, permutations=99, seed=5)
        row = table.iloc[layer]
        for name in ("pearson", "pearson_p", "spearman", "spearman_p"):
            assert row[f"similarity_{name}"] == getattr(alike, name)
            assert row[f"enrichment_{name}"] == getattr(direct, name)
        assert row["num_pairs"] == 190
    assert (table["similarity_q"] >= table["similarity_pearson_p"]).all()


def test_the_head_that_likes_blosums_pairs_stands_out_and_an_idle_one_has_no_values(attention):
    table = agreement_by_head(attention, normalised_blosum(), permutations=199)
    assert len(table) == 8
    best = table.loc[table["enrichment_pearson"].idxmax()]
    assert (best["layer"], best["head"]) == (1, 2)
    assert best["enrichment_pearson"] > 0.99
    assert best["enrichment_pearson_p"] == pytest.approx(1 / 200)
    assert best["enrichment_q"] >= best["enrichment_pearson_p"]
    idle = table.iloc[7]
    assert np.isnan(idle["enrichment_pearson"])
    assert np.isnan(idle["enrichment_q"])
    assert idle["num_pairs"] == 0


def test_enrichment_of_one_head_is_that_of_its_sums_alone(attention):
    found = similarity.pair_enrichment(attention, layer=0, head=1)
    sums, even = attention.pair_sums[0, 1], attention.pair_even
    expected = (sums / even) * (even.sum() / sums.sum())
    np.testing.assert_allclose(found, expected[:20, :20])
    assert np.isnan(similarity.pair_enrichment(attention, layer=1, head=3)).all()
    whole = similarity.pair_enrichment(attention, layer=1)
    sums = attention.pair_sums[1].sum(0)
    np.testing.assert_allclose(whole, ((sums / even) * (even.sum() / sums.sum()))[:20, :20])


def test_a_layer_with_two_heads_has_no_similarity_but_an_enrichment(attention):
    two = similarity.AminoAcidAttention(
        attention.pair_sums[:, :2], attention.pair_counts, attention.pair_even,
        attention.self_sums[:, :2], attention.special_sums[:, :2], 3, 100,
    )  # fmt: skip
    table = agreement_by_layer(two, normalised_blosum(), permutations=9)
    assert table["similarity_pearson"].isna().all()
    assert table["similarity_q"].isna().all()
    assert table["enrichment_pearson"].notna().all()


def test_corrected_is_scipys_over_what_is_known():
    p_values = np.array([0.01, np.nan, 0.2, 0.03])
    found = corrected(p_values)
    assert np.isnan(found[1])
    np.testing.assert_allclose(found[[0, 2, 3]], stats.false_discovery_control([0.01, 0.2, 0.03]))
    assert np.isnan(corrected(np.full(2, np.nan))).all()
