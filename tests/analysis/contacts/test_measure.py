import builtins

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structure_files import hairpin

from proteinlm.analysis.contacts import measure as contacts
from proteinlm.errors import InputError


def test_contacts_of_a_hairpin():
    # Facing C-beta are 5 Å apart; one along the strand more, 6.0 Å; two more, 8.3 Å.
    coordinates = np.array(hairpin("A" * 30))
    found = contacts.contact_map(coordinates)
    for i in range(30):
        for j in range(30):
            expected = np.linalg.norm(coordinates[i] - coordinates[j]) < 8
            assert found[i, j] == expected
    assert found[3, 26]
    assert found[3, 25]
    assert not found[3, 24]
    assert contacts.contact_map(coordinates, cutoff=5.5).sum() < found.sum()


def test_judged_pairs_leave_out_the_near_and_the_unresolved():
    coordinates = np.array(hairpin("A" * 30))
    coordinates[[4, 20]] = np.nan
    pairs = contacts.judged_pairs(coordinates)
    expected = [(i, j) for i in range(30) for j in range(i + 6, 30) if not {i, j} & {4, 20}]
    assert list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)) == expected
    np.testing.assert_array_equal(pairs.contacts, [contacts.contact_map(coordinates)[i, j] for i, j in expected])
    assert pairs.num_resolved == 28
    maps = np.random.default_rng(0).normal(size=(2, 30, 30))
    np.testing.assert_array_equal(pairs.of(maps), [[m[i, j] for i, j in expected] for m in maps])


def test_a_structure_without_contacts_is_refused():
    straight = np.arange(30.0)[:, None] * [3.8, 0, 0]
    with pytest.raises(InputError, match="300 pairs.*none is nearer than 8 Å"):
        contacts.judged_pairs(straight)
    with pytest.raises(InputError, match="0 pairs"):
        contacts.judged_pairs(np.array(hairpin("AAAAA")))


def test_average_product_correction_by_loops():
    maps = contacts.symmetrised(np.random.default_rng(0).random((2, 3, 7, 7)))
    found = contacts.average_product_corrected(maps)
    for place in np.ndindex(2, 3):
        whole = maps[place]
        for i in range(7):
            for j in range(7):
                expected = whole[i, j] - whole[i].sum() * whole[:, j].sum() / whole.sum()
                assert found[(*place, i, j)] == pytest.approx(expected)
    # What is nothing but a product of how much residues are attended to is taken away whole.
    rank_one = np.outer([1.0, 2, 3], [1.0, 2, 3])
    np.testing.assert_allclose(contacts.average_product_corrected(rank_one), 0, atol=1e-12)
    np.testing.assert_array_equal(contacts.average_product_corrected(np.zeros((4, 4))), 0)


def pairs_of(length, touching, num_resolved=None):
    first, second = np.triu_indices(length, contacts.CLOSEST)
    flags = np.array([(i, j) in touching for i, j in zip(first.tolist(), second.tolist(), strict=True)])
    return contacts.Pairs(first, second, flags, length if num_resolved is None else num_resolved)


def test_precision_by_hand():
    # Ten residues resolved: L = 10, L/2 = 5, L/5 = 2 pairs of each range.
    pairs = pairs_of(40, {(0, 30), (1, 31), (2, 32), (0, 12), (5, 11)}, 10)
    scores = np.zeros(len(pairs.first))

    def put(i, j, value):
        scores[(pairs.first == i) & (pairs.second == j)] = value

    # Long: a wrong pair first, then two right ones, then seven more wrong ones.
    put(0, 24, 9)
    put(0, 30, 8)
    put(1, 31, 7)
    for number in range(7):
        put(number, number + 25, 6 - number / 10)
    # Medium: one right pair on top, and nine wrong ones.
    put(0, 12, 9)
    for number in range(1, 10):
        put(number, number + 13, 5 - number / 10)
    table = contacts.precisions(scores, pairs)
    np.testing.assert_allclose(table[0], [2 / 10, 2 / 5, 1 / 2])
    np.testing.assert_allclose(table[1], [1 / 10, 1 / 5, 1 / 2])
    # Short: all scores are equal, and precision is that of chance.
    short = pairs.separation <= 11
    np.testing.assert_allclose(table[2], 1 / short.sum())
    np.testing.assert_allclose(table[2], contacts.chance(pairs)[2])
    counts = contacts.contacts_by_range(pairs)
    assert {name: entry["contacts"] for name, entry in counts.items()} == {"long": 3, "medium": 1, "short": 1}
    assert sum(entry["pairs"] for entry in counts.values()) == len(pairs.first)


def test_ranges_without_pairs_and_cuts_beyond_them():
    pairs = pairs_of(14, {(0, 13), (0, 6)})
    table = contacts.precisions(np.arange(len(pairs.first), 0, -1.0), pairs)
    assert np.isnan(table[0]).all()
    # Three pairs are 12 or 13 apart: 14, 7 and 2 are asked for.
    np.testing.assert_allclose(table[1], [1 / 3, 1 / 3, 1 / 2])
    np.testing.assert_allclose(table[2, 2], 1 / 2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(26, 40), st.integers(1, 4))
def test_precision_is_the_mean_over_ways_to_break_ties(seed, length, levels):
    rng = np.random.default_rng(seed)
    pairs = pairs_of(length, {(i, i + d) for i, d in rng.integers(1, length, (60, 2)).tolist()})
    scores = rng.integers(0, levels, len(pairs.first)).astype(float)
    exact = contacts.precisions(scores, pairs)
    noisy = [contacts.precisions(scores + 0.5 * rng.random(len(scores)), pairs) for _ in range(60)]
    # Sixty draws of a proportion, one or more pairs each.
    np.testing.assert_allclose(np.mean(noisy, 0), exact, atol=0.33)
    order = np.argsort(-scores[pairs.separation >= 24])
    if levels == 1:
        np.testing.assert_allclose(exact, contacts.chance(pairs))
    assert len(order) == contacts.contacts_by_range(pairs)["long"]["pairs"]


def test_without_scikit_learn_the_message_names_the_extra(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "sklearn":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"scikit-learn 1\.8 or later: pip install 'proteinlm\[analysis\]'"):
        contacts.fit_heads([np.zeros((2, 3))], [np.array([True, False, True])])


def made_up_heads(rng, number):
    """Features of four heads: one that sees contacts, one that sees them in small weights, two that see nothing."""
    touching = rng.random(number) < 0.1
    noise = rng.normal(size=(4, number))
    features = np.stack([touching + 0.7 * noise[0], 1e-5 * (touching + 0.7 * noise[1]), noise[2], 1e-4 * noise[3]])
    return features, touching


def test_regression_finds_the_heads_that_see_contacts():
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install -e '.[analysis]'")
    rng = np.random.default_rng(0)
    features, touching = zip(*(made_up_heads(rng, number) for number in (800, 1200)), strict=True)
    coefficients, intercept = contacts.fit_heads(features, touching)
    spread = np.concatenate(features, 1).std(1)
    weights = coefficients * spread
    # Both useful heads count alike, whatever the size of their weights; the useless ones hardly.
    assert weights[0] > 0.5
    assert weights[1] == pytest.approx(weights[0], rel=0.4)
    assert np.abs(weights[2:]).max() < 0.3
    assert intercept < 0
    new, flags = made_up_heads(rng, 4000)
    alone = np.mean(flags[np.argsort(-new[0])[:400]])
    assert np.mean(flags[np.argsort(-(coefficients @ new))[:400]]) > alone + 0.05
    # A heavy penalty leaves no head.
    assert not contacts.fit_heads(features, touching, inverse_penalty=1e-6)[0].any()
    same = contacts.fit_heads(features, touching)[0]
    np.testing.assert_array_equal(same, coefficients)


def test_regression_needs_both_kinds_of_pairs():
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install -e '.[analysis]'")
    with pytest.raises(InputError, match="pairs in contact and other pairs"):
        contacts.fit_heads([np.ones((2, 5))], [np.zeros(5, bool)])
