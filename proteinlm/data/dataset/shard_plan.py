"""Plan of the shards: which examples are in which file of the dataset."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from proteinlm.data.dataset.dataset import MANIFEST, shard_name

SHARD_BYTES = 256 << 20
"""Intended size of a shard."""


class Shard(NamedTuple):
    """A file to write: its index of `num_shards`, and pieces (bucket, start, stop) of the reduced buckets, in order."""

    split: str
    index: int
    num_shards: int
    pieces: list[tuple[int, int, int]]

    @property
    def length(self) -> int:
        """Number of examples."""
        return sum(stop - start for _, start, stop in self.pieces)


def plan_shards(split: str, bucket_counts: Sequence[int], num_shards: int) -> list[Shard]:
    """Cut a split into shards whose numbers of examples differ by at most one, in the order of the digests.

    Args:
        split: name of the split.
        bucket_counts: number of examples of the split in each bucket, in order.
        num_shards: number of shards; at most one for each example is made.
    """
    edges = np.concatenate(([0], np.cumsum(bucket_counts)))
    total = int(edges[-1])
    num_shards = min(num_shards, total)
    shards = []
    for index in range(num_shards):
        start, stop = total * index // num_shards, total * (index + 1) // num_shards
        pieces = []
        for bucket in range(int(np.searchsorted(edges, start, "right")) - 1, len(bucket_counts)):
            low, high = int(edges[bucket]), int(edges[bucket + 1])
            if low >= stop:
                break
            if min(stop, high) > max(start, low):
                pieces.append((bucket, max(start, low) - low, min(stop, high) - low))
        shards.append(Shard(split, index, num_shards, pieces))
    return shards


def plan_files(
    name: str, counts: Mapping[str, Sequence[int]], example_bytes: Mapping[str, int], num_shards: int
) -> dict[str, Shard | Mapping[str, Sequence[int]]]:
    """Return the name and the task of each file to write: a `Shard`, or the counts for the manifest.

    Args:
        name: name of the dataset.
        counts: number of manifest rows of each split in each bucket, in order.
        example_bytes: size of the examples of each split.
        num_shards: number of files of each split; 0 takes one for each SHARD_BYTES.
    """
    tasks: dict[str, Shard | Mapping[str, Sequence[int]]] = {MANIFEST: counts}
    for split, size in example_bytes.items():
        for shard in plan_shards(split, counts[split], num_shards or -(-size // SHARD_BYTES)):
            tasks[shard_name(name, split, shard.index, shard.num_shards)] = shard
    return tasks
