"""The model: a Transformer with any attention mechanism; its layers are stacked and run by jax.lax.scan.

Axes: B batch, L residues, H heads, D head dim, F embed dim, V vocabulary, N layers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Integer

from proteinlm.models.attention import Attention
from proteinlm.models.config import ModelConfig
from proteinlm.models.decoding import DecodingState
from proteinlm.models.positions import (
    LearnedPositions,
    Rotation,
    SinusoidalPositions,
    initial_embedding,
    positions_in,
    positions_of,
    rotate,
    rotation_of,
)
from proteinlm.models.sharding_hooks import WHOLE, Layout

PAD = 0
"""Id of the padding token, in every alphabet."""

# What the forward pass keeps for the backward pass. Products with parameters are those without a batch axis.
_KEPT = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + MLP(norm(x)); or norm(x + attention(x)), norm(x + MLP(x))."""

    def __init__(self, config: ModelConfig, key: jax.Array):
        """Draw the layer's parameters and random features."""
        self.config = config
        mechanism_key, *keys = jax.random.split(key, 7)
        width, mlp = config.embed_dim, config.mlp_dim
        # The two layers that add to the residual stream start smaller, so that its variance does not grow with N. With
        # post-norm its variance is 1 in any case; there, small outputs let a deep model start near the identity.
        small = 1 / (2 * config.num_layers)
        self.attention_norm = _norm(config.embed_dim)
        self.query, self.value = _linear(config, width, width, keys[0]), _linear(config, width, width, keys[2])
        shared = config.attention.shares_queries_and_keys
        self.key = None if shared else _linear(config, width, width, keys[1])
        self.out = _linear(config, width, width, keys[3], small)
        self.mechanism = config.attention.build(num_heads=config.num_heads, head_dim=config.head_dim, key=mechanism_key)
        self.mlp_norm = _norm(config.embed_dim)
        self.up = _linear(config, width, mlp, keys[4])
        gated = config.feed_forward == "geglu"
        self.gate = _linear(config, width, mlp, jax.random.fold_in(keys[4], 1)) if gated else None
        self.down = _linear(config, mlp, width, keys[5], small)

    def queries_keys_values(self, x: Array, rotation: Rotation | None = None) -> tuple[Array, Array, Array]:
        """Return q, k, v of the layer's input x [B, L, F], each [B, L, H, D], as the mechanism gets them."""
        x = self._before(self.attention_norm, x)
        heads = (*x.shape[:2], self.config.num_heads, self.config.head_dim)
        q = self.query(x).reshape(heads)
        k = q if self.key is None else self.key(x).reshape(heads)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return q, k, self.value(x).reshape(heads)

    def feed_forward(self, x: Array) -> Array:
        """Return the output of the feed-forward part for x [B, L, F]; it is computed for each residue alone."""
        if self.gate is None:
            return self.down(jax.nn.gelu(self.up(x)))
        return self.down(jax.nn.gelu(self.gate(x)) * self.up(x))

    def __call__(
        self, x: Array, attend: "Attend", rotation: Rotation | None, dropout_key: jax.Array | None
    ) -> tuple[Array, Any]:
        """Return the layer's output, [B, L, F] in the compute dtype, and the second result of `attend`."""
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        mixed, kept = attend(self.mechanism, *self.queries_keys_values(x, rotation))
        x = x + dropout(self.out(mixed.reshape(x.shape)), self.config.dropout, keys[0])
        x = self._after(self.attention_norm, x)
        x = x + dropout(self.feed_forward(self._before(self.mlp_norm, x)), self.config.dropout, keys[1])
        return self._after(self.mlp_norm, x), kept

    def _before(self, norm: nnx.LayerNorm, x: Array) -> Array:
        return norm(x) if self.config.norm == "pre" else x

    def _after(self, norm: nnx.LayerNorm, x: Array) -> Array:
        return x if self.config.norm == "pre" else norm(x).astype(x.dtype)


Attend = Callable[[Attention, Array, Array, Array], tuple[Array, Any]]
"""(mechanism, q, k, v) -> (output of attention, anything to keep of the layer): a forward pass, a prefill, a step."""


class ProteinLM(nnx.Module):
    """A protein language model, causal or bidirectional."""

    def __init__(self, config: ModelConfig, *, causal: bool, key: jax.Array):
        """Draw all parameters, as a pure function of the key.

        Args:
            config: sizes and mechanism.
            causal: token i attends to tokens 0 to i alone.
            key: a JAX random key.
        """
        self.config, self.causal = config, causal
        token_key, position_key, head_key, block_key = jax.random.split(key, 4)
        self.embedding = nnx.Param(initial_embedding(token_key, config.vocab_size, config.embed_dim))
        self.positions = _added_positions(config, position_key)
        self.blocks = nnx.vmap(lambda k: Block(config, k))(jax.random.split(block_key, config.num_layers))
        self.norm = _norm(config.embed_dim) if config.norm == "pre" else None
        if config.tied_output:
            self.head, self.output_bias = None, nnx.Param(jnp.zeros(config.vocab_size))
        else:
            self.head = _linear(config, config.embed_dim, config.vocab_size, head_key, dtype=jnp.float32)

    def __call__(
        self, tokens: Integer[Array, "B L"], *, segments: Array | None = None, dropout_key: Array | None = None,
        layout: Layout = WHOLE,
    ) -> Float[Array, "B L V"]:  # fmt: skip
        """Return logits, float32.

        Args:
            tokens: ids; 0 is padding, on either side of a row; it does not change the logits of other tokens.
            segments: int [B, L], for rows of several proteins, which do not attend to each other; see
                `Attention.__call__`.
            dropout_key: for training; None: no dropout.
            layout: placement of arrays on devices.

        Raises:
            ValueError: L is above config.max_length.
        """
        mask, positions = self._places(tokens)
        if segments is not None:
            mask, positions = None, positions_in(segments)
        x, keys = self._embed(tokens, positions), None
        if dropout_key is not None and self.config.dropout:
            embedding_key, layers_key = jax.random.split(dropout_key)
            x = dropout(x, self.config.dropout, embedding_key)
            keys = jax.random.split(layers_key, self.config.num_layers)

        def attend(mechanism, q, k, v, _):
            return layout.attend(mechanism, q, k, v, causal=self.causal, key_mask=mask, segments=segments), None

        return self._logits(self._layers(x, positions, attend, keys=keys, layout=layout)[0])

    def queries_keys(
        self, tokens: Integer[Array, "B L"]
    ) -> tuple[Float[Array, "N B L H D"], Float[Array, "N B L H D"]]:
        """Return the queries and keys of every layer as attention gets them in evaluation (rotated, if rotary).

        For a mechanism that shares them, the keys are the queries.
        """
        mask, positions = self._places(tokens)

        def attend(mechanism, q, k, v, _):
            return mechanism(q, k, v, causal=self.causal, key_mask=mask), (q, k)

        return self._layers(self._embed(tokens, positions), positions, attend)[1]

    def hidden_states(self, tokens: Integer[Array, "B L"], layers: Sequence[int]) -> Float32[Array, "K B L F"]:
        """Return the outputs of some layers.

        Args:
            tokens: ids; 0 is padding.
            layers: K layers, counted from 0. The output of layer i is the input of layer i + 1. The last layer's
                output is given after the final normalisation: it is the input of the output layer.

        Raises:
            IndexError: there is no such layer.
        """
        last = self.config.num_layers - 1
        if odd := [layer for layer in layers if not 0 <= layer <= last]:
            raise IndexError(f"layer {odd[0]}: the model has layers 0 to {last}")
        mask, positions = self._places(tokens)

        def attend(mechanism, q, k, v, _):
            return mechanism(q, k, v, causal=self.causal, key_mask=mask), None

        # The outputs of all layers are kept only if `layers` has one before the last.
        inner = any(layer != last for layer in layers)
        x, kept = self._layers(self._embed(tokens, positions), positions, attend, outputs=inner)
        final = self._normalised(x)
        return jnp.stack([final if layer == last else kept[1][layer].astype(jnp.float32) for layer in layers])

    def prefill(self, tokens: Integer[Array, "B L"], max_length: int) -> tuple[Float[Array, "B L V"], DecodingState]:
        """Run the model on a prompt and prepare for decoding token by token.

        Args:
            tokens: ids; rows may be padded on either side. A row's next token follows its last token.
            max_length: number of places in all: L for the prompt and one for each step.

        Returns:
            (logits as from `__call__`, state for `step`).

        Raises:
            ValueError: the model is not causal; max_length is above config.max_length or below L.
        """
        self._check_causal()
        if not tokens.shape[1] <= max_length <= self.config.max_length:
            raise ValueError(
                f"max_length is {max_length}; it must be at least the {tokens.shape[1]} places of tokens and at most "
                f"the model's max_length of {self.config.max_length}"
            )
        mask, positions = self._places(tokens)

        def attend(mechanism, q, k, v, _):
            return mechanism.prefill(q, k, v, key_mask=mask, max_length=max_length)

        x, layers = self._layers(self._embed(tokens, positions), positions, attend)
        places = jnp.asarray(tokens.shape[1], jnp.int32)
        return self._logits(x), DecodingState(layers, mask.sum(axis=1), places, max_length)

    def step(self, tokens: Integer[Array, "B"], state: DecodingState) -> tuple[Float[Array, "B V"], DecodingState]:
        """Return the logits after one more token of each row, and the new state.

        The logits equal those of `__call__` on all tokens so far. The padding id is read as a token here; after it, the
        logits of its row have no meaning.

        Raises:
            ValueError: the model is not causal; tokens is not one per row; all max_length places are in use. Under
                jax.jit, where the number of places in use is unknown, the logits are NaN instead.
        """
        self._check_causal()
        state.check(tokens)
        positions = state.positions[:, None]

        def attend(mechanism, q, k, v, layer):
            return mechanism.step(q, k, v, layer)

        x, layers = self._layers(self._embed(tokens[:, None], positions), positions, attend, memory=state.layers)
        # For an index beyond the table, JAX would silently return the last learned position.
        logits = jnp.where(state.places < state.max_length, self._logits(x)[:, 0], jnp.nan)
        return logits, DecodingState(layers, state.positions + 1, state.places + 1, state.max_length)

    def attention(self, layer: int) -> Attention:
        """Return the mechanism of a layer, with the layer's parameters and random features.

        Raises:
            IndexError: there is no such layer.
        """
        if not 0 <= layer < self.config.num_layers:
            raise IndexError(f"layer {layer}: the model has layers 0 to {self.config.num_layers - 1}")
        graph, state = nnx.split(self.blocks.mechanism)
        return nnx.merge(graph, jax.tree.map(lambda x: x[layer], state))

    def redraw(self, key: jax.Array) -> None:
        """Draw new random features for every layer, independently, as a pure function of the key."""

        @nnx.vmap
        def redraw(mechanism, key):
            mechanism.redraw(key)

        redraw(self.blocks.mechanism, jax.random.split(key, self.config.num_layers))

    def _places(self, tokens: Array) -> tuple[Array, Array]:
        """Return the mask and the positions of tokens, each [B, L]."""
        if tokens.ndim != 2:
            raise ValueError(f"tokens has shape {tokens.shape}; expected [B, L]")
        if tokens.shape[1] > (limit := self.config.max_length):
            # For an index beyond the last position, a gather would silently take the last one.
            raise ValueError(f"tokens has {tokens.shape[1]} places, above the model's max_length of {limit}")
        mask = tokens != PAD
        return mask, positions_of(mask)

    def _embed(self, tokens: Array, positions: Array) -> Array:
        """Return the first layer's input [B, L, F]."""
        x = self.embedding[...][tokens.astype(jnp.int32)]
        if self.positions is not None:
            x = x + self.positions(positions)
        # Without a norm before the first layer, this factor gives it values of size 1 (Vaswani et al., section 3.4).
        x = x if self.config.norm == "pre" else x * self.config.embed_dim**0.5
        return x.astype(self.config.dtype)

    def _layers(
        self, x: Array, positions: Array, attend: Callable, *, keys: Array | None = None, memory: Any = None,
        layout: Layout = WHOLE, outputs: bool = False,
    ) -> tuple[Array, Any]:  # fmt: skip
        """Return x after all layers, and what `attend` keeps of each layer, stacked.

        `attend` takes (mechanism, q, k, v, the layer's part of `memory`); `keys` are dropout keys, one per layer. With
        `outputs`, the stacked pairs are (what `attend` keeps, the layer's output).
        """
        rotation = rotation_of(positions, self.config.head_dim) if self.config.rotary else None
        graph, state = nnx.split(self.blocks)

        def layer(x, inputs):
            state, key, memory = inputs
            x, kept = nnx.merge(graph, state)(layout.residual(x), lambda *qkv: attend(*qkv, memory), rotation, key)
            return x, ((kept, x) if outputs else kept)

        if self.config.remat != "none":
            layer = jax.checkpoint(layer, policy=_KEPT[self.config.remat])
        return jax.lax.scan(layer, x, (state, keys, memory))

    def _normalised(self, x: Array) -> Array:
        """Return the input of the output layer, float32 [B, L, F]."""
        return x.astype(jnp.float32) if self.norm is None else self.norm(x)

    def _logits(self, x: Array) -> Array:
        x = self._normalised(x)
        if self.head is not None:
            return self.head(x)
        logits = x @ self.embedding[...].T
        if self.config.norm == "post":
            # At the start of training x is nearly the token's own embedding, whose product with itself is near sqrt(F).
            logits = logits * self.config.embed_dim**-0.5
        return logits + self.output_bias[...][None, None]

    def _check_causal(self) -> None:
        if not self.causal:
            raise ValueError("the model is bidirectional: its tokens attend to later ones, so it cannot decode")


def dropout(x: Array, rate: float, key: jax.Array | None) -> Array:
    """Return x with a fraction `rate` of its values at 0, the others divided by 1 - rate; x itself without a key."""
    if key is None or rate == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


def _added_positions(config: ModelConfig, key: jax.Array) -> LearnedPositions | SinusoidalPositions | None:
    if config.positions == "learned":
        return LearnedPositions(config.max_length, config.embed_dim, key)
    return None if config.positions == "rotary" else SinusoidalPositions(config.embed_dim)


def _norm(width: int) -> nnx.LayerNorm:
    # The fast variance, E[x^2] - E[x]^2, is inaccurate for a residual stream with a large mean.
    return nnx.LayerNorm(width, dtype=jnp.float32, use_fast_variance=False, rngs=nnx.Rngs(0))


def _linear(
    config: ModelConfig, inputs: int, outputs: int, key: jax.Array, gain: float = 1.0, dtype: Any = None
) -> nnx.Linear:
    """Return a linear layer with kernels N(0, gain / inputs) and biases 0."""
    return nnx.Linear(
        inputs, outputs, dtype=dtype or jnp.dtype(config.dtype),
        kernel_init=nnx.initializers.variance_scaling(gain, "fan_in", "normal"), rngs=nnx.Rngs(params=key),
    )  # fmt: skip
