"""Attention between kinds of amino acids, and the similarity of amino acids derived from it.

"Similarity estimated from the attention matrices" (Performer paper, appendix C.4) can mean two measures:

- `head_similarity`, the default, is that of Vig et al. (2020, "BERTology Meets Biology"), which the paper follows. For
  each head it takes the share of attention that each amino acid receives. Two amino acids are similar if their shares
  are correlated across heads (Pearson correlation over layers x heads).
- `pair_enrichment` is the attention from residues of one kind to residues of another.

A common amino acid receives much attention because it is common. Both measures are therefore relative to attention
spread evenly over the same pairs: 1 means no preference. (This scaling does not change a Pearson correlation:
`head_similarity` has the values of Vig et al., and its profiles become comparable between amino acids.) All sums leave
out pairs of a residue with itself, special tokens and padding. Weights are neither thresholded nor renormalised.
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
    """Sums of attention between kinds of residues over many proteins.

    There are R = 25 kinds, in the order of alphabet.RESIDUES.

    Attributes:
        pair_sums: [layers, H, R, R], the attention from residues of kind a to other residues of kind b.
        pair_counts: [R, R], the number of such pairs (in a causal model, of those that it can see).
        pair_even: [R, R], the value of pair_sums if every residue spread a weight of 1 evenly over the other residues
            that it can see.
        self_sums: [layers, H], the attention of residues to themselves, which pair_sums leaves out.
        special_sums: [layers, H], the attention of residues to special tokens, which pair_sums leaves out.
        num_sequences: number of proteins.
        num_residues: number of residues.
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

    The matrix of each layer is computed in blocks of columns, which are summed and discarded. (Values that stand for
    the kinds of residues would need only 25 columns. But they would mix the attention of a residue to itself with that
    to others of its kind, and its subtraction would lose digits where the diagonal dominates.)

    Args:
        model: a causal or bidirectional model.
        sequences: proteins in ASCII letters, at least one.
        batch_size: number of proteins in a batch; the sums do not depend on it.
        block: number of columns of the attention matrix computed together.

    Raises:
        InputError: there is no sequence, a letter is outside the alphabet, or a sequence is too long for the model.
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
    """Return ([H, R, R], [H], [H]): attention of residues to others by kind, to themselves, to special tokens."""
    attention = nnx.merge(graph, state)
    length, heads, kinds = tokens.shape[1], q.shape[2], alphabet.NUM_RESIDUES
    mask = tokens != alphabet.PAD
    # Special tokens have a row of zeros.
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
        block_kinds = jax.lax.dynamic_slice_in_dim(one_hot_keys, start, block, axis=1)
        block_special = jax.lax.dynamic_slice_in_dim(special_keys, start, block, axis=1)
        with jax.default_matmul_precision("highest"):
            by_query = jnp.einsum("bia,bihe->bhae", one_hot, others)
            pairs += jnp.einsum("bhae,bec->hac", by_query, block_kinds)
            to_special += jnp.einsum("bihe,be->h", others, block_special)
        to_self += jnp.sum(columns - others, axis=(0, 1, 3))
        return pairs, to_self, to_special

    zero = jnp.zeros(heads, jnp.float32)
    sums = (jnp.zeros((heads, kinds, kinds), jnp.float32), zero, zero)
    return fold_columns(attention, q, k, mask, add, sums, block=block, causal=causal)


def _pairs(residues, *, causal):
    """Return the counts of visible pairs (i, j) with i != j by kind, int64 [R, R], and even attention, float64 [R, R].

    Even attention spreads a weight of 1 for each i evenly over its j.
    """
    kinds = np.eye(alphabet.NUM_RESIDUES, dtype=np.int64)[residues.astype(np.int64) - alphabet.FIRST_RESIDUE]
    # visible[i] counts, by kind, the residues other than i that i can attend to.
    visible = np.cumsum(kinds, axis=0) - kinds if causal else kinds.sum(0, keepdims=True) - kinds
    number = np.maximum(visible.sum(1, keepdims=True), 1)
    return kinds.T @ visible, kinds.T.astype(np.float64) @ (visible / number)


def head_profiles(attention: AminoAcidAttention) -> Float64[np.ndarray, "layers H standard"]:
    """Return, for each head, the share of its attention to other residues that each of the 20 amino acids receives.

    Shares are divided by those of even attention, so that 1 means no preference. NaN for an amino acid that never
    occurs, and for a head whose attention to other residues is not positive (unnormalised kernels can be negative).
    """
    shares = attention.pair_sums.sum(2)
    totals = shares.sum(-1, keepdims=True)
    even = attention.pair_even.sum(0)
    # A total that is only rounding noise beside the attention to itself and to special tokens counts as 0.
    excluded = np.abs(attention.self_sums) + np.abs(attention.special_sums)
    useful = totals > 1e-6 * excluded[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        profiles = np.where(useful, shares / totals, np.nan) / (even / even.sum())
    return np.where(even > 0, profiles, np.nan)[..., STANDARD]


def head_similarity(attention: AminoAcidAttention, *, layer: int | None = None) -> Float64[np.ndarray, "a b"]:
    """Return the similarity of Vig et al., [20, 20]: the correlation across heads of the attention received (Pearson).

    The shares of a head sum to 1, so that unrelated amino acids have slightly negative values (-1/19 on average). With
    few heads the values are coarse: over 8 heads, one in twenty pairs of unrelated amino acids reaches 0.7.

    Args:
        attention: the sums.
        layer: the layer whose heads are used; None means the heads of all layers.

    Returns:
        The diagonal is 1. Rows of amino acids that never occur, or whose share is the same in every head, are NaN.

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
            "three: use a model with more heads or layers (the attention kind identity has no such heads)."
        )
    centred = vectors - vectors.mean(0)
    norms = np.sqrt((centred**2).sum(0))
    with np.errstate(divide="ignore", invalid="ignore"):
        directions = np.where(norms > 1e-12, centred / norms, np.nan)
    similarity = np.clip(directions.T @ directions, -1, 1)
    np.fill_diagonal(similarity, np.where(np.isnan(np.diag(similarity)), np.nan, 1.0))
    return similarity


def mean_attention(attention: AminoAcidAttention) -> Float64[np.ndarray, "a b"]:
    """Return the mean weight, [20, 20], from a residue of kind a to another of kind b, over pairs, heads and layers.

    NaN where there is no pair. Weights are smaller in long proteins; `pair_enrichment` corrects for that.
    """
    counts = attention.pair_counts[STANDARD, STANDARD]
    sums = attention.pair_sums.mean((0, 1))[STANDARD, STANDARD]
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def pair_enrichment(
    attention: AminoAcidAttention, *, layer: int | None = None, head: int | None = None
) -> Float64[np.ndarray, "a b"]:
    """Return the attention from kind a to kind b divided by even attention, [20, 20].

    1 means no preference; the total over all pairs is scaled to 1. NaN where there is no pair, and everywhere if no
    head attends to other residues. An amino acid that all others attend to has a high column. This is a property of one
    amino acid and not a similarity of two, and is not corrected here.

    Args:
        attention: the sums.
        layer: the layer to use; None means all.
        head: the head to use; None means all.

    Raises:
        InputError: there is no such layer or head.
    """
    sums = attention.pair_sums
    for kind, number, axis in (("layer", layer, 0), ("head", head, 1)):
        if number is not None:
            if not 0 <= number < sums.shape[axis]:
                raise InputError(
                    f"there is no {kind} {number}: this model's {kind}s go from 0 to {sums.shape[axis] - 1}."
                )
            sums = np.take(sums, [number], axis=axis)
    sums, even = sums.mean((0, 1)), attention.pair_even
    total = sums.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (sums / total) / (even / even.sum()) if total > 0 else np.full_like(sums, np.nan)
    return np.where(even > 0, ratio, np.nan)[STANDARD, STANDARD]
