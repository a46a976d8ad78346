"""Where the families of one ingest come from: tables are joined, sequences are searched, and both are accounted for."""

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
from proteinlm.data.ingest.workers import Submit
from proteinlm.data.sources.locations import Location, expand

FAMILY_REJECTS = "families_rejects.tsv"
"""Proteins of which a table knows another version; the file is there if there are any."""


class FamilySources:
    """Tables and profiles of one run, and what became of them.

    Args:
        tables: paths of tables.
        profiles: paths of profiles to search sequences with that have no family otherwise.
        everything: search those that have one as well.
        work: scratch folder.
        output: folder that FAMILY_REJECTS is written to.
        progress: where bars are shown.

    Attributes:
        sources: number of records with families, by source (see `pfam_table.Joined`).
        mismatched: number of records whose CRC64 is not a table's.
        unknown: accessions of tables that no record has: how many, and the first ones.
        searched: what the search did, None without one.
    """

    def __init__(
        self,
        tables: Sequence,
        profiles: Sequence,
        everything: bool,
        work: Path,
        output: Path,
        progress: Progress,
    ):
        self.paths, self.profile_paths, self.everything = tuple(tables), tuple(profiles), everything
        self.work, self.output, self.progress = work, output, progress
        self.files: list[TableFile] = []
        self.profiles: list[ProfileFile] = []
        self.sources: Counter = Counter()
        self.mismatched = 0
        self.unknown: tuple[int, tuple[str, ...]] = (0, ())
        self.searched: Searched | None = None

    @property
    def malformed(self) -> tuple[int, tuple[BadRow, ...]]:
        """Rows of tables that could not be read: how many, and the first ones."""
        shown = [row for file in self.files for row in file.shown]
        return sum(file.malformed for file in self.files), tuple(shown[:SHOWN])

    def read(self, submit: Submit, joined: bool = False) -> None:
        """Join the tables, unless they are joined already, and check the profiles, before any sequence is read.

        Raises:
            InputError: as `join_tables` and `read_profiles`.
        """
        if self.profile_paths:
            self.profiles = read_profiles(self.profile_paths, self.work)
        if self.paths and not joined:
            bar = self.progress.add_task("families", total=1.0, detail="")
            join_tables(
                self.paths, self.work / "families", submit, lambda share: self.progress.update(bar, completed=share)
            )
        if self.paths:
            self.files = FamilyTables(self.work / "families").files

    def inputs(self) -> dict[str, Any]:
        """Return which files these are, for the marker of the ingest."""
        kinds = (("table", self.paths), ("profiles", self.profile_paths))
        return {f"{kind} {name}": Location(name).stamp for kind, paths in kinds for name in expand(paths)}

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, for JSON."""
        path = self.output / FAMILY_REJECTS
        size = path.stat().st_size if self.mismatched else 0
        return {"sources": dict(self.sources), "mismatched": self.mismatched, "rejects_bytes": size}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state: forget what was taken after it."""
        self.sources, self.mismatched = Counter(state["sources"]), state["mismatched"]
        path = self.output / FAMILY_REJECTS
        if self.mismatched:
            os.truncate(path, state["rejects_bytes"])
        else:
            path.unlink(missing_ok=True)

    def take(self, path: str, sources: Counter, mismatches: Sequence[Mismatch]) -> None:
        """Account for the records of one block of the file `path`."""
        self.sources.update(sources)
        if not mismatches:
            return
        with open(self.output / FAMILY_REJECTS, "a", encoding="utf-8") as handle:
            if not self.mismatched:
                handle.write("source\taccession\tcrc64_of_table\tcrc64_of_sequence\n")
            name = " ".join(path.split())
            for one in mismatches:
                handle.write(f"{name}\t{one.accession}\t{one.of_table:016X}\t{one.of_sequence:016X}\n")
        self.mismatched += len(mismatches)

    def count_unknown(self) -> None:
        """Find the accessions of the tables that no record has asked for."""
        if self.paths:
            self.unknown = FamilyTables(self.work / "families").unused()

    def search(self, num_buckets: int, submit: Submit) -> Searched:
        """Search what is in the buckets."""
        bar = self.progress.add_task("searching", total=None, detail="")

        def advance(done: int, total: int, found: int) -> None:
            detail = f"{done:,} of {total:,} sequences, {found:,} with families"
            self.progress.update(bar, completed=done, total=total, detail=detail)

        self.searched = search_buckets(num_buckets, self.everything, submit, advance)
        return self.searched

    def provenance(self) -> dict[str, Any]:
        """Return what the dataset's provenance says about families."""
        tables = [{name: value for name, value in asdict(file).items() if name != "shown"} for file in self.files]
        made: dict[str, Any] = {
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
            which = "all" if self.everything else "those without a family"
            made["family_search"] = {"sequences": which, "cutoffs": "gathering", **asdict(self.searched)}
        return made
