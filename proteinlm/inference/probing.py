"""Attention matrices of any mechanism, read off its fast path by one-hot values (Performer paper, appendix
C.4).

A linear mechanism never forms its matrix, but out = A v for every v: with v the identity, out is A. The
identity goes through in blocks of columns, so that memory is O(L * block). What to do with a map that is too large to
hold:

- `column_blocks` gives the blocks as arrays, one after another;
- `fold_columns` reduces them on the device, inside a compiled function;
- `save_attention_map` writes them to a file that numpy maps into memory;
- `pooled_maps` averages cells of residues, for a picture.

Weights are shown as the model uses them: rows need not sum to 1 where the mechanism does not normalise them
(row_sums.py).
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Integer

from proteinlm.alphabet import PAD
from proteinlm.errors import InputError
from proteinlm.models.transformer import ProteinLM
from proteinlm.output.files import whole_file

BLOCK = 128
"""Columns of the identity that go through at once."""

Sums = TypeVar("Sums")


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


def fold_columns(
    attention: nnx.Module,
    q: Float[Array, "B L H D"],
    k: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"],
    add: Callable[[Sums, Array, Array], Sums],
    sums: Sums,
    *,
    block: int,
    causal: bool,
) -> Sums:
    """Reduce an attention matrix without holding it; to be called under jit.

    Args:
        attention: a layer's mechanism.
        q: queries, k: keys, of all tokens; mask: which tokens are no padding.
        add: from sums, a start and columns [B, L, H, block] (see `probe`) to the next sums. The last block may reach
            past the end: its columns there are 0, and arrays that `add` cuts at `start` must have room for it
            (-(-L // block) * block columns).
        sums: what to begin with, a tree of arrays.
        block: columns at a time.
        causal: whether the model is.
    """

    def step(sums, start):
        columns = probe(attention, q, k, mask, start, block=block, causal=causal)
        return add(sums, start, columns), None

    starts = jnp.arange(-(-q.shape[1] // block), dtype=jnp.int32) * block
    return jax.lax.scan(step, sums, starts)[0]


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
    chosen = check_heads(model, heads)
    check_layers(model, [layer])
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
    return _assemble(blocks, len(check_heads(model, heads)), tokens.shape)


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
    chosen = check_heads(model, heads)
    layers = check_layers(model, layers)
    if block < 1:
        raise ValueError(f"block must be a positive number of columns, not {block}")
    q, k = queries_keys(model, tokens)
    return np.stack(
        [
            _assemble(_stream(model, q[layer], k[layer], tokens, layer, chosen, block), len(chosen), tokens.shape)
            for layer in layers
        ]
    )


def save_attention_map(
    model: ProteinLM,
    tokens: Integer[np.ndarray, "B L"],
    path: str | os.PathLike,
    *,
    layer: int,
    heads: Sequence[int] | None = None,
    block: int = BLOCK,
) -> Path:
    """Write one layer's attention matrices to a .npy file, block by block, in memory O(B H L block).

    The file appears whole or not at all. `numpy.load(path, mmap_mode="r")` gives float32 [B, H, L, L] as
    `attention_map` does, without reading it; columns lie one after another (Fortran order), as they are measured. 8
    heads of 8192 tokens are 2 GiB.

    Args:
        path: the file's name, ending in .npy; its folder is made if missing, a file of that name replaced.

    Other arguments as for `column_blocks`.

    Raises:
        InputError: as `column_blocks`, or the path does not end in .npy.
    """
    path = Path(path)
    if path.suffix != ".npy":
        raise InputError(f"{path} is no name for an attention map: it must end in .npy.")
    blocks = column_blocks(model, tokens, layer=layer, heads=heads, block=block)
    batch, length = tokens.shape
    shape = (batch, len(check_heads(model, heads)), length, length)
    with whole_file(path, "wb") as handle:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype("<f4")), "fortran_order": True, "shape": shape}
        np.lib.format.write_array_header_1_0(handle, header)
        for _, columns in blocks:
            handle.write(columns.astype("<f4", copy=False).tobytes(order="F"))
    return path


def pooled_maps(
    model: ProteinLM,
    tokens: Integer[np.ndarray, " L"],
    residues: slice,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    cell: int,
    block: int = BLOCK,
) -> Float32[np.ndarray, "layers H C C"]:
    """Return the attention among residues averaged over cells of cell x cell pairs, in memory linear in L for given C.

    Args:
        tokens: of one protein, without padding.
        residues: the tokens that are residues; others are cut away.
        cell: residues on a side; the last cells may have fewer. With 1 the maps are the weights themselves.

    Other arguments as for `attention_maps`.

    Returns:
        C = ceil(residues / cell). Cells are means over the pairs that the model can see (of a causal model, not over
        those of later residues), 0 where there is none. Errors as for `column_blocks`.
    """
    if cell < 1 or block < 1:
        raise ValueError(f"cell and block must be positive, not {cell} and {block}")
    chosen = check_heads(model, heads)
    layers = check_layers(model, layers)
    q, k = queries_keys(model, tokens[None])
    start, stop, _ = residues.indices(len(tokens))
    row_cells = np.arange(0, stop - start, cell)
    pooled = np.zeros((len(layers), len(chosen), len(row_cells), len(row_cells)), np.float32)
    for sums, layer in zip(pooled, layers, strict=True):
        for first, columns in _stream(model, q[layer], k[layer], tokens[None], layer, chosen, block):
            by_row = np.add.reduceat(columns[0, :, start:stop], row_cells, axis=1)
            places = np.arange(first, first + columns.shape[-1]) - start
            inside = (places >= 0) & (places < stop - start)
            for place, column in zip(places[inside] // cell, np.flatnonzero(inside), strict=True):
                sums[..., place] += by_row[..., column]
    return pooled / np.maximum(_visible_in_cells(stop - start, cell, causal=model.causal), 1).astype(np.float32)


def _visible_in_cells(length, cell, *, causal):
    """Return int [C, C]: the pairs of query and key in each cell that the model can see."""
    cells = np.arange(-(-length // cell))
    size = np.minimum(cell, length - cells * cell)
    if not causal:
        return np.outer(size, size)
    return np.where(np.eye(len(cells), dtype=bool), size * (size + 1) // 2, np.tril(np.outer(size, size), -1))


def _assemble(blocks, num_heads, shape):
    batch, length = shape
    maps = np.empty((batch, num_heads, length, length), np.float32)
    for start, columns in blocks:
        maps[..., start : start + columns.shape[-1]] = columns
    return maps


def check_layers(model: ProteinLM, layers: Sequence[int] | None) -> list[int]:
    """Return the layers asked for, each once, in the order in which they were first named; all for None.

    Raises:
        InputError: none is asked for, or one that the model lacks; the message names the range.
    """
    return _in_range("layer", model.config.num_layers, layers)


def check_heads(model: ProteinLM, heads: Sequence[int] | None) -> list[int]:
    """Return the heads asked for, all for None; errors as for `check_layers`."""
    return _in_range("head", model.config.num_heads, heads)


def _in_range(what, count, chosen):
    chosen = list(dict.fromkeys(range(count) if chosen is None else chosen))
    for index in chosen:
        if not 0 <= index < count:
            raise InputError(f"there is no {what} {index}: this model's {what}s go from 0 to {count - 1}.")
    if not chosen:
        raise InputError(f"name at least one {what}: this model's {what}s go from 0 to {count - 1}.")
    return chosen
