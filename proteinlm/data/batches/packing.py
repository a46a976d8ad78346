"""Packing of sequences into rows, computed from the number of sequences of each length.

Best fit decreasing, on the histogram of lengths (Krell et al. 2021, arXiv 2107.02027, longest-pack-first): the longest
sequences are placed first, each into the row with the least room that holds it. Rows with the same lengths are one
group with a count, so the time depends on the number of different lengths: 10^8 sequences take as long as 10^5.
"""

import bisect
from typing import NamedTuple

import numpy as np


class Packing(NamedTuple):
    """Rows of sequences, given by their lengths.

    Attributes:
        lengths: int32 [n], lengths in the order of the rows, longest first within a row.
        starts: int64 [rows + 1]; row i has the sequences starts[i] to starts[i + 1] (exclusive).
    """

    lengths: np.ndarray
    starts: np.ndarray


def pack(lengths: np.ndarray, capacity: int) -> Packing:
    """Pack all lengths into rows of at most `capacity` tokens; the rows depend on the histogram of the lengths alone.

    Args:
        lengths: integers [n], number of tokens of each sequence, 1 to capacity, in any order.
        capacity: L.
    """
    groups = _grouped(np.bincount(lengths, minlength=capacity + 1), capacity)
    parts = [np.tile(np.asarray(row, np.int32), count) for row, count in groups]
    sizes = [np.full(count, len(row), np.int64) for row, count in groups]
    starts = np.zeros(sum(map(len, sizes)) + 1, np.int64)
    np.cumsum(np.concatenate([np.zeros(0, np.int64), *sizes]), out=starts[1:])
    return Packing(np.concatenate([np.zeros(0, np.int32), *parts]), starts)


def _grouped(histogram: np.ndarray, capacity: int) -> list[tuple[tuple[int, ...], int]]:
    """Return the lengths in a row and the number of such rows, for each group of equal rows; fullest rows first."""
    # Groups by the free tokens of their rows, and the keys of this dictionary, ascending.
    groups: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    rooms: list[int] = []

    def put(room: int, row: tuple[int, ...], count: int) -> None:
        if room not in groups:
            groups[room] = []
            bisect.insort(rooms, room)
        groups[room].append((row, count))

    for length in map(int, np.flatnonzero(histogram)[::-1]):
        left = int(histogram[length])
        while left:
            index = bisect.bisect_left(rooms, length)
            if index < len(rooms):
                room = rooms[index]
                row, count = groups[room].pop()
                if not groups[room]:
                    del groups[room], rooms[index]
            else:
                room, row, count = capacity, (), left
            # A row that has just received this length is also the best row for the next one, while it has room.
            times = room // length
            full = min(count, left // times)
            rest = min(left - full * times, times - 1) if count > full else 0
            if full:
                put(room - times * length, (*row, *[length] * times), full)
            if rest:
                put(room - rest * length, (*row, *[length] * rest), 1)
            unused = count - full - (rest > 0)
            if row and unused:
                put(room, row, unused)
            left -= full * times + rest
    return [group for room in rooms for group in groups[room]]
