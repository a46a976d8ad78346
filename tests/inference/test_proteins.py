import gzip

import numpy as np
import pytest

from proteinlm import alphabet, data
from proteinlm.errors import InputError
from proteinlm.inference.proteins import (
    BPT1_BOVIN,
    batched,
    capacity,
    clipped,
    read_protein,
    read_proteins,
)


def test_bpt1_bovin_is_the_samples_p00974():
    path = f"{data.__path__[0]}/sample/proteins.fasta.gz"
    with gzip.open(path) as handle:
        record = next(entry for entry in handle.read().split(b">") if entry.startswith(b"P00974"))
    assert b"".join(record.split()[1:]) == BPT1_BOVIN
    assert len(BPT1_BOVIN) == 100


def test_causal_models_read_bos_and_masked_ones_eos(make_model):
    causal = read_protein(make_model(causal=True), b"mkv*", name="p")
    assert alphabet.decode(causal.tokens) == "^MKV"
    masked = read_protein(make_model(), b"MKJ", name="p")
    assert alphabet.decode(masked.tokens) == "MKX$"
    assert (causal.letters, masked.letters) == ("MKV", "MKX")
    assert causal.tokens.dtype == masked.tokens.dtype == np.uint8


@pytest.mark.parametrize(("causal", "limit"), [(False, 64), (True, 63)])
def test_the_longest_protein_fits_and_one_more_is_refused(make_model, causal, limit):
    model = make_model(causal=causal)
    assert capacity(model) == limit
    protein = read_protein(model, b"A" * limit, name="long")
    assert len(protein.tokens) == 64
    assert protein.letters == "A" * limit
    with pytest.raises(InputError, match=f"long has {limit + 1} residues.*at most {limit}"):
        read_protein(model, b"A" * (limit + 1), name="long")


def test_a_foreign_letter_names_the_protein(make_model):
    with pytest.raises(InputError, match="P1: the letter '!' at residue 2 is not an amino acid"):
        read_protein(make_model(), b"A!", name="P1")
    with pytest.raises(InputError, match="P1: the sequence is empty"):
        read_protein(make_model(), b"", name="P1")


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_every_protein_is_in_one_batch_beside_others_of_like_length(make_model, batch_size):
    model = make_model(max_length=64)
    proteins = read_proteins(model, [b"A" * length for length in (60, 3, 40, 3, 64)])
    seen = []
    for places, tokens in batched(model, proteins, batch_size):
        assert len(tokens) == batch_size
        assert tokens.shape[1] in (32, 64)
        seen += places
        for row, place in zip(tokens, places, strict=False):
            np.testing.assert_array_equal(row[row != alphabet.PAD], proteins[place].tokens)
        assert not tokens[len(places) :].any()
    assert seen == [1, 3, 2, 0, 4]


def test_clipped_counts_and_names(make_model):
    model = make_model(causal=True)
    found, number = clipped(model, [b"a" * 70, b"MKV*"])
    assert [len(letters) for letters in found] == [63, 3]
    assert number == 1
    assert found[1] == b"MKV"
    with pytest.raises(InputError, match="sequence 2: the letter '1' at residue 1"):
        clipped(model, [b"A", b"1"])
