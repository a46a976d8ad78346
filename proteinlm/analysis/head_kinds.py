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
- block: residues in `SEGMENTS` equal segments. What attention the segments of the rows give to those of the columns,
  leaving out pairs within `REACH` (a diagonal is no block), against the segments' even attention fitted to the same
  sums of rows and columns (a vertical stripe is no block): half the sum of absolute differences, less what chance
  leaves of it, by the spread of the rows within a segment. (Of a causal head, a block along the diagonal cannot be told
  from a preference of later residues over earlier ones, and does not count; one away from it does.)

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
"""Standard deviations of chance above which a token is a stripe: where sharp attention at random hits each token once on
average, one token in 50 passes."""

DIAGONAL_SHARE = 0.2
VERTICAL_SHARE = 0.2
BLOCK_SHARE = 0.1
"""Least statistics of a pattern. A fifth of all attention is what the eye sees as a line at the colours of figure 10.
For blocks half of that: a block is a part of the map alone, so even a perfect one leaves most rows as they are. Chance
is below: 100 residues that each attend to one token drawn at random have about 0.06, 0.06 and 0.03."""

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
        segments = _segments([proteins[place] for place in places], tokens)
        layers = [
            _layer_patterns(
                graph, state, q[layer], k[layer], tokens, segments,
                block=min(block, tokens.shape[1]), causal=model.causal,
            )
            for layer, (graph, state) in enumerate(mechanisms)
        ]  # fmt: skip
        layers = jax.device_get(layers)
        for row, place in enumerate(places):
            of_protein = [np.stack([np.asarray(layer[part][row], np.float64) for layer in layers]) for part in range(4)]
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


def _protein_segments(length):
    return np.arange(length) * SEGMENTS // length


@functools.partial(jax.jit, static_argnums=0, static_argnames=("block", "causal"))
def _layer_patterns(graph, state, q, k, tokens, segments, *, block, causal):
    """Return, for each protein and head, sums over residues of p(i, j).

    Returns:
        columns [B, H, L] (by the token attended to), offsets [B, H, 2 REACH + 1] (among residues), rows [B, H, L, S]
        (of each residue, to segments beyond REACH; not summed), effective tokens [B, H, L] (exp(entropy) of each
        residue's row; NaN where its weights are all 0).
    """
    attention = nnx.merge(graph, state)
    batch, length, heads = q.shape[:3]
    mask = tokens != alphabet.PAD
    residue = segments >= 0
    fold = functools.partial(fold_columns, attention, q, k, mask, block=block, causal=causal)
    sums = fold(lambda sums, _, columns: sums + jnp.abs(columns).sum(-1), jnp.zeros((batch, length, heads)))
    scale = jnp.where(residue[..., None] & (sums > 0), 1 / jnp.where(sums > 0, sums, 1.0), 0.0)
    of_segment = jax.nn.one_hot(segments, SEGMENTS)
    spare = -length % block
    keys_of_segment = jnp.pad(of_segment, ((0, 0), (0, spare), (0, 0)))
    # Rows beyond both ends, so that every offset of every column can be taken.
    reach = jnp.arange(-REACH, REACH + 1)

    def add(sums, start, columns):
        by_column, by_offset, by_segment, entropy = sums
        p = jnp.abs(columns) * scale[..., None]
        here = start + jnp.arange(block)
        by_column = jax.lax.dynamic_update_slice_in_dim(by_column, p.sum(1), start, axis=-1)
        keys_here = jax.lax.dynamic_slice_in_dim(keys_of_segment, start, block, axis=1)
        among = p * keys_here.sum(-1)[:, None, None, :]
        rows = here[None, :] - reach[:, None]
        inside = (rows >= 0) & (rows < length)
        near = among[:, jnp.clip(rows, 0, length - 1), :, jnp.arange(block)[None, :]]
        by_offset += jnp.where(inside[..., None, None], near, 0.0).sum(1).transpose(1, 2, 0)
        far = jnp.abs(jnp.arange(length)[:, None] - here[None, :]) > REACH
        beyond = jnp.where(far[None, :, None, :], among, 0.0)
        with jax.default_matmul_precision("highest"):
            by_segment += jnp.einsum("bihe,bet->biht", beyond, keys_here)
        entropy -= jax.scipy.special.xlogy(p, p).sum(-1)
        return by_column, by_offset, by_segment, entropy

    zeros = (
        jnp.zeros((batch, heads, length + spare)),
        jnp.zeros((batch, heads, 2 * REACH + 1)),
        jnp.zeros((batch, length, heads, SEGMENTS)),
        jnp.zeros((batch, length, heads)),
    )
    by_column, by_offset, by_segment, entropy = fold(add, zeros)
    effective = jnp.where(scale > 0, jnp.exp(entropy), jnp.nan)
    return by_column[..., :length], by_offset, by_segment.transpose(0, 2, 1, 3), effective.transpose(0, 2, 1)


def _statistics(protein, columns, offsets, segments, effective, *, causal):
    """Turn one protein's sums, each [layers, H, ...], into the fields of HeadPatterns, each [layers, H, ...]."""
    length = len(protein.tokens)
    places = np.arange(length)[protein.residues]
    visible = places + 1 if causal else np.full(len(places), length)
    effective = effective[..., places]
    # Rows that attend to nothing have no pattern, and do not count.
    rows = (~np.isnan(effective)).sum(-1).astype(np.float64)
    number = np.where(rows > 0, rows, np.nan)[..., None]
    even_columns, even_offsets, even_blocks = _even(places, visible, length, causal=causal)
    column_excess = columns[..., :length] / number - even_columns
    offset_excess = offsets / number - even_offsets
    chance = np.sqrt(np.maximum(even_columns, 1 / len(places)) / len(places))
    special = np.ones(length, bool)
    special[places] = False
    return {
        "diagonal": np.maximum(offset_excess, 0).sum(-1),
        "vertical": np.where(column_excess > STRIPE * chance, column_excess, 0).sum(-1) + 0 * number[..., 0],
        "block": _block(segments[..., places, :], even_blocks) / number[..., 0],
        "evenness": _mean_known(effective / visible),
        "offset_excess": offset_excess,
        "column_excess": column_excess,
        "special": columns[..., :length][..., special].sum(-1) / number[..., 0],
    }


def _block(rows, even):
    """Return [layers, H]: how much of the rows' attention to segments, [layers, H, L, S], is in blocks."""
    of_segment = np.eye(SEGMENTS)[_protein_segments(rows.shape[-2])]
    size = of_segment.sum(0)[:, None]
    sums, squares = of_segment.T @ rows, of_segment.T @ rows**2
    # The variance of a segment's sum, from the spread of its rows.
    variance = np.maximum(squares - sums**2 / size, 0) * size / np.maximum(size - 1, 1)
    chance = np.sqrt(2 / np.pi * variance).sum((-1, -2))
    return np.maximum(np.abs(sums - fitted(even, sums)).sum((-1, -2)) - chance, 0) / 2


def _mean_known(values):
    known = ~np.isnan(values)
    number = known.sum(-1)
    return np.where(number > 0, np.where(known, values, 0).sum(-1) / np.maximum(number, 1), np.nan)


def _even(places, visible, length, *, causal):
    """Return what even attention has for columns [length], offsets [O] and blocks [S, S]; means and sums over rows.

    Args:
        places: of the residues among the tokens; visible: how many tokens each of them sees.
    """
    share = 1 / visible
    columns = np.full(length, share.mean())
    if causal:
        # Token j is seen by the residues at or behind it.
        columns = np.array([share[places >= j].sum() for j in range(length)]) / len(places)
    offsets = np.zeros(2 * REACH + 1)
    for index, offset in enumerate(range(-REACH, REACH + 1)):
        sees = (places + offset >= places[0]) & (places + offset <= places[-1]) & (offset <= 0 or not causal)
        offsets[index] = share[sees].sum() / len(places)
    segment = _protein_segments(len(places))
    blocks = np.zeros((SEGMENTS, SEGMENTS))
    # Residues of each segment up to a place: what a row sees of it is a difference of two.
    upto = np.concatenate([np.zeros((1, SEGMENTS)), np.cumsum(np.eye(SEGMENTS)[segment], axis=0)])
    row = np.arange(len(places))
    seen = upto[np.maximum(row - REACH, 0)]
    if not causal:
        seen = seen + upto[-1] - upto[np.minimum(row + REACH + 1, len(places))]
    np.add.at(blocks, segment, seen * share[:, None])
    return columns, offsets, blocks


def fitted(
    even: Float64[np.ndarray, "S S"], observed: Float64[np.ndarray, "*heads S S"], *, rounds: int = 50
) -> Float64[np.ndarray, "*heads S S"]:
    """Scale rows and columns of `even` until they sum to those of `observed` (iterative proportional fitting).

    What is left, observed - fitted, is what no preference of rows and no preference of columns explains.
    """

    def ratio(wanted, have):
        return np.divide(wanted, have, out=np.zeros_like(wanted), where=have > 0)

    result = np.broadcast_to(even, observed.shape).copy()
    for _ in range(rounds):
        result *= ratio(observed.sum(-1), result.sum(-1))[..., None]
        result *= ratio(observed.sum(-2), result.sum(-2))[..., None, :]
    return result


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
