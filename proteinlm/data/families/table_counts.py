"""What was read of a table of families: counts, and the first rows that cannot be read."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proteinlm.data.families.ids import SHOWN
from proteinlm.data.families.table_formats import examples_of_formats
from proteinlm.errors import InputError


class TableResult(NamedTuple):
    """What a block held: rows read, how many are of use, which cannot be read (line within the block, how it begins),
    and the length in bytes of the longest key."""

    number: int
    good: int
    bad: list[tuple[int, str]]
    width: int


class BadRow(NamedTuple):
    """A row of a table that could not be read: its file, line (from 1) and how it begins."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class TableFile:
    """A table that was read.

    Attributes:
        path, bytes, md5: of the file.
        format: name of its `TableFormat`.
        rows: that were read, headers not counted.
        malformed: how many of them could not be read.
        shown: the first of these.
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
        """Read what `asdict` and JSON made of one."""
        return cls(**{**fields, "shown": tuple(BadRow(*row) for row in fields["shown"])})


@dataclass
class TableCounts:
    """What was read of the table `path`: rows, those of use, those that cannot be read, and the first of these."""

    path: str
    rows: int = 0
    good: int = 0
    malformed: int = 0
    shown: list[BadRow] = field(default_factory=list)

    def add(self, before: int, result: TableResult) -> None:
        """Add a block, in the order of the file, before which there are so many lines."""
        self.rows += result.number
        self.good += result.good
        self.malformed += len(result.bad)
        some = result.bad[: SHOWN - len(self.shown)]
        self.shown += [BadRow(self.path, before + line, text) for line, text in some]

    def file(self, size: int, md5: str, kind: str) -> TableFile:
        """Return the table, once it is read.

        Raises:
            InputError: not one of its rows can be used.
        """
        if not self.good:
            raise InputError(f"{self.path} has no row that can be used: name a table with {examples_of_formats()}.")
        return TableFile(self.path, size, md5, kind, self.rows, self.malformed, tuple(self.shown))
