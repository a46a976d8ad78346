"""What an ingest did, for programs and for the terminal."""

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from proteinlm.data.dataset.statistics import SplitStatistics, render
from proteinlm.data.families.profile_search import Searched
from proteinlm.data.families.table_counts import BadRow
from proteinlm.data.ingest.family_sources import FAMILY_REJECTS
from proteinlm.data.splits.from_manifest import UNMATCHED


@dataclass
class Summary:
    """What an ingest did.

    Attributes:
        output: the dataset's folder.
        records, taken: records read, and those that became part of the dataset.
        rejected: number of the others by reason.
        rejects: the first of them: source, record number, accession, reason, detail.
        statistics: of each split.
        with_families: sequences that have a family.
        near: sequences that are in no split since they are near to an evaluated one (see split_identity.py).
        unlisted, absent: sequences that only the sources have, or only the manifest whose splits are taken over.
        malformed: rows of family tables that could not be read: how many, and the first ones.
        unknown: accessions of family tables that no source has: how many, and the first ones.
        mismatched: records of which a family table knows another version; its families were left out.
        searched: what a search with profiles did, None without one.
        warnings: sentences for the user.
        taken_up: what an ingest that was stopped had finished, in words; empty if there was none.
        seconds: wall time of each phase: families, map, reduce, write; search, manifest, identity if there are any.
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
    taken_up: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def listed(self) -> int:
        """Number of distinct sequences that the manifest has."""
        return sum(s.count for s in self.statistics.values()) + self.near

    @property
    def sequences(self) -> int:
        """Number of distinct sequences."""
        return self.listed + self.unlisted

    def print(self, console: Console) -> None:
        """Print Table 1, the amino-acid frequencies, what was rejected or unknown, where the time went."""
        for table in render(self.statistics):
            console.print(table)
        # Without markup and highlighting: names from files may hold brackets.
        say = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
        copies = self.taken - self.sequences
        say(
            f"{self.records:,} records: {self.taken:,} taken ({copies:,} of them copies of others), "
            f"{self.records - self.taken:,} rejected; {self.with_families:,} of {self.sequences:,} "
            "sequences have a family."
        )
        self._say_splits(say)
        for reason, number in sorted(self.rejected.items()):
            say(f"  rejected, {reason}: {number:,}")
        for path, number, accession, reason, detail in self.rejects:
            say(f"    {path} record {number} {accession}: {reason} ({detail})")
        if self.malformed[0]:
            say(f"  {self.malformed[0]:,} rows of family tables could not be read:")
            for row in self.malformed[1]:
                say(f"    {row.path} line {row.line}: {row.text!r}")
        if self.unknown[0]:
            shown = ", ".join(self.unknown[1]) + (", ..." if self.unknown[0] > len(self.unknown[1]) else "")
            say(f"  {self.unknown[0]:,} accessions of family tables are in none of the sources: {shown}")
        if self.mismatched:
            say(
                f"  {self.mismatched:,} records have another CRC64 than a family table, whose families were left out: "
                f"{FAMILY_REJECTS}"
            )
        if self.searched:
            too_long = f", {self.searched.too_long:,} were too long" if self.searched.too_long else ""
            say(
                f"  {self.searched.searched:,} sequences were searched with profiles, {self.searched.found:,} have a "
                f"family by that{too_long}."
            )
        for warning in self.warnings:
            say(f"warning: {warning}")
        total = sum(self.seconds.values())
        shares = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in self.seconds.items())
        rate = (
            f"after one that was stopped: {self.taken_up}"
            if self.taken_up
            else f"{self.records / total:,.0f} records/s"
        )
        say(f"{total:.1f} s, {rate} ({shares})")
        say(f"the dataset is in {self.output}")

    def _say_splits(self, say: Callable[[str], None]) -> None:
        if self.near:
            say(f"  near, and so in no split: {self.near:,} sequences, which the manifest lists")
        if self.unlisted:
            say(f"  not in the published split, and so left out: {self.unlisted:,} sequences, in {UNMATCHED}")
        if self.absent:
            say(f"  in the published split and in none of the sources: {self.absent:,} sequences, in {UNMATCHED}")
