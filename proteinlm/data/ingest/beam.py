"""The Beam engine: the steps of ingest on a cluster; the dataset is the local engine's, byte for byte.

Workers read the sources and write the dataset, so both are under the same names on all machines: sources local to a
shared file system or gs:// and s3:// URLs, the output on a shared file system that is mounted everywhere. A source is
read by one worker, since a compressed file is one stream; its blocks are parsed by all. Records are shuffled by their
digest, and before that by their accession if there are tables of families. The machine that launches the job reads and
writes counts, lists of rejects and what describes the dataset, no records.
"""

import dataclasses
import json
import os
import pickle
import shlex
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam  # pyright: ignore[reportMissingImports]
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions  # pyright: ignore
from apache_beam.runners.runner import PipelineState  # pyright: ignore[reportMissingImports]
from rich.console import Console

from proteinlm.data.dataset.datasheet import draw_figures
from proteinlm.data.families.ids import SHOWN
from proteinlm.data.families.profile_search import Searched, read_profiles
from proteinlm.data.families.table_counts import TableCounts, TableFile
from proteinlm.data.families.table_join import hashes_of, num_partitions, open_tables
from proteinlm.data.ingest import beam_steps as steps
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.local import MARKER, LocalEngine
from proteinlm.data.ingest.progress import anything_finished
from proteinlm.data.ingest.source_accounts import Intake
from proteinlm.data.ingest.summary import Summary
from proteinlm.data.sources.files import SourceFile
from proteinlm.data.sources.locations import is_remote
from proteinlm.errors import InputError
from proteinlm.output.folders import DATASET

DEFAULT_ARGS = "--runner=FnApiRunner"
"""This machine, everything in memory."""
_SPLITS = ("valid", "test", "held_out")


def pipeline_options(config: IngestConfig) -> PipelineOptions:
    """Return Beam's options; what this engine cannot do is refused.

    Raises:
        InputError: Beam's arguments cannot be read, or an option is only the local engine's.
    """
    if config.workers:
        raise InputError("--workers is for the local engine: tell Beam in --beam-args how many workers it may have.")
    for entry in dataclasses.fields(config.splits):
        if entry.name not in _SPLITS and getattr(config.splits, entry.name) != entry.default:
            raise InputError(f"the Beam engine does not know splits by {entry.name}: use --engine local.")
    try:
        options = PipelineOptions(shlex.split(config.beam_args or DEFAULT_ARGS))
        runner = options.view_as(StandardOptions).runner
    except ValueError as error:
        raise InputError(f"--beam-args {config.beam_args!r} cannot be read ({error}).") from error
    except SystemExit as error:
        # Beam has already said why.
        raise InputError(f"--beam-args {config.beam_args!r} cannot be read.") from error
    if not runner:
        raise InputError(f"--beam-args {config.beam_args!r} names no runner: write --runner=DataflowRunner or another.")
    return options


class _Read(NamedTuple):
    """A source that a worker has read."""

    path: str
    size: int
    md5: str


class BeamEngine(LocalEngine):
    """One ingest on Beam; arguments as for `LocalEngine`.

    It does not go on where it was stopped: a runner repeats what fails, and what is launched anew begins anew.

    Raises:
        InputError: the folder holds an unfinished ingest of the local engine; or as `pipeline_options`.
    """

    def __init__(
        self,
        files: list[SourceFile],
        folder: Path,
        output: Path,
        config: IngestConfig,
        release: Mapping[str, Any] | None,
        console: Console,
    ):
        self.options = pipeline_options(config)
        if anything_finished(folder / MARKER):
            raise InputError(
                f"{folder} is an unfinished ingest of the local engine: finish it with --engine local, or remove that "
                "folder."
            )
        for path in folder.iterdir():
            shutil.rmtree(path)
        self.place = folder
        # A name of its own: workers of a job whose launching machine has died may still be writing.
        super().__init__(files, folder / f"beam-{uuid.uuid4().hex}", output, config, release, console)

    def run(self) -> Summary:
        """Write the dataset."""
        self.folder.mkdir(parents=True)
        for kind in steps.NOTES:
            (self.work / kind).mkdir(parents=True)
        if self.config.profiles:
            self.families.profiles = read_profiles(self.families.profile_paths, self.work)
        tables = open_tables(self.config.families)
        partitions = max(self.num_buckets, num_partitions(tables)) if tables else 0
        names = tuple(table.path for table in tables)
        job = steps.Job(self.work, self.folder, self.config, self.num_buckets, partitions, names)
        with self._phase("pipeline"):
            self._launch(job, tables)
        with self._phase("accounts"):
            self._sum_families(names)
            self._sum_sources()
            reduced, tasks = steps.plan(job)
            self._sum_up(reduced)
            draw_figures(self.folder, reduced.statistics)
            self._describe(tasks.values(), reduced)
        os.rename(self.folder, self.place / DATASET)
        return self.summary

    def _launch(self, job: steps.Job, tables: list[SourceFile]) -> None:
        try:
            pipeline = beam.Pipeline(options=self.options)
        except (ValueError, ImportError) as error:
            raise InputError(f"--beam-args {self.config.beam_args!r}: {error}") from error
        build(pipeline, job, [file.path for file in self.files], [table.path for table in tables])
        if self.console.is_terminal:
            self.console.print("the job runs on Beam; its runner tells how far it is.")
        try:
            running = pipeline.run()
            try:
                state = running.wait_until_finish()
            except KeyboardInterrupt:
                running.cancel()
                raise
        except Exception as error:
            if trouble := self._trouble():
                raise InputError(trouble) from error
            raise
        if state != PipelineState.DONE:
            raise InputError(self._trouble() or f"the Beam job ended as {state}: its runner's log says why.")

    def _trouble(self) -> str:
        """Return what a worker has told of a failure, "" if none has."""
        return next(iter(self._notes("troubles").values()), b"").decode()

    def _notes(self, kind: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.work / kind).iterdir()}

    def _sum_families(self, names: tuple[str, ...]) -> None:
        families = self.families
        rows, ends = self._notes("rows"), self._notes("tables")
        for index, name in enumerate(names):
            end = json.loads(ends[f"{index}"])
            # A table without a line has no rows that were counted.
            made = (
                TableFile.of_json(json.loads(rows[f"{index}"]))
                if f"{index}" in rows
                else TableCounts(name).file(0, "", "")
            )
            families.files.append(dataclasses.replace(made, **end))
        number, unknown = 0, []
        for content in map(json.loads, self._notes("joined").values()):
            families.sources.update(content["sources"])
            number += content["unknown"][0]
            unknown += content["unknown"][1]
        hashes = hashes_of([name.encode() for name in unknown]).tolist()
        families.unknown = number, tuple(name for _, name in sorted(zip(hashes, unknown, strict=True))[:SHOWN])
        if self.config.profiles:
            parts = [Searched(**json.loads(content)) for content in self._notes("searched").values()]
            sums = [sum(column) for column in zip(*map(dataclasses.astuple, parts), strict=True)]
            families.searched = Searched(*sums)
        self.marker.state["fingerprint"] = self._notes("fingerprint")["fingerprint"].decode()

    def _sum_sources(self) -> None:
        """Account for the blocks in order, one note at a time."""
        ends = {int(name): json.loads(content) for name, content in self._notes("sources").items()}
        read = [_Read(file.path, ends[i]["size"], ends[i]["md5"]) for i, file in enumerate(self.files)]
        accounts: dict[int, list[Path]] = {index: [] for index in ends}
        for path in sorted((self.work / steps.ACCOUNTS).iterdir()):
            accounts[int(path.name.partition("-")[0])].append(path)
        self.intake = Intake(read, self.folder, self.families)
        with self.intake:
            for index, end in sorted(ends.items()):
                blocks = 0
                for path in accounts[index]:
                    for form, result in pickle.loads(path.read_bytes()):
                        self.intake.take(form, result)
                        blocks += 1
                if blocks != end["blocks"]:
                    raise RuntimeError(f"{read[index].path} had {end['blocks']} blocks, {blocks} are accounted for")
                self.intake.end_source()
        self.intake.check()


def build(pipeline: beam.Pipeline, job: steps.Job, sources: Iterable[str], tables: Iterable[str]) -> None:
    """Put all steps into a pipeline.

    Args:
        pipeline: empty.
        job: what the steps know.
        sources, tables: paths, in order.
    """
    account = tuple[tuple[int, int], bytes]
    mapped = (
        pipeline
        | "name sources" >> beam.Create(_numbered(sources))
        | "spread sources" >> beam.Reshuffle()
        | "read" >> beam.ParDo(steps.ReadSource(job))
        | "spread blocks" >> beam.Reshuffle()
        | "map" >> _step(steps.MapBlock(job), account)
    )
    chunks, accounts = mapped.main, [mapped[steps.ACCOUNTS]]
    if job.num_partitions:
        rows = (
            pipeline
            | "name tables" >> beam.Create(_numbered(tables))
            | "spread tables" >> beam.Reshuffle()
            | "read tables" >> beam.ParDo(steps.ReadTable(job))
            | "spread rows" >> beam.Reshuffle()
            | "map tables" >> _step(steps.MapTable(job), tuple[int, bytes])
        )
        _ = (
            rows[steps.ACCOUNTS]
            | "by table" >> beam.GroupByKey()
            | "count tables" >> beam.ParDo(steps.CountTable(job))
        )  # fmt: skip
        joined = (
            {"rows": rows.main, "records": chunks}
            | "by accession" >> beam.CoGroupByKey()
            | "join" >> _step(steps.JoinFamilies(job), account)
        )
        chunks = joined.main
        accounts.append(joined[steps.ACCOUNTS])
    _ = (
        accounts
        | "all accounts" >> beam.Flatten()
        | "by block" >> beam.GroupByKey()
        | "account" >> beam.ParDo(steps.Account(job))
    )  # fmt: skip
    # Each bucket is reduced, one without records as well.
    seeds = pipeline | "name buckets" >> beam.Create([(bucket, b"") for bucket in range(job.num_buckets)])
    _ = (
        (chunks, seeds)
        | "all chunks" >> beam.Flatten()
        | "by digest" >> beam.GroupByKey()
        | "reduce" >> beam.ParDo(steps.Reduce(job))
        | "all buckets" >> beam.combiners.ToList()
        | "plan" >> beam.ParDo(steps.PlanFiles(job))
        | "spread files" >> beam.Reshuffle()
        | "write" >> beam.ParDo(steps.WriteFile(job))
    )


def _step(step: beam.DoFn, account: Any) -> Any:
    made = beam.ParDo(step).with_output_types(tuple[int, bytes], **{steps.ACCOUNTS: account})
    return made.with_outputs(steps.ACCOUNTS, main="main")


def _numbered(paths: Iterable[str]) -> list[tuple[int, str]]:
    return [(index, _anywhere(path)) for index, path in enumerate(paths)]


def _anywhere(path: str) -> str:
    """Return a name that means the same in every working folder."""
    if path.startswith("tar://"):
        member, _, archive = path.partition("::")
        return f"{member}::{_anywhere(archive)}"
    return path if is_remote(path) else os.path.abspath(path)
