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
  excess is above chance, more than `STRIPE` standard errors by the spread of the rows, and common to most rows: the
  median over segments of rows (see below) of their mean excess is more than half of C(j) - E(j). (Without the first,
  sharp attention of any kind hits some tokens twice; without the second, a block is a stripe.) The tokens with the
  largest excess are its positions.
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

from proteinlm import alphabet
from proteinlm.errors import InputError
from proteinlm.inference.probing import BLOCK, Probe, ProteinProbe, fold_columns
from proteinlm.inference.proteins import Protein, batched, read_proteins
from proteinlm.models.transformer import ProteinLM

REACH = 8
"""Residues to either side that count as neighbours: two turns of a helix."""

SEGMENTS = 8
"""Segments of a protein between which blocks are seen: fewer would miss the paper's, more would see single contacts."""

SHORTEST = 4 * SEGMENTS
"""Residues of the shortest protein that is measured: below, a segment is shorter than half of REACH and the band of
neighbours covers half of the map."""

STRIPE = 3.0
"""Standard errors above which a token is a stripe: one token in a thousand passes by chance."""

FAINTEST = 0.01
"""And a stripe has at least this part of an even share more than even: rounding is no stripe."""

DIAGONAL_SHARE = 0.2
VERTICAL_SHARE = 0.2
BLOCK_SHARE = 0.1
"""Least statistics of a pattern. A fifth of all attention is what the eye sees as a line at the colours of figure 10; a
block is a part of the map alone, and most rows may have none. Chance is below: 100 residues that each attend to one
token drawn at random have about 0.08, 0 and 0.03. A preference of two to one for half of the tokens gives vertical
0.17; one of three to one 0.25, and passes."""

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
    for indices, tokens in batched(model, proteins, batch_size):
        statistics = _batch_statistics(Probe(model, tokens), [proteins[index] for index in indices], block)
        for index, of_protein in zip(indices, statistics, strict=True):
            measured[index] = of_protein
    return _stacked(proteins, measured)


def protein_patterns(probe: ProteinProbe, *, block: int = BLOCK) -> HeadPatterns:
    """Return the statistics of every head in one protein of `SHORTEST` residues or more, as `measure_patterns` does."""
    return _stacked([probe.protein], _batch_statistics(probe, [probe.protein], block))


def _batch_statistics(probe, proteins, block):
    """Return a dictionary of HeadPatterns' fields for each protein; the first rows of the probe's tokens are theirs."""
    tokens, causal = probe.tokens, probe.model.causal
    segments = _segments(proteins, tokens)
    layers = jax.device_get(
        [
            _layer_patterns(*probe.layer(layer), tokens, segments, block=min(block, tokens.shape[1]), causal=causal)
            for layer in range(probe.model.config.num_layers)
        ]
    )
    statistics = []
    for row, protein in enumerate(proteins):
        sums = [np.stack([np.asarray(part[row]) for part in parts]) for parts in zip(*layers, strict=True)]
        statistics.append(_statistics(protein, *sums, causal=causal))
    return statistics


def _stacked(proteins, statistics):
    fields = {name: [each[name] for each in statistics] for name in statistics[0]}
    columns = fields.pop("column_excess")
    return HeadPatterns(proteins, column_excess=columns, **{name: np.stack(value) for name, value in fields.items()})


def _segments(proteins, tokens):
    """Return int32 [B, L]: the segment of each residue, -1 for special tokens and padding."""
    segments = np.full(tokens.shape, -1, np.int32)
    for row, protein in enumerate(proteins):
        segments[row, protein.residues] = _protein_segments(len(protein.letters))
    return segments


def _protein_segments(length):
    return np.arange(length) * SEGMENTS // length


@functools.partial(jax.jit, static_argnums=0, static_argnames=("block", "causal"))
def _layer_patterns(graph, state, q, k, tokens, segments, *, block, causal):
    """Return, for each protein and head, sums over residues of p(i, j).

    Returns:
        excess [B, H, L] (by the token attended to, less even attention), stripes (bool [B, H, L]: which of these are),
        special [B, H] (to special tokens), offsets [B, H, 2 REACH + 1] (among residues), rest [B, H, L, S] (of each
        residue, to segments beyond REACH and without stripes; not summed), effective tokens [B, H, L] (exp(entropy) of
        each residue's row; NaN where its weights are all 0).
    """
    attention = nnx.merge(graph, state)
    batch, length, heads = q.shape[:3]
    mask = tokens != alphabet.PAD
    fold = functools.partial(fold_columns, attention, q, k, mask, block=block, causal=causal)
    sums = fold(lambda sums, _, columns: sums + jnp.abs(columns).sum(-1), jnp.zeros((batch, length, heads)))
    counts = (segments >= 0)[..., None] & (sums > 0)
    scale = jnp.where(counts, 1 / jnp.where(sums > 0, sums, 1.0), 0.0)
    visible = jnp.cumsum(mask, axis=1) if causal else jnp.broadcast_to(mask.sum(1, keepdims=True), mask.shape)
    share = 1 / jnp.maximum(visible, 1)
    spare = -length % block
    of_segment = jax.nn.one_hot(segments, SEGMENTS)
    keys_of_segment = jnp.pad(of_segment, ((0, 0), (0, spare), (0, 0)))
    keys = jnp.pad(mask, ((0, 0), (0, spare)))
    reach = jnp.arange(-REACH, REACH + 1)

    def add(sums, start, columns):
        excess, squares, special, by_offset, entropy = sums
        p = jnp.abs(columns) * scale[..., None]
        here = start + jnp.arange(block)
        sees = jax.lax.dynamic_slice_in_dim(keys, start, block, axis=1)[:, None, :]
        if causal:
            sees = sees & (here[None, None, :] <= jnp.arange(length)[None, :, None])
        over = jnp.where(counts[..., None] & sees[:, :, None, :], p - share[:, :, None, None], 0.0)
        with jax.default_matmul_precision("highest"):
            by_segment = jnp.einsum("bis,bihe->bhse", of_segment, over)
        excess = jax.lax.dynamic_update_slice_in_dim(excess, by_segment, start, axis=-1)
        squares = jax.lax.dynamic_update_slice_in_dim(squares, (over**2).sum(1), start, axis=-1)
        of_residue = jax.lax.dynamic_slice_in_dim(keys_of_segment, start, block, axis=1).sum(-1)
        among = p * of_residue[:, None, None, :]
        special += (p - among).sum((1, 3))
        rows = here[None, :] - reach[:, None]
        inside = (rows >= 0) & (rows < length)
        near = among[:, jnp.clip(rows, 0, length - 1), :, jnp.arange(block)[None, :]]
        by_offset += jnp.where(inside[..., None, None], near, 0.0).sum(1).transpose(1, 2, 0)
        return excess, squares, special, by_offset, entropy - jax.scipy.special.xlogy(p, p).sum(-1)

    zeros = (
        jnp.zeros((batch, heads, SEGMENTS, length + spare)),
        jnp.zeros((batch, heads, length + spare)),
        jnp.zeros((batch, heads)),
        jnp.zeros((batch, heads, 2 * REACH + 1)),
        jnp.zeros((batch, length, heads)),
    )
    excess, squares, special, by_offset, entropy = fold(add, zeros)
    # Rows of each segment, and whether all of them see a token.
    rows = jnp.einsum("bis,bih->bhs", of_segment, counts.astype(jnp.float32))[..., None]
    first = jnp.min(jnp.where(of_segment > 0, jnp.arange(length)[None, :, None], length), axis=1)[:, None, :, None]
    sees = (jnp.arange(length + spare)[None, None, None, :] <= first) | (not causal)
    typical = jnp.nanmedian(jnp.where(sees & (rows > 0), excess / jnp.maximum(rows, 1), jnp.nan), axis=2)
    excess, number = excess.sum(2), rows.sum(2)
    variance = jnp.maximum(squares - excess**2 / jnp.maximum(number, 1), 0)
    mean = excess / jnp.maximum(number, 1)
    stripes = (excess > STRIPE * jnp.sqrt(variance)) & (mean > FAINTEST / mask.sum(1)[:, None, None])
    stripes = stripes & (typical > mean / 2)

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
    return excess[..., :length], stripes[..., :length], special, by_offset, rest.transpose(0, 2, 1, 3), effective


def _statistics(protein, excess, stripes, special, offsets, rest, effective, *, causal):
    """Turn one protein's sums, each [layers, H, ...], into the fields of HeadPatterns, each [layers, H, ...]."""
    length, residues = len(protein.tokens), protein.residues
    stripes = stripes[..., :length]
    effective = effective[..., residues]
    # Rows that attend to nothing have no pattern, and do not count.
    rows = (~np.isnan(effective)).sum(-1).astype(np.float64)
    number = np.where(rows > 0, rows, np.nan)
    column_excess = excess[..., :length] / number[..., None]
    offset_excess = offsets / number[..., None] - _even_offsets(protein, causal=causal)
    differences = _from_even(rest[..., residues, :], ~stripes[..., residues], causal=causal)
    return {
        "diagonal": np.maximum(offset_excess, 0).sum(-1),
        "vertical": np.where(stripes, column_excess, 0).sum(-1) + 0 * number,
        "block": _block(differences) / number,
        "evenness": _mean_known(effective / _visible(protein, causal)),
        "offset_excess": offset_excess,
        "column_excess": column_excess,
        "special": special / number,
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


def _even_offsets(protein, *, causal):
    """Return what even attention gives to offsets [2 REACH + 1], the mean over residues."""
    share, number = 1 / _visible(protein, causal), len(protein.letters)
    places = np.arange(number)
    offsets = np.zeros(2 * REACH + 1)
    for index, offset in enumerate(range(-REACH, REACH + 1)):
        sees = (places + offset >= 0) & (places + offset < number) & (offset <= 0 or not causal)
        offsets[index] = share[sees].sum() / number
    return offsets


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
