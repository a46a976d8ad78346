"""Records on disk between the steps of an ingest, as columns, in buckets by the first bits of the digest.

A file is a sequence of chunks. A chunk is a header (number of records, number of their source, size of each column in
bytes) and the columns. Each worker process writes its own file in each bucket, so that processes do not wait for each
other; in each file the sources are in order. All files are scratch files of one ingest on one machine.
"""

import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proteinlm.data.sources.digests import digest
from proteinlm.data.sources.uniprot import Record

NO_TAXON = -1
_HEADER = struct.Struct("<8Q")


def bucket_folder(work: Path, bucket: int) -> Path:
    """Return the folder with the files of a bucket."""
    return work / "spill" / f"{bucket:05d}"


@dataclass(frozen=True)
class Columns:
    """Records as columns of the same length n.

    Attributes:
        digests: uint8 [n, 16].
        lengths: uint32 [n].
        reviewed: uint8 [n].
        taxa: int32 [n]; -1 without a taxon.
        accessions: n accessions, ASCII.
        families: n texts: Pfam ids joined by `;`.
        sequences: the letters of all sequences, concatenated.
    """

    digests: np.ndarray
    lengths: np.ndarray
    reviewed: np.ndarray
    taxa: np.ndarray
    accessions: list[bytes]
    families: list[bytes]
    sequences: bytes

    def __len__(self) -> int:
        return len(self.lengths)


def columns(records: Sequence[Record], families: Sequence[bytes]) -> tuple[Columns, list[bytes]]:
    """Return records as columns, with their digests and an empty `sequences`, and the list of their sequences.

    Args:
        records: at least one record.
        families: families of each record, joined by `;`: those of the record and those of tables.
    """
    accessions, sequences, _, reviewed, taxa = zip(*records, strict=True)
    table = Columns(
        np.frombuffer(b"".join(map(digest, sequences)), np.uint8).reshape(-1, 16),
        np.fromiter(map(len, sequences), np.uint32, len(sequences)),
        np.array(reviewed, np.uint8),
        np.array([NO_TAXON if taxon is None else taxon for taxon in taxa], np.int32),
        [name.encode() for name in accessions],
        list(families),
        b"",
    )
    return table, list(sequences)


def numbers(digests: np.ndarray) -> np.ndarray:
    """Return digests uint8 [n, 16] as numbers uint64 [n, 2] (big endian), which have the same order."""
    return np.ascontiguousarray(digests).view(">u8").astype(np.uint64)


def distinct(digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort digests and find the distinct ones.

    Args:
        digests: uint8 [n, 16].

    Returns:
        The rows in the order of their digests, int64 [n], and the indices in this order at which a new digest begins.
    """
    keys = numbers(digests)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    keys = keys[order]
    first = np.ones(len(order), bool)
    first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return order, np.flatnonzero(first)


def sequences_of(columns: Columns, rows: np.ndarray) -> list[bytes]:
    """Return the sequences of the given rows."""
    ends = np.cumsum(columns.lengths, dtype=np.int64)[rows].tolist()
    return [
        columns.sequences[end - length : end] for end, length in zip(ends, columns.lengths[rows].tolist(), strict=True)
    ]


def bucket_codes(high: np.ndarray, num_buckets: int) -> np.ndarray:
    """Return the bucket of each digest, int64 [n].

    Bucket b of B contains the digests in [b/B, (b+1)/B), read as numbers in [0, 1).

    Args:
        high: uint64 [n], the first halves of the digests (see `numbers`).
        num_buckets: B, a power of two.
    """
    bits = num_buckets.bit_length() - 1
    return (high >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(high), np.int64)


def packed(records: Columns, sequences: list[bytes], num_buckets: int, source: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield, for records of source number `source`, each bucket and the chunk with its records."""
    codes = bucket_codes(numbers(records.digests)[:, 0], num_buckets)
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(num_buckets + 1))
    for bucket in np.flatnonzero(np.diff(edges)).tolist():
        rows = order[edges[bucket] : edges[bucket + 1]]
        indices = rows.tolist()
        parts = (
            records.digests[rows].tobytes(),
            records.lengths[rows].astype("<u4").tobytes(),
            records.reviewed[rows].tobytes(),
            records.taxa[rows].astype("<i4").tobytes(),
            b"\n".join([records.accessions[i] for i in indices]),
            b"\n".join([records.families[i] for i in indices]),
            b"".join([sequences[i] for i in indices]),
        )
        header = _HEADER.pack(len(indices), source, *(len(part) for part in parts[1:]))
        yield bucket, header + b"".join(parts)


def spill(records: Columns, sequences: list[bytes], work: Path, num_buckets: int, writer: str, source: int = 0) -> None:
    """Append records of source number `source` to the files of their buckets; `writer` is the name of the files."""
    for bucket, chunk in packed(records, sequences, num_buckets, source):
        with open(bucket_folder(work, bucket) / writer, "ab") as handle:
            handle.write(chunk)


def _chunks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    with open(path, "rb") as handle:
        while header := handle.read(_HEADER.size):
            count, _, *sizes = _HEADER.unpack(header)
            yield count, [handle.read(size) for size in (16 * count, *sizes)]


def read_bucket(work: Path, bucket: int) -> Columns:
    """Read all records of a bucket, in no particular order."""
    parts: list[list[bytes]] = [[] for _ in range(7)]
    for path in sorted(bucket_folder(work, bucket).iterdir()):
        for _, chunk in _chunks(path):
            for column, part in zip(parts, chunk, strict=True):
                column.append(part)
    digests, lengths, reviewed, taxa = (b"".join(part) for part in parts[:4])
    names, families = (b"\n".join(part).split(b"\n") if part else [] for part in parts[4:6])
    return Columns(
        np.frombuffer(digests, np.uint8).reshape(-1, 16),
        np.frombuffer(lengths, "<u4").astype(np.uint32),
        np.frombuffer(reviewed, np.uint8),
        np.frombuffer(taxa, "<i4").astype(np.int32),
        names,
        families,
        b"".join(parts[6]),
    )


def truncate_bucket(work: Path, bucket: int, source: int) -> None:
    """Remove from a bucket the records of source number `source` and later sources, and an incomplete chunk."""
    folder = bucket_folder(work, bucket)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        with open(path, "r+b") as handle:
            size = os.fstat(handle.fileno()).st_size
            end = 0
            while len(header := handle.read(_HEADER.size)) == _HEADER.size:
                count, number, *sizes = _HEADER.unpack(header)
                stop = end + _HEADER.size + 16 * count + sum(sizes)
                # Every chunk has records; after a power failure there may be zeros instead.
                if not count or number >= source or stop > size:
                    break
                end = handle.seek(stop)
            handle.truncate(end)


def delete_bucket(work: Path, bucket: int) -> None:
    """Delete the files of a bucket."""
    shutil.rmtree(bucket_folder(work, bucket), ignore_errors=True)
