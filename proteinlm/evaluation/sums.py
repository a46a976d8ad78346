"""Sums of an evaluation: of each row of a split, and of the groups of each breakdown by tokens.

Sums over the tokens of a row are float32, made on the device; sums over rows are float64. Counts are exact. Sums of
negative log-likelihoods have the rounding of float32: two ways to add the same tokens, such as a breakdown's groups
and the split, agree to SUM_TOLERANCE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from proteinlm.evaluation.breakdowns import TokenBreakdown, TokenFacts
from proteinlm.evaluation.metrics import Sums
from proteinlm.models.objective import TokenSums, TokenValues, sum_tokens
from proteinlm.models.positions import positions_in

SUM_TOLERANCE = 1e-6
"""Largest relative difference between two sums of the negative log-likelihoods of a split."""


@dataclass(frozen=True)
class SplitResult:
    """Sums of each row of a split, N rows, in evaluation order: a row is a sequence, packed or not, or a window.

    Attributes:
        rows: int64 [N], index of each row in the split (in the manifest's order, for single sequences).
        residues: nll (nats), correct and count over residues, float64 [N] each.
        all_tokens: the same over residues and eos; equal to `residues` for a masked model.
        residue_counts: int64 [N, 25], how often each residue was a counted target, in the order of alphabet.RESIDUES.
        groups: by name of a breakdown by tokens: sums over residues in each of its C groups, float64 [N, C] each.
        confidence: likewise the sum of the probabilities of the model's first choices, float64 [N, C].
    """

    rows: np.ndarray
    residues: Sums
    all_tokens: Sums
    residue_counts: np.ndarray
    groups: Mapping[str, Sums] = field(default_factory=dict)
    confidence: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Number of rows that hold at least one counted token."""
        return int((self.all_tokens.count > 0).sum())


def sum_groups(
    breakdown: TokenBreakdown,
    values: TokenValues,
    targets: Array,
    weights: Array,
    segments: Array | None,
    length: int,
) -> tuple[TokenSums, Array]:
    """Return sums of each row (or segment) and group, over tokens whose weight is not 0.

    A value that is not finite changes the sums of its own group alone.

    Args:
        breakdown: the groups, C of them.
        values: of each token, fields [B, L].
        targets: int32 [B, L].
        weights: float32 [B, L].
        segments: int32 [B, L], index of a token's protein in its row, where rows hold several proteins.
        length: the largest L of any batch, so that all batches have the same groups.

    Returns:
        nll, correct and count, float32 [B, C] each ([B, S, C] with segments); and the sum of confidence, likewise.
    """
    positions = jnp.arange(targets.shape[1], dtype=jnp.int32)[None] if segments is None else positions_in(segments)
    index = breakdown.assign(TokenFacts(targets, positions, values.confidence), length)
    number = len(breakdown.groups(length))
    is_member = (index[:, :, None] == jnp.arange(number)[None, None]) & (weights > 0)[:, :, None]

    def over_groups(x: Array) -> Array:
        return sum_tokens(jnp.where(is_member, x[:, :, None], 0.0), segments)

    sums = TokenSums(over_groups(values.nll), over_groups(values.correct), over_groups(jnp.ones_like(values.nll)))
    return sums, over_groups(values.confidence)


def split_result(parts: Sequence[Mapping[str, Any]]) -> SplitResult:
    """Join the results of the batches of a split.

    Args:
        parts: one a batch, NumPy arrays with the rows of the split alone: rows, residues and all_tokens (TokenSums),
            residue_counts, and groups: (TokenSums, confidence) by name of a breakdown.

    Raises:
        ValueError: a breakdown leaves residues out of its groups.
    """
    joined = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
    result = SplitResult(
        joined["rows"].astype(np.int64),
        _in_float64(joined["residues"]),
        _in_float64(joined["all_tokens"]),
        joined["residue_counts"].astype(np.int64),
        {name: _in_float64(sums) for name, (sums, _) in joined["groups"].items()},
        {name: confidence.astype(np.float64) for name, (_, confidence) in joined["groups"].items()},
    )
    for name, groups in result.groups.items():
        if groups.total().count != result.residues.total().count:
            raise ValueError(f"the breakdown by {name} leaves residues out of its groups")
    return result


def _in_float64(sums: TokenSums) -> Sums:
    return Sums(*(np.asarray(x, np.float64) for x in sums))
