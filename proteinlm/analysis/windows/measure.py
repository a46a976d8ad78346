"""Sums of attention within and across the proteins of one window of concatenated sequences.

A window (data/batches/plans.py) is a row of tokens from the concatenated proteins of a split, with <eos> after each
protein. Attention crosses the boundaries (Performer paper, section 4.4: long enough to model interactions of proteins).
Here, a protein is a sequence of residues between special tokens. The first and the last protein can be incomplete,
since windows cut proteins. P is the number of proteins of a window, K the number of distance classes. Sums are computed
block by block, without storing the attention matrix.

Two effects could make a pair of proteins look related without a relation:

- Position: a token of a causal model divides its attention among the tokens before it, so that early tokens give more
  to each. Weights are therefore multiplied by the number of tokens that the query sees ("relative attention"); 1 means
  even attention.
- Distance: local heads prefer neighbours. Sums are therefore kept by octave of the distance, separately for keys before
  and after the query, so that a pair can be compared with others at the same distances.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Integer

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.inference.probing import BLOCK, Probe
from proteinlm.models.transformer import ProteinLM


@dataclass(frozen=True)
class Window:
    """A window as a model reads it.

    Attributes:
        tokens: uint8 [L]. A causal model reads <bos> first and does not read the last token, as in training.
        starts, stops: int64 [P], the start and stop of each protein in `tokens`.
    """

    tokens: Integer[np.ndarray, " L"]
    starts: Int64[np.ndarray, " P"]
    stops: Int64[np.ndarray, " P"]

    @property
    def letters(self) -> list[str]:
        """The proteins, with one letter for each residue."""
        pairs = zip(self.starts, self.stops, strict=True)
        return [alphabet.decode(self.tokens[start:stop]) for start, stop in pairs]


@dataclass(frozen=True)
class WindowAttention:
    """Sums of the attention in one window; [p, q] is from the residues of protein p to those of protein q.

    Attributes:
        window: the window.
        sums: [layers, H, P, P], attention weights.
        special_sums: [layers, H], weights from residues to special tokens.
        relative_sums: [layers, H, P, P], weights times the number of tokens that the query sees.
        counts: [P, P, K], the number of pairs of residues at each distance that the model can see.
        profile_sums: [layers, H, K], relative attention across proteins by distance. Class k < K / 2 contains keys
            2^k to 2^(k + 1) - 1 tokens before the query, class K / 2 + k those at the same distance after it.
        even: [3], the mean attention of a residue to its own protein, to others and to special tokens, if every
            residue spread a weight of 1 evenly over the tokens that it sees.
    """

    window: Window
    sums: Float64[np.ndarray, "layers H P P"]
    special_sums: Float64[np.ndarray, "layers H"]
    relative_sums: Float64[np.ndarray, "layers H P P"]
    counts: Int64[np.ndarray, "P P K"]
    profile_sums: Float64[np.ndarray, "layers H K"]
    even: Float64[np.ndarray, "3"]


def holds_several(tokens: Integer[np.ndarray, " L"]) -> bool:
    """Return whether a window has at least two proteins without its last token, which a causal model does not read."""
    residue = np.concatenate([[False], tokens[:-1] >= alphabet.FIRST_RESIDUE])
    return int((residue[1:] & ~residue[:-1]).sum()) > 1


def read_window(model: ProteinLM, tokens: Integer[np.ndarray, " L"], *, name: str = "the window") -> Window:
    """Return a window as the model reads it, with the positions of its proteins.

    Args:
        model: the model that will read the window.
        tokens: token ids [L], residues and <eos>, padded on the right with 0, as in the batches of form "concat".
        name: the window's name in messages.

    Raises:
        InputError: there are fewer than two proteins, padding between tokens, or more tokens than the model's
            max_length.
    """
    used = int((tokens != alphabet.PAD).sum())
    if (tokens[:used] == alphabet.PAD).any():
        raise InputError(f"{name} has padding between its tokens: windows are padded on the right only.")
    if used and int(tokens.max()) >= alphabet.SIZE:
        raise InputError(f"{name} contains the id {tokens.max()}: token ids go from 0 to {alphabet.SIZE - 1}.")
    if used > model.config.max_length:
        raise InputError(
            f"{name} has {used} tokens, but this model's max_length is {model.config.max_length}: "
            "cut the window, or train with a larger model.max_length."
        )
    read = tokens[:used].astype(np.uint8)
    if model.causal:
        read = np.concatenate([np.array([alphabet.BOS], np.uint8), read[:-1]])
    residue = np.concatenate([[False], read >= alphabet.FIRST_RESIDUE, [False]])
    starts = np.flatnonzero(residue[1:] & ~residue[:-1])
    stops = np.flatnonzero(~residue[1:] & residue[:-1])
    if len(starts) < 2:
        raise InputError(
            f"{name} contains {len(starts)} protein{'' if len(starts) == 1 else 's'}, but attention across proteins "
            "needs two, with <eos> between them: use a longer window."
        )
    return Window(read, starts, stops)


def window_attention(
    model: ProteinLM, window: Window, *, padded: int | None = None, block: int = BLOCK
) -> WindowAttention:
    """Sum the attention of a window by pairs of proteins and by distance, in memory linear in its length.

    Args:
        model: a causal or bidirectional model.
        window: from `read_window`.
        padded: length to which the tokens are padded, so that windows of several lengths need one compilation; the
            sums do not depend on it.
        block: number of columns of the matrix computed together, which need O(H L block) memory.

    Raises:
        InputError: there are more tokens than the model's max_length.
    """
    tokens, proteins = window.tokens, len(window.starts)
    length = len(tokens)
    protein_of = _protein_of_tokens(window)
    visible = np.arange(1, length + 1) if model.causal else np.full(length, length)
    member = (protein_of[None, :] == np.arange(proteins)[:, None]).astype(np.float32)
    # Rows: one for each protein, with 1 for its tokens, and one for special tokens.
    keys = np.concatenate([member, (protein_of < 0)[None].astype(np.float32)])
    factor = np.where(protein_of >= 0, visible, 0).astype(np.float32)
    layers, heads = model.config.num_layers, model.config.num_heads
    octaves = num_octaves(length)
    sums, relative_sums = np.zeros((2, layers, heads, proteins, proteins + 1))
    profile = np.zeros((layers, heads, 2 * octaves))
    probe = Probe(model, np.pad(tokens, (0, max(0, (padded or 0) - length)), constant_values=alphabet.PAD)[None])
    for layer in range(layers):
        for start, columns in probe.columns(layer, block=block):
            if start >= length:
                break
            stop = min(start + columns.shape[-1], length)
            columns, block_keys = columns[0, :, :length, : stop - start], keys[:, start:stop].T
            sums[layer] += np.matmul(member, columns) @ block_keys
            prefix = _prefix_sums(columns, factor)
            by_query = prefix[window.stops] - prefix[window.starts]
            relative_sums[layer] += by_query.transpose(1, 0, 2) @ block_keys
            profile[layer] += _by_distance(prefix, np.arange(start, stop), protein_of, window, octaves)
    return WindowAttention(
        window=window,
        sums=sums[..., :proteins],
        special_sums=sums[..., proteins].sum(-1),
        relative_sums=relative_sums[..., :proteins],
        counts=_counts(window, octaves, causal=model.causal),
        profile_sums=profile,
        even=_even(protein_of, visible, causal=model.causal),
    )


def num_octaves(length: int) -> int:
    """Return the number of octaves of the distances 1 to length - 1."""
    return max(int(length - 1).bit_length(), 1)


def shares(attention: WindowAttention) -> Float64[np.ndarray, "layers H 3"]:
    """Return the shares of residues' attention to their own protein, to other proteins and to special tokens.

    The three shares of a head sum to 1, whether or not the mechanism normalises its rows. NaN for a head whose total is
    not positive (unnormalised kernels can be negative). A residue's attention to itself is part of its own protein's.
    """
    within = np.trace(attention.sums, axis1=-2, axis2=-1)
    parts = np.stack([within, attention.sums.sum((-1, -2)) - within, attention.special_sums], -1)
    totals = parts.sum(-1, keepdims=True)
    return np.divide(parts, totals, out=np.full_like(parts, np.nan), where=totals > 0)


def _protein_of_tokens(window):
    """Return int64 [L], the index of each token's protein, -1 for special tokens."""
    protein_of = np.full(len(window.tokens), -1)
    for index, (start, stop) in enumerate(zip(window.starts, window.stops, strict=True)):
        protein_of[start:stop] = index
    return protein_of


def _prefix_sums(columns, factor):
    """Return float64 [L + 1, H, E]: entry i is the sum of factor times columns [H, L, E] over the queries before i.

    Differences of these sums are exact enough, since float32 numbers are added in float64.
    """
    heads, length, width = columns.shape
    prefix = np.zeros((length + 1, heads, width))
    weighted = (columns * factor[:, None]).transpose(1, 0, 2)
    # This loop is five times as fast as cumsum along an axis that is not the last.
    for query in range(length):
        np.add(prefix[query], weighted[query], out=prefix[query + 1])
    return prefix


def _by_distance(prefix, keys, protein_of, window, octaves):
    """Return [H, K], the sum of columns over the queries outside the key's protein, by distance class."""
    length = len(protein_of)
    columns = np.flatnonzero(protein_of[keys] >= 0)
    keys = keys[columns]
    first, last = window.starts[protein_of[keys]], window.stops[protein_of[keys]]
    parts = []
    for begin, end in _query_ranges(keys, octaves):
        begin, end = np.clip(begin, 0, length), np.clip(end, 0, length)
        total = prefix[end, :, columns] - prefix[begin, :, columns]
        within = prefix[np.clip(end, first, last), :, columns] - prefix[np.clip(begin, first, last), :, columns]
        parts.append((total - within).sum(0))
    return np.stack(parts, -1)


def _query_ranges(keys, octaves):
    """Return, for each distance class, the start and stop [E] of the queries that see each key at this distance."""
    edges = 2 ** np.arange(octaves + 1)
    keys_before = [(keys + near, keys + far) for near, far in itertools.pairwise(edges)]
    keys_after = [(keys - far + 1, keys - near + 1) for near, far in itertools.pairwise(edges)]
    return keys_before + keys_after


def _counts(window, octaves, *, causal):
    """Return int64 [P, P, K], the visible pairs of residues by protein of the query, of the key, and distance."""
    proteins = len(window.starts)
    counts = np.zeros((proteins, proteins, 2 * octaves), np.int64)
    starts, stops = window.starts[:, None], window.stops[:, None]
    for key in range(proteins):
        positions = np.arange(window.starts[key], window.stops[key])
        for distance_class, (begin, end) in enumerate(_query_ranges(positions, octaves)):
            if causal and distance_class >= octaves:
                break
            common = np.minimum(end, stops) - np.maximum(begin, starts)
            counts[:, key, distance_class] = np.maximum(common, 0).sum(1)
    return counts


def _even(protein_of, visible, *, causal):
    """Return float64 [3], even attention of residues to their own protein, to others and to special tokens."""
    member = protein_of[None, :] == np.arange(protein_of.max() + 1)[:, None]
    seen = np.cumsum(member, 1) if causal else np.repeat(member.sum(1, keepdims=True), len(protein_of), 1)
    residues = np.flatnonzero(protein_of >= 0)
    within = seen[protein_of[residues], residues]
    residues_seen = seen[:, residues].sum(0)
    parts = np.stack([within, residues_seen - within, visible[residues] - residues_seen])
    return (parts / visible[residues]).mean(1)
