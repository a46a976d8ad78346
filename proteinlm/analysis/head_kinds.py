"""What kind of pattern each head has, over many proteins: diagonal, vertical, block, diffuse, or none of these.

The Performer paper (appendix C.4) sees "many heads [with] a diagonal pattern, where each node attends to its neighbors,
and some heads [with] a vertical pattern, where each head attends to the same fixed positions", and a block. Here they
are measured. Weights of any sign and any sum become a distribution for each residue first: their absolute values over
the row's sum of these, p(i, j). Rows are residues; columns are residues and special tokens. Each of three statistics
is the share of a head's attention that would have to move for its pattern to vanish (a total variation distance), so
they are on one scale, 0 to 1; each is taken against attention spread evenly over the tokens that a residue can see, so
that a causal head, which cannot but look back, is not diagonal for that:

- diagonal: how far the mean attention at each offset j - i, up to `REACH`, exceeds that of even attention:
  sum over offsets of max(0, D(o) - E(o)). `offset` is the o with the largest excess: -1 is the residue before.
- vertical: the same for the mean attention that each token receives, C(j) - E(j), summed over stripes: tokens whose
  excess is more than `STRIPE` standard deviations of chance, sqrt(max(E(j), 1 / N) / N), what N rows would do that each
  attend to one token drawn evenly. (Without this, sharp attention of any kind hits some tokens twice.) The tokens with
  the largest excess are its positions.
- block: how far attention between `SEGMENTS` equal segments of the protein differs from that of even attention, leaving
  out pairs within `REACH` (a diagonal is no block) and the tokens that are stripes: of each residue the rest of its
  attention against the same amount spread evenly over the rest of what it sees, summed over the rows of a segment; half
  the sum of absolute differences, less what chance leaves of it by the spread of the rows within a segment. A band much
  wider than REACH counts as blocks along the diagonal.

And `evenness` is how many tokens a residue attends to, of those that it can see: the exponential of the entropy of its
row over their number, 1 for even attention; the mean over residues.

A head's kind is the pattern with the largest statistic relative to its threshold, if it passes it. A head without a
pattern is diffuse if its evenness passes DIFFUSE_EVENNESS; otherwise scattered: sharp, but at places that follow no
such rule (say, at an amino acid that depends on the attending one).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float64, Int64

from proteinlm.analysis.attention_maps import BLOCK, fold_columns, queries_keys
from proteinlm.analysis.proteins import Protein, batched, read_proteins
from proteinlm.data import alphabet
from proteinlm.errors import InputError
from proteinlm.models.transformer import ProteinLM

REACH = 8
"""Residues to either side that count as neighbours: two turns of a helix."""

SEGMENTS = 8
"""Segments of a protein between which blocks are seen: fewer would miss the paper's, more would see single contacts."""

SHORTEST = 4 * SEGMENTS
"""Residues of the shortest protein that is measured: below, a segment is shorter than half of REACH and the band of
neighbours covers half of the map."""

STRIPE = 3.0
"""Standard deviations of chance above which a token is a stripe: where sharp attention at random hits a token once on
average, one token in 50 passes."""

DIAGONAL_SHARE = 0.2
VERTICAL_SHARE = 0.2
BLOCK_SHARE = 0.15
"""Least statistics of a pattern. A fifth of all attention is what the eye sees as a line at the colours of figure 10; a
block is a part of the map alone, and most rows may have none. Chance is below: 100 residues that each attend to one
token drawn at random have about 0.08, 0.06 and 0.03; a preference of three to one for half of the tokens, which never lie
quite evenly over segments, gives blocks 0.03."""

DIFFUSE_EVENNESS = 0.5
"""Least evenness of a diffuse head: a residue attends to half of what it sees, or more."""

KINDS = ("diagonal", "vertical", "block", "scattered", "diffuse")
PATTERNS = {"diagonal": DIAGONAL_SHARE, "vertical": VERTICAL_SHARE, "block": BLOCK_SHARE}


@dataclass(frozen=True)
class HeadPatterns:
    """The statistics of every head in each of N proteins.

    Attributes:
        proteins: the N proteins, in the order of the statistics.
        diagonal, vertical, block, evenness: [N, layers, H], see the top of this file; NaN for a head whose weights are
            all 0.
        offset_excess: [N, layers, H, 2 REACH + 1], D(o) - E(o) for o from -REACH to REACH.
        column_excess: for each protein [layers, H, tokens], C(j) - E(j).
        special: [N, layers, H], the share of attention that goes to special tokens.
    """

    proteins: Sequence[Protein]
    diagonal: Float64[np.ndarray, "N layers H"]
    vertical: Float64[np.ndarray, "N layers H"]
    block: Float64[np.ndarray, "N layers H"]
    evenness: Float64[np.ndarray, "N layers H"]
    offset_excess: Float64[np.ndarray, "N layers H O"]
    column_excess: Sequence[Float64[np.ndarray, "layers H _"]]
    special: Float64[np.ndarray, "N layers H"]


def measure_patterns(
    model: ProteinLM, sequences: Sequence[bytes], *, batch_size: int = 8, block: int = BLOCK
) -> HeadPatterns:
    """Measure every head's patterns in each protein, in memory linear in its length.

    Args:
        model: a causal or bidirectional model.
        sequences: proteins as ASCII letters; those shorter than `SHORTEST` residues are left out.
        batch_size: proteins read together; the result does not depend on it.
        block: columns of the attention matrix at a time.

    Raises:
        InputError: no sequence is long enough, one has a letter outside the alphabet, or one is longer than the model
            reads.
    """
    if batch_size < 1 or block < 1:
        raise ValueError(f"batch_size and block must be positive, not {batch_size} and {block}")
    every = read_proteins(model, sequences)
    proteins = [protein for protein in every if len(protein.letters) >= SHORTEST]
    if not proteins:
        raise InputError(
            f"none of the {len(every)} sequences has the {SHORTEST} residues that the kinds of heads are measured on: "
            "give longer ones."
        )
    measured: list = [None] * len(proteins)
    mechanisms = [nnx.split(model.attention(layer)) for layer in range(model.config.num_layers)]
    for places, tokens in batched(model, proteins, batch_size):
        q, k = queries_keys(model, tokens)
        here = [proteins[place] for place in places]
        segments, least = _segments(here, tokens), _least(here, tokens, causal=model.causal)
        layers = [
            _layer_patterns(
                graph, state, q[layer], k[layer], tokens, segments, least,
                block=min(block, tokens.shape[1]), causal=model.causal,
            )
            for layer, (graph, state) in enumerate(mechanisms)
        ]  # fmt: skip
        layers = jax.device_get(layers)
        for row, place in enumerate(places):
            of_protein = [np.stack([np.asarray(part[row]) for part in parts]) for parts in zip(*layers, strict=True)]
            measured[place] = _statistics(proteins[place], *of_protein, causal=model.causal)
    stacked = {name: [one[name] for one in measured] for name in measured[0]}
    columns = stacked.pop("column_excess")
    return HeadPatterns(proteins, column_excess=columns, **{name: np.stack(value) for name, value in stacked.items()})


def _segments(proteins, tokens):
    """Return int32 [B, L]: the segment of each residue, -1 for special tokens and padding."""
    segments = np.full(tokens.shape, -1, np.int32)
    for row, protein in zip(segments, proteins, strict=False):
        row[protein.residues] = _protein_segments(len(protein.letters))
    return segments


def _least(proteins, tokens, *, causal):
    """Return float32 [B, L]: the mean attention above which a token is a stripe; infinite for padding."""
    least = np.full(tokens.shape, np.inf, np.float32)
    for row, protein in zip(least, proteins, strict=False):
        columns = _even(protein, causal=causal)[0]
        number = len(protein.letters)
        row[: len(columns)] = columns + STRIPE * np.sqrt(np.maximum(columns, 1 / number) / number)
    return least


def _protein_segments(length):
    return np.arange(length) * SEGMENTS // length


@functools.partial(jax.jit, static_argnums=0, static_argnames=("block", "causal"))
def _layer_patterns(graph, state, q, k, tokens, segments, least, *, block, causal):
    """Return, for each protein and head, sums over residues of p(i, j).

    Returns:
        columns [B, H, L] (by the token attended to), stripes (bool [B, H, L]: which of these are), offsets
        [B, H, 2 REACH + 1] (among residues), rest [B, H, L, S] (of each residue, to segments beyond REACH and without
        stripes; not summed), effective tokens [B, H, L] (exp(entropy) of each residue's row; NaN where its weights are
        all 0).
    """
    attention = nnx.merge(graph, state)
    batch, length, heads = q.shape[:3]
    mask = tokens != alphabet.PAD
    residue = segments >= 0
    fold = functools.partial(fold_columns, attention, q, k, mask, block=block, causal=causal)
    sums = fold(lambda sums, _, columns: sums + jnp.abs(columns).sum(-1), jnp.zeros((batch, length, heads)))
    scale = jnp.where(residue[..., None] & (sums > 0), 1 / jnp.where(sums > 0, sums, 1.0), 0.0)
    spare = -length % block
    keys_of_segment = jnp.pad(jax.nn.one_hot(segments, SEGMENTS), ((0, 0), (0, spare), (0, 0)))
    reach = jnp.arange(-REACH, REACH + 1)

    def add(sums, start, columns):
        by_column, by_offset, entropy = sums
        p = jnp.abs(columns) * scale[..., None]
        here = start + jnp.arange(block)
        by_column = jax.lax.dynamic_update_slice_in_dim(by_column, p.sum(1), start, axis=-1)
        keys_here = jax.lax.dynamic_slice_in_dim(keys_of_segment, start, block, axis=1)
        rows = here[None, :] - reach[:, None]
        inside = (rows >= 0) & (rows < length)
        among = p * keys_here.sum(-1)[:, None, None, :]
        near = among[:, jnp.clip(rows, 0, length - 1), :, jnp.arange(block)[None, :]]
        by_offset += jnp.where(inside[..., None, None], near, 0.0).sum(1).transpose(1, 2, 0)
        return by_column, by_offset, entropy - jax.scipy.special.xlogy(p, p).sum(-1)

    zeros = (
        jnp.zeros((batch, heads, length + spare)),
        jnp.zeros((batch, heads, 2 * REACH + 1)),
        jnp.zeros((batch, length, heads)),
    )
    by_column, by_offset, entropy = fold(add, zeros)
    number = (scale > 0).sum(1)
    stripes = by_column > jnp.pad(least, ((0, 0), (0, spare)))[:, None, :] * number[:, :, None]

    def add_rest(rest, start, columns):
        far = jnp.abs(jnp.arange(length)[:, None] - (start + jnp.arange(block))[None, :]) > REACH
        counted = far[None, :, None, :] & ~jax.lax.dynamic_slice_in_dim(stripes, start, block, axis=2)[:, None]
        p = jnp.where(counted, jnp.abs(columns) * scale[..., None], 0.0)
        with jax.default_matmul_precision("highest"):
            return rest + jnp.einsum(
                "bihe,bet->biht", p, jax.lax.dynamic_slice_in_dim(keys_of_segment, start, block, axis=1)
            )

    rest = fold(add_rest, jnp.zeros((batch, length, heads, SEGMENTS)))
    effective = jnp.where(scale > 0, jnp.exp(entropy), jnp.nan).transpose(0, 2, 1)
    return by_column[..., :length], stripes[..., :length], by_offset, rest.transpose(0, 2, 1, 3), effective


def _statistics(protein, columns, stripes, offsets, rest, effective, *, causal):
    """Turn one protein's sums, each [layers, H, ...], into the fields of HeadPatterns, each [layers, H, ...]."""
    length, residues = len(protein.tokens), protein.residues
    columns, stripes = np.asarray(columns[..., :length], np.float64), stripes[..., :length]
    effective = effective[..., residues]
    # Rows that attend to nothing have no pattern, and do not count.
    rows = (~np.isnan(effective)).sum(-1).astype(np.float64)
    number = np.where(rows > 0, rows, np.nan)
    even_columns, even_offsets = _even(protein, causal=causal)
    column_excess = columns / number[..., None] - even_columns
    offset_excess = offsets / number[..., None] - even_offsets
    special = np.ones(length, bool)
    special[residues] = False
    differences = _from_even(rest[..., residues, :], ~stripes[..., residues], causal=causal)
    return {
        "diagonal": np.maximum(offset_excess, 0).sum(-1),
        "vertical": np.where(stripes, column_excess, 0).sum(-1) + 0 * number,
        "block": _block(differences) / number,
        "evenness": _mean_known(effective / _visible(protein, causal)),
        "offset_excess": offset_excess,
        "column_excess": column_excess,
        "special": columns[..., special].sum(-1) / number,
    }


def _from_even(rest, counted, *, causal):
    """Take from each row's attention to segments, [..., L, S], the same amount spread evenly.

    Args:
        rest: attention beyond REACH and without stripes.
        counted: bool [..., L], the residues that are no stripes.
    """
    length = rest.shape[-2]
    row = np.arange(length)
    # Counted residues of each segment up to a place: what a row sees of it is a difference of two.
    kinds = np.eye(SEGMENTS)[_protein_segments(length)] * counted[..., None]
    upto = np.concatenate([np.zeros_like(kinds[..., :1, :]), np.cumsum(kinds, axis=-2)], axis=-2)
    seen = upto[..., np.maximum(row - REACH, 0), :]
    if not causal:
        seen = seen + upto[..., -1:, :] - upto[..., np.minimum(row + REACH + 1, length), :]
    return rest - rest.sum(-1, keepdims=True) * seen / np.maximum(seen.sum(-1, keepdims=True), 1)


def _block(differences):
    """Return [...]: half the absolute sums, over the rows of each segment, of [..., L, S], less what chance leaves."""
    of_segment = np.eye(SEGMENTS)[_protein_segments(differences.shape[-2])]
    size = of_segment.sum(0)[:, None]
    sums, squares = of_segment.T @ differences, of_segment.T @ differences**2
    # The variance of a segment's sum, from the spread of its rows.
    variance = np.maximum(squares - sums**2 / size, 0) * size / np.maximum(size - 1, 1)
    chance = np.sqrt(2 / np.pi * variance).sum((-1, -2))
    return np.maximum(np.abs(sums).sum((-1, -2)) - chance, 0) / 2


def _mean_known(values):
    known = ~np.isnan(values)
    number = known.sum(-1)
    return np.where(number > 0, np.where(known, values, 0).sum(-1) / np.maximum(number, 1), np.nan)


def _visible(protein, causal):
    """Return how many tokens each residue sees."""
    places = np.arange(len(protein.tokens))[protein.residues]
    return places + 1 if causal else np.full(len(places), len(protein.tokens))


def _even(protein, *, causal):
    """Return what even attention gives to tokens [L] and offsets [2 REACH + 1], the mean over residues."""
    places = np.arange(len(protein.tokens))[protein.residues]
    share, number = 1 / _visible(protein, causal), len(places)
    columns = np.full(len(protein.tokens), share.mean())
    if causal:
        # A token is seen by the residues at or behind it.
        behind = np.append(np.cumsum(share[::-1])[::-1], 0)
        columns = behind[np.searchsorted(places, np.arange(len(protein.tokens)))] / number
    offsets = np.zeros(2 * REACH + 1)
    for index, offset in enumerate(range(-REACH, REACH + 1)):
        sees = (places + offset >= places[0]) & (places + offset <= places[-1]) & (offset <= 0 or not causal)
        offsets[index] = share[sees].sum() / number
    return columns, offsets


def kinds_of(
    diagonal: Float64[np.ndarray, "*heads"],
    vertical: Float64[np.ndarray, "*heads"],
    block: Float64[np.ndarray, "*heads"],
    evenness: Float64[np.ndarray, "*heads"],
) -> Int64[np.ndarray, "*heads"]:
    """Return each head's kind as an index into KINDS; -1 for a head without weights (NaN)."""
    relative = np.stack([diagonal / DIAGONAL_SHARE, vertical / VERTICAL_SHARE, block / BLOCK_SHARE])
    without = np.where(evenness >= DIFFUSE_EVENNESS, KINDS.index("diffuse"), KINDS.index("scattered"))
    unknown = np.isnan(relative).any(0) | np.isnan(evenness)
    pattern = np.argmax(np.where(np.isnan(relative), -1, relative), 0)
    return np.where(unknown, -1, np.where(relative.max(0) >= 1, pattern, without)).astype(np.int64)
