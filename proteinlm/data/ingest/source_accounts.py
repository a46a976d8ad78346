"""What an ingest has read, source by source: counts, and lists of what could not be used."""

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
    """What is said of a source: `SourceFile`, or what a worker elsewhere has read of one."""

    @property
    def path(self) -> str:
        """The name that is shown."""
        ...

    @property
    def size(self) -> int:
        """Bytes where it is stored."""
        ...

    @property
    def md5(self) -> str:
        """Of its bytes, once they are read."""
        ...


class Intake:
    """Accounts of the records, taken block by block in the order of the sources, within a `with` block.

    Args:
        files: sources, in the order in which they are read.
        folder: the dataset's; REJECTS is written there.
        families: told of each block as well.

    Attributes:
        sources: of each source that is read to its end, what the dataset's provenance says.
        records, taken: of all blocks so far.
        rejected: number of the others by reason.
        rejects: the first of them: source, record number, accession, reason, detail.
    """

    def __init__(self, files: Sequence[Source], folder: Path, families: FamilySources):
        self._files, self._path, self._families = files, folder / REJECTS, families
        self.sources: list[dict[str, Any]] = []
        self.records = self.taken = 0
        self.rejected: Counter = Counter()
        self.rejects: list[tuple[str, int, str, str, str]] = []
        self._number, self._format, self._length = 0, "", 0

    def __enter__(self) -> "Intake":
        self._handle = open(self._path, "ab")
        # What a killed ingest has written of sources that it has not finished.
        self._handle.truncate(self._length)
        if not self._length:
            self._handle.write(_HEADER.encode())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handle.close()

    def take(self, form: str, result: MapResult) -> None:
        """Account for a block of the source that is being read."""
        path = self._files[len(self.sources)].path
        for reject in result.rejects:
            row = (path, self._number + reject.number, reject.accession, reject.reason, reject.detail)
            # A path may hold a tab; a table cell may not.
            self._handle.write(
                ("\t".join(" ".join(str(cell).split()) for cell in row) + "\n").encode("utf-8", "backslashreplace")
            )
            self.rejected[reject.reason] += 1
            if len(self.rejects) < SHOWN:
                self.rejects.append(row)
        self._families.take(path, result.sources, result.mismatches)
        self._format = form
        self._number += result.number
        self.records += result.number
        self.taken += result.taken

    def end_source(self) -> None:
        """Note that the source is read to its end."""
        file = self._files[len(self.sources)]
        self.sources.append(
            {"path": file.path, "bytes": file.size, "md5": file.md5, "format": self._format, "records": self._number}
        )
        self._number = 0

    def check(self) -> None:
        """Refuse sources of which not one record can be used.

        Raises:
            InputError: with the first record and why.
        """
        if not self.taken:
            path, number, _, reason, detail = self.rejects[0]
            raise InputError(
                f"none of the {self.records:,} records can be used; the first is record {number} of "
                f"{path}: {reason} ({detail})."
            )

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, for JSON; at the end of a source."""
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
        """Go on from a state, before the `with` block."""
        self.sources = [*state["sources"]]
        self.records, self.taken = state["records"], state["taken"]
        self.rejected = Counter(state["rejected"])
        self.rejects = [tuple(row) for row in state["rejects"]]
        self._length = state["rejects_bytes"]
        self._families.restore(state["families"])
