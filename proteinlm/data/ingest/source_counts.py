"""Accounts of the sources of an ingest: number of records of each source, counts and list of rejected records."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from proteinlm.data.dataset.dataset import REJECTS
from proteinlm.data.families.ids import SHOWN
from proteinlm.data.ingest.family_sources import FamilySources
from proteinlm.data.ingest.steps import MapResult
from proteinlm.errors import InputError

_HEADER = "source\trecord\taccession\treason\tdetail\n"


class Source(Protocol):
    """Description of a source: a `SourceFile`, or the report of a worker on another machine."""

    @property
    def path(self) -> str:
        """Name of the source, for messages and provenance."""
        ...

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        ...

    @property
    def md5(self) -> str:
        """MD5 of the file, after it was read to its end."""
        ...


class SourceCounts:
    """Accounts of the records of all sources; blocks are added within a `with` block, in the order of the sources.

    Args:
        files: the sources, in the order in which they are read.
        folder: folder of the dataset, to which REJECTS is written.
        families: accounts of the families; they receive each block too.

    Attributes:
        sources: entry of provenance.json for each source that was read to its end.
        records, taken: number of records read so far, and of those that were accepted.
        rejected: number of rejected records by reason.
        rejects: the first rejected records: source, record number, accession, reason, detail.
    """

    def __init__(self, files: Sequence[Source], folder: Path, families: FamilySources):
        self._files, self._path, self._families = files, folder / REJECTS, families
        self.sources: list[dict[str, Any]] = []
        self.records = self.taken = 0
        self.rejected: Counter = Counter()
        self.rejects: list[tuple[str, int, str, str, str]] = []
        self._records_of_source, self._format, self._length = 0, "", 0

    def __enter__(self) -> "SourceCounts":
        self._handle = open(self._path, "ab")
        # An ingest that was killed may have written rejects of sources that it did not finish.
        self._handle.truncate(self._length)
        if not self._length:
            self._handle.write(_HEADER.encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handle.close()

    def add(self, form: str, result: MapResult) -> None:
        """Add a block of the source that is being read.

        Args:
            form: format of the source.
            result: counts and rejects of the block.
        """
        path = self._files[len(self.sources)].path
        for reject in result.rejects:
            row = (path, self._records_of_source + reject.number, reject.accession, reject.reason, reject.detail)
            # A path may hold a tab, which would start another column.
            self._handle.write(
                ("\t".join(" ".join(str(cell).split()) for cell in row) + "\n").encode("utf-8", "backslashreplace")
            )
            self.rejected[reject.reason] += 1
            if len(self.rejects) < SHOWN:
                self.rejects.append(row)
        self._families.add(path, result.sources, result.mismatches)
        self._format = form
        self._records_of_source += result.number
        self.records += result.number
        self.taken += result.taken

    def end_source(self) -> None:
        """Close the account of a source that was read to its end; the next block belongs to the next source."""
        file = self._files[len(self.sources)]
        self.sources.append(
            {
                "path": file.path, "bytes": file.size, "md5": file.md5, "format": self._format,
                "records": self._records_of_source,
            }
        )  # fmt: skip
        self._records_of_source = 0

    def check(self) -> None:
        """Raise an error if no record of any source was accepted.

        Raises:
            InputError: with the first rejected record and the reason.
        """
        if not self.taken:
            path, number, _, reason, detail = self.rejects[0]
            raise InputError(
                f"none of the {self.records:,} records can be used; the first is record {number} of "
                f"{path}: {reason} ({detail})."
            )

    def state(self) -> dict[str, Any]:
        """Return a dictionary for JSON, which `restore` reads; call it at the end of a source."""
        self._handle.flush()
        return {
            "sources": [*self.sources],
            "records": self.records,
            "taken": self.taken,
            "rejected": dict(self.rejected),
            "rejects": [*self.rejects],
            "rejects_bytes": os.fstat(self._handle.fileno()).st_size,
            "families": self._families.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a state of `state`; call it before the `with` block."""
        self.sources = [*state["sources"]]
        self.records, self.taken = state["records"], state["taken"]
        self.rejected = Counter(state["rejected"])
        self.rejects = [tuple(row) for row in state["rejects"]]
        self._length = state["rejects_bytes"]
        self._families.restore(state["families"])
