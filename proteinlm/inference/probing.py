"""Attention matrices of any mechanism, computed from its fast path with one-hot values (Performer paper, appendix C.4).

A linear mechanism never forms its attention matrix A, but it computes out = A v for any values v. With the identity
matrix as values, out is A. The identity is split into blocks of columns, so that memory is O(L * block).

`Probe` runs the model once and keeps the queries and keys of all layers. Its methods return the matrices:

- `columns` yields blocks of columns, one after another;
- `map` and `maps` return whole matrices;
- `save` writes a matrix to a file that numpy can map into memory;
- `ProteinProbe.pooled` averages the matrix of a protein over squares of residue pairs, for figures.

`fold_columns` reduces the blocks of columns on the device, inside a compiled function.

Weights are those that the model uses. A row does not sum to 1 where the mechanism does not normalise it (row_sums.py).
"""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Integer

from proteinlm.alphabet import PAD
from proteinlm.errors import InputError
from proteinlm.inference.proteins import BPT1_BOVIN, Protein, read_protein
from proteinlm.models.transformer import ProteinLM
from proteinlm.output.files import whole_file

BLOCK = 128
"""Columns of the attention matrix that are computed together."""

Sums = TypeVar("Sums")


class Probe:
    """The attention of a model on given tokens, for as many matrices as needed from one forward pass.

    The forward pass runs when queries and keys are first used. They are kept: 2 * layers * B * L * H * D numbers.
    Matrices are not kept.

    Attributes:
        model: a causal or bidirectional model.
        tokens: token ids [B, L]; 0 is padding.
    """

    def __init__(self, model: ProteinLM, tokens: Integer[np.ndarray, "B L"]):
        """Check the number of tokens.

        Raises:
            InputError: L is larger than the model's max_length.
        """
        limit = model.config.max_length
        if tokens.shape[1] > limit:
            raise InputError(f"the input has {tokens.shape[1]} tokens, but this model's max_length is {limit}.")
        self.model, self.tokens = model, tokens

    @functools.cached_property
    def queries_keys(self) -> tuple[Float[Array, "layers B L H D"], Float[Array, "layers B L H D"]]:
        """The queries and keys of all layers, computed in one forward pass."""
        graph, state = nnx.split(self.model)
        return _queries_keys(graph, state, jnp.asarray(self.tokens, jnp.int32))

    def layer(self, layer: int) -> tuple[Any, Any, Array, Array]:
        """Return the arguments of a compiled function of one layer.

        Returns:
            The layer's mechanism as graph (a static argument) and state (see nnx.split); queries and keys
            [B, L, H, D].
        """
        q, k = self.queries_keys
        graph, state = nnx.split(self.model.attention(layer))
        return graph, state, q[layer], k[layer]

    def columns(
        self, layer: int, *, heads: Sequence[int] | None = None, block: int = BLOCK
    ) -> Iterator[tuple[int, Float32[np.ndarray, "B H L E"]]]:
        """Yield the attention matrices of a layer by blocks of columns, in memory O(B H L block).

        Args:
            layer: counted from 0.
            heads: counted from 0; None means all.
            block: number of columns in a block; the last block may have fewer.

        Yields:
            (start, columns): columns[b, h, i, e] is the attention weight from token i to token start + e, float32.
            Rows and columns of padding are 0.

        Raises:
            InputError: the model has no such layer or head.
            ValueError: block is not positive.
        """
        heads = check_heads(self.model, heads)
        check_layers(self.model, [layer])
        if block < 1:
            raise ValueError(f"block must be a positive number of columns, not {block}")
        return self._columns(layer, heads, min(block, self.tokens.shape[1]))

    def _columns(self, layer, heads, block):
        length = self.tokens.shape[1]
        mask = jnp.asarray(self.tokens != PAD)
        graph, state, q, k = self.layer(layer)
        for start in range(0, length, block):
            columns = _column_block(graph, state, q, k, mask, jnp.int32(start), block=block, causal=self.model.causal)
            yield start, np.asarray(columns)[:, heads, :, : length - start]

    def map(
        self, layer: int, *, heads: Sequence[int] | None = None, block: int = BLOCK
    ) -> Float32[np.ndarray, "B H L L"]:
        """Return the attention matrices of one layer: [b, h, i, j] is the weight from token i to token j.

        Arguments and errors are those of `columns`. The result is the only array of size L x L.
        """
        blocks = self.columns(layer, heads=heads, block=block)
        batch, length = self.tokens.shape
        maps = np.empty((batch, len(check_heads(self.model, heads)), length, length), np.float32)
        for start, columns in blocks:
            maps[..., start : start + columns.shape[-1]] = columns
        return maps

    def maps(
        self, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None, block: int = BLOCK
    ) -> Float32[np.ndarray, "layers B H L L"]:
        """Return the attention matrices of several layers (None means all), in the order of `layers`.

        Arguments and errors are those of `columns`.
        """
        return np.stack([self.map(layer, heads=heads, block=block) for layer in check_layers(self.model, layers)])

    def save(
        self, path: str | os.PathLike, layer: int, *, heads: Sequence[int] | None = None, block: int = BLOCK
    ) -> Path:
        """Write the attention matrices of one layer to a .npy file, block by block, in memory O(B H L block).

        The file appears complete or not at all. `numpy.load(path, mmap_mode="r")` opens it without reading it, as
        float32 [B, H, L, L] like the result of `map`. Columns are contiguous (Fortran order), as they are computed.
        8 heads of 8192 tokens are 2 GiB.

        Args:
            path: name of the file, ending in .npy. Its folder is created if missing; an existing file is replaced.
            layer, heads, block: as for `columns`.

        Raises:
            InputError: as for `columns`, or the path does not end in .npy.
        """
        path = Path(path)
        if path.suffix != ".npy":
            raise InputError(f"{path} is not a valid name for an attention map: it must end in .npy.")
        blocks = self.columns(layer, heads=heads, block=block)
        batch, length = self.tokens.shape
        shape = (batch, len(check_heads(self.model, heads)), length, length)
        with whole_file(path, "wb") as handle:
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype("<f4")), "fortran_order": True, "shape": shape}
            np.lib.format.write_array_header_1_0(handle, header)
            for _, columns in blocks:
                handle.write(columns.astype("<f4", copy=False).tobytes(order="F"))
        return path


class ProteinProbe(Probe):
    """A `Probe` of one protein, whose `tokens` are [1, L] without padding.

    Attributes:
        protein: the protein.
    """

    def __init__(self, model: ProteinLM, protein: Protein):
        """Check the number of tokens, as `Probe` does."""
        super().__init__(model, protein.tokens[None])
        self.protein = protein

    def pooled(
        self,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        cell: int,
        block: int = BLOCK,
    ) -> Float32[np.ndarray, "layers H C C"]:
        """Return the attention among residues averaged over cells of cell x cell pairs, in memory linear in L.

        Args:
            layers, heads: counted from 0; None means all.
            cell: number of residues along a side of a cell; the last cells may have fewer. With 1 the result holds the
                weights themselves.
            block: number of columns computed together.

        Returns:
            C = ceil(residues / cell). A cell is the mean over the pairs of residues that the model can see (in a
            causal model the later residues are hidden), and 0 if there is none. Special tokens are left out.

        Raises:
            InputError: the model has no such layer or head.
            ValueError: cell or block is not positive.
        """
        if cell < 1 or block < 1:
            raise ValueError(f"cell and block must be positive, not {cell} and {block}")
        heads = check_heads(self.model, heads)
        layers = check_layers(self.model, layers)
        start, stop, _ = self.protein.residues.indices(self.tokens.shape[1])
        first_rows = np.arange(0, stop - start, cell)
        pooled = np.zeros((len(layers), len(heads), len(first_rows), len(first_rows)), np.float32)
        for sums, layer in zip(pooled, layers, strict=True):
            for first, columns in self.columns(layer, heads=heads, block=block):
                by_row = np.add.reduceat(columns[0, :, start:stop], first_rows, axis=1)
                positions = np.arange(first, first + columns.shape[-1]) - start
                inside = (positions >= 0) & (positions < stop - start)
                for index, column in zip(positions[inside] // cell, np.flatnonzero(inside), strict=True):
                    sums[..., index] += by_row[..., column]
        return pooled / np.maximum(_visible_in_cells(stop - start, cell, causal=self.model.causal), 1).astype(
            np.float32
        )


def probe_protein(model: ProteinLM, sequence: bytes = BPT1_BOVIN, *, name: str = "BPT1_BOVIN (P00974)") -> ProteinProbe:
    """Return the probe of a protein.

    Args:
        model: a causal or bidirectional model.
        sequence: the protein in ASCII letters.
        name: the protein's name in figures and messages.

    Raises:
        InputError: a letter is outside the alphabet, or the protein is too long for the model.
    """
    return ProteinProbe(model, read_protein(model, sequence, name=name))


@functools.partial(jax.jit, static_argnums=0)
def _queries_keys(graph, state, tokens):
    return nnx.merge(graph, state).queries_keys(tokens)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("block", "causal"))
def _column_block(graph, state, q, k, mask, start, *, block, causal):
    columns = one_hot_columns(nnx.merge(graph, state), q, k, mask, start, block=block, causal=causal)
    return columns.transpose(0, 2, 1, 3)


def one_hot_columns(
    attention: nnx.Module,
    q: Float[Array, "B L H D"],
    k: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"],
    start: Int[Array, ""],
    *,
    block: int,
    causal: bool,
) -> Float32[Array, "B L H E"]:
    """Return columns [start, start + block) of the attention matrix: out[b, i, h, e] is the weight from i to start + e.

    Rows of padding and columns past the end are 0. The function is called under jit, where `start` may be traced.
    """
    batch, length, heads, _ = q.shape
    columns = start + jnp.arange(block)
    one_hot = (jnp.arange(length)[:, None] == columns[None, :]).astype(jnp.float32)
    values = jnp.broadcast_to(one_hot[None, :, None, :], (batch, length, heads, block))
    # The low default precision of accelerators would show as noise of 1e-3 in a figure of weights.
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
    """Reduce an attention matrix block by block, without storing it. The function is called under jit.

    Args:
        attention: the mechanism of a layer.
        q: queries of all tokens.
        k: keys of all tokens.
        mask: tokens that are not padding.
        add: function of (sums, start, columns) that returns the next sums, where columns is [B, L, H, block] (see
            `one_hot_columns`). The last block may reach past the end, with columns of 0 there. Arrays that `add` slices
            at `start` therefore need a length of ceil(L / block) * block.
        sums: initial sums, a tree of arrays.
        block: number of columns in a block.
        causal: whether the model is causal.
    """

    def step(sums, start):
        columns = one_hot_columns(attention, q, k, mask, start, block=block, causal=causal)
        return add(sums, start, columns), None

    starts = jnp.arange(-(-q.shape[1] // block), dtype=jnp.int32) * block
    return jax.lax.scan(step, sums, starts)[0]


def _visible_in_cells(length, cell, *, causal):
    """Return int [C, C]: the number of (query, key) pairs in each cell that the model can see."""
    cells = np.arange(-(-length // cell))
    size = np.minimum(cell, length - cells * cell)
    if not causal:
        return np.outer(size, size)
    return np.where(np.eye(len(cells), dtype=bool), size * (size + 1) // 2, np.tril(np.outer(size, size), -1))


def check_layers(model: ProteinLM, layers: Sequence[int] | None) -> list[int]:
    """Return the layers without repeats, in the order of their first mention; None means all.

    Raises:
        InputError: no layer is named, or the model lacks one; the message states the range.
    """
    return _in_range("layer", model.config.num_layers, layers)


def check_heads(model: ProteinLM, heads: Sequence[int] | None) -> list[int]:
    """Return the heads without repeats; None means all. Errors are those of `check_layers`."""
    return _in_range("head", model.config.num_heads, heads)


def _in_range(kind, count, numbers):
    chosen = list(dict.fromkeys(range(count) if numbers is None else numbers))
    for index in chosen:
        if not 0 <= index < count:
            raise InputError(f"there is no {kind} {index}: this model's {kind}s go from 0 to {count - 1}.")
    if not chosen:
        raise InputError(f"name at least one {kind}: this model's {kind}s go from 0 to {count - 1}.")
    return chosen
