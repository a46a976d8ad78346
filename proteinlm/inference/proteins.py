"""Proteins as a model reads them, one or many, and the one that the paper draws."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.models.transformer import ProteinLM

BPT1_BOVIN = (
    b"MKMSRLCLSVALLVLLGTLAASTPGCDTSNQAKAQRPDFCLEPPYTGPCKARIIRYFYNA"  # P00974, 1 to 60
    b"KAGLCQTFVYGGCRAKRNNFKSAEDCMRTCGGAIGPWENL"
)
"""Bovine pancreatic trypsin inhibitor, UniProtKB P00974, 100 residues (CC BY 4.0), drawn in
the Performer paper, appendix C.4."""


# Compiled lengths: a batch is padded to the next one, so that few shapes are compiled and little is padded.
_LENGTHS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


@dataclass(frozen=True)
class Protein:
    """A protein ready for a model.

    Attributes:
        name: how figures and messages call it.
        tokens: uint8 [L], residues with the special token that the model saw beside them in training.
        residues: where the residues lie in `tokens`; cut an attention matrix with it twice.
    """

    name: str
    tokens: np.ndarray
    residues: slice

    @property
    def letters(self) -> str:
        """The residues, one letter each."""
        return alphabet.decode(self.tokens[self.residues])


def capacity(model: ProteinLM) -> int:
    """Return how many residues of one protein the model can read: one place goes to <bos> if it is causal."""
    return model.config.max_length - int(model.causal)


def read_protein(model: ProteinLM, sequence: bytes, *, name: str) -> Protein:
    """Turn a sequence into the tokens that the model saw in training.

    A causal model reads <bos> and the residues; a bidirectional one reads the residues and, where there is
    room for it, <eos> (training clips long proteins without one).

    Args:
        model: the model that will read it.
        sequence: ASCII letters; lower case, J and a trailing * are read as at ingest.
        name: what to call it in messages.

    Raises:
        InputError: a letter is outside the alphabet, or the protein is longer than the model can read.
    """
    try:
        residues = alphabet.encode(alphabet.canonical(sequence))
    except InputError as error:
        raise InputError(f"{name}: {error}.") from error
    limit = capacity(model)
    if len(residues) > limit:
        raise InputError(
            f"{name} has {len(residues)} residues, but this model reads at most {limit}: "
            "analyse a part of the protein, or train with a larger model.max_length."
        )
    if model.causal:
        tokens = np.concatenate([np.array([alphabet.BOS], np.uint8), residues])
        return Protein(name, tokens, slice(1, len(tokens)))
    if len(residues) < limit:
        return Protein(name, np.append(residues, np.uint8(alphabet.EOS)), slice(0, len(residues)))
    return Protein(name, residues, slice(0, len(residues)))


def read_proteins(model: ProteinLM, sequences: Sequence[bytes]) -> list[Protein]:
    """Read many sequences, called "sequence 1" and so on in messages.

    Raises:
        InputError: there is none, or as for `read_protein`.
    """
    if not sequences:
        raise InputError("this needs at least one sequence, and was given none.")
    return [read_protein(model, letters, name=f"sequence {i + 1}") for i, letters in enumerate(sequences)]


def batched(model: ProteinLM, proteins: Sequence[Protein], batch_size: int) -> Iterator[tuple[list[int], np.ndarray]]:
    """Put proteins of like length together.

    Yields:
        (places of the proteins in the given order, tokens uint8 [batch_size, L]); rows and places of tokens that are
        not filled are padding.
    """
    # A stable sort: the order among equals is the caller's.
    order = sorted(range(len(proteins)), key=lambda place: len(proteins[place].tokens))
    for first in range(0, len(order), batch_size):
        places = order[first : first + batch_size]
        longest = len(proteins[places[-1]].tokens)
        padded = next((length for length in _LENGTHS if length >= longest), longest)
        tokens = np.full((batch_size, min(padded, model.config.max_length)), alphabet.PAD, np.uint8)
        for row, place in zip(tokens, places, strict=False):
            row[: len(proteins[place].tokens)] = proteins[place].tokens
        yield places, tokens


def refuse_fewer(sequences: Sequence[bytes], asked: int | None) -> None:
    """Refuse fewer sequences than were asked for (None asks for no number).

    Raises:
        InputError: the message says both numbers.
    """
    if asked is not None and len(sequences) < asked:
        raise InputError(
            f"{asked:,} sequences were asked for, but there are only {len(sequences):,}: ask for at most that many."
        )


def clipped(model: ProteinLM, sequences: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Return sequences no longer than the model reads, as single sequences are clipped in training, and how many were.

    Raises:
        InputError: a letter is outside the alphabet; the message counts sequences from 1.
    """
    limit = capacity(model)
    whole = []
    for index, sequence in enumerate(sequences):
        try:
            whole.append(alphabet.canonical(sequence))
        except InputError as error:
            raise InputError(f"sequence {index + 1}: {error}.") from error
    return [letters[:limit] for letters in whole], sum(len(letters) > limit for letters in whole)
