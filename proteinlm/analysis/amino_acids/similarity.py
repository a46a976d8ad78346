"""How much each amino acid attends to each other one, and which ones a model treats alike.

Two readings of "similarity estimated from the attention matrices" (Performer paper, appendix C.4) live here:

- `head_similarity`, the default, is that of Vig et al. (2020, "BERTology Meets Biology"), whom the paper
follows: for
  each head, the share of its attention that lands on each amino acid; two amino acids are alike when these
  shares rise and fall together across heads (Pearson correlation over layers x heads).
- `pair_enrichment` is direct: the attention from residues of one kind to residues of another.

Attention to a common amino acid is large merely because it is common, so both are measured against what
attention spread evenly over the same pairs would give: 1 means no preference. (Pearson correlation does not
notice this scaling, so `head_similarity` has the values of Vig et al.; the profiles behind it become
comparable between amino acids.) Pairs of a residue with itself, special tokens and padding are left out of
every sum. Weights are neither cut off at a threshold nor renormalised.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float64, Int64

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.inference.probing import BLOCK, Probe, fold_columns
from proteinlm.inference.proteins import batched, read_proteins
from proteinlm.models.transformer import ProteinLM

STANDARD = slice(0, alphabet.NUM_STANDARD)


@dataclass(frozen=True)
class AminoAcidAttention:
    """Sums of attention between kinds of residues over many proteins; R = 25 kinds in the order of
    alphabet.RESIDUES.

    Attributes:
        pair_sums: [layers, H, R, R], the attention from residues of kind a to other residues of kind b.
        pair_counts: [R, R], how many such pairs there were (of a causal model: those that it can see).
        pair_even: [R, R], what pair_sums would be if every residue spread a weight of 1 evenly over the other
            residues that it can see.
        self_sums: [layers, H], the attention of residues to themselves, which pair_sums leaves out.
        special_sums: [layers, H], the attention of residues to special tokens, which pair_sums leaves out.
        num_sequences: proteins summed over.
        num_residues: residues summed over.
    """

    pair_sums: Float64[np.ndarray, "layers H R R"]
    pair_counts: Int64[np.ndarray, "R R"]
    pair_even: Float64[np.ndarray, "R R"]
    self_sums: Float64[np.ndarray, "layers H"]
    special_sums: Float64[np.ndarray, "layers H"]
    num_sequences: int
    num_residues: int


def amino_acid_attention(
    model: ProteinLM, sequences: Sequence[bytes], *, batch_size: int = 8, block: int = BLOCK
) -> AminoAcidAttention:
    """Sum attention between kinds of residues over proteins, in memory linear in their length.

    The matrix of each layer goes by in blocks of columns; a block is summed and forgotten. (One probe with
    the kinds of residues for values would need 25 columns only, but could not tell a residue's attention to
    itself from that to others of its kind; taking it away afterwards would cancel digits where the diagonal
    dominates.)

    Args:
        model: a causal or bidirectional model.
        sequences: proteins as ASCII letters, one at least.
        batch_size: proteins read together; the sums do not depend on it.
        block: columns of the attention matrix at a time.

    Raises:
        InputError: there is no sequence, one has a letter outside the alphabet, or one is longer than the
            model reads.
    """
    if batch_size < 1 or block < 1:
        raise ValueError(f"batch_size and block must be positive, not {batch_size} and {block}")
    proteins = read_proteins(model, sequences)
    layers, heads, kinds = model.config.num_layers, model.config.num_heads, alphabet.NUM_RESIDUES
    pair_sums = np.zeros((layers, heads, kinds, kinds))
    self_sums, special_sums = np.zeros((layers, heads)), np.zeros((layers, heads))
    for _, tokens in batched(model, proteins, batch_size):
        probe = Probe(model, tokens)
        sums = [
            _layer_sums(*probe.layer(layer), tokens, block=min(block, tokens.shape[1]), causal=model.causal)
            for layer in range(layers)
        ]
        for layer, (pairs, to_self, to_special) in enumerate(jax.device_get(sums)):
            pair_sums[layer] += pairs
            self_sums[layer] += to_self
            special_sums[layer] += to_special
    counts = np.zeros((kinds, kinds), np.int64)
    even = np.zeros((kinds, kinds))
    for protein in proteins:
        protein_counts, protein_even = _pairs(protein.tokens[protein.residues], causal=model.causal)
        counts += protein_counts
        even += protein_even
    return AminoAcidAttention(
        pair_sums=pair_sums,
        pair_counts=counts,
        pair_even=even,
        self_sums=self_sums,
        special_sums=special_sums,
        num_sequences=len(proteins),
        num_residues=sum(len(protein.letters) for protein in proteins),
    )


@functools.partial(jax.jit, static_argnums=0, static_argnames=("block", "causal"))
def _layer_sums(graph, state, q, k, tokens, *, block, causal):
    """Return ([H, R, R], [H], [H]): attention of residues to others by kind, to themselves, to specials."""
    attention = nnx.merge(graph, state)
    length, heads, kinds = tokens.shape[1], q.shape[2], alphabet.NUM_RESIDUES
    mask = tokens != alphabet.PAD
    # Special tokens get a row of zeros.
    one_hot = jax.nn.one_hot(tokens.astype(jnp.int32) - alphabet.FIRST_RESIDUE, kinds)
    residue = tokens >= alphabet.FIRST_RESIDUE
    spare = -length % block
    one_hot_keys = jnp.pad(one_hot, ((0, 0), (0, spare), (0, 0)))
    special_keys = jnp.pad(mask & ~residue, ((0, 0), (0, spare))).astype(jnp.float32)

    def add(sums, start, columns):
        pairs, to_self, to_special = sums
        columns = jnp.where(residue[:, :, None, None], columns, jnp.float32(0))
        itself = jnp.arange(length)[:, None] == start + jnp.arange(block)[None, :]
        others = jnp.where(itself[None, :, None, :], jnp.float32(0), columns)
        kinds_here = jax.lax.dynamic_slice_in_dim(one_hot_keys, start, block, axis=1)
        special_here = jax.lax.dynamic_slice_in_dim(special_keys, start, block, axis=1)
        with jax.default_matmul_precision("highest"):
            by_query = jnp.einsum("bia,bihe->bhae", one_hot, others)
            pairs += jnp.einsum("bhae,bec->hac", by_query, kinds_here)
            to_special += jnp.einsum("bihe,be->h", others, special_here)
        to_self += jnp.sum(columns - others, axis=(0, 1, 3))
        return pairs, to_self, to_special

    zero = jnp.zeros(heads, jnp.float32)
    sums = (jnp.zeros((heads, kinds, kinds), jnp.float32), zero, zero)
    return fold_columns(attention, q, k, mask, add, sums, block=block, causal=causal)


def _pairs(residues, *, causal):
    """Count the pairs (i, j), i != j and visible, by kind, and share a weight of 1 for each i evenly over its
    j.

    Returns:
        int64 [R, R] and float64 [R, R].
    """
    kinds = np.eye(alphabet.NUM_RESIDUES, dtype=np.int64)[residues.astype(np.int64) - alphabet.FIRST_RESIDUE]
    # visible[i] counts the kinds of the residues, other than i, that i can attend to.
    visible = np.cumsum(kinds, axis=0) - kinds if causal else kinds.sum(0, keepdims=True) - kinds
    number = np.maximum(visible.sum(1, keepdims=True), 1)
    return kinds.T @ visible, kinds.T.astype(np.float64) @ (visible / number)


def head_profiles(attention: AminoAcidAttention) -> Float64[np.ndarray, "layers H standard"]:
    """Return, for each head, the share of its attention to other residues that lands on each of the 20 amino
    acids.

    Shares are divided by those of even attention, so that 1 means no preference. NaN for a head that gives
    other residues no attention (or less than none, as unnormalised kernels can) and for an amino acid that
    never occurs.
    """
    shares = attention.pair_sums.sum(2)
    totals = shares.sum(-1, keepdims=True)
    even = attention.pair_even.sum(0)
    # A total that is rounding noise beside what the head gives to itself and to special tokens is no total.
    given = np.abs(attention.self_sums) + np.abs(attention.special_sums)
    useful = totals > 1e-6 * given[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        profiles = np.where(useful, shares / totals, np.nan) / (even / even.sum())
    return np.where(even > 0, profiles, np.nan)[..., STANDARD]


def head_similarity(attention: AminoAcidAttention, *, layer: int | None = None) -> Float64[np.ndarray, "a b"]:
    """Return the similarity of Vig et al., [20, 20]: Pearson correlation across heads of the attention
    received.

    The shares of a head sum to 1, so that unrelated amino acids lean to slightly negative values (-1/19 on average).
    With few heads the values are coarse: over 8 heads two unrelated amino acids reach 0.7 once in twenty
    times.

    Args:
        attention: the sums.
        layer: correlate over the heads of this layer alone; None means over all heads of all layers.

    Returns:
        The diagonal is 1; rows of amino acids that never occur, or whose share is the same in every head, are
        NaN.

    Raises:
        InputError: fewer than three heads have a profile, or there is no such layer.
    """
    profiles = head_profiles(attention)
    if layer is not None:
        if not 0 <= layer < len(profiles):
            raise InputError(f"there is no layer {layer}: this model's layers go from 0 to {len(profiles) - 1}.")
        profiles = profiles[layer : layer + 1]
    vectors = profiles.reshape(-1, profiles.shape[-1])
    vectors = vectors[~np.isnan(vectors).all(1)]
    if len(vectors) < 3:
        raise InputError(
            f"only {len(vectors)} of this model's heads attend to other residues, and a correlation needs "
            "three: use a model with more heads or layers (attention that returns its values has none)."
        )
    centred = vectors - vectors.mean(0)
    norms = np.sqrt((centred**2).sum(0))
    with np.errstate(divide="ignore", invalid="ignore"):
        directions = np.where(norms > 1e-12, centred / norms, np.nan)
    similarity = np.clip(directions.T @ directions, -1, 1)
    np.fill_diagonal(similarity, np.where(np.isnan(np.diag(similarity)), np.nan, 1.0))
    return similarity


def mean_attention(attention: AminoAcidAttention) -> Float64[np.ndarray, "a b"]:
    """Return the mean weight, [20, 20], from a residue of kind a to another of kind b, over pairs, heads and
    layers.

    A pair in a long protein weighs less than one in a short protein; `pair_enrichment` has that taken out.
    NaN where there is no pair.
    """
    counts = attention.pair_counts[STANDARD, STANDARD]
    sums = attention.pair_sums.mean((0, 1))[STANDARD, STANDARD]
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def pair_enrichment(
    attention: AminoAcidAttention, *, layer: int | None = None, head: int | None = None
) -> Float64[np.ndarray, "a b"]:
    """Return the attention from kind a to kind b over that of even attention, [20, 20].

    1 means no preference; the scale is set so that the whole is 1. NaN where there is no pair, and everywhere
    if no head attends to other residues. An amino acid that all others attend to has a high column whatever
    they are: that is a property of one amino acid, not a likeness of two, and not taken out here.

    Args:
        attention: the sums.
        layer: of this layer alone; None means of all.
        head: of this head of the layer alone; None means of all.

    Raises:
        InputError: there is no such layer or head.
    """
    sums = attention.pair_sums
    for what, number, axis in (("layer", layer, 0), ("head", head, 1)):
        if number is not None:
            if not 0 <= number < sums.shape[axis]:
                raise InputError(
                    f"there is no {what} {number}: this model's {what}s go from 0 to {sums.shape[axis] - 1}."
                )
            sums = np.take(sums, [number], axis=axis)
    sums, even = sums.mean((0, 1)), attention.pair_even
    total = sums.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (sums / total) / (even / even.sum()) if total > 0 else np.full_like(sums, np.nan)
    return np.where(even > 0, ratio, np.nan)[STANDARD, STANDARD]
