"""A trained model with its config: logits, hidden states and attention maps of any number of proteins."""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Float32

from proteinlm import alphabet
from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.inference.probing import probe_protein
from proteinlm.inference.proteins import Protein, batched, read_for_logits, read_protein
from proteinlm.models.transformer import ProteinLM


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A trained model, its config and where both come from; `load_run` makes it.

    Sequences are str or bytes, one letter a residue. Lower case is accepted, J is read as X, a trailing * is dropped.
    The special tokens of training are added here and their rows removed again, so that results have one row for each
    residue: a causal model reads <bos> before the protein, a bidirectional one <eos> after it (no <eos> where the
    protein fills max_length). No residue is masked.

    Any number of sequences is accepted; results come in the order of the sequences. Sequences of similar length are
    batched together, with at most 8,192 tokens in a batch (a longer protein is a batch alone). A result does not
    depend on the other sequences, except in the last digits of float32.

    Attributes:
        folder: folder of the run.
        config: config of the run.
        step: number of optimizer steps of the checkpoint.
        model: the model, a Flax module.
        dataset: path of the dataset that the model was trained on.
        dataset_fingerprint: fingerprint of that dataset.
        mesh: device mesh of the model; None for one device.
    """

    folder: Path
    config: Config
    step: int
    model: ProteinLM
    dataset: str
    dataset_fingerprint: str
    mesh: Mesh | None = None

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def alphabet(self) -> ModuleType:
        """The module `proteinlm.alphabet`: column v of the logits is the token `alphabet.TOKENS[v]`."""
        return alphabet

    def __repr__(self) -> str:
        model = self.config.model
        weights = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self.model, nnx.Param)))
        return (
            f"Run({str(self.folder)!r}, step={self.step}): {self.config.objective.kind}, {model.attention.kind} "
            f"attention, {weights:,} parameters,\n"
            f"{model.num_layers} layers, {model.num_heads} heads, width {model.embed_dim}, "
            f"max_length {model.max_length}"
        )

    def logits(self, sequences: Iterable[str | bytes]) -> list[Float32[np.ndarray, "_ V"]]:
        """Return the logits of every residue, float32 [L, V] for a protein of L residues.

        Row i predicts residue i, for causal and for bidirectional models. A causal model computes row i from the
        residues before i. A bidirectional model computes it from the whole protein, residue i included: these are not
        the predictions of masked residues that `evaluate` scores.

        Args:
            sequences: proteins of at most max_length residues each; an empty list gives an empty list.

        Raises:
            InputError: one string in place of a list, an empty sequence, a letter outside the alphabet, or a sequence
                that is too long; the message gives its index.

        Examples:
            >>> run.logits(["MKTAYIAKQR", "MSILV"])[1].shape
            (5, 29)
        """
        return self._rows(sequences, read_for_logits, _logits)

    def hidden_states(
        self, sequences: Iterable[str | bytes], layers: Sequence[int] = (-1,)
    ) -> list[Float32[np.ndarray, "K _ F"]]:
        """Return the outputs of some layers, float32 [K, L, F] for a protein of L residues, K layers and width F.

        Row i is the state at residue i. In a causal model it depends on the residues up to i and predicts residue
        i + 1. Embeddings of proteins are commonly the mean over the rows: `hidden[-1].mean(axis=0)`.

        Args:
            sequences: proteins of at most max_length residues each (causal: one fewer, for <bos>).
            layers: layers counted from 0, or from the end if negative. The last layer's output (-1) is given after the
                final normalisation: it is the input of the output layer. The others are the residual stream as it is
                (in models with post-norm, every layer's output is normalised).

        Raises:
            InputError: no such layer, or as for `logits`.

        Examples:
            >>> run.hidden_states(["MKTAYIAKQR"], layers=(0, -1))[0].shape
            (2, 10, 16)
        """
        count = self.config.model.num_layers
        try:
            chosen = tuple(range(count)[operator.index(layer)] for layer in layers)
        except (IndexError, TypeError) as error:
            raise InputError(
                f"layers is {layers!r}; it must be a sequence of layers from 0 to {count - 1}, or -{count} to -1."
            ) from error
        if not chosen:
            raise InputError(f"layers is empty: name at least one layer from 0 to {count - 1}.")
        return self._rows(sequences, read_protein, functools.partial(_hidden_states, layers=chosen))

    def attention(self, sequence: str | bytes) -> Float32[np.ndarray, "N H _ _"]:
        """Return the attention matrices of one protein, float32 [N, H, L, L]: N layers, H heads, L residues.

        [n, h, i, j] is the weight with which residue i attends to residue j. The matrices are read off the model's own
        attention with one-hot values (Performer paper, appendix C.4), which is exact for every mechanism. Rows do not
        sum to 1: weights of the special token are left out, and some mechanisms do not normalise. Memory is
        N * H * L * L * 4 bytes.

        Args:
            sequence: one protein of at most max_length residues (causal: one fewer, for <bos>).

        Raises:
            InputError: as for `logits`.

        Examples:
            >>> run.attention("MKTAYIAKQR").shape
            (2, 2, 10, 10)
        """
        if not isinstance(sequence, str | bytes):
            raise InputError(f"attention takes one sequence, str or bytes; this is {type(sequence).__name__}.")
        name = "the protein"
        probe = probe_protein(self.model, _letters(sequence, name), name=name)
        residues = probe.protein.residues
        return np.ascontiguousarray(probe.maps()[:, 0, :, residues, residues])

    def _rows(
        self,
        sequences: Iterable[str | bytes],
        read: Callable[..., Protein],
        compute: Callable[[Any, Any, np.ndarray], jax.Array],
    ) -> list[np.ndarray]:
        """Return `compute`'s output for each sequence, cut to its residues; tokens are axis -2 of the output."""
        if isinstance(sequences, str | bytes):
            raise InputError("this takes a list of sequences, and it was given one string: write [sequence].")
        proteins = list(self._read(sequences, read))
        graph, state = nnx.split(self.model)
        results: list[Any] = [None] * len(proteins)
        for indices, tokens in batched(self.model, proteins):
            output = np.asarray(compute(graph, state, tokens))
            for row, index in enumerate(indices):
                # A copy, so that one result does not keep the whole batch in memory.
                results[index] = output[row][..., proteins[index].residues, :].copy()
        return results

    def _read(self, sequences: Iterable[str | bytes], read: Callable[..., Protein]) -> Iterator[Protein]:
        for index, sequence in enumerate(sequences):
            name = f"sequences[{index}]"
            yield read(self.model, _letters(sequence, name), name=name)


def _letters(sequence: str | bytes, name: str) -> bytes:
    """Return a sequence as bytes; errors of type, and of letters outside Latin-1, which no byte stands for."""
    if isinstance(sequence, bytes):
        return sequence
    if not isinstance(sequence, str):
        raise InputError(f"{name} is {type(sequence).__name__}; a sequence is str or bytes.")
    try:
        return sequence.encode("latin-1")
    except UnicodeEncodeError as error:
        letter = sequence[error.start]
        message = f"{name}: the letter {letter!r} at residue {error.start + 1} is not an amino acid."
        raise InputError(message) from error


@functools.partial(jax.jit, static_argnums=0)
def _logits(graph, state, tokens):
    """Return float32 [B, L, V]."""
    return nnx.merge(graph, state)(tokens.astype(jnp.int32))


@functools.partial(jax.jit, static_argnums=0, static_argnames="layers")
def _hidden_states(graph, state, tokens, *, layers):
    """Return float32 [B, K, L, F]."""
    return nnx.merge(graph, state).hidden_states(tokens.astype(jnp.int32), layers).swapaxes(0, 1)
