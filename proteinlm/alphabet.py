"""The tokens of the models: amino acids and special tokens, and their ids.

The 20 standard residues and the letters B Z X O U are separate tokens. The id of `<pad>` is 0, so that an array of
zeros is padding. In input files, lower case (soft masking) is read as upper case, J (leucine or isoleucine, not in
UniProt) is read as X, and one * at the end (a stop codon) is dropped. Any other letter is an error.
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
    """Return a sequence in the stored form: upper case, X for J, without one * at the end.

    Args:
        sequence: ASCII letters, one byte for each residue.

    Raises:
        InputError: the sequence is empty or has a letter outside the alphabet.
    """
    letters = sequence.translate(_UPPER)
    if letters.endswith(b"*"):
        letters = letters[:-1]
    if not letters:
        raise InputError("the sequence is empty")
    # Raises if a letter is not in the alphabet.
    encode(letters)
    return letters


def encode(sequence: bytes | str) -> np.ndarray:
    """Return the ids of a canonical sequence of L residues, uint8 [L], without special tokens.

    Raises:
        InputError: a letter is outside the alphabet. (Convert sequences from files with `canonical` first.)
    """
    data = sequence.encode("latin-1", "replace") if isinstance(sequence, str) else sequence
    ids = _ID_OF_BYTE[np.frombuffer(data, np.uint8)]
    if (ids == _NOT_A_RESIDUE).any():
        index = int(np.argmax(ids == _NOT_A_RESIDUE))
        raise InputError(f"the letter {chr(data[index])!r} at residue {index + 1} is not an amino acid")
    return ids


def decode(tokens: np.ndarray) -> str:
    """Return the letters of ids [L]: one letter for each residue, - for pad, ^ for bos, $ for eos, # for mask.

    Raises:
        InputError: an id is not that of a token.
    """
    tokens = np.asarray(tokens)
    if tokens.size and (tokens.min() < 0 or tokens.max() >= SIZE):
        raise InputError(
            f"token ids are from 0 to {SIZE - 1}, but the array has {int(tokens.min())} to {int(tokens.max())}"
        )
    return _BYTE_OF_ID[tokens].tobytes().decode("ascii")
