"""The local engine of ingest: files of sequences in, a dataset out that appears whole or not at all."""

import contextlib
import errno
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from proteinlm import __version__
from proteinlm.data import stages
from proteinlm.data.dataset import PROVENANCE, REJECTS, STATISTICS, VERSION, write_json, write_tfds_metadata
from proteinlm.data.pfam import (
    PAPER_HELD_OUT_FAMILIES,
    SHOWN,
    FamilyTable,
    check_families,
    read_held_out,
)
from proteinlm.data.processes import Submit, pool
from proteinlm.data.sources import BLOCK_BYTES, Block, SourceFile
from proteinlm.data.spill import bucket_folder
from proteinlm.data.splits import SPLITS, SplitsConfig
from proteinlm.data.summary import Summary
from proteinlm.data.workplace import workplace
from proteinlm.errors import InputError

SHARD_BYTES = 256 << 20
_MAX_BUCKETS = 1 << 14


@dataclass(frozen=True)
class IngestConfig:
    """What a dataset is made of besides its sources; content depends on `splits`, `families`, `name` alone.

    Attributes:
        splits: fractions and held-out families.
        families: tables of families (see `FamilyTable.read`), added to those of DR lines.
        name: the dataset's name in TFDS.
        shards: files a split is cut into (at most one a sequence); 0 takes one for each 256 MiB.
        workers: processes; 0 takes one a core, 1 starts none.
        block_bytes: text that one process parses at a time.
        bucket_bytes: text that a bucket is meant for; a process holds one bucket at a time, in about four
            times this.
    """

    splits: SplitsConfig = field(default_factory=SplitsConfig)
    families: tuple[Path, ...] = ()
    name: str = "proteins"
    shards: int = 0
    workers: int = 0
    block_bytes: int = BLOCK_BYTES
    bucket_bytes: int = 32 << 20

    def __post_init__(self):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise InputError(f"the name {self.name!r} is no TFDS name: small letters, digits and _, a letter first.")
        for name, least in (("shards", 0), ("workers", 0), ("block_bytes", 1), ("bucket_bytes", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}.")

    @property
    def num_workers(self) -> int:
        """Processes to start."""
        return self.workers or len(os.sched_getaffinity(0))


def ingest(
    sources: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    config: IngestConfig | None = None,
    *,
    console: Console | None = None,
) -> Summary:
    """Turn files of sequences into a dataset.

    The dataset is a function of the files' contents and names and of `config.splits`, `config.families`,
    `config.name` and `config.shards`; the order of the files and the number of workers change no byte of it.

    Args:
        sources: FASTA and UniProtKB flat files, plain or .gz; the same file twice is refused, since it would
            look like copies.
        output: folder to make; it must not exist or be empty. A hidden folder beside it holds what is
            unfinished.
        config: the defaults are the paper's splits.
        console: where progress is shown if it is a terminal; standard error by default.

    Raises:
        InputError: something in the files or the arguments is wrong, the disk is full, or a worker was
            killed. The output folder is then not there.
    """
    config = config or IngestConfig()
    output = Path(output)
    files = _files(sources)
    try:
        with workplace(output) as folder:
            summary = _Run(files, folder, output, config, console or Console(stderr=True)).run()
        return summary
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"the disk of {output} is full: ingest needs room for the dataset and scratch files, "
                "together about three times the sequences; make room or name a folder on another disk."
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise InputError(f"{output} cannot be written ({error.strerror}): name another output folder.") from error
        raise
    except BrokenProcessPool as error:
        raise InputError(
            "a worker process was killed, most likely because memory ran out: use fewer workers (--workers)."
        ) from error


def _files(sources: Sequence[str | os.PathLike]) -> list[SourceFile]:
    if not sources:
        raise InputError("name at least one file of sequences.")
    files = [SourceFile(path) for path in sorted(str(Path(source)) for source in sources)]
    seen: dict[tuple[int, int], Path] = {}
    for file in files:
        stat = file.path.stat()
        other = seen.setdefault((stat.st_dev, stat.st_ino), file.path)
        if other is not file.path:
            same = "is named twice" if other == file.path else f"and {other} are the same file"
            raise InputError(f"{file.path} {same}: its proteins would count as copies of themselves; name it once.")
    return files


class _Run:
    """One ingest, phase by phase."""

    def __init__(self, files: list[SourceFile], folder: Path, output: Path, config: IngestConfig, console: Console):
        self.files, self.folder, self.config = files, folder, config
        self.work = folder / "scratch"
        self.summary = Summary(output)
        self.table: FamilyTable | None = None
        self.formats: list[tuple[str, int]] = []
        self.progress = Progress(
            TextColumn("{task.description:<8}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[detail]}"), TimeRemainingColumn(),
            console=console, disable=not console.is_terminal,
        )  # fmt: skip
        # Known before anything is read and the same for any number of workers. Packed text is four to five
        # times as long.
        text = sum(file.size * (5 if file.path.suffix == ".gz" else 1) for file in files)
        wanted = max(1, -(-text // config.bucket_bytes))
        self.num_buckets = min(1 << (wanted - 1).bit_length(), _MAX_BUCKETS)

    def run(self) -> Summary:
        for bucket in range(self.num_buckets):
            bucket_folder(self.work, bucket).mkdir(parents=True)
        with self.progress:
            with self._phase("families"):
                self._read_families()
            arguments = (self.work, self.num_buckets, self.config.splits, self.folder, self.config.name)
            with pool(self.config.num_workers, arguments) as submit:
                with self._phase("map"):
                    self._map(submit)
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

    def _read_families(self) -> None:
        if self.config.families:
            table = FamilyTable.read(self.config.families)
            stages.Families.save(table, self.work / "families")
            self.summary.malformed = table.num_malformed, table.malformed
            self.table = table

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
                path = str(self.files[index].path)
                for reject in result.rejects:
                    row = (
                        path,
                        numbers[index] + reject.number,
                        reject.accession,
                        reject.reason,
                        reject.detail,
                    )
                    # A path may hold a tab; a table cell may not.
                    rejects.write("\t".join(" ".join(str(cell).split()) for cell in row) + "\n")
                    summary.rejected[reject.reason] += 1
                    if len(summary.rejects) < SHOWN:
                        summary.rejects.append(row)
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
        self._count_unknown()

    def _count_unknown(self) -> None:
        """Find the rows of the family tables that no record has asked for."""
        if self.table is not None:
            used = stages.Families(self.work / "families").used
            missing = np.flatnonzero(used[: len(self.table.accessions)] == 0)
            first = tuple(
                name.decode("ascii", "backslashreplace") for name in self.table.accessions[missing[:SHOWN]].tolist()
            )
            self.summary.unknown = len(missing), first

    def _reduce(self, submit: Submit) -> tuple[stages.ReduceResult, dict[str, list[int]]]:
        bar = self.progress.add_task("sorting", total=self.num_buckets, detail="")
        reduced = stages.ReduceResult()
        counts: dict[str, list[int]] = {split: [] for split in SPLITS}
        for result in submit("reduce", range(self.num_buckets)):
            for split in SPLITS:
                counts[split].append(result.statistics[split].count)
            reduced.update(result)
            self.progress.advance(bar)
        summary = self.summary
        summary.statistics = reduced.statistics
        summary.with_families = reduced.with_families
        missing = [family for family in self.config.splits.held_out if not reduced.held_out[family]]
        if missing:
            listed = ", ".join(missing[:SHOWN]) + (" ..." if len(missing) > SHOWN else "")
            of = f"{len(missing)} of {len(self.config.splits.held_out)} held-out families"
            ood = "" if reduced.statistics["ood"].count else "; the split ood is empty"
            summary.warnings.append(f"no sequence has {of} ({listed}){ood}.")
        return reduced, counts

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
            "sources": [
                {"path": str(f.path), "bytes": f.size, "md5": f.md5, "format": kind, "records": number}
                for f, (kind, number) in zip(self.files, self.formats, strict=True)
            ],
            "family_tables": [
                {"path": path, "bytes": size, "md5": md5}
                for path, size, md5 in (self.table.files if self.table else ())
            ],
            "family_rows": {
                "read": self.table.num_rows if self.table else 0,
                "malformed": summary.malformed[0],
                "unknown_accession": summary.unknown[0],
            },
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


SAMPLE = Path(__file__).parent / "sample"
"""4,509 real proteins and their families, part of this package."""


def ingest_command(arguments: Any) -> None:
    """Run `proteinlm ingest` and print what it wrote.

    Args:
        arguments: the command line's fields: sources (`sample` stands for the proteins of this package),
            output, families, held_out, valid, test, shards, workers, name.
    """
    families = tuple(arguments.families)
    sources = list(arguments.sources)
    # A file of that name in the working folder is still reached as ./sample.
    if "sample" in sources:
        sources[sources.index("sample")] = os.fspath(SAMPLE / "proteins.fasta.gz")
        families = (*families, SAMPLE / "pfam.tsv.gz")
    splits = SplitsConfig(arguments.valid, arguments.test, _held_out(arguments.held_out))
    config = IngestConfig(splits, families, arguments.name, arguments.shards, arguments.workers)
    ingest(sources, arguments.output, config).print(Console())


def _held_out(text: str) -> tuple[str, ...]:
    if text == "paper":
        return PAPER_HELD_OUT_FAMILIES
    if text == "none":
        return ()
    return read_held_out(text) if Path(text).is_file() else check_families(text.split(","), "--held-out")
