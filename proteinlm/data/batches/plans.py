"""Which examples make up which batch, and how they are read: for single sequences, concatenated windows and isolated
rows.

An example is a sequence, a window of the stream of sequences or a row of whole sequences; it has a number. A plan is a
table of these numbers, a row for each batch of all processes together. B = batch_size, L = length, S = L // 2.
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
"""tokens uint8 [b, l], right padded with 0; keys uint32 [b, 2]; in evaluation rows int32 [b], -1: filler.

Isolated rows have as many as S sequences each: segments int32 [b, l] numbers them from 1, 0 at padding; keys are [b, S,
2] and rows [b, S], entry n - 1 that of sequence n.
"""

# Sequences of one padded length share a batch. They are brought together inside pools of this many batches, not over
# the whole epoch, and stay shuffled among themselves: sorted by length, a batch would be full of one family's proteins,
# which are alike in length, and its gradient that much poorer.
POOL = 64


class Proteins(Protocol):
    """What batches ask of a dataset; `ProteinDataset` is one. Threads call `sequences` at the same time."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of sequences of each split."""
        ...

    @property
    def fingerprint(self) -> str:
        """A text that identifies the contents."""
        ...

    def lengths(self, split: str) -> np.ndarray:
        """Return int32 [n], the residues of each sequence in dataset order."""
        ...

    def sequences(self, split: str, indices: np.ndarray) -> list[bytes]:
        """Return canonical letters of the sequences at these places of dataset order."""
        ...


@dataclass(frozen=True)
class Plan:
    """Batches of examples.

    Attributes:
        table: int32 [number of batches, B], examples by number, -1 for a filler row.
        read: takes a row of the table and the slice of it that this process reads; returns that part of the
            batch.
        sequences: takes the same; returns the numbers by which evaluation names them, "rows" of the batch.
    """

    table: np.ndarray
    read: Callable[[np.ndarray, slice], Batch]
    sequences: Callable[[np.ndarray, slice], np.ndarray] = lambda examples, rows: examples[rows]


class Singles:
    """The sequences of a split as examples; number i is the i-th in dataset order.

    Args:
        dataset: where sequences come from.
        split: its name.
        length: L; a sequence of n residues is n tokens and <eos> if n < L, else its first L residues.
        batch_size: B.
        padded_lengths: ascending, the last one L; a batch has the smallest that holds its longest row.
    """

    def __init__(self, dataset: Proteins, split: str, length: int, batch_size: int, padded_lengths: tuple[int, ...]):
        self._dataset, self._split, self._length, self._batch_size = dataset, split, length, batch_size
        self._residues = dataset.lengths(split)
        self._tokens = np.minimum(self._residues + 1, length)
        self._padded = np.asarray(padded_lengths)
        self.count = len(self._residues)

    def shuffled(self, generator: np.random.Generator) -> Plan:
        """Return a training epoch: all sequences in a new order, less what does not fill the last batch."""
        size = self._batch_size
        order = generator.permutation(_numbers(self.count))[: self.count // size * size]
        table = order.reshape(-1, size)
        if len(self._padded) > 1:  # With one padded length there is nothing to win, and any two may meet.
            for start in range(0, len(table), POOL):
                pool = table[start : start + POOL].reshape(-1)
                bucket = np.searchsorted(self._padded, self._tokens[pool])
                pool = pool[np.argsort(bucket, kind="stable")].reshape(-1, size)
                table[start : start + POOL] = pool[generator.permutation(len(pool))]
        return Plan(table, self._read)

    def in_order(self, limit: int | None = None) -> Plan:
        """Return the first `limit` sequences, shortest first, fillers at the end of each padded length."""
        tokens = self._tokens[:limit]
        order = _numbers(len(tokens))[np.argsort(tokens, kind="stable")]
        bucket = np.searchsorted(self._padded, tokens[order])
        tables = [_filled(order[bucket == b], self._batch_size) for b in range(len(self._padded))]
        return Plan(np.concatenate(tables), self._read)

    def _read(self, examples: np.ndarray, rows: slice) -> Batch:
        # The whole batch decides the padded length, so that processes agree; then each reads its own rows.
        longest = self._tokens[examples[examples >= 0]].max()
        padded = int(self._padded[np.searchsorted(self._padded, longest)])
        own = examples[rows]
        present = np.flatnonzero(own >= 0)
        sequences = _read(self._dataset, self._split, own[present], self._residues)
        clipped = [sequence[: self._length] for sequence in sequences]
        residues = np.zeros(len(own), np.int64)
        residues[present] = [len(sequence) for sequence in clipped]

        tokens = np.zeros((len(own), padded), np.uint8)
        tokens[np.arange(padded)[None, :] < residues[:, None]] = alphabet.encode(b"".join(clipped))
        ended = present[residues[present] < self._length]
        tokens[ended, residues[ended]] = alphabet.EOS
        keys = np.zeros((len(own), 2), np.uint32)
        keys[present] = _keys(sequences)
        return {"tokens": tokens, "keys": keys}


class Windows:
    """A split's sequences one after another, <eos> after each, cut into windows: number i is [i L, (i + 1)
    L).

    Args:
        dataset: where sequences come from.
        split: its name.
        length: L, tokens of a window.
        batch_size: B.
    """

    def __init__(self, dataset: Proteins, split: str, length: int, batch_size: int):
        self._dataset, self._split, self._length, self._batch_size = dataset, split, length, batch_size
        self._residues = dataset.lengths(split)
        self._total = int(self._residues.sum(dtype=np.int64)) + len(self._residues)
        self.count = self._total // length
        """Whole windows."""

    def shuffled(self, generator: np.random.Generator) -> Plan:
        """Return a training epoch: a new stream, less its last tokens that fill no window, no batch."""
        order = generator.permutation(_numbers(len(self._residues)))
        # Windows are shuffled too: neighbours share a protein, and would share a batch.
        size = self._batch_size
        windows = generator.permutation(_numbers(self.count))[: self.count // size * size]
        return Plan(windows.reshape(-1, size), self._reader(order))

    def in_order(self, limit: int | None = None) -> Plan:
        """Return the first `limit` windows of the stream in dataset order, the stream's last one padded."""
        windows = _numbers(-(-self._total // self._length))[:limit]
        return Plan(_filled(windows, self._batch_size), self._reader(_numbers(len(self._residues))))

    def _reader(self, order: np.ndarray) -> Callable[[np.ndarray, slice], Batch]:
        # starts[i]: where in the stream the i-th protein of `order` begins; the last entry is the stream's
        # end.
        starts = np.zeros(len(order) + 1, np.int64)
        np.cumsum(self._residues[order], dtype=np.int64, out=starts[1:])
        starts += np.arange(len(starts))

        def read(examples: np.ndarray, rows: slice) -> Batch:
            own = examples[rows]
            present = np.flatnonzero(own >= 0)
            begin = own[present] * np.int64(self._length)
            end = np.minimum(begin + self._length, self._total)
            first = np.searchsorted(starts, begin, side="right") - 1
            stop = np.searchsorted(starts, end, side="left")
            places = [np.arange(a, b) for a, b in zip(first, stop, strict=True)]
            indices = order[np.concatenate([_numbers(0), *places])]
            stretches = _with_eos(_read(self._dataset, self._split, indices, self._residues))
            # The stretches of the stream, whole proteins each, lie one after another.
            offset = np.zeros(len(present), np.int64)
            np.cumsum((starts[stop] - starts[first])[:-1], out=offset[1:])
            offset += begin - starts[first]

            tokens = np.zeros((len(own), self._length), np.uint8)
            keys = np.zeros((len(own), 2), np.uint32)
            windows = [stretches[o : o + n] for o, n in zip(offset, end - begin, strict=True)]
            for row, window in zip(present, windows, strict=True):
                tokens[row, : len(window)] = window
            keys[present] = _keys([window.tobytes() for window in windows])
            return {"tokens": tokens, "keys": keys}

        return read


class Isolated:
    """Rows of `length` tokens filled with whole sequences, each a segment of its own; number i is the i-th row.

    The lengths decide which of them share a row (packing.py), the order which sequences of these lengths do. So every
    epoch has the same rows of lengths and new rows of sequences.

    Args:
        dataset: where sequences come from.
        split: its name.
        length: L; a sequence of n residues is n tokens and <eos> if n < L, else its first L residues, as in `Singles`.
        batch_size: B.
    """

    def __init__(self, dataset: Proteins, split: str, length: int, batch_size: int):
        self._dataset, self._split, self._length, self._batch_size = dataset, split, length, batch_size
        self._residues = dataset.lengths(split)
        self._tokens = np.minimum(self._residues + 1, length)
        self._packing = pack(self._tokens, length)
        self.count = len(self._packing.starts) - 1
        """Rows of all sequences."""

    def shuffled(self, generator: np.random.Generator) -> Plan:
        """Return a training epoch: all sequences in new rows, less the rows that do not fill the last batch."""
        members = self._members(self._packing, generator.permutation(_numbers(len(self._residues))))
        size = self._batch_size
        rows = generator.permutation(_numbers(self.count))[: self.count // size * size]
        return self._plan(rows.reshape(-1, size), members, self._packing.starts)

    def in_order(self, limit: int | None = None) -> Plan:
        """Return the first `limit` sequences in as few rows as they need, the fullest first."""
        order = _numbers(len(self._residues))[:limit]
        packing = self._packing if len(order) == len(self._residues) else pack(self._tokens[order], self._length)
        rows = _filled(_numbers(len(packing.starts) - 1), self._batch_size)
        return self._plan(rows, self._members(packing, order), packing.starts)

    def _members(self, packing: Packing, order: np.ndarray) -> np.ndarray:
        """Return int32 [n], the sequences of the rows: those of each length in the order given."""
        # NumPy sorts 16 bits by radix, five times as fast.
        narrow = np.uint16 if self._length < 2**16 else np.int32
        by_length = np.argsort(packing.lengths.astype(narrow), kind="stable")
        members = np.empty(len(order), np.int32)
        members[by_length] = order[np.argsort(self._tokens[order].astype(narrow), kind="stable")]
        return members

    def _plan(self, table: np.ndarray, members: np.ndarray, starts: np.ndarray) -> Plan:
        def own(examples: np.ndarray, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Return the sequences of this process's rows one after another, the row of each, and its place there."""
            examples = examples[rows]
            present = np.flatnonzero(examples >= 0)
            parts = [members[starts[i] : starts[i + 1]] for i in examples[present]]
            places = [np.arange(len(part)) for part in parts]
            row = np.repeat(present, np.array([len(part) for part in parts], int))
            return np.concatenate([_numbers(0), *parts]), row, np.concatenate([_numbers(0), *places])

        def sequences(examples: np.ndarray, rows: slice) -> np.ndarray:
            indices, row, place = own(examples, rows)
            numbers = np.full((len(examples[rows]), self._length // 2), -1, np.int32)
            numbers[row, place] = indices
            return numbers

        def read(examples: np.ndarray, rows: slice) -> Batch:
            indices, row, place = own(examples, rows)
            found = _read(self._dataset, self._split, indices, self._residues)
            shape = len(examples[rows]), self._length
            sizes = self._tokens[indices]
            filled = np.arange(self._length)[None] < np.bincount(row, sizes, shape[0])[:, None]
            tokens, segments = np.zeros(shape, np.uint8), np.zeros(shape, np.int32)
            tokens[filled] = _clipped_with_eos(found, self._length)
            segments[filled] = np.repeat(place + 1, sizes)
            keys = np.zeros((shape[0], self._length // 2, 2), np.uint32)
            keys[row, place] = _keys(found)
            return {"tokens": tokens, "keys": keys, "segments": segments}

        return Plan(table, read, sequences)


def _numbers(count: int) -> np.ndarray:
    # Four bytes each, for a split of UniProt has 10^8 sequences.
    return np.arange(count, dtype=np.int32)


def _filled(examples: np.ndarray, size: int) -> np.ndarray:
    """Return [batches, size] with -1 after the last example."""
    table = np.full((-(-len(examples) // size), size), -1, examples.dtype)
    table.reshape(-1)[: len(examples)] = examples
    return table


def _read(dataset: Proteins, split: str, indices: np.ndarray, residues: np.ndarray) -> list[bytes]:
    """Read sequences in one call, and hold them against the lengths on which the plan rests."""
    sequences = dataset.sequences(split, indices) if len(indices) else []
    found = np.fromiter(map(len, sequences), np.int64, len(sequences))
    wrong = np.flatnonzero(found != residues[indices])
    if wrong.size:
        index = int(indices[wrong[0]])
        raise InputError(
            f"the dataset is damaged: sequence {index} of split {split!r} has {found[wrong[0]]} residues, "
            f"its manifest says {residues[index]}; ingest it again."
        )
    return sequences


def _clipped_with_eos(sequences: list[bytes], length: int) -> np.ndarray:
    """Return uint8 tokens of the sequences one after another: <eos> after each that has room for it in L."""
    stream = _with_eos([sequence[:length] for sequence in sequences])
    kept = np.array([min(len(sequence), length) for sequence in sequences], int)
    ends = np.cumsum(kept + 1, dtype=np.int64) - 1
    return np.delete(stream, ends[kept == length])


def _with_eos(sequences: list[bytes]) -> np.ndarray:
    """Return uint8 tokens of the sequences one after another, <eos> after each."""
    ends = np.cumsum([len(sequence) + 1 for sequence in sequences], dtype=np.int64) - 1
    is_residue = np.ones(int(ends[-1]) + 1 if len(ends) else 0, bool)
    is_residue[ends] = False
    stream = np.full(len(is_residue), alphabet.EOS, np.uint8)
    stream[is_residue] = alphabet.encode(b"".join(sequences))
    return stream


def _keys(contents: list[bytes]) -> np.ndarray:
    """Return uint32 [n, 2]: the first 8 bytes of each MD5, big endian; of a whole sequence, its digest's."""
    digests = b"".join(hashlib.md5(content, usedforsecurity=False).digest()[:8] for content in contents)
    return np.frombuffer(digests, ">u4").reshape(-1, 2).astype(np.uint32)
