"""Join of family tables of any size into sorted files on disk, in which table_lookup.py finds accessions.

1. Read each block of a table and append its rows to partitions, by a hash of the accession.
2. Sort each partition, and unite the rows of each accession.
3. Concatenate the partitions to files of columns, sorted by hash and accession.

The result does not depend on the number of processes or on the order of their work. Each process holds one block or one
partition in memory, however large the tables are.
"""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from proteinlm.data.families.ids import united
from proteinlm.data.families.table_counts import TableCounts, TableFile, TableResult
from proteinlm.data.families.table_formats import Row, TableBlock, parse_rows, table_blocks
from proteinlm.data.sources.files import SourceFile
from proteinlm.data.sources.locations import expand
from proteinlm.errors import InputError
from proteinlm.output.files import whole_file

INDEX = "tables.json"
"""Description of the joined tables. It is written last, so that the tables are complete if it exists."""
USED = "used"

COLUMNS = {"hashes": np.uint32, "keys": None, "checksums": np.uint64, "groups": np.uint32, "ends": np.uint64,
           "masks": np.uint64, "texts": np.uint8}  # fmt: skip
"""Files of the joined tables, and their dtypes.

One value for each row: keys (the accession, see `key`), hashes (of the keys), checksums (CRC64 in the table, or 0) and
groups (number of a combination of families). One value for each combination: ends (end of its text in `texts`, where
Pfam ids are joined by `;`) and masks (the tables that it comes from, one bit for each table).
"""

PARTITION_BYTES = 128 << 20
"""Intended size of a partition, in bytes of table text. Sorting a partition takes about as much memory."""
MAX_TABLES = 64
_MAX_PARTITIONS = 1 << 12
_KEY_BYTES = 32
_HEADER = struct.Struct("<5Q")


class TableTask(NamedTuple):
    """A block of table number `table`, whose rows go to `partitions` (a power of two) partitions below `folder`."""

    folder: Path
    partitions: int
    table: int
    block: TableBlock


class SortTask(NamedTuple):
    """A partition to sort; `width` is the length in bytes of the longest key of all partitions."""

    folder: Path
    partition: int
    width: int


def key(accession: bytes) -> bytes:
    """Return the key of an accession: the accession, or a hash of it if it is longer than 32 bytes."""
    if len(accession) <= _KEY_BYTES:
        return accession
    return accession[:15] + b"~" + hashlib.blake2b(accession, digest_size=8).hexdigest().encode()


def hashes_of(keys: Sequence[bytes]) -> np.ndarray:
    """Return the CRC-32 of each key, uint32 [n]."""
    return np.fromiter(map(crc32, keys), np.uint32, len(keys))


def partition_edges(partitions: int) -> np.ndarray:
    """Return the bounds of the partitions: i has the hashes from [i] to below [i + 1]; uint64 [partitions + 1]."""
    return np.arange(partitions + 1, dtype=np.uint64) << np.uint64(32 - (partitions.bit_length() - 1))


def run_here(function: Callable[[Any], Any], tasks: Iterable[Any], keyed: bool = False) -> Iterator[Any]:
    """Yield `function(task)` for each task, computed in this process; with `keyed`, (key, result) for (key, task)."""
    for task in tasks:
        yield (task[0], function(task[1])) if keyed else function(task)


def join_tables(
    paths: Iterable[str | os.PathLike],
    folder: Path,
    submit: Callable[..., Iterator[Any]] = run_here,
    advance: Callable[[float], None] = lambda share: None,
    partition_bytes: int = PARTITION_BYTES,
) -> None:
    """Read tables into `folder`, for `pfam_table.FamilyTables` to open.

    Args:
        paths: any of the formats of `pfam_formats`; the order does not matter.
        folder: new, or what a run that was killed has left.
        submit: calls a function with each of many tasks and yields the results in their order, as `run_here` does.
        advance: is told how much is done, from 0 to 1.
        partition_bytes: see PARTITION_BYTES.

    Raises:
        InputError: a file is unreadable, empty, or not one of its rows can be used.
    """
    sources = open_tables(paths)
    shutil.rmtree(folder, ignore_errors=True)
    partitions = num_partitions(sources, partition_bytes)
    for partition in range(partitions):
        _rows_folder(folder, partition).mkdir(parents=True)
    files, width = _read(sources, folder, partitions, submit, lambda share: advance(0.6 * share))
    counts = []
    for count in submit(sort_partition, (SortTask(folder, partition, width) for partition in range(partitions))):
        counts.append(count)
        advance(0.6 + 0.4 * len(counts) / partitions)
    _finish(folder, partitions, width, sum(counts), files)


def open_tables(paths: Iterable[str | os.PathLike]) -> list[SourceFile]:
    """Return the files of names and patterns, sorted by name; errors as for `join_tables`."""
    sources = sorted(map(SourceFile, expand([*paths])), key=lambda source: source.path)
    if len(sources) > MAX_TABLES:
        raise InputError(f"{len(sources)} family tables are more than {MAX_TABLES}: concatenate some of them.")
    return sources


def num_partitions(sources: Iterable[SourceFile], partition_bytes: int = PARTITION_BYTES) -> int:
    """Return the number of partitions for tables, a power of two."""
    text = sum(source.text_size for source in sources)
    return min(1 << (max(1, -(-text // partition_bytes)) - 1).bit_length(), _MAX_PARTITIONS)


def join_packed(chunks: Iterable[bytes], folder: Path, files: Sequence[TableFile]) -> None:
    """Join chunks of `packed_rows` as one partition.

    Args:
        chunks: all rows of the accessions that will be looked up.
        folder: new folder, for `table_lookup.FamilyTables`.
        files: the tables; the chunks contain their indices.
    """
    _rows_folder(folder, 0).mkdir(parents=True)
    with open(_rows_folder(folder, 0) / "chunks", "wb") as handle:
        handle.writelines(chunks)
        written = handle.tell()
    rows = sort_partition(SortTask(folder, 0, _KEY_BYTES)) if written else 0
    _finish(folder, 1, _KEY_BYTES, rows, files)


def _finish(folder: Path, partitions: int, width: int, rows: int, files: Sequence[TableFile]) -> None:
    _concatenate(folder, partitions)
    # One byte for each row, in which all processes mark the rows that are looked up.
    with open(folder / USED, "wb") as handle:
        handle.truncate(rows)
    index = {"partitions": partitions, "width": width, "rows": rows, "files": [asdict(file) for file in files]}
    with whole_file(folder / INDEX) as handle:
        json.dump(index, handle)


def _read(
    sources: list[SourceFile],
    folder: Path,
    partitions: int,
    submit: Callable[..., Iterator[Any]],
    advance: Callable[[float], None],
) -> tuple[list[TableFile], int]:
    formats: dict[int, str] = {}

    def tasks() -> Iterator[tuple[tuple[int, int], TableTask]]:
        for index, source in enumerate(sources):
            for before, block in table_blocks(source):
                formats[index] = block.format.name
                yield (index, before), TableTask(folder, partitions, index, block)

    counts = [TableCounts(source.path) for source in sources]
    width = 1
    size = sum(source.size for source in sources)
    for (index, before), result in submit(spill_rows, tasks(), keyed=True):
        counts[index].add(before, result)
        width = max(width, result.width)
        advance(sum(source.read for source in sources) / max(size, 1))
    files = [
        count.file(s.size, s.md5, formats.get(i, "")) for i, (count, s) in enumerate(zip(counts, sources, strict=True))
    ]
    return files, width


def spill_rows(task: TableTask) -> TableResult:
    """Parse a block of a table and append its rows to the partitions."""
    folder, partitions, table, block = task
    parsed = parse_rows(block)
    if not parsed.rows:
        return TableResult(parsed.number, len(parsed.rows), parsed.malformed, 0)
    keys = [key(name) for name, _, _ in parsed.rows]
    for partition, chunk in packed_rows(parsed.rows, keys, hashes_of(keys), table, partitions):
        with open(_rows_folder(folder, partition) / str(os.getpid()), "ab") as handle:
            handle.write(chunk)
    return TableResult(parsed.number, len(parsed.rows), parsed.malformed, max(map(len, keys)))


def packed_rows(
    rows: Sequence[Row], keys: Sequence[bytes], hashes: np.ndarray, table: int, partitions: int
) -> Iterator[tuple[int, bytes]]:
    """Yield each partition to which rows belong, and the chunk of its rows.

    Args:
        rows: at least one row.
        keys: key of each row.
        hashes: uint32 [n]; the hash of a row decides its partition.
        table: number of the table.
        partitions: number of partitions, a power of two.
    """
    _, families, checksums = zip(*rows, strict=True)
    order = np.argsort(hashes, kind="stable")
    edges = np.searchsorted(hashes[order], partition_edges(partitions)).tolist()
    indices = order.tolist()
    for partition, (start, stop) in enumerate(pairwise(edges)):
        if start < stop:
            part = indices[start:stop]
            columns = [b"\n".join([column[i] for i in part]) for column in (keys, families)]
            columns.append(bytes.fromhex(b"".join([checksums[i] for i in part]).decode()))
            yield partition, _HEADER.pack(table, len(part), *map(len, columns)) + b"".join(columns)


def _rows_folder(folder: Path, partition: int) -> Path:
    return folder / "rows" / f"{partition:04d}"


def _sorted_path(folder: Path, partition: int) -> Path:
    return folder / "rows" / f"{partition:04d}.npz"


class _Rows(NamedTuple):
    """Rows of a partition: keys, checksums uint64 [n], and codes int64 [n], which are indices of `origins`."""

    keys: list[bytes]
    checksums: np.ndarray
    codes: np.ndarray
    origins: list[tuple[bytes, int]]


def _read_rows(folder: Path) -> _Rows:
    keys: list[bytes] = []
    checksums, codes = [], []
    # From the families of a row and the number of its table to a code.
    index: dict[tuple[bytes, int], int] = {}
    for path in sorted(folder.iterdir()):
        with open(path, "rb") as handle:
            while header := handle.read(_HEADER.size):
                table, count, *sizes = _HEADER.unpack(header)
                names, families, packed = (handle.read(size) for size in sizes)
                keys += names.split(b"\n")
                rows = [index.setdefault((text, table), len(index)) for text in families.split(b"\n")]
                codes.append(np.array(rows, np.int64))
                checksums.append(np.frombuffer(packed, ">u8") if packed else np.zeros(count, np.uint64))
    return _Rows(keys, np.concatenate(checksums).astype(np.uint64), np.concatenate(codes), list(index))


def sort_partition(task: SortTask) -> int:
    """Sort a partition, unite rows with the same accession and checksum, and return the number of united rows."""
    folder = _rows_folder(task.folder, task.partition)
    if not any(folder.iterdir()):
        return 0
    rows = _read_rows(folder)
    hashes, keys = hashes_of(rows.keys), np.array(rows.keys, f"S{task.width}")
    order = np.lexsort((rows.checksums, keys, hashes))
    hashes, keys, checksums, codes = hashes[order], keys[order], rows.checksums[order], rows.codes[order]
    first = np.ones(len(keys), bool)
    first[1:] = (keys[1:] != keys[:-1]) | (checksums[1:] != checksums[:-1])
    starts = np.flatnonzero(first)
    groups, combinations = _united(codes, starts, rows.origins)
    texts = [text for text, _ in combinations]
    np.savez(
        _sorted_path(task.folder, task.partition),
        hashes=hashes[starts],
        keys=keys[starts],
        checksums=checksums[starts],
        groups=groups,
        ends=np.cumsum(np.fromiter(map(len, texts), np.uint64, len(texts)), dtype=np.uint64),
        masks=np.array([mask for _, mask in combinations], np.uint64),
        texts=np.frombuffer(b"".join(texts), np.uint8),
    )
    shutil.rmtree(folder)
    return len(starts)


def _united(codes: np.ndarray, starts: np.ndarray, origins: list) -> tuple[np.ndarray, list[tuple[bytes, int]]]:
    """Unite the families of each group of rows.

    Args:
        codes: int64 [n], indices of `origins`.
        starts: first row of each group.
        origins: families and number of the table.

    Returns:
        The combination of each group, uint32 [number of groups], and the combinations: Pfam ids, bits of the tables.
    """
    index: dict[tuple[bytes, int], int] = {}

    def combination(codes: Iterable[int]) -> int:
        chosen = [origins[code] for code in codes]
        mask = sum(1 << table for table in {table for _, table in chosen})
        return index.setdefault((united(text for text, _ in chosen), mask), len(index))

    # Combinations are numbered in the order of their rows, which does not depend on the speed of processes.
    sizes = np.diff(np.append(starts, len(codes))).tolist()
    known: dict[tuple[int, ...], int] = {}
    listed = codes.tolist()
    groups = []
    for start, size in zip(starts.tolist(), sizes, strict=True):
        distinct = (listed[start],) if size == 1 else tuple(sorted(set(listed[start : start + size])))
        group = known.get(distinct)
        if group is None:
            group = known[distinct] = combination(distinct)
        groups.append(group)
    return np.array(groups, np.uint32), list(index)


def _concatenate(folder: Path, partitions: int) -> None:
    groups, end = 0, 0
    handles = {name: open(folder / name, "wb") for name in COLUMNS}  # noqa: SIM115 (closed below)
    try:
        for partition in range(partitions):
            path = _sorted_path(folder, partition)
            if not path.exists():
                continue
            with np.load(path) as part:
                columns = {name: part[name] for name in COLUMNS}
            columns["groups"] = columns["groups"] + np.uint32(groups)
            columns["ends"] = columns["ends"] + np.uint64(end)
            groups += len(columns["ends"])
            end = int(columns["ends"][-1])
            for name, handle in handles.items():
                handle.write(columns[name].tobytes())
            path.unlink()
    finally:
        for handle in handles.values():
            handle.close()
    shutil.rmtree(folder / "rows")
