import dataclasses

import numpy as np
import pytest

from proteinlm import alphabet
from proteinlm.analysis.amino_acids import similarity
from proteinlm.errors import InputError
from proteinlm.inference.proteins import read_protein

LETTERS = alphabet.RESIDUES
SEQUENCES = [b"MKVLAADEXDE", b"ACDEFGHIKLMNPQRSTVWYBZXOU", b"WW", b"G", b"DEDEFYFYILV"]


@pytest.fixture(scope="module", params=[False, True], ids=["masked", "causal"])
def model(request, make_model):
    return make_model("favor", causal=request.param)


@pytest.fixture(scope="module")
def by_brute_force(explicit_maps):
    return lambda model, sequences: loop_over_pairs(model, sequences, explicit_maps)


def loop_over_pairs(model, sequences, explicit_maps):
    """Every sum of AminoAcidAttention by a loop over every pair of every matrix."""
    layers, heads, kinds = model.config.num_layers, model.config.num_heads, len(LETTERS)
    pair_sums, counts = np.zeros((layers, heads, kinds, kinds)), np.zeros((kinds, kinds), np.int64)
    even, own, special = np.zeros((kinds, kinds)), np.zeros((layers, heads)), np.zeros((layers, heads))
    proteins = [read_protein(model, sequence, name="p") for sequence in sequences]
    tokens = np.zeros((len(proteins), max(len(protein.tokens) for protein in proteins)), np.uint8)
    for row, protein in zip(tokens, proteins, strict=True):
        row[: len(protein.tokens)] = protein.tokens
    every = explicit_maps(model, tokens)
    for number, protein in enumerate(proteins):
        maps = every[:, number]
        text = alphabet.decode(protein.tokens)
        places = [i for i, letter in enumerate(text) if letter in LETTERS]
        for i in places:
            others = [j for j in places if j != i and (j < i or not model.causal)]
            own += maps[:, :, i, i]
            for j in set(range(len(text))) - set(places):
                special += maps[:, :, i, j]
            for j in others:
                a, b = LETTERS.index(text[i]), LETTERS.index(text[j])
                pair_sums[:, :, a, b] += maps[:, :, i, j]
                counts[a, b] += 1
                even[a, b] += 1 / len(others)
    return similarity.AminoAcidAttention(
        pair_sums, counts, even, own, special, len(sequences), sum(map(len, sequences))
    )


def assert_same(found, expected, atol=1e-5):
    for field in dataclasses.fields(found):
        np.testing.assert_allclose(
            getattr(found, field.name), getattr(expected, field.name), atol=atol, err_msg=field.name
        )


def test_sums_equal_a_loop_over_explicit_matrices(model, by_brute_force):
    found = similarity.amino_acid_attention(model, SEQUENCES, batch_size=2, block=7)
    assert_same(found, by_brute_force(model, SEQUENCES))
    # Everything that a residue gives is in one of the three sums.
    given = found.pair_sums.sum((2, 3)) + found.self_sums + found.special_sums
    np.testing.assert_allclose(given, found.num_residues, rtol=1e-3)


def test_batch_size_order_and_block_leave_the_sums_alone(model):
    whole = similarity.amino_acid_attention(model, SEQUENCES, batch_size=8)
    found = similarity.amino_acid_attention(model, SEQUENCES[::-1], batch_size=2, block=7)
    assert_same(found, whole)


@pytest.mark.slow
def test_a_protein_as_long_as_the_model_reads(make_model, by_brute_force):
    # Lengths that are not among the compiled ones, and no room for <eos>.
    for causal, length in ((False, 40), (True, 39)):
        model = make_model("softmax", causal=causal, max_length=40)
        sequence = (b"ACDEFGHIKLMNPQRSTVWY" * 2)[:length]
        found = similarity.amino_acid_attention(model, [sequence])
        assert_same(found, by_brute_force(model, [sequence]))
        assert found.special_sums.any() == causal


def planted(shares, *, counts=None):
    """Sums in which head h gives amino acid b a share of shares[h, b], whichever residue it looks from."""
    shares = np.asarray(shares, float)
    kinds = alphabet.NUM_RESIDUES
    frequency = np.full(kinds, 1.0) if counts is None else np.asarray(counts, float)
    even = np.outer(frequency, frequency) / frequency.sum()
    full = np.zeros((1, len(shares), kinds))
    full[0, :, : shares.shape[1]] = shares
    sums = frequency[None, None, :, None] * full[:, :, None, :]
    heads = np.zeros((1, len(shares)))
    return similarity.AminoAcidAttention(
        sums, np.round(even * 1000).astype(np.int64), even, heads, heads, 1, int(frequency.sum())
    )


def test_head_similarity_finds_planted_twins():
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(20), size=30)
    d, e, f, y = (alphabet.STANDARD_RESIDUES.index(letter) for letter in "DEFY")
    shares[:, e] = 3 * shares[:, d]
    shares[:, y] = 0.5 * shares[:, f]
    found = similarity.head_similarity(planted(shares / shares.sum(1, keepdims=True)))
    expected = np.corrcoef((shares / shares.sum(1, keepdims=True)).T)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    off = np.where(np.eye(20, dtype=bool), -1, found)
    assert off[d].argmax() == e
    assert off[y].argmax() == f
    np.testing.assert_allclose(np.diag(found), 1)


def test_frequency_is_taken_out():
    # Even attention over a very uneven composition shows no preference at all.
    frequency = np.linspace(1, 50, alphabet.NUM_RESIDUES)
    even = np.tile(frequency / frequency.sum(), (3, 1))
    sums = planted(even, counts=frequency)
    np.testing.assert_allclose(similarity.head_profiles(sums), 1)
    np.testing.assert_allclose(similarity.pair_enrichment(sums), 1)
    assert np.isnan(similarity.head_similarity(sums)).all()


def test_pair_enrichment_and_mean_attention_see_a_planted_pair():
    sums = planted(np.full((4, 25), 1 / 25))
    d, e = (alphabet.STANDARD_RESIDUES.index(letter) for letter in "DE")
    sums.pair_sums[:, :, d, e] *= 6
    enrichment = similarity.pair_enrichment(sums)
    assert np.unravel_index(enrichment.argmax(), (20, 20)) == (d, e)
    # 625 equal cells, of which one holds 6: the whole is scaled back to 1.
    np.testing.assert_allclose(enrichment[d, e], 6 * 625 / 630)
    np.testing.assert_allclose(enrichment[e, d], 625 / 630)
    mean = similarity.mean_attention(sums)
    np.testing.assert_allclose(mean[d, e] / mean[e, d], 6)
    np.testing.assert_allclose(mean[e, d], sums.pair_sums[0, 0, e, d] / sums.pair_counts[e, d])


def test_amino_acids_that_never_occur_are_nan_not_zero(make_model):
    sums = similarity.amino_acid_attention(make_model("softmax"), [b"ACDACDAC", b"DDCA"])
    seen = np.isin(list(alphabet.STANDARD_RESIDUES), list("ACD"))
    for matrix in (
        similarity.pair_enrichment(sums), similarity.mean_attention(sums), similarity.head_similarity(sums)
    ):  # fmt: skip
        assert np.isfinite(matrix[np.ix_(seen, seen)]).all()
        assert np.isnan(matrix[~seen]).all()
        assert np.isnan(matrix[:, ~seen]).all()


def test_one_layer_alone(make_model):
    sums = similarity.amino_acid_attention(make_model("generalized", num_heads=4, max_length=32), SEQUENCES)
    profiles = similarity.head_profiles(sums)
    assert profiles.shape == (2, 4, 20)
    np.testing.assert_allclose(similarity.head_similarity(sums, layer=1), np.corrcoef(profiles[1].T))
    with pytest.raises(InputError, match="no layer 2: this model's layers go from 0 to 1"):
        similarity.head_similarity(sums, layer=2)


def test_attention_that_stays_at_home_has_no_similarity(make_model):
    sums = similarity.amino_acid_attention(make_model("identity"), SEQUENCES)
    assert not sums.pair_sums.any()
    np.testing.assert_allclose(sums.self_sums, sums.num_residues)
    assert np.isnan(similarity.head_profiles(sums)).all()
    with pytest.raises(InputError, match="only 0 of this model's heads"):
        similarity.head_similarity(sums)


def test_bad_input_is_named(make_model):
    model = make_model("identity")
    with pytest.raises(InputError, match="at least one sequence"):
        similarity.amino_acid_attention(model, [])
    with pytest.raises(InputError, match="sequence 2: the letter '1' at residue 3"):
        similarity.amino_acid_attention(model, [b"ACD", b"AC1D"])
    with pytest.raises(InputError, match="sequence 1 has 65 residues, but this model reads at most 64"):
        similarity.amino_acid_attention(model, [b"A" * 65])
    with pytest.raises(ValueError, match="batch_size"):
        similarity.amino_acid_attention(model, [b"ACD"], batch_size=0)
