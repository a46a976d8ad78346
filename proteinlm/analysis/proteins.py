"""A protein as a model reads it, and the one that the paper draws."""

from dataclasses import dataclass

import numpy as np

from proteinlm.data import alphabet
from proteinlm.errors import InputError
from proteinlm.models.transformer import ProteinLM

BPT1_BOVIN = (
    b"MKMSRLCLSVALLVLLGTLAASTPGCDTSNQAKAQRPDFCLEPPYTGPCKARIIRYFYNA"  # P00974, 1 to 60
    b"KAGLCQTFVYGGCRAKRNNFKSAEDCMRTCGGAIGPWENL"
)
"""Bovine pancreatic trypsin inhibitor, UniProtKB P00974, 100 residues (CC BY 4.0), drawn in
the Performer paper, appendix C.4."""


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
