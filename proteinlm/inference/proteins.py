"""Proteins as the tokens of a model: framing with special tokens, and batches of similar length."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.models.transformer import ProteinLM

BPT1_BOVIN = (
    b"MKMSRLCLSVALLVLLGTLAASTPGCDTSNQAKAQRPDFCLEPPYTGPCKARIIRYFYNA"  # P00974, 1 to 60
    b"KAGLCQTFVYGGCRAKRNNFKSAEDCMRTCGGAIGPWENL"
)
"""Bovine pancreatic trypsin inhibitor, UniProtKB P00974, 100 residues (CC BY 4.0): the protein of the figures in the
Performer paper, appendix C.4."""


# Padded lengths of batches: few, so that few shapes are compiled, and dense enough that little is padding.
_LENGTHS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)

MOST_TOKENS = 8192
"""Tokens in a batch of `batched`, padding included, where no batch size is given. A longer protein is a batch alone."""


@dataclass(frozen=True)
class Protein:
    """A protein as the tokens that a model reads.

    Attributes:
        name: name in figures and messages.
        tokens: uint8 [L], residues and the special token beside them (see `read_protein`).
        residues: slice of the rows of the model's output that belong to the residues. To cut an attention matrix to
            the residues, apply it to both axes.
    """

    name: str
    tokens: np.ndarray
    residues: slice

    @property
    def letters(self) -> str:
        """The residues, one letter each; not for proteins of `read_for_logits`."""
        return alphabet.decode(self.tokens[self.residues])


def capacity(model: ProteinLM) -> int:
    """Return the largest number of residues that the model can read; a causal model also needs one token for <bos>."""
    return model.config.max_length - int(model.causal)


def read_protein(model: ProteinLM, sequence: bytes, *, name: str) -> Protein:
    """Return a sequence as the tokens that the model saw in training.

    The tokens of a causal model are <bos> and the residues. Those of a bidirectional model are the residues and <eos>,
    or the residues alone where <eos> no longer fits (training clips long proteins in the same way).

    Args:
        model: the model that will read the tokens.
        sequence: ASCII letters. Lower case, J and a trailing * are accepted, as in ingest.
        name: name of the protein in messages.

    Raises:
        InputError: the sequence is empty, a letter is outside the alphabet, or the protein is longer than the model
            can read.
    """
    residues = _residues(sequence, name, capacity(model))
    if model.causal:
        tokens = np.concatenate([np.array([alphabet.BOS], np.uint8), residues])
        return Protein(name, tokens, slice(1, len(tokens)))
    return _bidirectional(model, residues, name)


def read_for_logits(model: ProteinLM, sequence: bytes, *, name: str) -> Protein:
    """Return a sequence framed so that the logits of row i of `residues` predict residue i.

    A causal model predicts residue i at the token before it. Its tokens are therefore <bos> and all residues but the
    last, and it can score one residue more than it can read. A bidirectional model predicts each residue at its own
    place; its tokens are those of `read_protein`. Arguments and errors as for `read_protein`.
    """
    residues = _residues(sequence, name, model.config.max_length)
    if model.causal:
        tokens = np.concatenate([np.array([alphabet.BOS], np.uint8), residues[:-1]])
        return Protein(name, tokens, slice(0, len(tokens)))
    return _bidirectional(model, residues, name)


def _bidirectional(model: ProteinLM, residues: np.ndarray, name: str) -> Protein:
    fits = len(residues) < model.config.max_length
    return Protein(name, np.append(residues, np.uint8(alphabet.EOS)) if fits else residues, slice(0, len(residues)))


def _residues(sequence: bytes, name: str, limit: int) -> np.ndarray:
    """Return the residues as ids, uint8; errors as for `read_protein`."""
    try:
        residues = alphabet.encode(alphabet.canonical(sequence))
    except InputError as error:
        raise InputError(f"{name}: {error}.") from error
    if len(residues) > limit:
        raise InputError(
            f"{name} has {len(residues)} residues, but this model reads at most {limit}: "
            "use a part of the protein, or train with a larger model.max_length."
        )
    return residues


def read_proteins(model: ProteinLM, sequences: Sequence[bytes]) -> list[Protein]:
    """Return many sequences as tokens; messages call them "sequence 1" and so on.

    Raises:
        InputError: the list is empty, or as for `read_protein`.
    """
    if not sequences:
        raise InputError("this needs at least one sequence, but the list of sequences is empty.")
    return [read_protein(model, letters, name=f"sequence {i + 1}") for i, letters in enumerate(sequences)]


def batched(
    model: ProteinLM, proteins: Sequence[Protein], batch_size: int | None = None
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Put proteins of similar length together.

    Args:
        model: the model that will read the batches; its max_length is the longest padded length.
        proteins: any number of proteins, in any order.
        batch_size: rows of every batch. By default batches have at most `MOST_TOKENS` tokens and one padded length
            each, so that many proteins need few compilations.

    Yields:
        (indices into `proteins`, tokens uint8 [rows, L]). Unused rows and the ends of rows are padding.
    """
    # A stable sort: proteins of one length stay in the caller's order.
    order = sorted(range(len(proteins)), key=lambda index: len(proteins[index].tokens))
    for indices, rows in _groups(model, proteins, order) if batch_size is None else _chunks(order, batch_size):
        tokens = np.full((rows, _padded(model, proteins[indices[-1]])), alphabet.PAD, np.uint8)
        for row, index in zip(tokens, indices, strict=False):
            row[: len(proteins[index].tokens)] = proteins[index].tokens
        yield indices, tokens


def _padded(model: ProteinLM, protein: Protein) -> int:
    """Return the padded length of a batch whose longest protein is this one."""
    longest = len(protein.tokens)
    return min(next((length for length in _LENGTHS if length >= longest), longest), model.config.max_length)


def _chunks(order: Sequence[int], size: int) -> Iterable[tuple[list[int], int]]:
    """Yield (indices, rows) of batches with `size` rows."""
    for first in range(0, len(order), size):
        yield list(order[first : first + size]), size


def _groups(model: ProteinLM, proteins: Sequence[Protein], order: Sequence[int]) -> Iterable[tuple[list[int], int]]:
    """Yield (indices, rows) of batches with one padded length and a bounded number of tokens."""
    for length, group in itertools.groupby(order, key=lambda index: _padded(model, proteins[index])):
        most = max(1, MOST_TOKENS // length)
        for indices, _ in _chunks(list(group), most):
            # Powers of two, so that the last batch of a length is one of few shapes.
            yield indices, min(most, 1 << (len(indices) - 1).bit_length())


def clipped(model: ProteinLM, sequences: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Clip sequences to the length that the model reads, as training clips them; return them and the number clipped.

    Raises:
        InputError: a letter is outside the alphabet; the message counts sequences from 1.
    """
    limit = capacity(model)
    sequences_read = []
    for index, sequence in enumerate(sequences):
        try:
            sequences_read.append(alphabet.canonical(sequence))
        except InputError as error:
            raise InputError(f"sequence {index + 1}: {error}.") from error
    return [letters[:limit] for letters in sequences_read], sum(len(letters) > limit for letters in sequences_read)
