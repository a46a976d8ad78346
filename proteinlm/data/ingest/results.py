"""Results of an ingest: the files that describe the dataset, and the summary for programs and for the terminal."""

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from proteinlm.data.dataset.dataset import PROVENANCE, STATISTICS, VERSION, write_tfds_metadata
from proteinlm.data.dataset.datasheet import write_datasheet
from proteinlm.data.dataset.shard_plan import Shard
from proteinlm.data.dataset.statistics import SplitStatistics, render
from proteinlm.data.families.ids import SHOWN
from proteinlm.data.families.profile_search import Searched
from proteinlm.data.families.table_counts import BadRow
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.family_sources import FAMILY_REJECTS, FamilySources
from proteinlm.data.ingest.source_counts import SourceCounts
from proteinlm.data.ingest.split_decisions import SplitDecisions
from proteinlm.data.ingest.steps import ReduceResult
from proteinlm.data.splits.from_manifest import UNMATCHED
from proteinlm.data.splits.mmseqs import SHORTEST
from proteinlm.data.splits.rules import SPLITS
from proteinlm.errors import InputError
from proteinlm.output.saving import write_json
from proteinlm.output.version import __version__


@dataclass
class IngestResult:
    """Result of an engine: its accounts, and the counts of what it wrote.

    Attributes:
        accounts: accounts of the sources.
        families: tables and profiles, with their counts.
        splits: splits that were decided in advance.
        reduced: sum over all buckets.
        shard_lengths: number of examples in each shard of each split.
        fingerprint: fingerprint of the dataset.
        resumed: work that an interrupted ingest had finished, for messages; "" if there was none.
        seconds: wall time of each phase.
    """

    accounts: SourceCounts
    families: FamilySources
    splits: SplitDecisions
    reduced: ReduceResult = field(default_factory=ReduceResult)
    shard_lengths: Mapping[str, list[int]] = field(default_factory=dict)
    fingerprint: str = ""
    resumed: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def listed(self) -> int:
        """Number of distinct sequences in the manifest."""
        return sum(s.count for s in self.reduced.statistics.values()) + self.reduced.near


@contextlib.contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Measure the wall time of a phase."""
    start = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - start


def check_not_empty(reduced: ReduceResult) -> None:
    """Raise an error if every sequence is near to another one.

    Raises:
        InputError: there is no sequence left to split by identity.
    """
    if reduced.near and not any(s.count for s in reduced.statistics.values()):
        raise InputError(
            f"each of the {reduced.near:,} sequences is near (below {SHORTEST} residues, or like another): there "
            "is nothing to split by identity."
        )


def shard_lengths(tasks: Iterable[Any]) -> dict[str, list[int]]:
    """Return the number of examples in each shard of each split, from the tasks of `shard_plan.plan_files`."""
    lengths: dict[str, list[int]] = {split: [] for split in SPLITS}
    for task in tasks:
        if isinstance(task, Shard):
            lengths[task.split].append(task.length)
    return lengths


def write_description(
    result: IngestResult, folder: Path, config: IngestConfig, release: Mapping[str, Any] | None
) -> None:
    """Write the metadata of TFDS, statistics.json, provenance.json and the datasheet beside shards and manifest."""
    write_tfds_metadata(folder, config.name, result.shard_lengths)
    statistics = {split: s.to_json() for split, s in result.reduced.statistics.items()}
    write_json(folder / STATISTICS, {"unit": "residues", "splits": statistics}, indent=1)
    provenance = _provenance(result, config, release)
    write_json(folder / PROVENANCE, provenance, indent=1)
    write_datasheet(folder, config.name, result.reduced.statistics, provenance)


def _provenance(result: IngestResult, config: IngestConfig, release: Mapping[str, Any] | None) -> dict[str, Any]:
    accounts, reduced = result.accounts, result.reduced
    held_out = config.splits.held_out if config.splits.manifest is None else ()
    near = {"near": reduced.near} if reduced.near else {}
    return {
        "fingerprint": result.fingerprint,
        "written_by": f"proteinlm {__version__}",
        "layout": VERSION,
        **({"release": release} if release else {}),
        "sources": accounts.sources,
        **result.families.provenance(),
        "splits": result.splits.provenance(),
        "held_out_sequences": {family: reduced.held_out[family] for family in held_out},
        "records": {
            "read": accounts.records,
            "taken": accounts.taken,
            "rejected": dict(sorted(accounts.rejected.items())),
        },
        "sequences": {**{split: s.count for split, s in reduced.statistics.items()}, **near},
        "sequences_with_families": reduced.with_families,
    }


@dataclass
class Summary:
    """Summary of an ingest.

    Attributes:
        output: folder of the dataset.
        records, taken: number of records read, and of those that were accepted.
        rejected: number of rejected records by reason.
        rejects: the first rejected records: source, record number, accession, reason, detail.
        statistics: statistics of each split.
        with_families: number of sequences that have a family.
        near: number of sequences that are in no split because they are near to an evaluated one (by_identity.py).
        unlisted, absent: number of sequences that only the sources have, and that only the published manifest has.
        malformed: rows of family tables that cannot be read: their number, and the first ones.
        unknown: accessions of family tables that no source has: their number, and the first ones.
        mismatched: number of records of which a family table has another version; its families were not used.
        searched: counts of the search with profiles; None without a search.
        warnings: warnings for the user.
        resumed: work that an interrupted ingest had finished, for messages; "" if there was none.
        seconds: wall time of each phase: families, map, reduce, write; search, manifest or identity if used.
    """

    output: Path
    records: int = 0
    taken: int = 0
    rejected: Counter = field(default_factory=Counter)
    rejects: list[tuple[str, int, str, str, str]] = field(default_factory=list)
    statistics: dict[str, SplitStatistics] = field(default_factory=dict)
    with_families: int = 0
    near: int = 0
    unlisted: int = 0
    absent: int = 0
    malformed: tuple[int, tuple[BadRow, ...]] = (0, ())
    unknown: tuple[int, tuple[str, ...]] = (0, ())
    mismatched: int = 0
    searched: Searched | None = None
    warnings: list[str] = field(default_factory=list)
    resumed: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, result: IngestResult, output: Path, config: IngestConfig) -> "Summary":
        """Summarise the result of an engine."""
        accounts, families, reduced = result.accounts, result.families, result.reduced
        return cls(
            output=output, records=accounts.records, taken=accounts.taken,
            rejected=accounts.rejected, rejects=accounts.rejects,
            statistics=reduced.statistics, with_families=reduced.with_families,
            near=reduced.near, unlisted=reduced.unlisted, absent=result.splits.unmatched.absent,
            malformed=families.malformed, unknown=families.unknown, mismatched=families.mismatched,
            searched=families.searched, warnings=_warnings(reduced, config),
            resumed=result.resumed, seconds=result.seconds,
        )  # fmt: skip

    @property
    def sequences(self) -> int:
        """Number of distinct sequences."""
        return sum(s.count for s in self.statistics.values()) + self.near + self.unlisted

    def print(self, console: Console) -> None:
        """Print Table 1, the amino-acid frequencies, the rejected and unknown records, and the times."""
        for table in render(self.statistics):
            console.print(table)
        # Without markup and highlighting: names from files may hold brackets.
        show = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
        copies = self.taken - self.sequences
        show(
            f"{self.records:,} records: {self.taken:,} taken ({copies:,} of them copies of others), "
            f"{self.records - self.taken:,} rejected; {self.with_families:,} of {self.sequences:,} "
            "sequences have a family."
        )
        self._print_splits(show)
        for reason, number in sorted(self.rejected.items()):
            show(f"  rejected, {reason}: {number:,}")
        for path, number, accession, reason, detail in self.rejects:
            show(f"    {path} record {number} {accession}: {reason} ({detail})")
        self._print_families(show)
        for warning in self.warnings:
            show(f"warning: {warning}")
        total = sum(self.seconds.values())
        shares = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in self.seconds.items())
        speed = (
            f"an interrupted ingest was continued: {self.resumed}"
            if self.resumed
            else f"{self.records / total:,.0f} records/s"
        )
        show(f"{total:.1f} s, {speed} ({shares})")
        show(f"the dataset is in {self.output}")

    def _print_splits(self, show: Callable[[str], None]) -> None:
        if self.near:
            show(f"  near, and so in no split: {self.near:,} sequences, which the manifest lists")
        if self.unlisted:
            show(f"  not in the published split, and so left out: {self.unlisted:,} sequences, in {UNMATCHED}")
        if self.absent:
            show(f"  in the published split and in none of the sources: {self.absent:,} sequences, in {UNMATCHED}")

    def _print_families(self, show: Callable[[str], None]) -> None:
        if self.malformed[0]:
            show(f"  {self.malformed[0]:,} rows of family tables could not be read:")
            for row in self.malformed[1]:
                show(f"    {row.path} line {row.line}: {row.text!r}")
        if self.unknown[0]:
            names = ", ".join(self.unknown[1]) + (", ..." if self.unknown[0] > len(self.unknown[1]) else "")
            show(f"  {self.unknown[0]:,} accessions of family tables are in none of the sources: {names}")
        if self.mismatched:
            show(
                f"  {self.mismatched:,} records have another CRC64 than a family table, whose families were left out: "
                f"{FAMILY_REJECTS}"
            )
        if self.searched:
            too_long = f"; {self.searched.too_long:,} were too long to be searched" if self.searched.too_long else ""
            show(
                f"  {self.searched.searched:,} sequences were searched with profiles; the search found a family for "
                f"{self.searched.found:,}{too_long}."
            )


def _warnings(reduced: ReduceResult, config: IngestConfig) -> list[str]:
    warnings = []
    if not reduced.statistics["train"].count:
        near = f"; {reduced.near:,} sequences are near: short, or like evaluated ones" if reduced.near else ""
        warnings.append(f"train is empty: lower --valid and --test, or give more sequences{near}.")
    held_out = config.splits.held_out
    missing = [family for family in held_out if not reduced.held_out[family]]
    if missing and config.splits.manifest is None:
        names = ", ".join(missing[:SHOWN]) + (" ..." if len(missing) > SHOWN else "")
        ood = "" if reduced.statistics["ood"].count else "; the split ood is empty"
        warnings.append(f"no sequence has {len(missing)} of {len(held_out)} held-out families ({names}){ood}.")
    return warnings
