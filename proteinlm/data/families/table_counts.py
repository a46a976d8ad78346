"""Statistics of the family tables that were read: numbers of rows, and the first malformed rows."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proteinlm.data.families.ids import SHOWN
from proteinlm.data.families.table_formats import examples_of_formats
from proteinlm.errors import InputError


class TableResult(NamedTuple):
    """Statistics of one block of a table.

    Attributes:
        number: number of rows.
        usable: number of usable rows.
        malformed: malformed rows: line in the block (from 1) and beginning of the line.
        width: length of the longest key in bytes.
    """

    number: int
    usable: int
    malformed: list[tuple[int, str]]
    width: int


class BadRow(NamedTuple):
    """A malformed row of a table: path of the file, line (from 1), and beginning of the line."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class TableFile:
    """A family table that was read.

    Attributes:
        path: name of the file.
        bytes: size of the file in bytes.
        md5: MD5 of the file in hexadecimal.
        format: name of its `TableFormat`.
        rows: number of rows, without the header.
        malformed: number of malformed rows.
        shown: the first malformed rows.
    """

    path: str
    bytes: int
    md5: str
    format: str
    rows: int
    malformed: int
    shown: tuple[BadRow, ...]

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> "TableFile":
        """Return the object from the JSON of its `asdict`."""
        return cls(**{**fields, "shown": tuple(BadRow(*row) for row in fields["shown"])})


@dataclass
class TableCounts:
    """Counts of the table `path` while it is read: rows, usable rows, malformed rows, and the first malformed rows."""

    path: str
    rows: int = 0
    usable: int = 0
    malformed: int = 0
    shown: list[BadRow] = field(default_factory=list)

    def add(self, before: int, result: TableResult) -> None:
        """Add the next block of the file; `before` is the number of lines before it."""
        self.rows += result.number
        self.usable += result.usable
        self.malformed += len(result.malformed)
        first = result.malformed[: SHOWN - len(self.shown)]
        self.shown += [BadRow(self.path, before + line, text) for line, text in first]

    def file(self, size: int, md5: str, format_name: str) -> TableFile:
        """Return the description of the table after all its blocks have been added.

        Raises:
            InputError: no row is usable.
        """
        if not self.usable:
            raise InputError(f"{self.path} has no usable row: give a table with {examples_of_formats()}.")
        return TableFile(self.path, size, md5, format_name, self.rows, self.malformed, tuple(self.shown))
