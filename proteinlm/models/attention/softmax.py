"""Exact softmax attention: softmax(q.k / sqrt(D)) v (Performer paper, equations 1 and 2).

Time is O(L^2) and memory linear in L: by blocks (exact_attention.py), or by cuDNN's flash attention where it applies.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from proteinlm.errors import InputError, check_range
from proteinlm.models.attention.base import (
    Attention,
    MechanismConfig,
    left_aligned,
    register_attention,
    restored,
    visible_pairs,
)
from proteinlm.models.attention.exact.cache import KeyValueCache, appended, filled
from proteinlm.models.attention.exact.exact_attention import Softmax, attend_from_last, exact_attention
from proteinlm.models.attention.linear.state import NEVER

Implementation = Literal["auto", "blocks", "cudnn"]


@register_attention
@dataclass(frozen=True)
class SoftmaxConfig(MechanismConfig):
    """Exact softmax attention.

    Attributes:
        implementation: "blocks" works everywhere; "cudnn" is the flash kernel of jax.nn.dot_product_attention, for
            bfloat16 and float16 on NVIDIA GPUs; "auto" takes cuDNN's kernel where it applies, otherwise blocks.
        block_size: number of residues in a block; it changes speed and memory alone.
    """

    kind: ClassVar[str] = "softmax"
    tiny_sizes: ClassVar = {"block_size": 16}
    implementation: Implementation = "auto"
    block_size: int = 512

    @property
    def no_segments(self) -> str:
        """The reason why a row cannot hold several proteins."""
        cudnn = "cuDNN's kernel takes one protein per row; set attention.implementation to auto or blocks"
        return cudnn if self.implementation == "cudnn" else ""

    def __post_init__(self):
        if self.implementation not in get_args(Implementation):
            raise InputError(
                f"attention.implementation is {self.implementation!r}; it must be one of "
                f"{', '.join(get_args(Implementation))}."
            )
        check_range("attention.block_size", self.block_size, at_least=1)

    def on_platform(self, platform: str, *, causal: bool) -> MechanismConfig:
        """Return the config with the implementation that "auto" takes on TPUs."""
        return replace(self, implementation="blocks") if (self.implementation, platform) == ("auto", "tpu") else self

    def build(self, *, num_heads: int, head_dim: int, key: jax.Array) -> "SoftmaxAttention":
        """Return the mechanism; it draws nothing."""
        return SoftmaxAttention(self, num_heads=num_heads, head_dim=head_dim)


class SoftmaxAttention(Attention):
    """Exact softmax attention of one layer; scores, softmax and sums are float32 for inputs of any dtype."""

    def _attend(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B L H E"]:
        if chosen(self.config.implementation, _platform(), q, k, v) == "cudnn":
            return flash_attention(q, k, v, causal, key_mask)
        block_size = self.config.block_size
        return exact_attention(q, k, v, self._kernel(), causal=causal, key_mask=key_mask, block_size=block_size)

    def _attend_segments(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        causal: bool,
        segments: Int[Array, "B L"],
    ) -> Float[Array, "B L H E"]:
        block_size = self.config.block_size
        return exact_attention(q, k, v, self._kernel(), causal=causal, segments=segments, block_size=block_size)

    def _weights(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        causal: bool,
        key_mask: Bool[Array, "B L"] | None,
    ) -> Float[Array, "B H L L"]:
        pairs = visible_pairs(q.shape[1], causal, key_mask)
        scores = jnp.einsum("bihd,bjhd->bhij", q, k) / jnp.sqrt(q.shape[-1])
        return jnp.where(pairs, jax.nn.softmax(jnp.where(pairs, scores, NEVER), axis=-1), 0.0)

    def _prefill(
        self,
        q: Float[Array, "B L H D"],
        k: Float[Array, "B L H D"],
        v: Float[Array, "B L H E"],
        key_mask: Bool[Array, "B L"] | None,
        max_length: int,
    ) -> tuple[Float[Array, "B L H E"], KeyValueCache]:
        return self._attend(q, k, v, True, key_mask), filled(k, v, key_mask, max_length)

    def _step(
        self, q: Float[Array, "B 1 H D"], k: Float[Array, "B 1 H D"], v: Float[Array, "B 1 H E"], state: KeyValueCache
    ) -> tuple[Float[Array, "B 1 H E"], KeyValueCache]:
        cache = appended(state, k, v)
        return attend_from_last(q, cache.keys, cache.values, self._kernel(), cache.visible), cache

    def _kernel(self) -> Softmax:
        return Softmax(scale=self.head_dim**-0.5)


def chosen(implementation: str, platform: str, q: Any, k: Any, v: Any) -> str:
    """Return "cudnn" or "blocks".

    Args:
        implementation: as in the config.
        platform: "cuda" for a GPU that has the kernel; any other name otherwise.
        q, k, v: [B, L, H, D]; only shapes and dtypes are read.

    Raises:
        ValueError: the implementation is "cudnn", but the kernel does not take these arguments.
    """
    same = q.dtype == k.dtype == v.dtype and q.dtype in (jnp.bfloat16, jnp.float16)
    width = q.shape[-1]
    fits = platform == "cuda" and same and width == v.shape[-1] and width % 8 == 0 and width <= 128
    if implementation == "cudnn" and not fits:
        raise ValueError(
            f"attention.implementation is 'cudnn', but q, k, v are {q.dtype} {q.shape}, {k.dtype} {k.shape}, {v.dtype} "
            f"{v.shape} on {platform}; it needs bfloat16 or float16 of one width, a multiple of 8 up to 128, on CUDA "
            "of compute capability 8.0 or more"
        )
    return "cudnn" if fits and implementation != "blocks" else "blocks"


def _platform() -> str:
    """Return "cuda" if cuDNN's flash attention runs here (compute capability 8.0), else JAX's name of the backend."""
    if jax.default_backend() != "gpu":
        return jax.default_backend()
    capability = getattr(jax.devices()[0], "compute_capability", "")
    number = capability.replace(".", "")
    return "cuda" if "." in capability and number.isdigit() and float(capability) >= 8.0 else "gpu"


def flash_attention(
    q: Float[Array, "B L H D"],
    k: Float[Array, "B L H D"],
    v: Float[Array, "B L H D"],
    causal: bool,
    key_mask: Bool[Array, "B L"] | None,
    implementation: Literal["xla", "cudnn"] = "cudnn",
) -> Float[Array, "B L H D"]:
    """Attend by jax.nn.dot_product_attention, with lengths in place of a mask, of which it may make a matrix [L, L].

    Therefore visible residues are moved to the front. A query without visible keys gets 0; so does, unlike with blocks,
    a causal query that is itself masked.
    """
    if key_mask is None:
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation=implementation)
    k, v = left_aligned(key_mask, k, v)
    q = left_aligned(key_mask, q)[0] if causal else q
    lengths = key_mask.sum(1, dtype=jnp.int32)
    # Kernels return NaN for rows without any key: these get one key, and their output is replaced by 0 below.
    at_least_one = jnp.maximum(lengths, 1)
    out = jax.nn.dot_product_attention(
        q, k, v, is_causal=causal, key_value_seq_lengths=at_least_one, implementation=implementation
    )
    if causal:
        return restored(key_mask, out)
    return jnp.where((lengths > 0)[:, None, None, None], out, jnp.zeros((), out.dtype))
