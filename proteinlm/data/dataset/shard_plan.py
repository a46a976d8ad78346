"""Which examples go into which file of the dataset."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from proteinlm.data.dataset.dataset import MANIFEST, shard_name

SHARD_BYTES = 256 << 20


class Shard(NamedTuple):
    """One file to write: its number of `num_shards`, and rows start ... stop of reduced buckets, in order."""

    split: str
    index: int
    num_shards: int
    pieces: list[tuple[int, int, int]]

    @property
    def length(self) -> int:
        """Number of examples."""
        return sum(stop - start for _, start, stop in self.pieces)


def plan_shards(split: str, bucket_counts: Sequence[int], num_shards: int) -> list[Shard]:
    """Cut a split into shards whose numbers of examples differ by one at most, in the order of the digests.

    Args:
        bucket_counts: examples of the split in each bucket, in order.
        num_shards: more than there are examples is as many as there are.
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
    """Return each file to write and its task: of a shard the shard, of the manifest the counts.

    Args:
        name: of the dataset.
        counts: examples of each split in each bucket, in order.
        example_bytes: of each split.
        num_shards: files a split is cut into; 0 takes one for each SHARD_BYTES.
    """
    tasks: dict[str, Shard | Mapping[str, Sequence[int]]] = {MANIFEST: counts}
    for split, size in example_bytes.items():
        for shard in plan_shards(split, counts[split], num_shards or -(-size // SHARD_BYTES)):
            tasks[shard_name(name, split, shard.index, shard.num_shards)] = shard
    return tasks
