"""Where a model's arrays lie: a model knows of no device, and calls these places where a layout may act.

Axes: B batch, L residues, H heads, D head dim, F embed dim.
"""

from typing import Any

from jaxtyping import Array, Bool, Float, Integer

from proteinlm.models.attention import Attention


class Layout:
    """Everything whole, on one device. `sharding.MeshLayout` spreads it over several; no number changes."""

    def tables(self, state: Any) -> Any:
        """Return a model's state (or its parameters) with what tokens look up (embeddings) whole where they are."""
        return state

    def residual(self, x: Float[Array, "B L F"]) -> Float[Array, "B L F"]:
        """Return what a layer reads, laid where the layer shall work on it."""
        return x

    def attend(
        self,
        mechanism: Attention,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H D"],
        *,
        causal: bool,
        key_mask: Bool[Array, "B L"] | None = None,
        segments: Integer[Array, "B L"] | None = None,
    ) -> Float[Array, "B L H D"]:
        """Return what the mechanism gives for these arguments, those of `Attention.__call__`."""
        return mechanism(q, k, v, causal=causal, key_mask=key_mask, segments=segments)


WHOLE = Layout()
"""The layout of one device."""
