"""Kinds of attention heads over many proteins: diagonal, vertical, block, scattered or diffuse.

The Performer paper (appendix C.4) describes "many heads [with] a diagonal pattern, where each node attends to its
neighbors, and some heads [with] a vertical pattern, where each head attends to the same fixed positions", and a block.
This module measures these patterns. Rows are residues; columns are residues and special tokens. The weights of a row,
of any sign and sum, first become a distribution: p(i, j) is the absolute weight divided by the row's sum of absolute
weights. Even attention spreads a weight of 1 evenly over the tokens that a residue can see. Each of three statistics is
the share of a head's attention that would have to move to remove the pattern (a total variation distance from even
attention), from 0 to 1. The comparison with even attention keeps a causal head from being diagonal only because it
cannot see later tokens.

- diagonal: the excess of the mean attention D(o) at each offset o = j - i, up to `REACH`, over even attention E(o):
  the sum over offsets of max(0, D(o) - E(o)). `offset` is the o with the largest excess; -1 is the residue before.
- vertical: the excess of the mean attention C(j) that token j receives over even attention E(j), summed over stripes. A
  token is a stripe on two conditions. Its excess is above chance: larger than `STRIPE` standard errors, estimated from
  the spread of the rows. (Sharp attention of any kind hits some tokens twice.) And most rows share the excess: the
  median over segments of rows (see below) of the mean excess is larger than half of C(j) - E(j). (Otherwise a block
  would be a stripe.) The tokens with the largest excess are the positions of the head.
- block: the difference between attention and even attention, summed over pairs of `SEGMENTS` equal segments of the
  protein. Pairs within `REACH` (the diagonal) and stripes are left out. The remaining attention of each residue is
  compared with the same amount spread evenly over the remaining tokens that it can see, summed over the rows of a
  segment. The statistic is half the sum of absolute differences, less the amount expected by chance, estimated from the
  spread of the rows in a segment. A band much wider than REACH counts as blocks along the diagonal.

`evenness` is the effective number of tokens that a residue attends to (the exponential of the entropy of its row),
divided by the number that it can see; the mean over residues. Even attention has 1.

The kind of a head is the pattern with the largest ratio of statistic to threshold, if the ratio is at least 1. A head
without a pattern is diffuse if its evenness is at least DIFFUSE_EVENNESS, and otherwise scattered: sharp, but at
positions that follow none of these rules (for example at an amino acid that depends on the attending one).
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
"""Number of residues on either side that count as neighbours: two turns of a helix."""

SEGMENTS = 8
"""Number of segments of a protein between which blocks are measured. Fewer would miss the paper's block; more would
detect single contacts."""

SHORTEST = 4 * SEGMENTS
"""Number of residues of the shortest protein that is measured. In a shorter one a segment is shorter than half of REACH
and the band of neighbours covers half of the map."""

STRIPE = 3.0
"""Number of standard errors above which a token is a stripe: one token in a thousand passes by chance."""

FAINTEST = 0.01
"""Smallest excess of a stripe, as a part of an even share, so that rounding errors are no stripes."""

DIAGONAL_SHARE = 0.2
VERTICAL_SHARE = 0.2
BLOCK_SHARE = 0.1
"""Thresholds of the statistics. A fifth of all attention is visible as a line in the colours of figure 10. The
threshold of blocks is lower because a block covers only a part of the map. Chance is below the thresholds: 100 residues
that each attend to one random token have about 0.08, 0 and 0.03. A preference of two to one for half of the tokens
gives a vertical statistic of 0.17; a preference of three to one gives 0.25 and passes."""

DIFFUSE_EVENNESS = 0.5
"""Smallest evenness of a diffuse head: a residue attends to at least half of the tokens that it can see."""

KINDS = ("diagonal", "vertical", "block", "scattered", "diffuse")
PATTERNS = {"diagonal": DIAGONAL_SHARE, "vertical": VERTICAL_SHARE, "block": BLOCK_SHARE}


@dataclass(frozen=True)
class HeadPatterns:
    """The statistics of every head in each of N proteins.

    Attributes:
        proteins: the N proteins, in the order of the statistics.
        diagonal, vertical, block, evenness: [N, layers, H], as defined at the top of this file; NaN for a head whose
            weights are all 0.
        offset_excess: [N, layers, H, 2 REACH + 1], D(o) - E(o) for o from -REACH to REACH.
        column_excess: one array [layers, H, tokens] for each protein, C(j) - E(j).
        special: [N, layers, H], the share of attention to special tokens.
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
    """Measure the patterns of every head in each protein, in memory linear in its length.

    Args:
        model: a causal or bidirectional model.
        sequences: proteins in ASCII letters; those shorter than `SHORTEST` residues are left out.
        batch_size: number of proteins in a batch; the result does not depend on it.
        block: number of columns of the attention matrix computed together.

    Raises:
        InputError: no sequence is long enough, a letter is outside the alphabet, or a sequence is too long for the
            model.
    """
    if batch_size < 1 or block < 1:
        raise ValueError(f"batch_size and block must be positive, not {batch_size} and {block}")
    proteins = [protein for protein in read_proteins(model, sequences) if len(protein.letters) >= SHORTEST]
    if not proteins:
        raise InputError(
            f"none of the {len(sequences)} sequences has {SHORTEST} residues or more, as the kinds of heads need: use "
            "longer sequences."
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
    """Return a dictionary of HeadPatterns' fields for each protein; row i of the probe's tokens is protein i."""
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
    """Return sums over residues of p(i, j), for each protein and head.

    Returns:
        excess: [B, H, L], by the token attended to, less even attention.
        stripes: bool [B, H, L], the tokens that are stripes.
        special: [B, H], to special tokens.
        offsets: [B, H, 2 REACH + 1], among residues, by offset.
        rest: [B, H, L, S], from each residue (not summed) to each segment, beyond REACH and without stripes.
        effective tokens: [B, H, L], exp(entropy) of each residue's row; NaN where its weights are all 0.
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
    # The number of rows of each segment, and whether all of them see a token.
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
    """Convert the sums of one protein into the fields of HeadPatterns; all arrays are [layers, H, ...]."""
    length, residues = len(protein.tokens), protein.residues
    stripes = stripes[..., :length]
    effective = effective[..., residues]
    # Rows without attention have no pattern and are not counted.
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
    """Subtract from the attention of each row to segments, [..., L, S], the same amount spread evenly.

    Args:
        rest: attention beyond REACH and without stripes.
        counted: bool [..., L], the residues that are not stripes.
    """
    length = rest.shape[-2]
    row = np.arange(length)
    # The number of counted residues of each segment before a position. A row sees a difference of two such numbers.
    kinds = np.eye(SEGMENTS)[_protein_segments(length)] * counted[..., None]
    upto = np.concatenate([np.zeros_like(kinds[..., :1, :]), np.cumsum(kinds, axis=-2)], axis=-2)
    seen = upto[..., np.maximum(row - REACH, 0), :]
    if not causal:
        seen = seen + upto[..., -1:, :] - upto[..., np.minimum(row + REACH + 1, length), :]
    return rest - rest.sum(-1, keepdims=True) * seen / np.maximum(seen.sum(-1, keepdims=True), 1)


def _block(differences):
    """Return half the absolute sums of [..., L, S] over the rows of each segment, less the amount due to chance."""
    of_segment = np.eye(SEGMENTS)[_protein_segments(differences.shape[-2])]
    size = of_segment.sum(0)[:, None]
    sums, squares = of_segment.T @ differences, of_segment.T @ differences**2
    # The variance of the sum over a segment, estimated from the spread of its rows.
    variance = np.maximum(squares - sums**2 / size, 0) * size / np.maximum(size - 1, 1)
    chance = np.sqrt(2 / np.pi * variance).sum((-1, -2))
    return np.maximum(np.abs(sums).sum((-1, -2)) - chance, 0) / 2


def _mean_known(values):
    known = ~np.isnan(values)
    number = known.sum(-1)
    return np.where(number > 0, np.where(known, values, 0).sum(-1) / np.maximum(number, 1), np.nan)


def _visible(protein, causal):
    """Return the number of tokens that each residue sees."""
    positions = np.arange(len(protein.tokens))[protein.residues]
    return positions + 1 if causal else np.full(len(positions), len(protein.tokens))


def _even_offsets(protein, *, causal):
    """Return even attention by offset [2 REACH + 1], the mean over residues."""
    share, number = 1 / _visible(protein, causal), len(protein.letters)
    positions = np.arange(number)
    offsets = np.zeros(2 * REACH + 1)
    for index, offset in enumerate(range(-REACH, REACH + 1)):
        sees = (positions + offset >= 0) & (positions + offset < number) & (offset <= 0 or not causal)
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
