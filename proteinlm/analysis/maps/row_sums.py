"""Sums of the rows of attention matrices, and the reasons why they can differ from 1.

This package does not renormalise attention weights: figures show those that the model uses, and state the sums of rows.
The sums are measured with values of 1 (out = A 1). A mechanism's config states why they can differ from 1 by design.
"""

import functools
import math
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float32

from proteinlm.alphabet import PAD
from proteinlm.inference.probing import Probe
from proteinlm.models.attention.base import MechanismConfig

NEAR_ONE = 1e-3
"""Largest difference from 1 of a sum that counts as 1: float32 sums over thousands of weights round by less."""


@dataclass(frozen=True)
class RowSums:
    """A summary of the row sums of a model's attention matrices for one protein.

    Attributes:
        mean, least, largest: mean, smallest and largest sum over tokens, heads and layers.
        to_one: whether all sums are 1 except for rounding (`NEAR_ONE`).
        reason: the reason in the mechanism's definition why rows need not sum to 1; "" if they do by design.
    """

    mean: float
    least: float
    largest: float
    to_one: bool
    reason: str

    def sentence(self) -> str:
        """Return the sentence about row sums in a figure."""
        if self.to_one:
            return "each row sums to 1 over all tokens, special ones included"
        return (
            f"rows sum to {self.least:.2g} to {self.largest:.2g} (mean {self.mean:.2g}) and are shown as they are: "
            f"{self.reason or 'it is not known why'}"
        )

    def to_dict(self) -> dict:
        """Return the fields for JSON; NaN and infinities become None."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


def measure_row_sums(
    probe: Probe, *, over: Bool[np.ndarray, "B L"] | None = None
) -> Float32[np.ndarray, "layers B H L"]:
    """Return the sum of each row of each attention matrix; NaN for rows of padding.

    Args:
        probe: a model and tokens [B, L].
        over: the columns that are summed; None means all.
    """
    mask = probe.tokens != PAD
    over = (mask if over is None else over).astype(np.float32)
    sums = [
        _layer_row_sums(*probe.layer(layer), mask, over, causal=probe.model.causal)
        for layer in range(probe.model.config.num_layers)
    ]
    return np.where(mask[None, :, None, :], np.stack(sums), np.float32(np.nan))


@functools.partial(jax.jit, static_argnums=0, static_argnames="causal")
def _layer_row_sums(graph, state, q, k, mask, over, *, causal):
    values = jnp.broadcast_to(over[:, :, None, None], (*q.shape[:3], 1))
    with jax.default_matmul_precision("highest"):
        sums = nnx.merge(graph, state)(q, k, values, causal=causal, key_mask=mask)
    return sums[..., 0].transpose(0, 2, 1)


def summarise(sums: Float32[np.ndarray, "*rows"], config: MechanismConfig) -> RowSums:
    """Return the summary of measured sums, with the reason from the mechanism's config."""
    known = sums[~np.isnan(sums)].astype(np.float64)
    least, largest = float(known.min()), float(known.max())
    to_one = max(1 - least, largest - 1) <= NEAR_ONE
    return RowSums(float(known.mean()), least, largest, to_one, config.no_unit_sums)
