"""The local engine: one ingest on the processes of this machine, phase by phase."""

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from proteinlm import __version__
from proteinlm.data import stages
from proteinlm.data.dataset import PROVENANCE, REJECTS, STATISTICS, VERSION, write_json, write_tfds_metadata
from proteinlm.data.ingest_config import IngestConfig
from proteinlm.data.pfam import SHOWN
from proteinlm.data.pfam_run import FamilySources
from proteinlm.data.processes import Submit, pool
from proteinlm.data.sources import Block, SourceFile
from proteinlm.data.spill import bucket_folder
from proteinlm.data.splits import SPLITS
from proteinlm.data.summary import Summary
from proteinlm.errors import InputError

SHARD_BYTES = 256 << 20
_MAX_BUCKETS = 1 << 14


class LocalEngine:
    """One ingest.

    Args:
        files: sources, sorted.
        folder: where the dataset is written, with a folder for scratch in it.
        output: what the dataset will be called.
        config: of the dataset.
        release: what the provenance says of the release that the sources are of.
        console: where progress is shown if it is a terminal.
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
        self.files, self.folder, self.config, self.release = files, folder, config, release
        self.work = folder / "scratch"
        self.summary = Summary(output)
        self.formats: list[tuple[str, int]] = []
        self.progress = Progress(
            TextColumn("{task.description:<9}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[detail]}"), TimeRemainingColumn(),
            console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self.families = FamilySources(
            config.families, config.profiles, config.search_all, self.work, folder, self.progress
        )
        # Known before anything is read and the same for any number of workers.
        wanted = max(1, -(-sum(file.text_size for file in files) // config.bucket_bytes))
        self.num_buckets = min(1 << (wanted - 1).bit_length(), _MAX_BUCKETS)

    def run(self) -> Summary:
        """Write the dataset."""
        for bucket in range(self.num_buckets):
            bucket_folder(self.work, bucket).mkdir(parents=True)
        arguments = (self.work, self.num_buckets, self.config.splits, self.folder, self.config.name)
        with self.progress, pool(self.config.num_workers, arguments) as submit:
            with self._phase("families"):
                self.families.read(submit)
            with self._phase("map"):
                self._map(submit)
            if self.config.profiles:
                with self._phase("search"):
                    self.families.search(self.num_buckets, submit)
            with self._phase("reduce"):
                reduced, counts = self._reduce(submit)
            with self._phase("write"):
                self._write(submit, reduced, counts)
        shutil.rmtree(self.work)
        return self.summary

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.summary.seconds[name] = time.perf_counter() - start

    def _map(self, submit: Submit) -> None:
        total = sum(file.size for file in self.files)
        bar = self.progress.add_task("reading", total=total, detail="")
        start = time.perf_counter()
        numbers: Counter = Counter()
        formats: dict[int, str] = {}
        summary = self.summary

        def blocks() -> Iterator[tuple[int, Block]]:
            for index, file in enumerate(self.files):
                for block in file.blocks(self.config.block_bytes):
                    formats[index] = block.format
                    yield index, block

        with open(self.folder / REJECTS, "w", encoding="utf-8") as rejects:
            rejects.write("source\trecord\taccession\treason\tdetail\n")
            for index, result in submit("map", blocks(), keyed=True):
                path = self.files[index].path
                for reject in result.rejects:
                    row = (path, numbers[index] + reject.number, reject.accession, reject.reason, reject.detail)
                    # A path may hold a tab; a table cell may not.
                    rejects.write("\t".join(" ".join(str(cell).split()) for cell in row) + "\n")
                    summary.rejected[reject.reason] += 1
                    if len(summary.rejects) < SHOWN:
                        summary.rejects.append(row)
                self.families.take(path, result.sources, result.mismatches)
                numbers[index] += result.number
                summary.records += result.number
                summary.taken += result.taken
                rate = summary.records / (time.perf_counter() - start)
                detail = f"{summary.records:,} records, {rate:,.0f}/s"
                self.progress.update(bar, completed=sum(file.read for file in self.files), detail=detail)
        self.formats = [(formats[index], numbers[index]) for index in range(len(self.files))]
        if not summary.taken:
            path, number, _, reason, detail = summary.rejects[0]
            raise InputError(
                f"none of the {summary.records:,} records can be used; the first is record {number} of "
                f"{path}: {reason} ({detail})."
            )
        self.families.count_unknown()

    def _reduce(self, submit: Submit) -> tuple[stages.ReduceResult, dict[str, list[int]]]:
        bar = self.progress.add_task("sorting", total=self.num_buckets, detail="")
        reduced = stages.ReduceResult()
        counts: dict[str, list[int]] = {split: [] for split in SPLITS}
        for result in submit("reduce", range(self.num_buckets)):
            for split in SPLITS:
                counts[split].append(result.statistics[split].count)
            reduced.update(result)
            self.progress.advance(bar)
        self._sum_up(reduced)
        return reduced, counts

    def _sum_up(self, reduced: stages.ReduceResult) -> None:
        summary, families = self.summary, self.families
        summary.statistics = reduced.statistics
        summary.with_families = reduced.with_families
        summary.malformed, summary.unknown = families.malformed, families.unknown
        summary.mismatched, summary.searched = families.mismatched, families.searched
        missing = [family for family in self.config.splits.held_out if not reduced.held_out[family]]
        if missing:
            listed = ", ".join(missing[:SHOWN]) + (" ..." if len(missing) > SHOWN else "")
            of = f"{len(missing)} of {len(self.config.splits.held_out)} held-out families"
            ood = "" if reduced.statistics["ood"].count else "; the split ood is empty"
            summary.warnings.append(f"no sequence has {of} ({listed}){ood}.")

    def _write(self, submit: Submit, reduced: stages.ReduceResult, counts: dict[str, list[int]]) -> None:
        plan = {
            split: stages.plan_shards(
                split, counts[split], self.config.shards or -(-reduced.example_bytes[split] // SHARD_BYTES)
            )
            for split in SPLITS
        }
        tasks = [counts, *(shard for shards in plan.values() for shard in shards)]
        bar = self.progress.add_task("writing", total=len(tasks), detail="")
        fingerprint = None
        for done in submit("write", tasks):
            fingerprint = fingerprint or done
            self.progress.advance(bar)
        lengths = {split: [shard.length for shard in shards] for split, shards in plan.items()}
        write_tfds_metadata(self.folder, self.config.name, lengths)
        statistics = {split: s.to_json() for split, s in reduced.statistics.items()}
        write_json(self.folder / STATISTICS, {"unit": "residues", "splits": statistics})
        write_json(self.folder / PROVENANCE, self._provenance(str(fingerprint), reduced))

    def _provenance(self, fingerprint: str, reduced: stages.ReduceResult) -> dict[str, Any]:
        summary, splits = self.summary, self.config.splits
        return {
            "fingerprint": fingerprint,
            "written_by": f"proteinlm {__version__}",
            "layout": VERSION,
            **({"release": self.release} if self.release else {}),
            "sources": [
                {"path": f.path, "bytes": f.size, "md5": f.md5, "format": kind, "records": number}
                for f, (kind, number) in zip(self.files, self.formats, strict=True)
            ],
            **self.families.provenance(),
            "splits": {"valid": splits.valid, "test": splits.test, "held_out": list(splits.held_out)},
            "held_out_sequences": {family: reduced.held_out[family] for family in splits.held_out},
            "records": {
                "read": summary.records,
                "taken": summary.taken,
                "rejected": dict(sorted(summary.rejected.items())),
            },
            "sequences": {split: s.count for split, s in reduced.statistics.items()},
            "sequences_with_families": summary.with_families,
        }
