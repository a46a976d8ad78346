"""Steps of an ingest as functions of files: map a block, reduce a bucket, write a file of the dataset.

map      parse the records of a block, add families, append the records to buckets by digest (sources/spill.py)
reduce   sort a bucket by digest, merge copies into one record, add families that the search found, assign splits,
         serialise (splits by identity are computed before this step, from the distinct sequences of all buckets)
write    cut each split into shards of equal size, in the order of the digests; write the manifest

The results do not depend on the number of processes or on the order of the tasks. A process holds one block or one
bucket in memory.
"""

import errno
import functools
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

from proteinlm.data.dataset.dataset import MANIFEST, MANIFEST_SCHEMA, RECORD_OPTIONS, encode_example, shard_name
from proteinlm.data.dataset.datasheet import draw_figures
from proteinlm.data.dataset.shard_plan import Shard
from proteinlm.data.dataset.statistics import SplitStatistics, count_residues
from proteinlm.data.families.profile_search import add_found
from proteinlm.data.families.table_join import INDEX
from proteinlm.data.families.table_lookup import FamilyTables, Mismatch, own_families
from proteinlm.data.sources.files import TextBlock
from proteinlm.data.sources.spill import NO_TAXON, Columns, columns, distinct, numbers, read_bucket, sequences_of, spill
from proteinlm.data.sources.uniprot import Reject, parse
from proteinlm.data.splits import by_identity
from proteinlm.data.splits.assignments import UNLISTED, look_up, save_unmatched
from proteinlm.data.splits.rules import LISTED, NEAR, SPLITS, SplitsConfig, merge, split_codes

_ROW_GROUP = 1 << 17
"""Rows in a row group of the manifest."""
_RESULT = "result.json"


class MapResult(NamedTuple):
    """Counts and rejects of one block.

    Attributes:
        number, taken: number of records in the block, and of those that were accepted.
        rejects: the rejected records.
        sources, mismatches: as in `table_lookup.Joined`.
    """

    number: int
    taken: int
    rejects: list[Reject]
    sources: Counter
    mismatches: list[Mismatch]


@functools.lru_cache(1)
def _family_tables(work: Path) -> FamilyTables | None:
    """Open the joined tables of families once in each process; None without tables."""
    folder = work / "families"
    return FamilyTables(folder) if (folder / INDEX).is_file() else None


def close_family_tables() -> None:
    """Close the tables that this process has opened, so that another ingest opens its own."""
    _family_tables.cache_clear()


def map_block(task: tuple[int, TextBlock], work: Path, num_buckets: int) -> MapResult:
    """Parse a block and append its records to the buckets.

    Args:
        task: index of the source, and a block of it.
        work: scratch folder; it has a folder for each bucket and the joined tables of families, if there are any.
        num_buckets: number of buckets, a power of two.
    """
    source, block = task
    parsed = parse(block)
    if not parsed.records:
        return MapResult(parsed.number, 0, parsed.rejects, Counter(), [])
    tables = _family_tables(work)
    joined = own_families(parsed.records) if tables is None else tables.add(parsed.records)
    # Each process has a file of its own in each bucket.
    spill(*columns(parsed.records, joined.families), work, num_buckets, str(os.getpid()), source)
    return MapResult(parsed.number, len(parsed.records), parsed.rejects, joined.sources, joined.mismatches)


@dataclass
class ReduceResult:
    """Counts of one bucket, or of several together, after reduction.

    Attributes:
        statistics: statistics of each split.
        example_bytes: bytes of the serialised examples of each split.
        held_out: number of sequences of each held-out family.
        with_families: number of sequences that have at least one family.
        near: number of sequences that are in the manifest but in no split.
        unlisted: number of sequences that the published manifest does not list.
    """

    statistics: dict[str, SplitStatistics] = field(default_factory=dict)
    example_bytes: dict[str, int] = field(default_factory=dict)
    held_out: Counter = field(default_factory=Counter)
    with_families: int = 0
    near: int = 0
    unlisted: int = 0

    def update(self, other: "ReduceResult") -> None:
        """Add the counts of another bucket."""
        for split in SPLITS:
            self.statistics.setdefault(split, SplitStatistics()).update(other.statistics[split])
            self.example_bytes[split] = self.example_bytes.get(split, 0) + other.example_bytes[split]
        self.held_out.update(other.held_out)
        self.with_families += other.with_families
        self.near += other.near
        self.unlisted += other.unlisted

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON, which `from_json` reads."""
        return {**vars(self), "statistics": {split: s.to_json() for split, s in self.statistics.items()}}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "ReduceResult":
        """Read a dictionary of `to_json`."""
        statistics = {split: SplitStatistics.from_json(s) for split, s in fields["statistics"].items()}
        return cls(**{**fields, "statistics": statistics, "held_out": Counter(fields["held_out"])})


@dataclass(frozen=True)
class _Unique:
    """Distinct sequences of a bucket in the order of their digests.

    Attributes:
        rows: for each sequence, the row of one of its records in the columns of the bucket.
        copies: number of records.
        names: canonical accession.
        families: families of all its records, joined by `;`.
        taxa: taxon of the canonical record.
        all_names: accessions of all records, joined by line breaks.
    """

    rows: np.ndarray
    copies: np.ndarray
    names: list[bytes]
    families: list[bytes]
    taxa: np.ndarray
    all_names: list[bytes]


def _unique(columns: Columns) -> _Unique:
    order, starts = distinct(columns.digests)
    copies = np.diff(np.append(starts, len(order)))
    rows = order[starts]
    names = [columns.accessions[i] for i in rows.tolist()]
    families = [columns.families[i] for i in rows.tolist()]
    taxa = columns.taxa[rows]
    all_names = names.copy()
    for index in np.flatnonzero(copies > 1).tolist():
        group = order[starts[index] : starts[index] + copies[index]]
        group_rows = group.tolist()
        merged = merge(
            [columns.accessions[i] for i in group_rows],
            [columns.families[i] for i in group_rows],
            columns.reviewed[group].tolist(),
            columns.taxa[group].tolist(),
        )
        canonical = group_rows[merged.place]
        names[index], taxa[index] = columns.accessions[canonical], columns.taxa[canonical]
        families[index], all_names[index] = merged.families, b"\n".join(merged.accessions)
    return _Unique(rows, copies, names, families, taxa, all_names)


def _distinct(bucket: int, work: Path, config: SplitsConfig) -> tuple[Columns, _Unique, list[frozenset[bytes]]]:
    """Return the records of a bucket, its distinct sequences, and the held-out families of each sequence."""
    columns = read_bucket(work, bucket)
    unique = _unique(columns)
    add_found(work, bucket, columns.digests[unique.rows], unique.families)
    held_out = frozenset(family.encode() for family in config.held_out)
    held_out_of = functools.lru_cache(None)(lambda text: frozenset(text.split(b";")) & held_out)
    return columns, unique, [held_out_of(text) if text else frozenset() for text in unique.families]


def write_distinct(bucket: int, work: Path, config: SplitsConfig) -> None:
    """Write the distinct sequences of a bucket, from which splits by identity are computed."""
    columns, unique, held_out = _distinct(bucket, work, config)
    rows, ood = unique.rows, np.fromiter(map(bool, held_out), bool, len(held_out))
    sequences = sequences_of(columns, rows)
    by_identity.write_sequences(work, bucket, columns.digests[rows], columns.lengths[rows], ood, sequences)


def reduce_bucket(bucket: int, work: Path, config: SplitsConfig) -> ReduceResult:
    """Merge the copies of each sequence, assign splits, and write examples and manifest rows of a bucket."""
    columns, unique, held_out_families = _distinct(bucket, work, config)
    all_digests = columns.digests[unique.rows]
    assigned = look_up(work, bucket, all_digests)
    held_out = np.fromiter(map(bool, held_out_families), bool, len(held_out_families))
    codes = split_codes(numbers(all_digests)[:, 0], held_out, config) if assigned is None else assigned.codes
    result = ReduceResult(
        with_families=sum(map(bool, unique.families)),
        near=int((codes == NEAR).sum()),
        unlisted=int((codes == UNLISTED).sum()),
    )
    for families in filter(None, held_out_families):
        result.held_out.update(family.decode() for family in families)
    folder = reduced_folder(work, bucket)
    # A process that was killed may have left files there.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for code, split in enumerate(LISTED):
        indices = np.flatnonzero(codes == code)
        rows = unique.rows[indices]
        lengths = columns.lengths[rows]
        digests = columns.digests[rows]
        if len(indices):
            _write_rows(folder / f"{split}.arrow", split, unique, indices, digests, lengths)
        if code == NEAR:
            continue
        sequences = sequences_of(columns, rows)
        statistics = SplitStatistics()
        statistics.add(lengths, count_residues(sequences))
        statistics.add_families([unique.families[i] for i in indices.tolist()])
        result.statistics[split] = statistics
        result.example_bytes[split] = 0
        if len(indices):
            result.example_bytes[split] = _write_examples(folder / split, unique, indices, digests, sequences)
    if assigned is not None:
        save_unmatched(folder, assigned, all_digests, unique.names)
    (folder / _RESULT).write_text(json.dumps(result.to_json()))
    return result


def load_reduced(bucket: int, work: Path) -> ReduceResult:
    """Read the result that `reduce_bucket` returned for a bucket."""
    return ReduceResult.from_json(json.loads((reduced_folder(work, bucket) / _RESULT).read_text()))


def sum_buckets(results: Iterable[ReduceResult]) -> tuple[ReduceResult, dict[str, list[int]]]:
    """Return the sum over all buckets, and the number of manifest rows of each bucket, for each of `LISTED`."""
    total = ReduceResult()
    counts: dict[str, list[int]] = {split: [] for split in LISTED}
    for result in results:
        for split in SPLITS:
            counts[split].append(result.statistics[split].count)
        counts["near"].append(result.near)
        total.update(result)
    return total, counts


def reduced_folder(work: Path, bucket: int) -> Path:
    """Return the folder that holds the reduced files of a bucket."""
    return work / "reduced" / f"{bucket:05d}"


def _write_examples(path: Path, unique: _Unique, indices, digests: np.ndarray, sequences: list[bytes]) -> int:
    """Write examples one after another, and the offsets of their ends to a second file; return their size in bytes."""
    raw = digests.tobytes()
    examples = [
        encode_example(unique.names[index], raw[16 * i : 16 * i + 16], unique.families[index], sequence)
        for i, (index, sequence) in enumerate(zip(indices.tolist(), sequences, strict=True))
    ]
    ends = np.cumsum(np.fromiter(map(len, examples), np.int64, len(examples)))
    with open(path.with_suffix(".examples"), "wb") as handle:
        handle.writelines(examples)
    with open(path.with_suffix(".ends"), "wb") as handle:
        handle.write(ends.tobytes())
    return int(ends[-1])


def _lists(texts: list[bytes], separator: bytes) -> pa.Array:
    """Split each text at the separator and return list<string>; an empty text becomes an empty list."""
    sizes = [text.count(separator) + 1 if text else 0 for text in texts]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    values = separator.join(filter(None, texts)).decode().split(separator.decode()) if offsets[-1] else []
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.string()))


def _write_rows(path: Path, split: str, unique: _Unique, indices, digests: np.ndarray, lengths: np.ndarray) -> None:
    """Write the manifest rows of one split of a bucket as an Arrow file."""
    index = indices.tolist()
    taxa = unique.taxa[indices]
    batch = pa.record_batch(
        [
            pa.array([unique.names[i].decode() for i in index], pa.string()),
            pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(index), [None, pa.py_buffer(digests.tobytes())]),
            pa.array(lengths.astype(np.int32)),
            _lists([unique.families[i] for i in index], b";"),
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(index), np.int8)), [split]),
            pa.array(unique.copies[indices].astype(np.int32)),
            _lists([unique.all_names[i] for i in index], b"\n"),
            pa.array(taxa, pa.int32(), mask=taxa == NO_TAXON),
        ],
        schema=MANIFEST_SCHEMA,
    )
    with open(path, "wb") as handle, pa.ipc.new_file(handle, MANIFEST_SCHEMA) as writer:
        writer.write_batch(batch)


class Drawing(NamedTuple):
    """The task of drawing the figures of the datasheet."""

    statistics: dict[str, SplitStatistics]


def write_file(task: Shard | Drawing | Mapping[str, Sequence[int]], work: Path, folder: Path, name: str) -> str | None:
    """Write one file of the dataset.

    Args:
        task: a shard, the figures, or the manifest (number of rows of each split in each bucket).
        work: scratch folder.
        folder: folder of the dataset.
        name: name of the dataset.

    Returns:
        The fingerprint of the dataset for the manifest, else None.
    """
    if isinstance(task, Shard):
        write_shard(task, work, folder, name)
    elif isinstance(task, Drawing):
        draw_figures(folder, task.statistics)
    else:
        return write_manifest(task, work, folder)
    return None


def write_shard(shard: Shard, work: Path, folder: Path, name: str) -> None:
    """Write one ArrayRecord file, and count its records.

    Raises:
        OSError: the disk is full, or the number of records in the file is wrong.
    """
    path = folder / shard_name(name, shard.split, shard.index, shard.num_shards)
    try:
        writer = array_record_module.ArrayRecordWriter(str(path), RECORD_OPTIONS)
        for bucket, start, stop in shard.pieces:
            for example in _examples(reduced_folder(work, bucket) / shard.split, start, stop):
                writer.write(example)
        writer.close()
        reader = array_record_module.ArrayRecordReader(str(path))
        num_records = reader.num_records()
        reader.close()
    except RuntimeError as error:
        # ArrayRecord raises RuntimeError for every failure; the message ends with the text of the system's error.
        code = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else errno.EIO
        raise OSError(code, str(error), str(path)) from error
    if num_records != shard.length:
        text = f"{shard.length} records were written and {num_records} can be read"
        raise OSError(errno.EIO, text, str(path))


def _examples(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """Yield examples start to stop (exclusive) of a reduced split."""
    ends = np.fromfile(path.with_suffix(".ends"), np.int64)
    ends = np.concatenate(([0], ends))[start : stop + 1]
    with open(path.with_suffix(".examples"), "rb") as handle:
        handle.seek(int(ends[0]))
        for size in np.diff(ends).tolist():
            yield handle.read(size)


def write_manifest(bucket_counts: Mapping[str, Sequence[int]], work: Path, folder: Path) -> str:
    """Write the manifest in row groups of equal size and return the fingerprint of the dataset.

    The fingerprint is the SHA-256 of the name, the number of sequences and the digests of each split, in order. Near
    sequences are in no split and do not enter it.
    """
    state = hashlib.sha256()
    rest = MANIFEST_SCHEMA.empty_table()
    options = {"compression": "zstd", "use_dictionary": ["split", "families.list.element"]}
    with pq.ParquetWriter(folder / MANIFEST, MANIFEST_SCHEMA, **options) as writer:
        for split, counts in bucket_counts.items():
            if split in SPLITS:
                state.update(f"{split} {sum(counts)}\n".encode())
            for bucket in np.flatnonzero(counts).tolist():
                with pa.OSFile(str(reduced_folder(work, bucket) / f"{split}.arrow")) as file:
                    rows = pa.ipc.open_file(file).read_all()
                if split in SPLITS:
                    state.update(b"".join(rows.column("digest").to_pylist()))
                # The dictionary of each file holds one split only, but a row group may hold rows of two.
                rest = pa.concat_tables([rest, rows]).unify_dictionaries()
                while len(rest) >= _ROW_GROUP:
                    writer.write_table(rest.slice(0, _ROW_GROUP).combine_chunks(), row_group_size=_ROW_GROUP)
                    rest = rest.slice(_ROW_GROUP)
        if len(rest):
            writer.write_table(rest.combine_chunks(), row_group_size=_ROW_GROUP)
    return state.hexdigest()
