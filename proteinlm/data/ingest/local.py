"""The local engine: one ingest on the processes of this machine, phase by phase, each going on where it was stopped."""

import contextlib
import importlib
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from proteinlm import __version__
from proteinlm.data.dataset.dataset import (
    MANIFEST,
    PROVENANCE,
    REJECTS,
    STATISTICS,
    VERSION,
    write_tfds_metadata,
)
from proteinlm.data.dataset.datasheet import write_datasheet
from proteinlm.data.dataset.shard_plan import Shard, plan_files
from proteinlm.data.families.ids import SHOWN
from proteinlm.data.families.profile_search import Searched
from proteinlm.data.ingest import steps as stages
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.family_sources import FAMILY_REJECTS, FamilySources
from proteinlm.data.ingest.progress import Marker
from proteinlm.data.ingest.source_accounts import Intake
from proteinlm.data.ingest.split_decisions import Decisions
from proteinlm.data.ingest.summary import Summary
from proteinlm.data.ingest.workers import Submit, pool, wait_for_processes
from proteinlm.data.sources.files import Block, SourceFile
from proteinlm.data.sources.spill import bucket_folder, drop_bucket
from proteinlm.data.splits.mmseqs import SHORTEST
from proteinlm.data.splits.rules import SPLITS
from proteinlm.errors import InputError
from proteinlm.output.folders import DATASET
from proteinlm.output.saving import write_json

MARKER = Path("scratch") / "marker.json"
_MAX_BUCKETS = 1 << 14
_SCRATCH = 1
"""Counts the ways in which scratch files have been written; what another one has left is not read."""


class LocalEngine:
    """One ingest.

    Args:
        files: sources, sorted.
        folder: with the folder `dataset`, which is written, and scratch; what a killed ingest has left is taken up.
        output: what the dataset will be called.
        config: of the dataset.
        release: what the provenance says of the release that the sources are of.
        console: where progress is shown if it is a terminal, and what is taken up in any case.

    Raises:
        InputError: the folder holds an unfinished ingest of other sources or with other options.
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
        self.files, self.config, self.release, self.console = files, config, release, console
        self.folder, self.work = folder / DATASET, folder / "scratch"
        self.summary = Summary(output)
        self.progress = Progress(
            TextColumn("{task.description:<9}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[detail]}"), TimeRemainingColumn(),
            console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self.families = FamilySources(
            config.families, config.profiles, config.search_all, self.work, self.folder, self.progress
        )
        self.intake = Intake(files, self.folder, self.families)
        # Known before anything is read and the same for any number of workers.
        wanted = max(1, -(-sum(file.text_size for file in files) // config.bucket_bytes))
        self.num_buckets = min(1 << (wanted - 1).bit_length(), _MAX_BUCKETS)
        if not self.folder.is_dir():
            # Finished, but for removing its scratch files, and its dataset has been removed since.
            (folder / MARKER).unlink(missing_ok=True)
        self.decisions = Decisions(config.splits, self.work, self.num_buckets, self.progress)
        self.marker = Marker(folder / MARKER, self._inputs())

    def _inputs(self) -> dict[str, Any]:
        """Return what the dataset is a function of, and what its scratch files are."""
        config, splits = self.config, self.config.splits
        return {
            "version": __version__,
            "scratch files": _SCRATCH,
            "buckets": self.num_buckets,
            "name": config.name,
            "shards": config.shards,
            **asdict(splits),
            "search of all sequences": config.search_all,
            "release": self.release,
            **{f"source {file.path}": file.stamp for file in self.files},
            **self.families.inputs(),
            **self.decisions.inputs(),
        }

    def run(self) -> Summary:
        """Write the dataset, or the rest of it."""
        self._take_up()
        arguments = (self.work, self.num_buckets, self.config.splits, self.folder, self.config.name)
        with self.progress, pool(self.config.num_workers, arguments) as submit:
            with self._phase("families"):
                self.families.read(submit, self.marker.state.get("families", False))
                self.marker.note(families=True)
            if self.config.splits.manifest is not None:
                with self._phase("manifest"):
                    self._decide(submit)
            with self._phase("map"):
                self._map(submit)
            if self.config.profiles:
                with self._phase("search"):
                    self._search(submit)
            if self.config.splits.identity is not None:
                with self._phase("identity"):
                    self._decide(submit)
            with self._phase("reduce"):
                reduced, counts = self._reduce(submit)
            with self._phase("write"):
                self._write(submit, reduced, counts)
        return self.summary

    def _take_up(self) -> None:
        """Make the folders, or find out what is finished in them and remove the rest."""
        state = self.marker.state
        if self.work.is_dir():
            wait_for_processes(self.work)
        if not self.marker.old:
            if self.marker.other:
                self.console.print(
                    f"an unfinished ingest differs in {self.marker.other}; nothing of it was finished, so it is "
                    "removed.", markup=False, highlight=False, soft_wrap=True,
                )  # fmt: skip
            for folder in (self.folder, self.work):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            for bucket in range(self.num_buckets):
                bucket_folder(self.work, bucket).mkdir(parents=True)
            self.marker.save()
            return
        kept = {*state.get("written", ()), *((REJECTS, FAMILY_REJECTS) if "intake" in state else ())}
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink()
        if "intake" in state:
            self.intake.restore(state["intake"])
        self.summary.taken_up = (
            f"{len(self.intake.sources):,} of {len(self.files):,} sources were read, {state.get('reduced', 0):,} of "
            f"{self.num_buckets:,} buckets sorted, {len(state.get('written', ())):,} files written"
        )
        self.console.print(
            f"going on with an ingest that was stopped: {self.summary.taken_up}.",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.summary.seconds[name] = time.perf_counter() - start

    def _map(self, submit: Submit) -> None:
        intake = self.intake
        first = len(intake.sources)
        if first < len(self.files):
            with intake:
                self._read(submit, first)
            intake.check()
        self.families.count_unknown()

    def _read(self, submit: Submit, first: int) -> None:
        if self.marker.old:
            for _ in submit("cut", ((bucket, first) for bucket in range(self.num_buckets))):
                pass
        finished = sum(file.size for file in self.files[:first])
        total = sum(file.size for file in self.files)
        bar = self.progress.add_task("reading", total=total, completed=finished, detail="")
        start, records = time.perf_counter(), self.intake.records
        for (form, file), result in submit("map", self._blocks(first), keyed=True):
            self.intake.take(form, result)
            if file is not None:
                self.intake.end_source()
                finished += file.size
                # With thousands of small files the account of all before would take longer than reading them.
                if self.marker.due:
                    self.marker.note(intake=self.intake.state())
            rate = (self.intake.records - records) / (time.perf_counter() - start)
            detail = f"{self.intake.records:,} records, {rate:,.0f}/s"
            read = self.files[len(self.intake.sources)].read if len(self.intake.sources) < len(self.files) else 0
            self.progress.update(bar, completed=finished + read, detail=detail)
        self.marker.note(intake=self.intake.state())

    def _blocks(self, first: int) -> Iterator[tuple[tuple[str, SourceFile | None], tuple[int, Block]]]:
        """Yield blocks with their format, their file if they are its last, and the file's number."""
        for index, file in enumerate(self.files[first:], first):
            for block in file.blocks(self.config.block_bytes):
                yield (block.format, file if block.last else None), (index, block)

    def _search(self, submit: Submit) -> None:
        known = self.marker.state.get("searched")
        if known is None:
            self.marker.note(searched=asdict(self.families.search(self.num_buckets, submit)))
        else:
            self.families.searched = Searched(**known)

    def _decide(self, submit: Submit) -> None:
        made = self.marker.state.get("decided")
        if made is None:
            self.marker.note(decided=self.decisions.decide(submit, self.config.num_workers))
        else:
            self.decisions.made = made

    def _reduce(self, submit: Submit) -> tuple[stages.ReduceResult, dict[str, list[int]]]:
        reduced, counts = stages.add_up(self._results(submit))
        self._sum_up(reduced)
        return reduced, counts

    def _results(self, submit: Submit) -> Iterator[stages.ReduceResult]:
        known = self.marker.state.get("reduced", 0)
        dropped = 0
        bar = self.progress.add_task("sorting", total=self.num_buckets, completed=known, detail="")
        for bucket in range(known):
            yield stages.reduced_before(bucket, self.work)
        for bucket, result in enumerate(submit("reduce", range(known, self.num_buckets)), known):
            yield result
            self.progress.advance(bar)
            # Records are given up when the marker says that they are not needed again.
            if self.marker.note(reduced=bucket + 1):
                for done in range(dropped, bucket + 1):
                    drop_bucket(self.work, done)
                dropped = bucket + 1

    def _sum_up(self, reduced: stages.ReduceResult) -> None:
        summary, families, intake = self.summary, self.families, self.intake
        summary.records, summary.taken = intake.records, intake.taken
        summary.rejected, summary.rejects = intake.rejected, intake.rejects
        summary.statistics = reduced.statistics
        summary.with_families = reduced.with_families
        summary.near, summary.unlisted = reduced.near, reduced.unlisted
        summary.malformed, summary.unknown = families.malformed, families.unknown
        summary.mismatched, summary.searched = families.mismatched, families.searched
        if not any(s.count for s in reduced.statistics.values()) and reduced.near:
            raise InputError(
                f"each of the {reduced.near:,} sequences is near (below {SHORTEST} residues, or like another): there "
                "is nothing to split by identity."
            )
        if not reduced.statistics["train"].count:
            near = f"; {reduced.near:,} sequences are near: short, or like evaluated ones" if reduced.near else ""
            summary.warnings.append(f"train is empty: lower --valid and --test, or give more sequences{near}.")
        missing = [family for family in self.config.splits.held_out if not reduced.held_out[family]]
        if missing and self.config.splits.manifest is None:
            listed = ", ".join(missing[:SHOWN]) + (" ..." if len(missing) > SHOWN else "")
            of = f"{len(missing)} of {len(self.config.splits.held_out)} held-out families"
            ood = "" if reduced.statistics["ood"].count else "; the split ood is empty"
            summary.warnings.append(f"no sequence has {of} ({listed}){ood}.")

    def _write(self, submit: Submit, reduced: stages.ReduceResult, counts: dict[str, list[int]]) -> None:
        tasks = plan_files(self.config.name, counts, reduced.example_bytes, self.config.shards)
        state = self.marker.state
        written = list(state.get("written", ()))
        bar = self.progress.add_task("writing", total=len(tasks) + 1, completed=len(written), detail="")
        rest = [(file, task) for file, task in tasks.items() if file not in written]
        figures = (None, stages.Drawing(reduced.statistics))
        # They take the longest of all tasks: beside others first, alone last, since what is killed draws them again.
        rest = [figures, *rest] if self.config.num_workers > 1 else [*rest, figures]
        if self.config.num_workers > 1:
            # What writes the metadata takes a second to import, and this process only waits meanwhile.
            threading.Thread(target=importlib.import_module, args=("tensorflow_datasets",), daemon=True).start()
        for file, done in submit("write", rest, keyed=True):
            self.progress.advance(bar)
            if file is None:
                continue
            written.append(file)
            if file == MANIFEST:
                state["fingerprint"] = done
            self.marker.note(written=written)
        folders = [stages.reduced_folder(self.work, bucket) for bucket in range(self.num_buckets)]
        self.decisions.finish(folders, self.folder, self.summary.listed)
        self.summary.absent = self.decisions.unmatched.absent
        self._describe(tasks.values(), reduced)

    def _describe(self, tasks: Iterable[Shard | Mapping], reduced: stages.ReduceResult) -> None:
        """Write what stands beside shards and manifest."""
        lengths: dict[str, list[int]] = {split: [] for split in SPLITS}
        for task in tasks:
            if isinstance(task, Shard):
                lengths[task.split].append(task.length)
        write_tfds_metadata(self.folder, self.config.name, lengths)
        statistics = {split: s.to_json() for split, s in reduced.statistics.items()}
        write_json(self.folder / STATISTICS, {"unit": "residues", "splits": statistics}, indent=1)
        provenance = self._provenance(reduced)
        write_json(self.folder / PROVENANCE, provenance, indent=1)
        write_datasheet(self.folder, self.config.name, reduced.statistics, provenance)

    def _provenance(self, reduced: stages.ReduceResult) -> dict[str, Any]:
        intake, splits = self.intake, self.config.splits
        held_out = splits.held_out if splits.manifest is None else ()
        near = {"near": reduced.near} if reduced.near else {}
        return {
            "fingerprint": self.marker.state["fingerprint"],
            "written_by": f"proteinlm {__version__}",
            "layout": VERSION,
            **({"release": self.release} if self.release else {}),
            "sources": intake.sources,
            **self.families.provenance(),
            "splits": self.decisions.provenance(),
            "held_out_sequences": {family: reduced.held_out[family] for family in held_out},
            "records": {
                "read": intake.records,
                "taken": intake.taken,
                "rejected": dict(sorted(intake.rejected.items())),
            },
            "sequences": {**{split: s.count for split, s in reduced.statistics.items()}, **near},
            "sequences_with_families": reduced.with_families,
        }
