"""Attention matrices of any mechanism, read off its fast path by one-hot values (Performer paper, appendix
C.4).

A linear mechanism never forms its matrix, but out = A v for every v: with v the identity, out is A. The
identity goes through in blocks of columns, so that memory is O(L * block) and a map can be reduced while it
streams by. Weights are shown as the model uses them: rows need not sum to 1 where the mechanism does not
normalise them.
"""

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Integer

from proteinlm.data.alphabet import PAD
from proteinlm.errors import InputError
from proteinlm.models.transformer import ProteinLM

BLOCK = 128
"""Columns of the identity that go through at once."""


@functools.partial(jax.jit, static_argnums=0)
def _queries_keys(graph, state, tokens):
    return nnx.merge(graph, state).queries_keys(tokens)


def queries_keys(
    model: ProteinLM, tokens: Integer[np.ndarray, "B L"]
) -> tuple[Float[Array, "layers B L H D"], Float[Array, "layers B L H D"]]:
    """Return the queries and keys of every layer, checked and compiled.

    Raises:
        ValueError: tokens is not integers [B, L].
        InputError: L is more than the model's max_length.
    """
    limit = model.config.max_length
    if tokens.shape[1] > limit:
        raise InputError(f"the input has {tokens.shape[1]} tokens, but this model's max_length is {limit}.")
    graph, state = nnx.split(model)
    return _queries_keys(graph, state, jnp.asarray(tokens, jnp.int32))


def probe(
    attention: nnx.Module,
    q: Float[Array, "B L H D"],
    k: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"],
    start: Int[Array, ""],
    *,
    block: int,
    causal: bool,
) -> Float32[Array, "B L H E"]:
    """Return columns [start, start + block) of the attention matrix: out[b, i, h, e] is alpha from i to start
    + e.

    Rows of padding and columns past the end are 0. To be called under jit, where `start` may be traced.
    """
    batch, length, heads, _ = q.shape
    columns = start + jnp.arange(block)
    one_hot = (jnp.arange(length)[:, None] == columns[None, :]).astype(jnp.float32)
    values = jnp.broadcast_to(one_hot[None, :, None, :], (batch, length, heads, block))
    # The accelerators' short products would show as noise of 1e-3 in a picture of weights.
    with jax.default_matmul_precision("highest"):
        out = attention(q, k, values, causal=causal, key_mask=mask)
    return jnp.where(mask[:, :, None, None], out, jnp.float32(0))


@functools.partial(jax.jit, static_argnums=0, static_argnames=("block", "causal"))
def _column_block(graph, state, q, k, mask, start, *, block, causal):
    columns = probe(nnx.merge(graph, state), q, k, mask, start, block=block, causal=causal)
    return columns.transpose(0, 2, 1, 3)


def column_blocks(
    model: ProteinLM,
    tokens: Integer[np.ndarray, "B L"],
    *,
    layer: int,
    heads: Sequence[int] | None = None,
    block: int = BLOCK,
) -> Iterator[tuple[int, Float32[np.ndarray, "B H L E"]]]:
    """Stream a layer's attention matrices by columns, in memory O(B H L block).

    Args:
        model: a causal or bidirectional model.
        tokens: ids [B, L]; 0 is padding.
        layer: counted from 0.
        heads: counted from 0; None means all.
        block: columns at a time; the last block may have fewer.

    Yields:
        (start, columns): columns[b, h, i, e] is the attention weight from token i to token start + e,
            float32.
        Rows and columns of padding are 0.

    Raises:
        InputError: no such layer or head, or more tokens than the model's max_length.
        ValueError: block is not positive.
    """
    chosen = _check_heads(model, heads)
    _check_layers(model, [layer])
    if block < 1:
        raise ValueError(f"block must be a positive number of columns, not {block}")
    q, k = queries_keys(model, tokens)
    return _stream(model, q[layer], k[layer], tokens, layer, chosen, block)


def _stream(model, q, k, tokens, layer, heads, block):
    length = tokens.shape[1]
    block = min(block, length)
    mask = jnp.asarray(tokens != PAD)
    graph, state = nnx.split(model.attention(layer))
    for start in range(0, length, block):
        columns = _column_block(graph, state, q, k, mask, jnp.int32(start), block=block, causal=model.causal)
        yield start, np.asarray(columns)[:, heads, :, : length - start]


def attention_map(
    model: ProteinLM,
    tokens: Integer[np.ndarray, "B L"],
    *,
    layer: int,
    heads: Sequence[int] | None = None,
    block: int = BLOCK,
) -> Float32[np.ndarray, "B H L L"]:
    """Return one layer's attention matrices: [b, h, i, j] is the weight from token i to token j.

    Arguments and errors as `column_blocks`; the result itself is the only array of size L x L.
    """
    blocks = column_blocks(model, tokens, layer=layer, heads=heads, block=block)
    return _assemble(blocks, len(_check_heads(model, heads)), tokens.shape)


def attention_maps(
    model: ProteinLM,
    tokens: Integer[np.ndarray, "B L"],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    block: int = BLOCK,
) -> Float32[np.ndarray, "layers B H L L"]:
    """Return the attention matrices of several layers (None means all), stacked in the order asked for.

    Arguments and errors as `column_blocks`.
    """
    chosen = _check_heads(model, heads)
    layers = _check_layers(model, layers)
    if block < 1:
        raise ValueError(f"block must be a positive number of columns, not {block}")
    q, k = queries_keys(model, tokens)
    return np.stack(
        [
            _assemble(_stream(model, q[layer], k[layer], tokens, layer, chosen, block), len(chosen), tokens.shape)
            for layer in layers
        ]
    )


def _assemble(blocks, num_heads, shape):
    batch, length = shape
    maps = np.empty((batch, num_heads, length, length), np.float32)
    for start, columns in blocks:
        maps[..., start : start + columns.shape[-1]] = columns
    return maps


def _check_layers(model, layers):
    return _in_range("layer", model.config.num_layers, layers)


def _check_heads(model, heads):
    return _in_range("head", model.config.num_heads, heads)


def _in_range(what, count, chosen):
    chosen = list(range(count) if chosen is None else chosen)
    for index in chosen:
        if not 0 <= index < count:
            raise InputError(f"there is no {what} {index}: this model's {what}s go from 0 to {count - 1}.")
    if not chosen:
        raise InputError(f"name at least one {what}: this model's {what}s go from 0 to {count - 1}.")
    return chosen
