"""The steps of ingest as functions of files: map a block, reduce a bucket, write a shard, write the manifest.

map      parse records, add families, append them to buckets by digest        (spill.py)
reduce   sort a bucket by digest, make copies one record, add what a search found, split, serialise
         (splits by identity are decided before, of what is distinct in all buckets)
write    cut each split into shards of equal numbers, in the order of the digests; the manifest likewise

Each is independent of how many processes run it and in which order. Memory holds one block or one bucket a
process.
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
from proteinlm.data.dataset.shard_plan import Shard
from proteinlm.data.dataset.statistics import SplitStatistics, count_residues
from proteinlm.data.families.profile_search import add_found
from proteinlm.data.families.table_lookup import FamilyTables, Mismatch, own_families
from proteinlm.data.sources.files import TextBlock
from proteinlm.data.sources.spill import NO_TAXON, Columns, columns, distinct, numbers, read_bucket, sequences_of, spill
from proteinlm.data.sources.uniprot import Reject, parse
from proteinlm.data.splits import by_identity
from proteinlm.data.splits.assignments import UNLISTED, look_up, save_unmatched
from proteinlm.data.splits.rules import LISTED, NEAR, SPLITS, SplitsConfig, merge, split_codes

_ROW_GROUP = 1 << 17
_RESULT = "result.json"


class Drawing(NamedTuple):
    """The task to draw what the datasheet shows."""

    statistics: dict[str, SplitStatistics]


class MapResult(NamedTuple):
    """What became of one block.

    Attributes:
        number, taken: records that it held, and that were taken.
        rejects: the others.
        sources, mismatches: as in `pfam_table.Joined`.
    """

    number: int
    taken: int
    rejects: list[Reject]
    sources: Counter
    mismatches: list[Mismatch]


def map_block(
    block: TextBlock, work: Path, num_buckets: int, tables: FamilyTables | None, writer: str, source: int = 0
) -> MapResult:
    """Parse a block and append its records to the buckets.

    Args:
        block: of any source.
        work: scratch folder with a folder for each bucket.
        num_buckets: a power of two.
        tables: of families to add, if there are any.
        writer: name of the file in each bucket, the process's own.
        source: number of the block's source.
    """
    parsed = parse(block)
    if not parsed.records:
        return MapResult(parsed.number, 0, parsed.rejects, Counter(), [])
    joined = own_families(parsed.records) if tables is None else tables.add(parsed.records)
    made, sequences = columns(parsed.records, joined.families)
    spill(made, sequences, work, num_buckets, writer, source)
    return MapResult(parsed.number, len(parsed.records), parsed.rejects, joined.sources, joined.mismatches)


@dataclass
class ReduceResult:
    """What one bucket holds after reduction.

    Attributes:
        statistics: of each split.
        example_bytes: of each split.
        held_out: number of sequences with each held-out family.
        with_families: sequences that have a family at all.
        near: sequences that are in the manifest and in no split.
        unlisted: sequences that a published split does not have.
    """

    statistics: dict[str, SplitStatistics] = field(default_factory=dict)
    example_bytes: dict[str, int] = field(default_factory=dict)
    held_out: Counter = field(default_factory=Counter)
    with_families: int = 0
    near: int = 0
    unlisted: int = 0

    def update(self, other: "ReduceResult") -> None:
        """Add another bucket."""
        for split in SPLITS:
            self.statistics.setdefault(split, SplitStatistics()).update(other.statistics[split])
            self.example_bytes[split] = self.example_bytes.get(split, 0) + other.example_bytes[split]
        self.held_out.update(other.held_out)
        self.with_families += other.with_families
        self.near += other.near
        self.unlisted += other.unlisted

    def to_json(self) -> dict[str, Any]:
        """Return what `of_json` reads."""
        return {**vars(self), "statistics": {split: s.to_json() for split, s in self.statistics.items()}}

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> "ReduceResult":
        """Read what `to_json` and JSON made of one."""
        statistics = {split: SplitStatistics.from_json(s) for split, s in fields["statistics"].items()}
        return cls(**{**fields, "statistics": statistics, "held_out": Counter(fields["held_out"])})


@dataclass(frozen=True)
class _Unique:
    """Distinct sequences of a bucket by digest: for each a row of the columns, and what is merged."""

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
    for place in np.flatnonzero(copies > 1).tolist():
        group = order[starts[place] : starts[place] + copies[place]]
        alike = group.tolist()
        merged = merge(
            [columns.accessions[i] for i in alike],
            [columns.families[i] for i in alike],
            columns.reviewed[group].tolist(),
            columns.taxa[group].tolist(),
        )
        first = alike[merged.place]
        names[place], families[place], taxa[place] = columns.accessions[first], merged.families, columns.taxa[first]
        all_names[place] = b"\n".join(merged.accessions)
    return _Unique(rows, copies, names, families, taxa, all_names)


def _distinct(bucket: int, work: Path, config: SplitsConfig) -> tuple[Columns, _Unique, list[frozenset[bytes]]]:
    """Return the records of a bucket, what is distinct of them, and the held-out families of each of these."""
    columns = read_bucket(work, bucket)
    unique = _unique(columns)
    add_found(work, bucket, columns.digests[unique.rows], unique.families)
    held_out = frozenset(family.encode() for family in config.held_out)
    meets = functools.lru_cache(None)(lambda text: frozenset(text.split(b";")) & held_out)
    return columns, unique, [meets(text) if text else frozenset() for text in unique.families]


def write_distinct(bucket: int, work: Path, config: SplitsConfig) -> None:
    """Write the distinct sequences of a bucket for splits by identity."""
    columns, unique, met = _distinct(bucket, work, config)
    rows, ood = unique.rows, np.fromiter(map(bool, met), bool, len(met))
    sequences = sequences_of(columns, rows)
    by_identity.write_sequences(work, bucket, columns.digests[rows], columns.lengths[rows], ood, sequences)


def reduce_bucket(bucket: int, work: Path, config: SplitsConfig) -> ReduceResult:
    """Make copies one record, split, write examples and manifest rows."""
    columns, unique, met = _distinct(bucket, work, config)
    all_digests = columns.digests[unique.rows]
    decided = look_up(work, bucket, all_digests)
    held_out = np.fromiter(map(bool, met), bool, len(met))
    codes = split_codes(numbers(all_digests)[:, 0], held_out, config) if decided is None else decided.codes
    result = ReduceResult(
        with_families=sum(map(bool, unique.families)),
        near=int((codes == NEAR).sum()),
        unlisted=int((codes == UNLISTED).sum()),
    )
    for families in filter(None, met):
        result.held_out.update(family.decode() for family in families)
    folder = reduced_folder(work, bucket)
    # What a killed process has left.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for code, split in enumerate(LISTED):
        places = np.flatnonzero(codes == code)
        rows = unique.rows[places]
        lengths = columns.lengths[rows]
        digests = columns.digests[rows]
        if len(places):
            _write_rows(folder / f"{split}.arrow", split, unique, places, digests, lengths)
        if code == NEAR:
            continue
        sequences = sequences_of(columns, rows)
        statistics = SplitStatistics()
        statistics.add(lengths, count_residues(sequences))
        statistics.add_families([unique.families[place] for place in places.tolist()])
        result.statistics[split] = statistics
        result.example_bytes[split] = 0
        if len(places):
            result.example_bytes[split] = _write_examples(folder / split, unique, places, digests, sequences)
    if decided is not None:
        save_unmatched(folder, decided, all_digests, unique.names)
    (folder / _RESULT).write_text(json.dumps(result.to_json()))
    return result


def reduced_before(bucket: int, work: Path) -> ReduceResult:
    """Return what `reduce_bucket` has returned for a bucket."""
    return ReduceResult.of_json(json.loads((reduced_folder(work, bucket) / _RESULT).read_text()))


def add_up(results: Iterable[ReduceResult]) -> tuple[ReduceResult, dict[str, list[int]]]:
    """Return the sum of all buckets, and for each of `LISTED` how many rows of it each bucket has, in order."""
    total = ReduceResult()
    counts: dict[str, list[int]] = {split: [] for split in LISTED}
    for result in results:
        for split in SPLITS:
            counts[split].append(result.statistics[split].count)
        counts["near"].append(result.near)
        total.update(result)
    return total, counts


def reduced_folder(work: Path, bucket: int) -> Path:
    """Return the folder of what one bucket was reduced to."""
    return work / "reduced" / f"{bucket:05d}"


def _write_examples(path: Path, unique: _Unique, places, digests: np.ndarray, sequences: list[bytes]) -> int:
    """Write the examples one after another, and their ends beside them."""
    raw = digests.tobytes()
    examples = [
        encode_example(unique.names[place], raw[16 * i : 16 * i + 16], unique.families[place], sequence)
        for i, (place, sequence) in enumerate(zip(places.tolist(), sequences, strict=True))
    ]
    ends = np.cumsum(np.fromiter(map(len, examples), np.int64, len(examples)))
    with open(path.with_suffix(".examples"), "wb") as handle:
        handle.writelines(examples)
    with open(path.with_suffix(".ends"), "wb") as handle:
        handle.write(ends.tobytes())
    return int(ends[-1])


def _lists(texts: list[bytes], separator: bytes) -> pa.Array:
    """Return list<string>; an empty text is an empty list."""
    sizes = [text.count(separator) + 1 if text else 0 for text in texts]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    values = separator.join(filter(None, texts)).decode().split(separator.decode()) if offsets[-1] else []
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.string()))


def _write_rows(path: Path, split: str, unique: _Unique, places, digests: np.ndarray, lengths: np.ndarray) -> None:
    index = places.tolist()
    taxa = unique.taxa[places]
    batch = pa.record_batch(
        [
            pa.array([unique.names[i].decode() for i in index], pa.string()),
            pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(index), [None, pa.py_buffer(digests.tobytes())]),
            pa.array(lengths.astype(np.int32)),
            _lists([unique.families[i] for i in index], b";"),
            pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(index), np.int8)), [split]),
            pa.array(unique.copies[places].astype(np.int32)),
            _lists([unique.all_names[i] for i in index], b"\n"),
            pa.array(taxa, pa.int32(), mask=taxa == NO_TAXON),
        ],
        schema=MANIFEST_SCHEMA,
    )
    with open(path, "wb") as handle, pa.ipc.new_file(handle, MANIFEST_SCHEMA) as writer:
        writer.write_batch(batch)


def write_shard(shard: Shard, work: Path, folder: Path, name: str) -> None:
    """Write one ArrayRecord file.

    Raises:
        OSError: the disk is full, or the file does not hold what was written.
    """
    path = folder / shard_name(name, shard.split, shard.index, shard.num_shards)
    try:
        writer = array_record_module.ArrayRecordWriter(str(path), RECORD_OPTIONS)
        for bucket, start, stop in shard.pieces:
            for example in _examples(reduced_folder(work, bucket) / shard.split, start, stop):
                writer.write(example)
        writer.close()
        reader = array_record_module.ArrayRecordReader(str(path))
        found = reader.num_records()
        reader.close()
    except RuntimeError as error:
        # ArrayRecord has one exception for everything; its text ends with what the system said.
        code = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else errno.EIO
        raise OSError(code, str(error), str(path)) from error
    if found != shard.length:
        raise OSError(errno.EIO, f"{found} records can be read of {shard.length} that were written", str(path))


def _examples(path: Path, start: int, stop: int) -> Iterator[bytes]:
    ends = np.fromfile(path.with_suffix(".ends"), np.int64)
    ends = np.concatenate(([0], ends))[start : stop + 1]
    with open(path.with_suffix(".examples"), "rb") as handle:
        handle.seek(int(ends[0]))
        for size in np.diff(ends).tolist():
            yield handle.read(size)


def write_manifest(bucket_counts: Mapping[str, Sequence[int]], work: Path, folder: Path) -> str:
    """Write the manifest in row groups of equal size and return the dataset's fingerprint.

    The fingerprint is SHA-256 over each split's name, number of sequences and digests, in order; near sequences, which
    are in no split, are no part of it.
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
                # Each file has its own dictionary of one split; row groups cross splits.
                rest = pa.concat_tables([rest, rows]).unify_dictionaries()
                while len(rest) >= _ROW_GROUP:
                    writer.write_table(rest.slice(0, _ROW_GROUP).combine_chunks(), row_group_size=_ROW_GROUP)
                    rest = rest.slice(_ROW_GROUP)
        if len(rest):
            writer.write_table(rest.combine_chunks(), row_group_size=_ROW_GROUP)
    return state.hexdigest()
