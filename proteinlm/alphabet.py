"""Residues and special tokens as ids, and back.

Twenty residues and the five legal letters B Z X O U are distinct tokens; `<pad>` is 0 so that an array of zeros is
nothing but padding. Lower case (soft masking) is read as upper case, J (leucine or isoleucine, outside UniProt) as X,
and one trailing * (a stop) is dropped; anything else is refused with its reason.
"""

import numpy as np

from proteinlm.errors import InputError

STANDARD_RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
OTHER_RESIDUES = "BZXOU"
RESIDUES = STANDARD_RESIDUES + OTHER_RESIDUES
SPECIALS = ("<pad>", "<bos>", "<eos>", "<mask>")
PAD, BOS, EOS, MASK = range(4)
FIRST_RESIDUE = len(SPECIALS)
TOKENS = SPECIALS + tuple(RESIDUES)
SIZE = len(TOKENS)
"""Number of tokens V: 29."""
NUM_STANDARD = len(STANDARD_RESIDUES)
NUM_RESIDUES = len(RESIDUES)

_NOT_A_RESIDUE = 255
_ID_OF_BYTE = np.full(256, _NOT_A_RESIDUE, np.uint8)
for _index, _letter in enumerate(RESIDUES):
    _ID_OF_BYTE[ord(_letter)] = FIRST_RESIDUE + _index
_BYTE_OF_ID = np.frombuffer(b"-^$#" + RESIDUES.encode(), np.uint8)

_UPPER = bytes.maketrans(b"abcdefghijklmnopqrstuvwxyzJ", b"ABCDEFGHIXKLMNOPQRSTUVWXYZX")


def canonical(sequence: bytes) -> bytes:
    """Return a sequence as it is stored: upper case, J as X, one trailing * dropped.

    Args:
        sequence: ASCII letters, one byte a residue.

    Raises:
        InputError: the sequence is empty or holds a letter outside the alphabet; the message is the reason.
    """
    letters = sequence.translate(_UPPER)
    if letters.endswith(b"*"):
        letters = letters[:-1]
    if not letters:
        raise InputError("the sequence is empty")
    encode(letters)
    return letters


def encode(sequence: bytes | str) -> np.ndarray:
    """Turn a canonical sequence into ids, uint8 [L], one a residue, without special tokens.

    Raises:
        InputError: a letter is outside the alphabet (a sequence from a file goes through `canonical` first).
    """
    data = sequence.encode("latin-1", "replace") if isinstance(sequence, str) else sequence
    ids = _ID_OF_BYTE[np.frombuffer(data, np.uint8)]
    if (ids == _NOT_A_RESIDUE).any():
        place = int(np.argmax(ids == _NOT_A_RESIDUE))
        raise InputError(f"the letter {chr(data[place])!r} at residue {place + 1} is not an amino acid")
    return ids


def decode(tokens: np.ndarray) -> str:
    """Turn ids [L] into one letter each: residues as themselves, pad -, bos ^, eos $, mask #.

    Raises:
        InputError: an id is not a token's.
    """
    tokens = np.asarray(tokens)
    if tokens.size and (tokens.min() < 0 or tokens.max() >= SIZE):
        raise InputError(f"token ids go from 0 to {SIZE - 1}; found {int(tokens.min())} to {int(tokens.max())}")
    return _BYTE_OF_ID[tokens].tobytes().decode("ascii")
