"""The model: a pre-norm Transformer whose attention is any mechanism, its layers stacked and scanned.

Axes: B batch, L residues, H heads, D head dim, F embed dim, V vocabulary, N layers.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Integer

from proteinlm.errors import InputError
from proteinlm.models.attention import Attention, AttentionConfig, FavorConfig
from proteinlm.models.positions import LearnedPositions, initial_embedding, positions_of

PAD = 0
"""Id of the padding token, in every alphabet."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model; the defaults are the Performer paper's regular model (6 layers, 8 heads, 512, MLP 2048).

    Attributes:
        vocab_size: V.
        num_layers: N.
        num_heads: H; it must divide embed_dim.
        embed_dim: F, the width.
        mlp_dim: width inside the feed-forward part.
        max_length: number of learned positions, the longest input.
        dropout: share of the embeddings', attention's and feed-forward's outputs set to 0 in training.
        attention: the mechanism and its settings.
        dtype: of activations and matrix products; parameters, normalisation, attention sums, logits are float32.
        remat: recompute each layer in the backward pass: memory of one layer's activations instead of N layers'.
    """

    vocab_size: int
    num_layers: int = 6
    num_heads: int = 8
    embed_dim: int = 512
    mlp_dim: int = 2048
    max_length: int = 1024
    dropout: float = 0.1
    attention: AttentionConfig = field(default_factory=FavorConfig)
    dtype: Literal["float32", "bfloat16"] = "float32"
    remat: bool = False

    def __post_init__(self):
        for name in ("vocab_size", "num_layers", "num_heads", "embed_dim", "mlp_dim", "max_length"):
            if getattr(self, name) < 1:
                raise InputError(f"model.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.embed_dim % self.num_heads:
            raise InputError(
                f"model.num_heads is {self.num_heads}, which does not divide model.embed_dim, {self.embed_dim}."
            )
        if not 0 <= self.dropout < 1:
            raise InputError(f"model.dropout is {self.dropout}; it must be at least 0 and below 1.")

    @property
    def head_dim(self) -> int:
        """D, the width of one head."""
        return self.embed_dim // self.num_heads


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Draw the layer's parameters and random features."""
        self.config = config
        mechanism_key, *keys = jax.random.split(key, 7)
        width, mlp = config.embed_dim, config.mlp_dim
        # The two layers that write into the residual stream start smaller, so that its variance does not grow with N.
        small = 1 / (2 * config.num_layers)
        self.attention_norm = _norm(config.embed_dim)
        self.query, self.key, self.value = (_linear(config, width, width, k) for k in keys[:3])
        self.out = _linear(config, width, width, keys[3], small)
        self.mechanism = config.attention.build(num_heads=config.num_heads, head_dim=config.head_dim, key=mechanism_key)
        self.mlp_norm = _norm(config.embed_dim)
        self.up = _linear(config, width, mlp, keys[4])
        self.down = _linear(config, mlp, width, keys[5], small)

    def queries_keys_values(self, x: Array) -> tuple[Array, Array, Array]:
        """Return q, k, v of the layer's input x [B, L, F], each [B, L, H, D]."""
        x = self.attention_norm(x)
        heads = (*x.shape[:2], self.config.num_heads, self.config.head_dim)
        return self.query(x).reshape(heads), self.key(x).reshape(heads), self.value(x).reshape(heads)

    def __call__(self, x: Array, mask: Array, causal: bool, dropout_key: jax.Array | None) -> Array:
        """Return the layer's output, [B, L, F] in the compute dtype."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        mixed = self.mechanism(*self.queries_keys_values(x), causal=causal, key_mask=mask)
        x = x + dropout(self.out(mixed.reshape(x.shape)), self.config.dropout, keys[0])
        hidden = jax.nn.gelu(self.up(self.mlp_norm(x)))
        return x + dropout(self.down(hidden), self.config.dropout, keys[1])


class ProteinLM(nnx.Module):
    """A protein language model, causal or bidirectional."""

    def __init__(self, config: ModelConfig, *, causal: bool, key: jax.Array):
        """Draw every parameter; a pure function of the key.

        Args:
            config: sizes and mechanism.
            causal: token i sees tokens 0 to i alone.
            key: of the draw.
        """
        self.config, self.causal = config, causal
        token_key, position_key, head_key, block_key = jax.random.split(key, 4)
        self.embedding = nnx.Param(initial_embedding(token_key, config.vocab_size, config.embed_dim))
        self.positions = LearnedPositions(config.max_length, config.embed_dim, position_key)
        self.blocks = nnx.vmap(lambda k: Block(config, k))(jax.random.split(block_key, config.num_layers))
        self.norm = _norm(config.embed_dim)
        self.head = _linear(config, config.embed_dim, config.vocab_size, head_key, dtype=jnp.float32)

    def __call__(self, tokens: Integer[Array, "B L"], *, dropout_key: jax.Array | None = None) -> Float[Array, "B L V"]:
        """Return logits, float32.

        Args:
            tokens: ids; 0 is padding, on either side, and changes no other token's logits.
            dropout_key: for training; None drops nothing.

        Raises:
            ValueError: L is above config.max_length.
        """
        mask, x = self._embed(tokens)
        keys = None
        if dropout_key is not None and self.config.dropout:
            embedding_key, layers_key = jax.random.split(dropout_key)
            x = dropout(x, self.config.dropout, embedding_key)
            keys = jax.random.split(layers_key, self.config.num_layers)
        graph, state = nnx.split(self.blocks)

        def layer(x, inputs):
            state, key = inputs
            return nnx.merge(graph, state)(x, mask, self.causal, key), None

        if self.config.remat:
            layer = jax.checkpoint(layer)
        x, _ = jax.lax.scan(layer, x, (state, keys))
        return self.head(self.norm(x))

    def queries_keys(
        self, tokens: Integer[Array, "B L"]
    ) -> tuple[Float[Array, "N B L H D"], Float[Array, "N B L H D"]]:
        """Return the queries and keys of every layer, as attention sees them in evaluation."""
        mask, x = self._embed(tokens)
        graph, state = nnx.split(self.blocks)

        def layer(x, state):
            block = nnx.merge(graph, state)
            q, k, _ = block.queries_keys_values(x)
            return block(x, mask, self.causal, None), (q, k)

        return jax.lax.scan(layer, x, state)[1]

    def attention(self, layer: int) -> Attention:
        """Return a layer's mechanism with its own random features.

        Raises:
            IndexError: there is no such layer.
        """
        if not 0 <= layer < self.config.num_layers:
            raise IndexError(f"layer {layer}: the model has layers 0 to {self.config.num_layers - 1}")
        graph, state = nnx.split(self.blocks.mechanism)
        return nnx.merge(graph, jax.tree.map(lambda x: x[layer], state))

    def redraw(self, key: jax.Array) -> None:
        """Draw new random features for every layer, each its own; a pure function of the key."""

        @nnx.vmap
        def redraw(mechanism, key):
            mechanism.redraw(key)

        redraw(self.blocks.mechanism, jax.random.split(key, self.config.num_layers))

    def _embed(self, tokens: Array) -> tuple[Array, Array]:
        """Return the mask [B, L] and the first layer's input [B, L, F]."""
        if tokens.ndim != 2:
            raise ValueError(f"tokens has shape {tokens.shape}; expected [B, L]")
        if tokens.shape[1] > self.config.max_length:
            # A gather beyond the last position would silently take the last one.
            raise ValueError(
                f"tokens has {tokens.shape[1]} places, above the model's max_length of {self.config.max_length}"
            )
        tokens = tokens.astype(jnp.int32)
        mask = tokens != PAD
        x = self.embedding[...][tokens] + self.positions(positions_of(mask))
        return mask, x.astype(self.config.dtype)


def dropout(x: Array, rate: float, key: jax.Array | None) -> Array:
    """Return x with a share `rate` of its values at 0 and the others divided by 1 - rate; x itself without a key."""
    if key is None or rate == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


def num_parameters(model: ProteinLM) -> int:
    """Return the number of trained parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def _norm(width: int) -> nnx.LayerNorm:
    # E[x^2] - E[x]^2, the fast variance, loses the digits of a residual stream with a large mean.
    return nnx.LayerNorm(width, dtype=jnp.float32, use_fast_variance=False, rngs=nnx.Rngs(0))


def _linear(
    config: ModelConfig, inputs: int, outputs: int, key: jax.Array, gain: float = 1.0, dtype: Any = None
) -> nnx.Linear:
    """Return a linear layer with kernels N(0, gain / inputs) and biases 0."""
    return nnx.Linear(
        inputs, outputs, dtype=dtype or jnp.dtype(config.dtype),
        kernel_init=nnx.initializers.variance_scaling(gain, "fan_in", "normal"), rngs=nnx.Rngs(params=key),
    )  # fmt: skip
