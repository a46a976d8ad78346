"""Plans of an epoch: which examples are in which batch, for single sequences, concatenated windows and isolated rows.

An example is a sequence, a window of the stream of sequences, or a row of several sequences; it has a number. A plan is
a table of these numbers with one row for each batch of all processes together. B = batch_size, L = length, S = L // 2.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from proteinlm import alphabet
from proteinlm.data.batches.packing import Packing, pack
from proteinlm.errors import InputError

Batch: TypeAlias = dict[str, np.ndarray]
"""Arrays of a batch by name. tokens: uint8 [b, l], padded with 0 on the right. keys: uint32 [b, 2]. rows, in evaluation
only: int32 [b], -1 for filler rows.

An isolated row has up to S sequences. segments: int32 [b, l], number of the sequence from 1, 0 at padding. keys is
[b, S, 2] and rows is [b, S]; entry n - 1 belongs to sequence n.
"""

# The sequences of a batch have the same padded length. They are grouped within pools of this many batches, and not
# sorted over the whole epoch: proteins of one family have similar lengths, so a batch of a sorted epoch would hold few
# families, and its gradient would be less informative.
POOL = 64


class Proteins(Protocol):
    """Interface of a dataset, such as `ProteinDataset`. Several threads call `sequences` at the same time."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of sequences of each split."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identifier of the contents."""
        ...

    def lengths(self, split: str) -> np.ndarray:
        """Return the number of residues of each sequence, int32 [n], in dataset order."""
        ...

    def sequences(self, split: str, indices: np.ndarray) -> list[bytes]:
        """Return the canonical letters of the sequences with these indices in dataset order."""
        ...


@dataclass(frozen=True)
class EpochPlan:
    """Batches of one epoch.

    Attributes:
        table: int32 [number of batches, B], numbers of the examples, -1 for a filler row.
        read: function that returns a process's part of a batch, from a row of the table and the slice of the process.
        sequences: function of the same arguments that returns the entry "rows" of a batch in evaluation.
    """

    table: np.ndarray
    read: Callable[[np.ndarray, slice], Batch]
    sequences: Callable[[np.ndarray, slice], np.ndarray] = lambda examples, rows: examples[rows]


class Singles:
    """The sequences of a split as examples; example i is the i-th sequence in dataset order.

    Args:
        dataset: source of the sequences.
        split: name of the split.
        length: L; a sequence of n residues is n tokens and <eos> if n < L, else its first L residues.
        batch_size: B.
        padded_lengths: padded lengths, ascending, the last one L; a batch is padded to the smallest one that holds its
            longest row.
    """

    def __init__(self, dataset: Proteins, split: str, length: int, batch_size: int, padded_lengths: tuple[int, ...]):
        self._dataset, self._split, self._length, self._batch_size = dataset, split, length, batch_size
        self._residues = dataset.lengths(split)
        self._tokens = np.minimum(self._residues + 1, length)
        self._padded = np.asarray(padded_lengths)
        self.count = len(self._residues)

    def shuffled(self, generator: np.random.Generator) -> EpochPlan:
        """Return a training epoch: all sequences in a new order, without the rest that fills no batch."""
        size = self._batch_size
        order = generator.permutation(_numbers(self.count))[: self.count // size * size]
        table = order.reshape(-1, size)
        if len(self._padded) > 1:  # With one padded length any two sequences may share a batch.
            for start in range(0, len(table), POOL):
                pool = table[start : start + POOL].reshape(-1)
                bucket = np.searchsorted(self._padded, self._tokens[pool])
                pool = pool[np.argsort(bucket, kind="stable")].reshape(-1, size)
                table[start : start + POOL] = pool[generator.permutation(len(pool))]
        return EpochPlan(table, self._read)

    def in_order(self, limit: int | None = None) -> EpochPlan:
        """Return the first `limit` sequences, shortest first, with fillers at the end of each padded length."""
        tokens = self._tokens[:limit]
        order = _numbers(len(tokens))[np.argsort(tokens, kind="stable")]
        bucket = np.searchsorted(self._padded, tokens[order])
        tables = [_filled(order[bucket == b], self._batch_size) for b in range(len(self._padded))]
        return EpochPlan(np.concatenate(tables), self._read)

    def _read(self, examples: np.ndarray, rows: slice) -> Batch:
        # The padded length depends on all rows of the batch, so it is the same in all processes.
        longest = self._tokens[examples[examples >= 0]].max()
        padded = int(self._padded[np.searchsorted(self._padded, longest)])
        examples = examples[rows]
        present = np.flatnonzero(examples >= 0)
        sequences = _read(self._dataset, self._split, examples[present], self._residues)
        clipped = [sequence[: self._length] for sequence in sequences]
        residues = np.zeros(len(examples), np.int64)
        residues[present] = [len(sequence) for sequence in clipped]

        tokens = np.zeros((len(examples), padded), np.uint8)
        tokens[np.arange(padded)[None, :] < residues[:, None]] = alphabet.encode(b"".join(clipped))
        ended = present[residues[present] < self._length]
        tokens[ended, residues[ended]] = alphabet.EOS
        keys = np.zeros((len(examples), 2), np.uint32)
        keys[present] = _keys(sequences)
        return {"tokens": tokens, "keys": keys}


class Windows:
    """Windows of the stream of a split: its sequences one after another, <eos> after each.

    Example i is the tokens i L to (i + 1) L (exclusive) of the stream.

    Args:
        dataset: source of the sequences.
        split: name of the split.
        length: L, number of tokens in a window.
        batch_size: B.
    """

    def __init__(self, dataset: Proteins, split: str, length: int, batch_size: int):
        self._dataset, self._split, self._length, self._batch_size = dataset, split, length, batch_size
        self._residues = dataset.lengths(split)
        self._total = int(self._residues.sum(dtype=np.int64)) + len(self._residues)
        self.count = self._total // length
        """Number of full windows."""

    def shuffled(self, generator: np.random.Generator) -> EpochPlan:
        """Return a training epoch: a stream in a new order, without the rest that fills no window or no batch."""
        order = generator.permutation(_numbers(len(self._residues)))
        # Windows are shuffled too, since neighbours share a protein and would be in the same batch.
        size = self._batch_size
        windows = generator.permutation(_numbers(self.count))[: self.count // size * size]
        return EpochPlan(windows.reshape(-1, size), self._reader(order))

    def in_order(self, limit: int | None = None) -> EpochPlan:
        """Return the first `limit` windows of the stream in dataset order; the last window of the stream is padded."""
        windows = _numbers(-(-self._total // self._length))[:limit]
        return EpochPlan(_filled(windows, self._batch_size), self._reader(_numbers(len(self._residues))))

    def _reader(self, order: np.ndarray) -> Callable[[np.ndarray, slice], Batch]:
        # starts[i]: offset in the stream of the i-th protein of `order`; the last entry is the length of the stream.
        starts = np.zeros(len(order) + 1, np.int64)
        np.cumsum(self._residues[order], dtype=np.int64, out=starts[1:])
        starts += np.arange(len(starts))

        def read(examples: np.ndarray, rows: slice) -> Batch:
            examples = examples[rows]
            present = np.flatnonzero(examples >= 0)
            begin = examples[present] * np.int64(self._length)
            end = np.minimum(begin + self._length, self._total)
            first = np.searchsorted(starts, begin, side="right") - 1
            stop = np.searchsorted(starts, end, side="left")
            ranks = [np.arange(a, b) for a, b in zip(first, stop, strict=True)]
            indices = order[np.concatenate([_numbers(0), *ranks])]
            stretches = _with_eos(_read(self._dataset, self._split, indices, self._residues))
            # `stretches` holds, for each window, the whole proteins that overlap it. `offset` is where a window begins.
            offset = np.zeros(len(present), np.int64)
            np.cumsum((starts[stop] - starts[first])[:-1], out=offset[1:])
            offset += begin - starts[first]

            tokens = np.zeros((len(examples), self._length), np.uint8)
            keys = np.zeros((len(examples), 2), np.uint32)
            windows = [stretches[o : o + n] for o, n in zip(offset, end - begin, strict=True)]
            for row, window in zip(present, windows, strict=True):
                tokens[row, : len(window)] = window
            keys[present] = _keys([window.tobytes() for window in windows])
            return {"tokens": tokens, "keys": keys}

        return read


class Isolated:
    """Rows of `length` tokens with several sequences, each a segment; example i is the i-th row.

    Which lengths share a row depends on the lengths alone (packing.py); which sequences of these lengths do depends on
    the order. So each epoch has the same lengths in its rows, and other sequences.

    Args:
        dataset: source of the sequences.
        split: name of the split.
        length: L; a sequence of n residues is n tokens and <eos> if n < L, else its first L residues, as in `Singles`.
        batch_size: B.
    """

    def __init__(self, dataset: Proteins, split: str, length: int, batch_size: int):
        self._dataset, self._split, self._length, self._batch_size = dataset, split, length, batch_size
        self._residues = dataset.lengths(split)
        self._tokens = np.minimum(self._residues + 1, length)
        self._packing = pack(self._tokens, length)
        self.count = len(self._packing.starts) - 1
        """Number of rows that hold all sequences."""

    def shuffled(self, generator: np.random.Generator) -> EpochPlan:
        """Return a training epoch: all sequences in new rows, without the rows that fill no batch."""
        members = self._members(self._packing, generator.permutation(_numbers(len(self._residues))))
        size = self._batch_size
        rows = generator.permutation(_numbers(self.count))[: self.count // size * size]
        return self._plan(rows.reshape(-1, size), members, self._packing.starts)

    def in_order(self, limit: int | None = None) -> EpochPlan:
        """Return the first `limit` sequences in as few rows as possible, the fullest first."""
        order = _numbers(len(self._residues))[:limit]
        packing = self._packing if len(order) == len(self._residues) else pack(self._tokens[order], self._length)
        rows = _filled(_numbers(len(packing.starts) - 1), self._batch_size)
        return self._plan(rows, self._members(packing, order), packing.starts)

    def _members(self, packing: Packing, order: np.ndarray) -> np.ndarray:
        """Return the sequences of the rows, int32 [n]; sequences of the same length are in the given order."""
        # NumPy sorts integers of 16 bits with radix sort, which is five times as fast.
        narrow = np.uint16 if self._length < 2**16 else np.int32
        by_length = np.argsort(packing.lengths.astype(narrow), kind="stable")
        members = np.empty(len(order), np.int32)
        members[by_length] = order[np.argsort(self._tokens[order].astype(narrow), kind="stable")]
        return members

    def _plan(self, table: np.ndarray, members: np.ndarray, starts: np.ndarray) -> EpochPlan:
        def members_of(examples: np.ndarray, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Return the sequences in the rows of this process, the row of each, and its rank in the row."""
            examples = examples[rows]
            present = np.flatnonzero(examples >= 0)
            parts = [members[starts[i] : starts[i + 1]] for i in examples[present]]
            ranks = [np.arange(len(part)) for part in parts]
            row = np.repeat(present, np.array([len(part) for part in parts], int))
            return np.concatenate([_numbers(0), *parts]), row, np.concatenate([_numbers(0), *ranks])

        def sequences(examples: np.ndarray, rows: slice) -> np.ndarray:
            indices, row, rank = members_of(examples, rows)
            numbers = np.full((len(examples[rows]), self._length // 2), -1, np.int32)
            numbers[row, rank] = indices
            return numbers

        def read(examples: np.ndarray, rows: slice) -> Batch:
            indices, row, rank = members_of(examples, rows)
            letters = _read(self._dataset, self._split, indices, self._residues)
            shape = len(examples[rows]), self._length
            sizes = self._tokens[indices]
            filled = np.arange(self._length)[None] < np.bincount(row, sizes, shape[0])[:, None]
            tokens, segments = np.zeros(shape, np.uint8), np.zeros(shape, np.int32)
            tokens[filled] = _clipped_with_eos(letters, self._length)
            segments[filled] = np.repeat(rank + 1, sizes)
            keys = np.zeros((shape[0], self._length // 2, 2), np.uint32)
            keys[row, rank] = _keys(letters)
            return {"tokens": tokens, "keys": keys, "segments": segments}

        return EpochPlan(table, read, sequences)


def _numbers(count: int) -> np.ndarray:
    # int32: a split of UniProt has 10^8 sequences.
    return np.arange(count, dtype=np.int32)


def _filled(examples: np.ndarray, size: int) -> np.ndarray:
    """Return the examples as a table [batches, size], filled up with -1."""
    table = np.full((-(-len(examples) // size), size), -1, examples.dtype)
    table.reshape(-1)[: len(examples)] = examples
    return table


def _read(dataset: Proteins, split: str, indices: np.ndarray, residues: np.ndarray) -> list[bytes]:
    """Read sequences in one call, and check their lengths against those of the plan."""
    sequences = dataset.sequences(split, indices) if len(indices) else []
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    wrong = np.flatnonzero(lengths != residues[indices])
    if wrong.size:
        index = int(indices[wrong[0]])
        raise InputError(
            f"the dataset is damaged: sequence {index} of split {split!r} has {lengths[wrong[0]]} residues, "
            f"its manifest says {residues[index]}; ingest it again."
        )
    return sequences


def _clipped_with_eos(sequences: list[bytes], length: int) -> np.ndarray:
    """Return the tokens of the sequences one after another, uint8, with <eos> after those shorter than `length`."""
    stream = _with_eos([sequence[:length] for sequence in sequences])
    kept = np.array([min(len(sequence), length) for sequence in sequences], int)
    ends = np.cumsum(kept + 1, dtype=np.int64) - 1
    return np.delete(stream, ends[kept == length])


def _with_eos(sequences: list[bytes]) -> np.ndarray:
    """Return the tokens of the sequences one after another, uint8, with <eos> after each."""
    ends = np.cumsum([len(sequence) + 1 for sequence in sequences], dtype=np.int64) - 1
    is_residue = np.ones(int(ends[-1]) + 1 if len(ends) else 0, bool)
    is_residue[ends] = False
    stream = np.full(len(is_residue), alphabet.EOS, np.uint8)
    stream[is_residue] = alphabet.encode(b"".join(sequences))
    return stream


def _keys(contents: list[bytes]) -> np.ndarray:
    """Return the first 8 bytes of the MD5 of each text, big endian, uint32 [n, 2]; for a sequence, of its digest."""
    digests = b"".join(hashlib.md5(content, usedforsecurity=False).digest()[:8] for content in contents)
    return np.frombuffer(digests, ">u4").reshape(-1, 2).astype(np.uint32)
