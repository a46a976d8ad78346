"""Random access to batches of records in ArrayRecord files, for threads that read many small batches.

The data source of `array_record` starts a thread for each file of a batch, at every call. With a hundred files and
batches of ten proteins this takes most of the time. Here a call reads one file after another in the calling thread (the
reader releases Python's global lock), and the caller may use any number of threads.
"""

import itertools
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np


class Shards:
    """The records of several files one after another; several threads may use one object.

    Args:
        paths: ArrayRecord files.
        lengths: number of records of each file. With these, a file is opened only when it is read.
    """

    def __init__(self, paths: Sequence[str | os.PathLike], lengths: Sequence[int]):
        self._paths = [os.fspath(path) for path in paths]
        self._edges = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        self._readers: list[Any] = [None] * len(self._paths)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._edges[-1])

    def __getitem__(self, index: int) -> bytes:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """Return the records with these `indices`, in the given order.

        Raises:
            IndexError: an index is outside 0 ... len - 1.
        """
        rows = np.asarray(indices, np.int64).reshape(-1)
        if not rows.size:
            return []
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"there are rows 0 to {len(self) - 1}; asked for {rows.min()} to {rows.max()}")
        shards = np.searchsorted(self._edges, rows, "right") - 1
        order = np.argsort(shards, kind="stable")
        shards, offsets = shards[order], rows[order] - self._edges[shards[order]]
        cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(order)]
        records: list[bytes] = []
        for start, stop in itertools.pairwise(cuts):
            records += self._reader(int(shards[start])).read(offsets[start:stop].tolist())
        if len(cuts) == 2:
            return records
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return [records[i] for i in back.tolist()]

    def _reader(self, shard: int) -> Any:
        if self._readers[shard] is None:
            from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

            with self._lock:
                if self._readers[shard] is None:
                    # Access is random, so nothing is read ahead.
                    self._readers[shard] = array_record_module.ArrayRecordReader(
                        self._paths[shard], options="readahead_buffer_size:0", file_reader_buffer_size=1 << 15
                    )
        return self._readers[shard]
