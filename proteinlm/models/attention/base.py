"""What every attention mechanism is: the fast path, the explicit matrix beside it, and random features if it has any.

Axes: B batch, L residues, H heads, D head dim, E width of the values (D in a model; anything in a probe), M features.
"""

import abc

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool


class Projection(nnx.Variable):
    """Random features' projection [M, D]: saved with the model, outside the gradient, redrawn by `Attention.redraw`."""


class Attention(nnx.Module):
    """One layer's attention. A mechanism gives `_attend` and `_weights`; what comes in is checked here, once."""

    def __init__(self, *, num_heads: int, head_dim: int):
        """Keep the sizes that inputs must have: H and D."""
        self.num_heads = num_heads
        self.head_dim = head_dim

    def __call__(self, q: Array, k: Array, v: Array, *, causal: bool, key_mask: Array | None = None) -> Array:
        """Return each residue's average of the values, weighted by attention, in the values' dtype.

        Args:
            q: queries [B, L, H, D], any float dtype.
            k: keys [B, L, H, D].
            v: values [B, L, H, E].
            causal: residue i sees residues 0 to i alone.
            key_mask: bool [B, L], False where a residue is padding: nobody sees it. A row that sees nothing gives 0,
                and its gradient is 0.

        Raises:
            ValueError: an argument has the wrong rank, axes or dtype; the message names it and its shape.
        """
        self._check(q, k, key_mask)
        if v.ndim != 4 or v.shape[:3] != q.shape[:3]:
            raise ValueError(f"v has shape {v.shape}; expected [B, L, H, E] with the B, L and H of q, {q.shape[:3]}")
        return self._attend(q, k, v, causal, key_mask)

    def weights(self, q: Array, k: Array, *, causal: bool, key_mask: Array | None = None) -> Array:
        """Return the explicit matrix, float32 [B, H, L, L], rows are queries: out = weights @ v.

        The reference: plain, O(L^2), for tests. Arguments and errors as in `__call__`.
        """
        self._check(q, k, key_mask)
        return self._weights(q.astype(jnp.float32), k.astype(jnp.float32), causal, key_mask)

    def redraw(self, key: jax.Array) -> None:
        """Draw new random features, a pure function of the key; nothing to do for a mechanism without."""

    @abc.abstractmethod
    def _attend(self, q: Array, k: Array, v: Array, causal: bool, key_mask: Array | None) -> Array: ...

    @abc.abstractmethod
    def _weights(self, q: Array, k: Array, causal: bool, key_mask: Array | None) -> Array: ...

    def _check(self, q: Array, k: Array, key_mask: Array | None) -> None:
        if q.ndim != 4 or q.shape[2:] != (self.num_heads, self.head_dim) or not jnp.issubdtype(q.dtype, jnp.floating):
            raise ValueError(
                f"q has shape {q.shape} and dtype {q.dtype}; expected floats [B, L, H, D] with H = {self.num_heads} "
                f"heads of width D = {self.head_dim}"
            )
        if k.shape != q.shape or not jnp.issubdtype(k.dtype, jnp.floating):
            raise ValueError(f"k has shape {k.shape} and dtype {k.dtype}; expected floats of q's shape, {q.shape}")
        if key_mask is not None and (key_mask.shape != q.shape[:2] or key_mask.dtype != jnp.bool_):
            raise ValueError(
                f"key_mask has shape {key_mask.shape} and dtype {key_mask.dtype}; expected bool {q.shape[:2]} ([B, L])"
            )


def visible_pairs(length: int, causal: bool, key_mask: Bool[Array, "B L"] | None) -> Bool[Array, "#B 1 L L"]:
    """Return which key j residue i sees, bool, broadcastable to [B, H, L, L]."""
    pairs = jnp.tril(jnp.ones((length, length), bool)) if causal else jnp.ones((length, length), bool)
    pairs = pairs[None, None]
    return pairs if key_mask is None else pairs & key_mask[:, None, None, :]
