"""Sums of an evaluation on the device: of each row, and of the cells into which its tokens fall.

A cell is a residue, a bin of positions or a bin of confidence. Sums of nll are exact, so that the cells of every
breakdown add up to the same total to the last bit, whatever the order in which a device adds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from proteinlm import alphabet
from proteinlm.evaluation.metrics import Sums
from proteinlm.models.objective import sum_tokens
from proteinlm.models.positions import positions_in

CONFIDENCE_BINS = 20
"""Bins of the top choice's probability: [0, 0.05), ..., [0.95, 1]."""

_COARSE, _FINE = 2.0**8, 2.0**20


@dataclass(frozen=True)
class SplitResult:
    """Sums of each row of a split, N rows, in evaluation order: a row is a sequence, packed or not, or a window.

    Attributes:
        rows: int64 [N], the row's place in the split (the manifest's order, for single sequences).
        residues: nll (nats), correct and count over residues, float64 [N] each.
        all_tokens: the same over residues and eos; equal to `residues` for a masked model.
        residue_counts: int64 [N, 25], how often each residue was a counted target, in the order of alphabet.RESIDUES.
        cells: sums over residues by residue, position or confidence, as far as asked for, fields [N, C].
        confidence: the model's probability of its first choice, summed in the cells by confidence, float64 [N, C].
    """

    rows: np.ndarray
    residues: Sums
    all_tokens: Sums
    residue_counts: np.ndarray
    cells: Mapping[str, Sums] = field(default_factory=dict)
    confidence: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows that hold at least one counted token."""
        return int((self.all_tokens.count > 0).sum())


def bin_ends(limit: int) -> np.ndarray:
    """Return the last place (or length) of each bin, from 1 to `limit` or beyond: 8, 16, 32, 64, 96, 128, 192, ...

    Narrow where the context is short and every residue of it matters, two bins a doubling from 64 on.
    """
    ends = [8, 16, 32, 64]
    while ends[-1] < limit:
        ends += [ends[-1] * 3 // 2, ends[-1] * 2]
    return np.array(ends[: int(np.searchsorted(ends, limit)) + 1])


def token_values(logits: Array, targets: Array) -> dict[str, Array]:
    """Return what is summed over tokens, float32 [B, L] each: nll, nll_rest, correct, count, confidence.

    A token's nll (nats) is put on a grid of 2^-20 and split into nll, on a grid of 2^-8, and nll_rest: float32 adds up
    either without rounding, the first while a row has fewer than 65,536 nats, the second up to 8,192 tokens. The grid
    is as fine as float32 itself is at 4 to 8 nats.

    Args:
        logits: [B, L, V]; probabilities are over the whole alphabet, in float32.
        targets: int32 [B, L].
    """
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    nll = -jnp.take_along_axis(log_probs, targets[:, :, None], axis=-1)[:, :, 0]
    coarse = jnp.round(nll * _COARSE) / _COARSE
    rest = jnp.where(jnp.isfinite(nll), jnp.round((nll - coarse) * _FINE) / _FINE, 0.0)
    return {
        "nll": coarse,
        "nll_rest": rest,
        "correct": (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32),
        "count": jnp.ones_like(nll),
        "confidence": jnp.exp(log_probs.max(axis=-1)),
    }


def cells_of(
    name: str, values: Mapping[str, Array], targets: Array, segments: Array | None, length: int
) -> tuple[Array, int]:
    """Return the cell of each token, int32 [B, L], and the number of cells.

    Args:
        name: residue (in the order of alphabet.RESIDUES), position (in its protein, or in its window; `bin_ends` of
            `length`), or confidence.
        values: of `token_values`.
        targets: int32 [B, L].
        segments: int32 [B, L], of rows of several proteins.
        length: the longest L of any batch, so that all have the same cells.
    """
    if name == "residue":
        return targets - alphabet.FIRST_RESIDUE, alphabet.NUM_RESIDUES
    if name == "position":
        ends = bin_ends(length)
        places = jnp.arange(targets.shape[1], dtype=jnp.int32)[None] if segments is None else positions_in(segments)
        bins = jnp.searchsorted(jnp.asarray(ends, jnp.int32), places + 1).astype(jnp.int32)
        return jnp.broadcast_to(bins, targets.shape), len(ends)
    if name == "confidence":
        bins = jnp.floor(values["confidence"] * CONFIDENCE_BINS).astype(jnp.int32)
        return jnp.minimum(bins, CONFIDENCE_BINS - 1), CONFIDENCE_BINS
    raise ValueError(f"there are no cells by {name!r}")


def sum_rows(values: Mapping[str, Array], weights: Array, segments: Array | None) -> dict[str, Array]:
    """Return the sums of each row, [B], or of each segment, [B, S], over tokens whose weight is not 0."""
    return {k: sum_tokens(jnp.where(weights > 0, x, 0.0), segments) for k, x in values.items()}


def sum_cells(
    values: Mapping[str, Array], weights: Array, cells: tuple[Array, int], segments: Array | None
) -> dict[str, Array]:
    """Return the sums of each row (or segment) and cell, [B, C] or [B, S, C]; arguments as of the two above."""
    index, number = cells
    chosen = (index[:, :, None] == jnp.arange(number)[None, None]) & (weights > 0)[:, :, None]
    return {k: sum_tokens(jnp.where(chosen, x[:, :, None], 0.0), segments) for k, x in values.items()}


def as_sums(found: Mapping[str, np.ndarray]) -> Sums:
    """Return what came from the device as sums in float64, with both parts of nll in one."""
    nll = found["nll"].astype(np.float64) + found["nll_rest"].astype(np.float64)
    return Sums(nll, found["correct"].astype(np.float64), found["count"].astype(np.float64))
