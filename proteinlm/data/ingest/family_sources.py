"""Families of an ingest: tables that are joined, profiles that sequences are searched with, and their counts."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import Progress

from proteinlm.data.families.ids import SHOWN
from proteinlm.data.families.profile_search import ProfileFile, Searched, read_profiles, search_buckets
from proteinlm.data.families.table_counts import BadRow, TableFile
from proteinlm.data.families.table_join import join_tables
from proteinlm.data.families.table_lookup import FamilyTables, Mismatch
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.workers import Submit
from proteinlm.data.sources.locations import Location, expand

FAMILY_REJECTS = "families_rejects.tsv"
"""List of the proteins of which a table has another version. The file exists only if there are any."""


class FamilySources:
    """Tables and profiles of one ingest, with counts of their use.

    Args:
        config: settings of the ingest; it names the tables and the profiles.
        work: scratch folder.
        folder: folder of the dataset, to which FAMILY_REJECTS is written.

    Attributes:
        files: the tables, with their counts of rows.
        profiles: the files of profiles.
        sources: number of records that have a family from each source (see `table_lookup.Joined`).
        mismatched: number of records whose CRC64 differs from that of a table.
        unknown: accessions of tables that no record has: their number, and the first ones.
        searched: counts of the search; None without a search.
    """

    def __init__(self, config: IngestConfig, work: Path, folder: Path):
        self._config, self._work, self._rejects = config, work, folder / FAMILY_REJECTS
        self.files: list[TableFile] = []
        self.profiles: list[ProfileFile] = []
        self.sources: Counter = Counter()
        self.mismatched = 0
        self.unknown: tuple[int, tuple[str, ...]] = (0, ())
        self.searched: Searched | None = None

    @property
    def malformed(self) -> tuple[int, tuple[BadRow, ...]]:
        """Rows of tables that cannot be read: their number, and the first ones."""
        shown = [row for file in self.files for row in file.shown]
        return sum(file.malformed for file in self.files), tuple(shown[:SHOWN])

    def inputs(self) -> dict[str, Any]:
        """Return name and stamp of each file, for the marker of the ingest."""
        kinds = (("table", self._config.families), ("profiles", self._config.profiles))
        return {f"{kind} {name}": Location(name).stamp for kind, paths in kinds for name in expand(paths)}

    def read_profiles(self) -> None:
        """Check the profiles and copy them to the scratch folder; errors as for `profile_search.read_profiles`."""
        if self._config.profiles:
            self.profiles = read_profiles([os.fspath(path) for path in self._config.profiles], self._work)

    def read_tables(self, submit: Submit, progress: Progress, joined: bool) -> None:
        """Join the tables, unless they are `joined` already.

        Raises:
            InputError: as `join_tables`.
        """
        if not self._config.families:
            return
        folder = self._work / "families"
        if not joined:
            bar = progress.add_task("families", total=1.0, detail="")
            join_tables(
                self._config.families, folder, submit, lambda fraction: progress.update(bar, completed=fraction)
            )
        self.files = FamilyTables(folder).files

    def state(self) -> dict[str, Any]:
        """Return a dictionary for JSON, which `restore` reads."""
        size = self._rejects.stat().st_size if self.mismatched else 0
        return {"sources": dict(self.sources), "mismatched": self.mismatched, "rejects_bytes": size}

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a state of `state`, and drop the rejects that were written after it."""
        self.sources, self.mismatched = Counter(state["sources"]), state["mismatched"]
        if self.mismatched:
            os.truncate(self._rejects, state["rejects_bytes"])
        else:
            self._rejects.unlink(missing_ok=True)

    def add(self, path: str, sources: Counter, mismatches: Sequence[Mismatch]) -> None:
        """Add the counts of one block of the file `path`, and append its mismatches to FAMILY_REJECTS."""
        self.sources.update(sources)
        if not mismatches:
            return
        with open(self._rejects, "a", encoding="utf-8") as handle:
            if not self.mismatched:
                handle.write("source\taccession\tcrc64_of_table\tcrc64_of_sequence\n")
            name = " ".join(path.split())
            for one in mismatches:
                handle.write(f"{name}\t{one.accession}\t{one.of_table:016X}\t{one.of_sequence:016X}\n")
        self.mismatched += len(mismatches)

    def count_unknown(self) -> None:
        """Count the accessions of the tables that no record has."""
        if self._config.families:
            self.unknown = FamilyTables(self._work / "families").unused()

    def search(self, num_buckets: int, submit: Submit, progress: Progress) -> Searched:
        """Search the sequences of all buckets with the profiles."""
        bar = progress.add_task("searching", total=None, detail="")

        def advance(done: int, total: int, with_families: int) -> None:
            detail = f"{done:,} of {total:,} sequences, {with_families:,} with families"
            progress.update(bar, completed=done, total=total, detail=detail)

        self.searched = search_buckets(self._work, num_buckets, self._config.search_all, submit, advance)
        return self.searched

    def provenance(self) -> dict[str, Any]:
        """Return the entries of provenance.json about families."""
        tables = [{name: value for name, value in asdict(file).items() if name != "shown"} for file in self.files]
        entries: dict[str, Any] = {
            "family_tables": tables,
            "family_rows": {
                "read": sum(file.rows for file in self.files),
                "malformed": self.malformed[0],
                "unknown_accession": self.unknown[0],
            },
            "family_profiles": [asdict(file) for file in self.profiles],
            "records_with_families": dict(sorted(self.sources.items())),
            "records_with_another_crc64": self.mismatched,
        }
        if self.searched is not None:
            sequences = "all" if self._config.search_all else "those without a family"
            entries["family_search"] = {"sequences": sequences, "cutoffs": "gathering", **asdict(self.searched)}
        return entries
