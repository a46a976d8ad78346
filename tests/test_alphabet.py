import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteinlm import alphabet
from proteinlm.errors import InputError


def test_zeros_are_padding_and_ids_are_places_in_tokens():
    assert alphabet.TOKENS[0] == "<pad>"
    assert alphabet.PAD == 0
    assert len(set(alphabet.TOKENS)) == alphabet.SIZE == 29
    assert [alphabet.TOKENS[i] for i in (alphabet.BOS, alphabet.EOS, alphabet.MASK)] == ["<bos>", "<eos>", "<mask>"]
    ids = alphabet.encode(alphabet.RESIDUES)
    assert ids.dtype == np.uint8
    assert [alphabet.TOKENS[i] for i in ids] == list(alphabet.RESIDUES)


@given(st.text(alphabet.RESIDUES))
def test_encode_and_decode_undo_each_other(text):
    assert alphabet.decode(alphabet.encode(text)) == text
    assert (alphabet.encode(text) == alphabet.encode(text.encode())).all()


def test_decode_shows_special_tokens():
    assert alphabet.decode(np.array([1, 4, 3, 2, 0])) == "^A#$-"


@pytest.mark.parametrize(
    ("given", "stored"),
    [(b"ACD", b"ACD"), (b"acd", b"ACD"), (b"AJj", b"AXX"), (b"ACD*", b"ACD"), (b"BZXOU", b"BZXOU")],
)
def test_canonical(given, stored):
    assert alphabet.canonical(given) == stored


@pytest.mark.parametrize("given", [b"", b"*", b"A*C", b"AC**", b"AC-D", b"A1", b"A C", b"A>C", b"\xc3\xa4", b"A\0"])
def test_what_is_no_sequence_is_refused(given):
    with pytest.raises(InputError):
        alphabet.canonical(given)


def test_a_refusal_names_letter_and_place():
    with pytest.raises(InputError, match="'-' at residue 3"):
        alphabet.canonical(b"AC-D")
    with pytest.raises(InputError, match="'j' at residue 1"):
        alphabet.encode("jA")


@given(st.binary(max_size=40))
def test_canonical_is_stable_or_refuses(data):
    try:
        letters = alphabet.canonical(data)
    except InputError:
        return
    assert alphabet.canonical(letters) == letters
    assert set(letters.decode()) <= set(alphabet.RESIDUES)


@pytest.mark.parametrize("ids", [[29], [-1], [0, 255]])
def test_ids_outside_the_alphabet_are_refused(ids):
    with pytest.raises(InputError, match="0 to 28"):
        alphabet.decode(np.array(ids))
