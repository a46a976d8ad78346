"""Steps of the Beam engine: one class for each step, which processes one element. `Job` holds their settings.

Records are sent as the chunks that the local engine writes (sources/spill.py), one for each block and bucket, and the
function of the local engine reduces each bucket. Counts are written as notes to the scratch folder, for the machine
that launched the job. A runner may process the same element twice, even at the same time: each file appears whole, and
both times with the same content.
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
from proteinlm.data.ingest import steps
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.sources.files import SourceFile, TextBlock
from proteinlm.data.sources.names import protein_of
from proteinlm.data.sources.spill import bucket_folder, columns, packed
from proteinlm.data.sources.uniprot import Record, parse
from proteinlm.errors import InputError

ACCOUNTS = "accounts"
"""Name of the second output of some steps: counts and rejects of the blocks."""
NOTES = ("sources", "tables", "rows", ACCOUNTS, "joined", "searched", "fingerprint", "troubles")
"""Folders of the notes in the scratch folder, one for each kind."""
_BLOCKS_OF_ACCOUNT = 64


@dataclass(frozen=True)
class Job:
    """Settings of all steps of a job.

    Attributes:
        work: scratch folder, under a name that is valid on every machine.
        folder: folder of the dataset, likewise.
        config: settings of the dataset.
        num_buckets: number of buckets of the digests, a power of two.
        num_partitions: number of partitions of the accessions, a power of two; 0 without tables.
        tables: names of the tables, as in provenance.json.
        formats: formats of the tables; by default those that are registered where the job is launched.
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
    """Make a new folder, whose finished files are moved to their place by renaming; remove it at the end."""
    folder = job.work / "attempts" / uuid.uuid4().hex
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def note(job: Job, kind: str, name: str, content: bytes) -> None:
    """Write a note for the machine that launched the job."""
    with _attempt(job) as folder:
        (folder / name).write_bytes(content)
        os.replace(folder / name, job.work / kind / name)


class _Step(beam.DoFn):
    """A Beam step. Errors that the user can fix are also written as a note, because runners shorten messages."""

    def __init__(self, job: Job):
        super().__init__()
        self.job = job

    def process(self, element):
        """Yield `outputs` of an element."""
        try:
            yield from self.outputs(element)
        except (InputError, OSError) as error:
            # There is no room for a note on a full disk.
            with contextlib.suppress(OSError):
                note(self.job, "troubles", uuid.uuid4().hex, str(error).encode())
            raise

    @abstractmethod
    def outputs(self, element: Any) -> Iterable[Any]:
        """Yield the outputs for one element."""


class ReadSource(_Step):
    """Element: (index, path) of a source. Output: (index, number, *block) for each of its blocks."""

    def outputs(self, element):
        """Yield the blocks of a file, and write its size and MD5 as a note."""
        index, path = element
        number = 0
        file = SourceFile(path)
        for number, block in enumerate(file.blocks(self.job.config.block_bytes), 1):
            yield index, number - 1, *block
        end = {"size": file.size, "md5": file.md5, "blocks": number}
        note(self.job, "sources", f"{index}", json.dumps(end).encode())


class MapBlock(_Step):
    """Element: (index, number, *block). Output: (bucket, chunk), or (partition, records) with tables; ACCOUNTS."""

    def outputs(self, element):
        """Yield the records of a block by bucket or partition, and its account."""
        index, number, form, data, last = element
        parsed = parse(TextBlock(form, data, last))
        records, sources = parsed.records, Counter()
        if records and self.job.num_partitions:
            for partition, part in _by_partition(records, self.job.num_partitions):
                yield partition, pickle.dumps((index, number, part, [tuple(records[i]) for i in part]))
        elif records:
            joined = own_families(records)
            sources = joined.sources
            yield from packed(*columns(records, joined.families), self.job.num_buckets)
        Metrics.counter("proteinlm", "records").inc(parsed.number)
        Metrics.counter("proteinlm", "rejected").inc(len(parsed.rejects))
        result = steps.MapResult(parsed.number, len(records), parsed.rejects, sources, [])
        yield _account(index, number, form, result)


def _account(index: int, number: int, form: str, result: steps.MapResult) -> TaggedOutput:
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
    """Yield each partition that records belong to, and the indices of these records."""
    hashes = _partition_hashes(record.accession.encode() for record in records)
    codes = np.searchsorted(partition_edges(partitions), hashes, "right") - 1
    for partition in np.unique(codes).tolist():
        yield partition, np.flatnonzero(codes == partition).tolist()


class ReadTable(_Step):
    """Element: (index, path) of a table. Output: (index, lines before the block, block) for each of its blocks."""

    def outputs(self, element):
        """Yield the blocks of a file, and write its size and MD5 as a note."""
        index, path = element
        kind = ""
        source = SourceFile(path)
        for before, block in table_blocks(source, formats=self.job.formats):
            kind = block.format.name
            yield index, before, pickle.dumps(block)
        end = {"bytes": source.size, "md5": source.md5, "format": kind}
        note(self.job, "tables", f"{index}", json.dumps(end).encode())


class MapTable(_Step):
    """Element: (index, lines before the block, block). Output: (partition, chunk of rows); ACCOUNTS."""

    def outputs(self, element):
        """Yield the rows of a block by partition, and its account."""
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
    """Element: (index, accounts of the blocks of a table). It writes a note."""

    def outputs(self, element):
        """Sum the counts of a table; an error if none of its rows can be used."""
        index, parts = element
        counts = TableCounts(self.job.tables[index])
        for before, result in sorted(map(pickle.loads, parts)):
            counts.add(before, result)
        note(self.job, "rows", f"{index}", json.dumps(asdict(counts.file(0, "", ""))).encode())
        return ()


class JoinFamilies(_Step):
    """Element: (partition, rows of tables and records). Output: (bucket, chunk); ACCOUNTS. It writes a note."""

    def outputs(self, element):
        """Yield the records of a partition, with families added, by bucket."""
        partition, groups = element
        files = [TableFile(path, 0, "", "", 0, 0, ()) for path in self.job.tables]
        sources: Counter = Counter()
        with tempfile.TemporaryDirectory(prefix="proteinlm-families-") as folder:
            join_packed(groups["rows"], Path(folder) / "families", files)
            tables = FamilyTables(Path(folder) / "families")
            for part in groups["records"]:
                index, number, indices, fields = pickle.loads(part)
                records = [Record(*values) for values in fields]
                joined = tables.add(records)
                sources.update(joined.sources)
                yield from packed(*columns(records, joined.families), self.job.num_buckets)
                if joined.mismatches:
                    mismatches = [one._replace(place=indices[one.place]) for one in joined.mismatches]
                    yield _account(index, number, "", steps.MapResult(0, 0, [], Counter(), mismatches))
            unknown = tables.unused()
        content = {"sources": sources, "unknown": unknown}
        note(self.job, "joined", f"{partition}", json.dumps(content).encode())


class Account(_Step):
    """Element: ((index, group), accounts of some blocks of a source). It writes them as a note, in order."""

    def outputs(self, element):
        """Sort the accounts of the blocks, and add the mismatches of the families to the account of their block."""
        (index, group), parts = element
        blocks: dict[int, tuple[str, steps.MapResult]] = {}
        mismatches: dict[int, list] = {}
        for number, form, result in map(pickle.loads, parts):
            if form:
                blocks[number] = form, result
            mismatches.setdefault(number, []).extend(result.mismatches)
        accounts = []
        for number, (form, result) in sorted(blocks.items()):
            in_order = sorted(mismatches[number], key=lambda one: one.place)
            accounts.append((form, result._replace(mismatches=in_order)))
        note(self.job, ACCOUNTS, f"{index:08d}-{group:08d}", pickle.dumps(accounts))
        return ()


class Reduce(_Step):
    """Element: (bucket, chunks). Output: the bucket, once its reduced files are in the scratch folder."""

    def outputs(self, element):
        """Reduce a bucket on the disk of the worker, and copy the result to the scratch folder."""
        bucket, chunks = element
        job, config = self.job, self.job.config
        with tempfile.TemporaryDirectory(prefix="proteinlm-bucket-") as folder, _attempt(job) as attempt:
            local = Path(folder)
            bucket_folder(local, bucket).mkdir(parents=True)
            with open(bucket_folder(local, bucket) / "chunks", "wb") as handle:
                handle.writelines(chunks)
            if config.profiles:
                self._search(bucket, local)
            result = steps.reduce_bucket(bucket, local, config.splits)
            copy = shutil.copytree(steps.reduced_folder(local, bucket), attempt / "reduced")
            _move_folder(copy, steps.reduced_folder(job.work, bucket))
        Metrics.counter("proteinlm", "sequences").inc(sum(s.count for s in result.statistics.values()))
        yield bucket

    def _search(self, bucket: int, local: Path) -> None:
        (local / "profiles").symlink_to(self.job.work / "profiles")
        chosen = profile_search.choose(bucket, local, self.job.config.search_all)
        with_families = sum(profile_search.search_piece(piece, local) for piece in profile_search.pieces(chosen))
        searched = profile_search.Searched(chosen.number, with_families, chosen.too_long)
        note(self.job, "searched", f"{bucket}", json.dumps(asdict(searched)).encode())


def _move_folder(source: Path, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    try:
        os.rename(source, folder)
    except OSError:
        # Another worker has processed the same element before.
        if not folder.is_dir():
            raise


class PlanFiles(_Step):
    """Element: all buckets, once they are reduced. Output: (file, task) for each file of the dataset."""

    def outputs(self, element):
        """Yield the tasks of `WriteFile`."""
        missing = set(range(self.job.num_buckets)).difference(element)
        if missing:
            raise RuntimeError(f"buckets {sorted(missing)} were not reduced")
        for file, task in plan(self.job)[1].items():
            yield file, pickle.dumps(task)


def plan(job: Job) -> tuple[steps.ReduceResult, dict[str, Any]]:
    """Return the sum of the reduced buckets, and the files to write (see `shard_plan.plan_files`)."""
    reduced, counts = steps.sum_buckets(steps.load_reduced(bucket, job.work) for bucket in range(job.num_buckets))
    return reduced, plan_files(job.config.name, counts, reduced.example_bytes, job.config.shards)


class WriteFile(_Step):
    """Element: (file, task). It writes a shard, or the manifest and its fingerprint as a note."""

    def outputs(self, element):
        """Write one file."""
        file, data = element
        task, job = pickle.loads(data), self.job
        with _attempt(job) as attempt:
            if file == MANIFEST:
                fingerprint = steps.write_manifest(task, job.work, attempt)
                note(job, "fingerprint", "fingerprint", fingerprint.encode())
            else:
                steps.write_shard(task, job.work, attempt, job.config.name)
            os.replace(attempt / file, job.folder / file)
        return ()
