"""The Beam engine: the steps of an ingest on a cluster. It writes the same dataset as the local engine, byte for byte.

Workers read the sources and write the dataset, so sources and output must have the same names on all machines: sources
on a shared file system or gs:// and s3:// URLs, the output on a shared file system. One worker reads a source, since a
compressed file is one stream; all workers parse its blocks. Records are shuffled by digest, and before that by
accession if there are tables of families. The machine that launches the job handles counts, lists of rejects and the
description of the dataset, but no records.
"""

import dataclasses
import functools
import json
import os
import pickle
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam  # pyright: ignore[reportMissingImports]
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions  # pyright: ignore
from apache_beam.runners.runner import PipelineState  # pyright: ignore[reportMissingImports]
from rich.console import Console

from proteinlm.data.dataset.datasheet import draw_figures
from proteinlm.data.families.ids import SHOWN
from proteinlm.data.families.profile_search import Searched
from proteinlm.data.families.table_counts import TableCounts, TableFile
from proteinlm.data.families.table_join import hashes_of, num_partitions, open_tables
from proteinlm.data.ingest import beam_steps
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.family_sources import FamilySources
from proteinlm.data.ingest.progress import MARKER, SCRATCH, anything_finished
from proteinlm.data.ingest.results import IngestResult, check_not_empty, shard_lengths, timed, write_description
from proteinlm.data.ingest.source_counts import SourceCounts
from proteinlm.data.ingest.split_decisions import SplitDecisions
from proteinlm.data.sources.files import SourceFile
from proteinlm.data.sources.locations import is_remote
from proteinlm.errors import InputError
from proteinlm.output.folders import DATASET

DEFAULT_ARGS = "--runner=FnApiRunner"
"""Run in the memory of this machine."""
_SPLITS = ("valid", "test", "held_out")


def pipeline_options(config: IngestConfig) -> PipelineOptions:
    """Return the options of the Beam pipeline.

    Raises:
        InputError: the arguments of Beam cannot be read, or an option exists for the local engine only.
    """
    if config.workers:
        raise InputError("--workers is for the local engine; set the number of Beam's workers in --beam-args.")
    for entry in dataclasses.fields(config.splits):
        if entry.name not in _SPLITS and getattr(config.splits, entry.name) != entry.default:
            raise InputError(f"the Beam engine does not support splits by {entry.name}: use --engine local.")
    try:
        options = PipelineOptions(shlex.split(config.beam_args or DEFAULT_ARGS))
        runner = options.view_as(StandardOptions).runner
    except ValueError as error:
        raise InputError(f"--beam-args {config.beam_args!r} cannot be read ({error}).") from error
    except SystemExit as error:
        # Beam has printed the reason.
        raise InputError(f"--beam-args {config.beam_args!r} cannot be read.") from error
    if not runner:
        raise InputError(f"--beam-args {config.beam_args!r} names no runner: write --runner=DataflowRunner or another.")
    return options


class _Source(NamedTuple):
    """A source that a worker has read."""

    path: str
    size: int
    md5: str


def prepare_beam(
    files: list[SourceFile],
    folder: Path,
    config: IngestConfig,
    release: Mapping[str, Any] | None,
    console: Console,
) -> Callable[[], IngestResult]:
    """Check the inputs of an ingest, and return the function that runs it on Beam; arguments as for `prepare_local`.

    An interrupted job is not continued. The runner repeats failed tasks, and a new job starts from the beginning.

    Raises:
        InputError: the folder holds an unfinished ingest of the local engine; or as `pipeline_options`.
    """
    options = pipeline_options(config)
    if anything_finished(folder / MARKER):
        raise InputError(
            f"{folder} is an unfinished ingest of the local engine: finish it with --engine local, or remove that "
            "folder."
        )
    return functools.partial(_run, files, folder, config, release, console, options)


def _run(
    files: list[SourceFile],
    folder: Path,
    config: IngestConfig,
    release: Mapping[str, Any] | None,
    console: Console,
    options: PipelineOptions,
) -> IngestResult:
    """Write the dataset."""
    for path in folder.iterdir():
        shutil.rmtree(path)
    # A new name for each job: workers of a job whose launching machine has died may still write.
    job_folder = folder / f"beam-{uuid.uuid4().hex}"
    dataset, work = job_folder / DATASET, job_folder / SCRATCH
    dataset.mkdir(parents=True)
    for kind in beam_steps.NOTES:
        (work / kind).mkdir(parents=True)
    num_buckets = config.num_buckets(sum(file.text_size for file in files))
    families = FamilySources(config, work, dataset)
    families.read_profiles()
    tables = open_tables(config.families)
    partitions = max(num_buckets, num_partitions(tables)) if tables else 0
    names = tuple(table.path for table in tables)
    job = beam_steps.Job(work, dataset, config, num_buckets, partitions, names)
    notes = _Notes(work)
    sources = [file.path for file in files]
    seconds: dict[str, float] = {}
    with timed(seconds, "pipeline"):
        _launch(job, options, sources, names, notes, console)
    with timed(seconds, "accounts"):
        _sum_families(families, names, config, notes)
        accounts = _sum_sources(sources, dataset, families, notes)
        reduced, tasks = beam_steps.plan(job)
        check_not_empty(reduced)
        result = IngestResult(
            accounts, families, SplitDecisions(config.splits, work, num_buckets), reduced,
            shard_lengths(tasks.values()), notes.read("fingerprint")["fingerprint"].decode(), seconds=seconds,
        )  # fmt: skip
        draw_figures(dataset, reduced.statistics)
        write_description(result, dataset, config, release)
    os.rename(dataset, folder / DATASET)
    return result


class _Notes:
    """Notes that the workers have written to the scratch folder for this machine, by kind."""

    def __init__(self, work: Path):
        self._work = work

    def paths(self, kind: str) -> list[Path]:
        """Return the files of the notes of a kind, sorted."""
        return sorted((self._work / kind).iterdir())

    def read(self, kind: str) -> dict[str, bytes]:
        """Return the notes of a kind by name."""
        return {path.name: path.read_bytes() for path in self.paths(kind)}

    def failure(self) -> str:
        """Return the message of a failed worker; "" if there is none."""
        return next(iter(self.read("troubles").values()), b"").decode()


def _launch(
    job: beam_steps.Job,
    options: PipelineOptions,
    sources: Iterable[str],
    tables: Iterable[str],
    notes: _Notes,
    console: Console,
) -> None:
    """Run the pipeline and wait for its end."""
    try:
        pipeline = beam.Pipeline(options=options)
    except (ValueError, ImportError) as error:
        raise InputError(f"--beam-args {job.config.beam_args!r}: {error}") from error
    build(pipeline, job, sources, tables)
    if console.is_terminal:
        console.print("the job runs on Beam; its runner shows the progress.")
    try:
        running = pipeline.run()
        try:
            state = running.wait_until_finish()
        except KeyboardInterrupt:
            running.cancel()
            raise
    except Exception as error:
        if message := notes.failure():
            raise InputError(message) from error
        raise
    if state != PipelineState.DONE:
        raise InputError(notes.failure() or f"the Beam job ended as {state}: see the log of its runner for the reason.")


def _sum_families(families: FamilySources, names: Iterable[str], config: IngestConfig, notes: _Notes) -> None:
    """Sum the counts of the workers about tables and profiles into `families`."""
    rows, ends = notes.read("rows"), notes.read("tables")
    for index, name in enumerate(names):
        # A table without a line has no note about its rows.
        counts = (
            TableFile.of_json(json.loads(rows[f"{index}"])) if f"{index}" in rows else TableCounts(name).file(0, "", "")
        )
        families.files.append(dataclasses.replace(counts, **json.loads(ends[f"{index}"])))
    number, unknown = 0, []
    for content in map(json.loads, notes.read("joined").values()):
        families.sources.update(content["sources"])
        number += content["unknown"][0]
        unknown += content["unknown"][1]
    hashes = hashes_of([name.encode() for name in unknown]).tolist()
    families.unknown = number, tuple(name for _, name in sorted(zip(hashes, unknown, strict=True))[:SHOWN])
    if config.profiles:
        parts = [Searched(**json.loads(content)) for content in notes.read("searched").values()]
        sums = [sum(column) for column in zip(*map(dataclasses.astuple, parts), strict=True)]
        families.searched = Searched(*sums)


def _sum_sources(paths: list[str], dataset: Path, families: FamilySources, notes: _Notes) -> SourceCounts:
    """Return the accounts of all blocks, added in the order of the sources, one note at a time."""
    ends = {int(name): json.loads(content) for name, content in notes.read("sources").items()}
    sources = [_Source(path, ends[i]["size"], ends[i]["md5"]) for i, path in enumerate(paths)]
    block_notes: dict[int, list[Path]] = {index: [] for index in ends}
    for path in notes.paths(beam_steps.ACCOUNTS):
        block_notes[int(path.name.partition("-")[0])].append(path)
    accounts = SourceCounts(sources, dataset, families)
    with accounts:
        for index, end in sorted(ends.items()):
            blocks = 0
            for path in block_notes[index]:
                for form, result in pickle.loads(path.read_bytes()):
                    accounts.add(form, result)
                    blocks += 1
            if blocks != end["blocks"]:
                raise RuntimeError(f"{sources[index].path} had {end['blocks']} blocks, {blocks} are accounted for")
            accounts.end_source()
    accounts.check()
    return accounts


def build(pipeline: beam.Pipeline, job: beam_steps.Job, sources: Iterable[str], tables: Iterable[str]) -> None:
    """Add all steps to a pipeline.

    Args:
        pipeline: an empty pipeline.
        job: settings of the steps.
        sources, tables: paths, in order.
    """
    account = tuple[tuple[int, int], bytes]
    mapped = (
        pipeline
        | "name sources" >> beam.Create(_numbered(sources))
        | "spread sources" >> beam.Reshuffle()
        | "read" >> beam.ParDo(beam_steps.ReadSource(job))
        | "spread blocks" >> beam.Reshuffle()
        | "map" >> _step(beam_steps.MapBlock(job), account)
    )
    chunks, accounts = mapped.main, [mapped[beam_steps.ACCOUNTS]]
    if job.num_partitions:
        rows = (
            pipeline
            | "name tables" >> beam.Create(_numbered(tables))
            | "spread tables" >> beam.Reshuffle()
            | "read tables" >> beam.ParDo(beam_steps.ReadTable(job))
            | "spread rows" >> beam.Reshuffle()
            | "map tables" >> _step(beam_steps.MapTable(job), tuple[int, bytes])
        )
        _ = (
            rows[beam_steps.ACCOUNTS]
            | "by table" >> beam.GroupByKey()
            | "count tables" >> beam.ParDo(beam_steps.CountTable(job))
        )  # fmt: skip
        joined = (
            {"rows": rows.main, "records": chunks}
            | "by accession" >> beam.CoGroupByKey()
            | "join" >> _step(beam_steps.JoinFamilies(job), account)
        )
        chunks = joined.main
        accounts.append(joined[beam_steps.ACCOUNTS])
    _ = (
        accounts
        | "all accounts" >> beam.Flatten()
        | "by block" >> beam.GroupByKey()
        | "account" >> beam.ParDo(beam_steps.Account(job))
    )  # fmt: skip
    # A seed for each bucket, so that a bucket without records is reduced too.
    seeds = pipeline | "name buckets" >> beam.Create([(bucket, b"") for bucket in range(job.num_buckets)])
    _ = (
        (chunks, seeds)
        | "all chunks" >> beam.Flatten()
        | "by digest" >> beam.GroupByKey()
        | "reduce" >> beam.ParDo(beam_steps.Reduce(job))
        | "all buckets" >> beam.combiners.ToList()
        | "plan" >> beam.ParDo(beam_steps.PlanFiles(job))
        | "spread files" >> beam.Reshuffle()
        | "write" >> beam.ParDo(beam_steps.WriteFile(job))
    )


def _step(step: beam.DoFn, account: Any) -> Any:
    transform = beam.ParDo(step).with_output_types(tuple[int, bytes], **{beam_steps.ACCOUNTS: account})
    return transform.with_outputs(beam_steps.ACCOUNTS, main="main")


def _numbered(paths: Iterable[str]) -> list[tuple[int, str]]:
    return [(index, _absolute(path)) for index, path in enumerate(paths)]


def _absolute(path: str) -> str:
    """Return a path or URL that does not depend on the working folder."""
    if path.startswith("tar://"):
        member, _, archive = path.partition("::")
        return f"{member}::{_absolute(archive)}"
    return path if is_remote(path) else os.path.abspath(path)
