"""Attention within and across the proteins of one concatenated window, summed while the map streams by.

A window (data/plans.py) is a stretch of the stream of proteins, <eos> after each; attention crosses (Performer paper,
section 4.4: long enough to model interactions of proteins). Here proteins are the stretches of residues between
special tokens; the first and the last may be parts, since windows cut proteins. P = proteins of a window, K = classes
of distance.

Two things would make a pair of proteins seem close that is not. Place: a token of a causal model shares its attention
over the tokens before it alone, so that early tokens give more to each; weights are therefore multiplied by the number
of tokens that the query sees, and 1 means even attention ("relative attention"). Distance: heads that look near by
favour neighbours; sums are kept by octave of the distance, apart for keys before and after the query, so that a pair
can be held against others at its distances.
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
        tokens: uint8 [L]; a causal model reads <bos> first and not the last token, as in training.
        starts, stops: int64 [P], where in `tokens` each protein begins and ends.
    """

    tokens: Integer[np.ndarray, " L"]
    starts: Int64[np.ndarray, " P"]
    stops: Int64[np.ndarray, " P"]

    @property
    def letters(self) -> list[str]:
        """The proteins, one letter a residue."""
        pairs = zip(self.starts, self.stops, strict=True)
        return [alphabet.decode(self.tokens[start:stop]) for start, stop in pairs]


@dataclass(frozen=True)
class WindowAttention:
    """Sums of one window's attention; [p, q] is from the residues of protein p to those of protein q.

    Attributes:
        window: what was read.
        sums: [layers, H, P, P], attention weights.
        special_sums: [layers, H], weights from residues to special tokens.
        relative_sums: [layers, H, P, P], weights times the number of tokens that the query sees.
        counts: [P, P, K], the pairs of residues by distance that the model can see.
        profile_sums: [layers, H, K], relative attention across proteins by distance. Class k < K / 2 holds keys that
            lie 2^k to 2^(k + 1) - 1 tokens before the query, class K / 2 + k those as far behind it.
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
    """Whether a window has two proteins, the last token aside, which a causal model does not read."""
    residue = np.concatenate([[False], tokens[:-1] >= alphabet.FIRST_RESIDUE])
    return int((residue[1:] & ~residue[:-1]).sum()) > 1


def read_window(model: ProteinLM, tokens: Integer[np.ndarray, " L"], *, name: str = "the window") -> Window:
    """Turn a window into what the model reads, and find its proteins.

    Args:
        model: the model that will read it.
        tokens: ids [L], residues and <eos>, right padded with 0; as `TrainBatches` with form "concat" gives them.
        name: what to call it in messages.

    Raises:
        InputError: fewer than two proteins, padding between tokens, or more tokens than the model's max_length.
    """
    used = int((tokens != alphabet.PAD).sum())
    if (tokens[:used] == alphabet.PAD).any():
        raise InputError(f"{name} has padding between its tokens: windows are padded on the right alone.")
    if used and int(tokens.max()) >= alphabet.SIZE:
        raise InputError(f"{name} holds the id {tokens.max()}: token ids go from 0 to {alphabet.SIZE - 1}.")
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
            f"{name} holds {len(starts)} protein{'' if len(starts) == 1 else 's'}, and attention across proteins "
            "needs two, with <eos> between them: take a longer window."
        )
    return Window(read, starts, stops)


def window_attention(
    model: ProteinLM, window: Window, *, padded: int | None = None, block: int = BLOCK
) -> WindowAttention:
    """Sum a window's attention by pairs of proteins and by distance, in memory linear in its length.

    Args:
        model: a causal or bidirectional model.
        window: from `read_window`.
        padded: pad the tokens to this length, so that windows of several lengths are compiled once; the sums do not
            depend on it.
        block: columns of the map at a time; O(H L block) numbers are held.

    Raises:
        InputError: more tokens than the model's max_length.
    """
    tokens, proteins = window.tokens, len(window.starts)
    length = len(tokens)
    owner = _owners(window)
    visible = np.arange(1, length + 1) if model.causal else np.full(length, length)
    member = (owner[None, :] == np.arange(proteins)[:, None]).astype(np.float32)
    # Rows: the protein of each key, and special tokens last.
    keys = np.concatenate([member, (owner < 0)[None].astype(np.float32)])
    factor = np.where(owner >= 0, visible, 0).astype(np.float32)
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
            columns, here = columns[0, :, :length, : stop - start], keys[:, start:stop].T
            sums[layer] += np.matmul(member, columns) @ here
            prefix = _prefix_sums(columns, factor)
            by_query = prefix[window.stops] - prefix[window.starts]
            relative_sums[layer] += by_query.transpose(1, 0, 2) @ here
            profile[layer] += _by_distance(prefix, np.arange(start, stop), owner, window, octaves)
    return WindowAttention(
        window=window,
        sums=sums[..., :proteins],
        special_sums=sums[..., proteins].sum(-1),
        relative_sums=relative_sums[..., :proteins],
        counts=_counts(window, octaves, causal=model.causal),
        profile_sums=profile,
        even=_even(owner, visible, causal=model.causal),
    )


def num_octaves(length: int) -> int:
    """Return the number of octaves that distances 1 to length - 1 span."""
    return max(int(length - 1).bit_length(), 1)


def shares(attention: WindowAttention) -> Float64[np.ndarray, "layers H 3"]:
    """Return how residues' attention divides over their own protein, other proteins and special tokens.

    Each head's three shares sum to 1, whether or not the mechanism normalises its rows; NaN where a head gives nothing
    in all (or less, as unnormalised kernels can). A residue's attention to itself counts as its own protein's.
    """
    own = np.trace(attention.sums, axis1=-2, axis2=-1)
    parts = np.stack([own, attention.sums.sum((-1, -2)) - own, attention.special_sums], -1)
    totals = parts.sum(-1, keepdims=True)
    return np.divide(parts, totals, out=np.full_like(parts, np.nan), where=totals > 0)


def _owners(window):
    """Return int64 [L], the number of each token's protein, -1 for special tokens."""
    owner = np.full(len(window.tokens), -1)
    for number, (start, stop) in enumerate(zip(window.starts, window.stops, strict=True)):
        owner[start:stop] = number
    return owner


def _prefix_sums(columns, factor):
    """Return float64 [L + 1, H, E]: entry i sums factor times columns [H, L, E] over the queries before i.

    Differences of these sums lose nothing that would show: float32 numbers are added in float64.
    """
    heads, length, width = columns.shape
    prefix = np.zeros((length + 1, heads, width))
    weighted = (columns * factor[:, None]).transpose(1, 0, 2)
    # Row by row is five times as fast as numpy's cumsum along an axis that is not the last.
    for query in range(length):
        np.add(prefix[query], weighted[query], out=prefix[query + 1])
    return prefix


def _by_distance(prefix, keys, owner, window, octaves):
    """Return [H, K], the sum of columns over the queries of other proteins than the key's, by class of distance."""
    length = len(owner)
    columns = np.flatnonzero(owner[keys] >= 0)
    keys = keys[columns]
    first, last = window.starts[owner[keys]], window.stops[owner[keys]]
    parts = []
    for begin, end in _classes(keys, octaves):
        begin, end = np.clip(begin, 0, length), np.clip(end, 0, length)
        everything = prefix[end, :, columns] - prefix[begin, :, columns]
        own = prefix[np.clip(end, first, last), :, columns] - prefix[np.clip(begin, first, last), :, columns]
        parts.append((everything - own).sum(0))
    return np.stack(parts, -1)


def _classes(keys, octaves):
    """Return, for each class of distance, the range of queries that see each key at it: two arrays [E]."""
    edges = 2 ** np.arange(octaves + 1)
    before = [(keys + near, keys + far) for near, far in itertools.pairwise(edges)]
    behind = [(keys - far + 1, keys - near + 1) for near, far in itertools.pairwise(edges)]
    return before + behind


def _counts(window, octaves, *, causal):
    """Return int64 [P, P, K], the visible pairs of residues by protein of the query, of the key, and distance."""
    proteins = len(window.starts)
    counts = np.zeros((proteins, proteins, 2 * octaves), np.int64)
    starts, stops = window.starts[:, None], window.stops[:, None]
    for key in range(proteins):
        places = np.arange(window.starts[key], window.stops[key])
        for number, (begin, end) in enumerate(_classes(places, octaves)):
            if causal and number >= octaves:
                break
            common = np.minimum(end, stops) - np.maximum(begin, starts)
            counts[:, key, number] = np.maximum(common, 0).sum(1)
    return counts


def _even(owner, visible, *, causal):
    """Return float64 [3], the attention of residues to own, others and special if it were even."""
    member = owner[None, :] == np.arange(owner.max() + 1)[:, None]
    seen = np.cumsum(member, 1) if causal else np.repeat(member.sum(1, keepdims=True), len(owner), 1)
    residues = np.flatnonzero(owner >= 0)
    own = seen[owner[residues], residues]
    residues_seen = seen[:, residues].sum(0)
    parts = np.stack([own, residues_seen - own, visible[residues] - residues_seen])
    return (parts / visible[residues]).mean(1)
