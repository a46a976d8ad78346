import gzip

import numpy as np
import pytest

from proteinlm import data
from proteinlm.analysis.proteins import BPT1_BOVIN, capacity, read_protein
from proteinlm.data import alphabet
from proteinlm.errors import InputError


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
