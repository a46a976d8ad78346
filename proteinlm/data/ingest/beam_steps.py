"""The steps of the Beam engine: what a worker does with one element. What it knows besides is a `Job`.

Records travel as the chunks that the local engine writes (spill.py), one for each block and bucket, and each bucket is
reduced by the function that the local engine calls. What is small is a note in the scratch folder, for the machine that
launched the job. A runner may do the same element twice, at the same time even: whatever is written appears whole, and
the second time it is the same.
"""

import contextlib
import json
import os
import pickle
import shutil
import tempfile
import uuid
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam  # pyright: ignore[reportMissingImports]
import numpy as np
from apache_beam.metrics.metric import Metrics  # pyright: ignore[reportMissingImports]
from apache_beam.pvalue import TaggedOutput  # pyright: ignore[reportMissingImports]

from proteinlm.data.dataset.dataset import MANIFEST
from proteinlm.data.dataset.shard_plan import plan_files
from proteinlm.data.families import profile_search
from proteinlm.data.families.table_counts import TableCounts, TableFile, TableResult
from proteinlm.data.families.table_formats import TableBlock, TableFormat, parse_rows, table_blocks, table_formats
from proteinlm.data.families.table_join import hashes_of, join_packed, key, packed_rows, partition_edges
from proteinlm.data.families.table_lookup import FamilyTables, own_families
from proteinlm.data.ingest import steps as stages
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.sources.files import SourceFile, TextBlock
from proteinlm.data.sources.names import protein_of
from proteinlm.data.sources.spill import bucket_folder, columns, packed
from proteinlm.data.sources.uniprot import Record, parse
from proteinlm.errors import InputError

ACCOUNTS = "accounts"
"""Output of steps beside the records: what was read, for the lists of rejects and counts."""
NOTES = ("sources", "tables", "rows", ACCOUNTS, "joined", "searched", "fingerprint", "troubles")
"""Folders in the scratch folder."""
_BLOCKS_OF_ACCOUNT = 64


@dataclass(frozen=True)
class Job:
    """What every step knows.

    Attributes:
        work: scratch folder; every worker reaches it under this name.
        folder: of the dataset, likewise.
        config: of the dataset.
        num_buckets: a power of two.
        num_partitions: of the accessions of records and tables, a power of two; 0 without tables.
        tables: names of the tables, as the dataset's provenance shows them.
        formats: of the tables; those that are registered where the job is launched.
    """

    work: Path
    folder: Path
    config: IngestConfig
    num_buckets: int
    num_partitions: int
    tables: tuple[str, ...]
    formats: tuple[type[TableFormat], ...] = field(default_factory=table_formats)


@contextlib.contextmanager
def _attempt(job: Job) -> Iterator[Path]:
    """Give a new folder; what is whole is renamed from there."""
    folder = job.work / "attempts" / uuid.uuid4().hex
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def note(job: Job, kind: str, name: str, content: bytes) -> None:
    """Leave a note for the machine that launched the job."""
    with _attempt(job) as folder:
        (folder / name).write_bytes(content)
        os.replace(folder / name, job.work / kind / name)


class _Step(beam.DoFn):
    """One step: `outputs` of an element, which tells of what the user can mend, since runners pass on little of it."""

    def __init__(self, job: Job):
        super().__init__()
        self.job = job

    def process(self, element):
        """Yield `outputs`."""
        try:
            yield from self.outputs(element)
        except (InputError, OSError) as error:
            # A disk that is full has no room for a note.
            with contextlib.suppress(OSError):
                note(self.job, "troubles", uuid.uuid4().hex, str(error).encode())
            raise

    @abstractmethod
    def outputs(self, element: Any) -> Iterable[Any]:
        """Yield what the step makes of an element."""


class ReadSource(_Step):
    """(index, path) -> (index, number, *block) for each block of a source."""

    def outputs(self, element):
        """Read a file from its beginning to its end."""
        index, path = element
        number = 0
        file = SourceFile(path)
        for number, block in enumerate(file.blocks(self.job.config.block_bytes), 1):
            yield index, number - 1, *block
        end = {"size": file.size, "md5": file.md5, "blocks": number}
        note(self.job, "sources", f"{index}", json.dumps(end).encode())


class MapBlock(_Step):
    """(index, number, *block) -> (bucket, chunk), or (partition, records) if there are tables; ACCOUNTS."""

    def outputs(self, element):
        """Parse a block."""
        index, number, form, data, last = element
        parsed = parse(TextBlock(form, data, last))
        records, sources = parsed.records, Counter()
        if records and self.job.num_partitions:
            for partition, part in _by_partition(records, self.job.num_partitions):
                yield partition, pickle.dumps((index, number, part, [tuple(records[place]) for place in part]))
        elif records:
            joined = own_families(records)
            sources = joined.sources
            yield from packed(*columns(records, joined.families), self.job.num_buckets)
        Metrics.counter("proteinlm", "records").inc(parsed.number)
        Metrics.counter("proteinlm", "rejected").inc(len(parsed.rejects))
        result = stages.MapResult(parsed.number, len(records), parsed.rejects, sources, [])
        yield _account(index, number, form, result)


def _account(index: int, number: int, form: str, result: stages.MapResult) -> TaggedOutput:
    return TaggedOutput(ACCOUNTS, ((index, number // _BLOCKS_OF_ACCOUNT), pickle.dumps((number, form, result))))


def _partition_hashes(accessions: Iterable[bytes]) -> np.ndarray:
    """Return a hash for each accession, uint32 [n], that is the same for a protein and its isoforms.

    An isoform takes the families of its protein, so that both must be in one partition.
    """
    return hashes_of(list(map(_without_isoform, accessions)))


def _without_isoform(accession: bytes) -> bytes:
    # X-1-2 is an isoform of X-1, which is one of X.
    while (protein := protein_of(accession)) is not None:
        accession = protein
    return accession


def _by_partition(records: Sequence[Record], partitions: int) -> Iterator[tuple[int, list[int]]]:
    """Yield each partition that records belong to, and their places."""
    hashes = _partition_hashes(record.accession.encode() for record in records)
    codes = np.searchsorted(partition_edges(partitions), hashes, "right") - 1
    for partition in np.unique(codes).tolist():
        yield partition, np.flatnonzero(codes == partition).tolist()


class ReadTable(_Step):
    """(index, path) -> (index, lines before, block) for each block of a table of families."""

    def outputs(self, element):
        """Read a file from its beginning to its end."""
        index, path = element
        kind = ""
        source = SourceFile(path)
        for before, block in table_blocks(source, formats=self.job.formats):
            kind = block.format.name
            yield index, before, pickle.dumps(block)
        end = {"bytes": source.size, "md5": source.md5, "format": kind}
        note(self.job, "tables", f"{index}", json.dumps(end).encode())


class MapTable(_Step):
    """(index, lines before, block) -> (partition, chunk of rows); ACCOUNTS."""

    def outputs(self, element):
        """Parse a block of a table."""
        index, before, data = element
        block: TableBlock = pickle.loads(data)
        parsed = parse_rows(block)
        names = [name for name, _, _ in parsed.rows]
        if names:
            hashes = _partition_hashes(names)
            yield from packed_rows(parsed.rows, list(map(key, names)), hashes, index, self.job.num_partitions)
        result = TableResult(parsed.number, len(names), parsed.malformed, 0)
        yield TaggedOutput(ACCOUNTS, (index, pickle.dumps((before, result))))


class CountTable(_Step):
    """(index, what was read of each block of a table) -> a note."""

    def outputs(self, element):
        """Count, and refuse a table of which nothing can be used."""
        index, parts = element
        counts = TableCounts(self.job.tables[index])
        for before, result in sorted(map(pickle.loads, parts)):
            counts.add(before, result)
        note(self.job, "rows", f"{index}", json.dumps(asdict(counts.file(0, "", ""))).encode())
        return ()


class JoinFamilies(_Step):
    """(partition, rows of tables and records) -> (bucket, chunk); ACCOUNTS and a note."""

    def outputs(self, element):
        """Add families to the records of a partition."""
        partition, groups = element
        files = [TableFile(path, 0, "", "", 0, 0, ()) for path in self.job.tables]
        sources: Counter = Counter()
        with tempfile.TemporaryDirectory(prefix="proteinlm-families-") as place:
            join_packed(groups["rows"], Path(place) / "families", files)
            tables = FamilyTables(Path(place) / "families")
            for part in groups["records"]:
                index, number, places, fields = pickle.loads(part)
                records = [Record(*one) for one in fields]
                joined = tables.add(records)
                sources.update(joined.sources)
                yield from packed(*columns(records, joined.families), self.job.num_buckets)
                if joined.mismatches:
                    mismatches = [one._replace(place=places[one.place]) for one in joined.mismatches]
                    yield _account(index, number, "", stages.MapResult(0, 0, [], Counter(), mismatches))
            unknown = tables.unused()
        content = {"sources": sources, "unknown": unknown}
        note(self.job, "joined", f"{partition}", json.dumps(content).encode())


class Account(_Step):
    """((index, group), what was read of some blocks of a source) -> a note, in the order of the blocks."""

    def outputs(self, element):
        """Put blocks in order, and what families made of each beside it."""
        (index, group), parts = element
        blocks: dict[int, tuple[str, stages.MapResult]] = {}
        mismatches: dict[int, list] = {}
        for number, form, result in map(pickle.loads, parts):
            if form:
                blocks[number] = form, result
            mismatches.setdefault(number, []).extend(result.mismatches)
        made = []
        for number, (form, result) in sorted(blocks.items()):
            found = sorted(mismatches[number], key=lambda one: one.place)
            made.append((form, result._replace(mismatches=found)))
        note(self.job, ACCOUNTS, f"{index:08d}-{group:08d}", pickle.dumps(made))
        return ()


class Reduce(_Step):
    """(bucket, chunks) -> bucket, when what it was reduced to is in the scratch folder."""

    def outputs(self, element):
        """Reduce a bucket on the worker's own disk."""
        bucket, chunks = element
        job, config = self.job, self.job.config
        with tempfile.TemporaryDirectory(prefix="proteinlm-bucket-") as place, _attempt(job) as attempt:
            own = Path(place)
            bucket_folder(own, bucket).mkdir(parents=True)
            with open(bucket_folder(own, bucket) / "chunks", "wb") as handle:
                handle.writelines(chunks)
            if config.profiles:
                self._search(bucket, own)
            result = stages.reduce_bucket(bucket, own, config.splits)
            whole = shutil.copytree(stages.reduced_folder(own, bucket), attempt / "reduced")
            _appear(whole, stages.reduced_folder(job.work, bucket))
        Metrics.counter("proteinlm", "sequences").inc(sum(s.count for s in result.statistics.values()))
        yield bucket

    def _search(self, bucket: int, own: Path) -> None:
        (own / "profiles").symlink_to(self.job.work / "profiles")
        chosen = profile_search.choose(bucket, own, self.job.config.search_all)
        found = sum(profile_search.search_piece(piece, own) for piece in profile_search.pieces(chosen))
        searched = profile_search.Searched(chosen.number, found, chosen.too_long)
        note(self.job, "searched", f"{bucket}", json.dumps(asdict(searched)).encode())


def _appear(whole: Path, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    try:
        os.rename(whole, folder)
    except OSError:
        # Another worker was first.
        if not folder.is_dir():
            raise


class PlanFiles(_Step):
    """All buckets, when they are reduced -> (file, task) of each file of the dataset."""

    def outputs(self, element):
        """Plan what `WriteFile` does."""
        missing = set(range(self.job.num_buckets)).difference(element)
        if missing:
            raise RuntimeError(f"buckets {sorted(missing)} were not reduced")
        for file, task in plan(self.job)[1].items():
            yield file, pickle.dumps(task)


def plan(job: Job) -> tuple[stages.ReduceResult, dict[str, Any]]:
    """Return the sum of the reduced buckets, and the files to write (see `shard_plan.plan_files`)."""
    reduced, counts = stages.add_up(stages.reduced_before(bucket, job.work) for bucket in range(job.num_buckets))
    return reduced, plan_files(job.config.name, counts, reduced.example_bytes, job.config.shards)


class WriteFile(_Step):
    """(file, task) -> nothing, when the shard or the manifest is in the dataset's folder; a note of the fingerprint."""

    def outputs(self, element):
        """Write one file."""
        file, data = element
        task, job = pickle.loads(data), self.job
        with _attempt(job) as attempt:
            if file == MANIFEST:
                fingerprint = stages.write_manifest(task, job.work, attempt)
                note(job, "fingerprint", "fingerprint", fingerprint.encode())
            else:
                stages.write_shard(task, job.work, attempt, job.config.name)
            os.replace(attempt / file, job.folder / file)
        return ()
