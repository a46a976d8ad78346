"""Batched random access to ArrayRecord files, for threads that read small batches all the time.

`array_record`'s own data source starts a thread for each file that a batch meets, at every call; with some hundred
files and a batch of some ten proteins that is most of the time. Here a call reads file by file in the thread that asks
(the reader lets go of Python's lock), and whoever reads ahead does so with as many threads as they like.
"""

import itertools
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np


class Shards:
    """The records of several files one after another; threads may share it.

    Args:
        paths: ArrayRecord files.
        lengths: number of records of each, so that a file is opened when it is first read, not before.
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
        """Return the records at `indices`, in the order asked for.

        Raises:
            IndexError: an index is outside 0 ... len - 1.
        """
        wanted = np.asarray(indices, np.int64).reshape(-1)
        if not wanted.size:
            return []
        if wanted.min() < 0 or wanted.max() >= len(self):
            raise IndexError(f"there are rows 0 to {len(self) - 1}; asked for {wanted.min()} to {wanted.max()}")
        shards = np.searchsorted(self._edges, wanted, "right") - 1
        order = np.argsort(shards, kind="stable")
        shards, places = shards[order], wanted[order] - self._edges[shards[order]]
        cuts = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(order)]
        found: list[bytes] = []
        for start, stop in itertools.pairwise(cuts):
            found += self._reader(int(shards[start])).read(places[start:stop].tolist())
        if len(cuts) == 2:
            return found
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return [found[place] for place in back.tolist()]

    def _reader(self, shard: int) -> Any:
        if self._readers[shard] is None:
            from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

            with self._lock:
                if self._readers[shard] is None:
                    # What follows a record was not asked for: nothing is read ahead.
                    self._readers[shard] = array_record_module.ArrayRecordReader(
                        self._paths[shard], options="readahead_buffer_size:0", file_reader_buffer_size=1 << 15
                    )
        return self._readers[shard]
