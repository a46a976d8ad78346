"""`Layout`: the calls by which a model lets its arrays be placed on devices. A model itself refers to no device.

Axes: B batch, L residues, H heads, D head dim, F embed dim.
"""

from typing import Any

from jaxtyping import Array, Bool, Float, Integer

from proteinlm.models.attention import Attention


class Layout:
    """All arrays whole, on one device. `devices.sharding.MeshLayout` splits them over several, with equal results."""

    def tables(self, state: Any) -> Any:
        """Return a model's state (or its parameters) with the embedding tables whole on every device."""
        return state

    def residual(self, x: Float[Array, "B L F"]) -> Float[Array, "B L F"]:
        """Return the input of a layer, placed where the layer shall compute."""
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
        """Return the mechanism's output; arguments are those of `Attention.__call__`."""
        return mechanism(q, k, v, causal=causal, key_mask=key_mask, segments=segments)


WHOLE = Layout()
"""The layout of one device."""
