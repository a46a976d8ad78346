"""Formats of family tables: one class for each format, the registry of formats, and reading a table block by block.

A format is recognised by the first rows of a file, never by the name of the file. To add one, write a subclass of
`TableFormat` and decorate it with `register_table_format`; everything else reads the registry.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, NamedTuple, Self, TypeVar

from proteinlm.data.families.ids import FAMILY
from proteinlm.data.sources.accessions import all_printed, printed
from proteinlm.data.sources.files import SourceFile
from proteinlm.errors import InputError

TABLE_BLOCK_BYTES = 4 << 20
_LINE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_FIRST_LINES = 100

Row = tuple[bytes, bytes, bytes]
"""Accession; Pfam ids joined by `;` (empty for a protein that was searched without a hit); CRC64 of the searched
sequence as 16 upper-case hexadecimal digits (empty where the table has no checksums)."""


@dataclass(frozen=True)
class TableFormat(ABC):
    """The format of one table. A subclass is a kind of table; an instance holds the details of one file.

    An instance travels to worker processes (pickled) with each block of rows. A subclass from outside this package must
    therefore be in a module that the workers can import.

    Class attributes:
        name: name of the format in provenance.json.
        example: how messages and help texts describe such a table.

    Attributes:
        header: whether the first line that is not blank is a header.
    """

    name: ClassVar[str]
    example: ClassVar[str]
    header: bool = False

    @classmethod
    @abstractmethod
    def recognise(cls, lines: Sequence[bytes]) -> Self | None:
        """Return the format of a table that begins with these lines; None if the table has another format.

        Args:
            lines: the first lines that are not blank, at most 100, without line ends.
        """

    @abstractmethod
    def parse(self, text: bytes) -> list[Row]:
        r"""Return one row for each well-formed line, in order; skip the other lines, which are counted as malformed.

        A row whose second item is neither empty nor begins with PF is counted as read and not used.

        Args:
            text: one or more lines of the table, separated by `\n`.
        """

    def parse_unusual(self, line: bytes) -> Row | None:
        """Return the row of a line that `parse` has skipped, such as one with extra spaces; None if it is malformed."""
        return None


Format = TypeVar("Format", bound=type[TableFormat])
_FORMATS: dict[str, type[TableFormat]] = {}


def register_table_format(cls: Format) -> Format:
    """Add a format. Use this function as a decorator of a subclass of `TableFormat`.

    Raises:
        ValueError: another format has the same name.
    """
    if _FORMATS.setdefault(cls.name, cls) is not cls:
        raise ValueError(f"the table format {cls.name!r} is registered already, by {_FORMATS[cls.name].__qualname__}")
    return cls


def table_formats() -> tuple[type[TableFormat], ...]:
    """Return the registered formats in the order in which they are tried: the last registered one first."""
    return tuple(reversed(_FORMATS.values()))


def examples_of_formats() -> str:
    """Return the examples of all formats, for messages: "A, B or C"."""
    *first, last = (cls.example for cls in _FORMATS.values())
    return f"{', '.join(first)} or {last}"


@register_table_format
@dataclass(frozen=True)
class TwoColumns(TableFormat):
    """ACCESSION <tab> PF00001;PF00002. A header line is optional. Any table that no other format recognises."""

    name = "two columns"
    example = "rows ACCESSION<TAB>PF00001;PF00002"
    _line = re.compile(rb"^([^\s]+)\t((?:PF\d{5}(?:;PF\d{5})*)?);?$", re.MULTILINE)

    @classmethod
    def recognise(cls, lines: Sequence[bytes]) -> Self:
        """Accept any table."""
        return cls(bool(lines) and cls._is_header(lines[0]))

    @staticmethod
    def _is_header(line: bytes) -> bool:
        """Return whether the cells of the first line are words, such as `accession pfam` or UniProt's `Entry Pfam`."""
        cells = line.split(b"\t")
        # A damaged id (PF0442O) is not the name of a column.
        second = cells[-1].strip()
        like_an_id = second[:2].upper() == b"PF" and second[2:3].isdigit()
        return len(cells) == 2 and not FAMILY.search(second) and second[:1].isalpha() and not like_an_id

    def parse(self, text: bytes) -> list[Row]:
        """Return the rows of lines without spaces, and with Pfam ids without versions."""
        return [(accession, families, b"") for accession, families in self._line.findall(text)]

    def parse_unusual(self, line: bytes) -> Row | None:
        """Return the row of a line with spaces, versions of families, or more than one `;` at the end."""
        cells = line.split(b"\t")
        if len(cells) != 2:
            return None
        accession = cells[0].strip()
        matches = [FAMILY.fullmatch(cell.strip()) for cell in cells[1].split(b";") if cell.strip()]
        if not accession or b" " in accession or not all(matches):
            return None
        return accession, b";".join(match[1] for match in matches if match), b""


@register_table_format
@dataclass(frozen=True)
class PfamRegions(TableFormat):
    """Pfam-A.regions: each row is one region of a protein. The header, if present, names the columns.

    Attributes:
        num_cells: number of cells in a row.
        columns: indices of the columns with the accession, the CRC64 and the Pfam id.
    """

    name = "Pfam-A.regions"
    example = "Pfam-A.regions.uniprot.tsv.gz"
    num_cells: int = 7
    columns: tuple[int, int, int] = (0, 2, 4)

    _ACCESSIONS = (b"uniprot_acc", b"pfamseq_acc")
    _CRC = rb"([0-9A-Fa-f]{16})"
    _NO_CRC = b"0" * 16

    @classmethod
    def recognise(cls, lines: Sequence[bytes]) -> Self | None:
        """Accept a table with Pfam's header, or, without a header, one with rows of seven columns in Pfam's order."""
        for number, line in enumerate(lines):
            cells = [cell.strip() for cell in line.split(b"\t")]
            if number == 0 and cells[0].lower() in cls._ACCESSIONS and {b"crc64", b"pfamA_acc"} <= set(cells):
                return cls(True, len(cells), (0, cells.index(b"crc64"), cells.index(b"pfamA_acc")))
            # Such as a part of the file, cut out with grep or zcat | tail.
            if len(cells) == 7 and re.fullmatch(cls._CRC, cells[2]) and FAMILY.fullmatch(cells[4]):
                return cls()
        return None

    def parse(self, text: bytes) -> list[Row]:
        """Return the rows with a checksum; Pfam writes 0 for an unknown one."""
        cells = [rb"[^\t\n]*"] * self.num_cells
        for column, pattern in zip(self.columns, (rb"([^\s]+)", self._CRC, rb"(PF\d{5})(?:\.\d+)?"), strict=True):
            cells[column] = pattern
        rows = re.findall(rb"^" + rb"\t".join(cells) + rb"$", text, re.MULTILINE)
        # The three groups of the pattern are in the order of the columns.
        accession, crc, family = map(sorted(self.columns).index, self.columns)
        return [(row[accession], row[family], row[crc].upper()) for row in rows if row[crc] != self._NO_CRC]


@register_table_format
@dataclass(frozen=True)
class Protein2Ipr(TableFormat):
    """InterPro's protein2ipr: accession, IPR000001, name, signature, start, end. Pfam's signatures are used."""

    name = "protein2ipr"
    example = "protein2ipr.dat.gz"
    _line = re.compile(rb"^([^\s]+)\tIPR\d{6}\t[^\t\n]*\t(PF\d{5}|(?!PF)[^\s]+)\t\d+\t\d+$", re.MULTILINE)

    @classmethod
    def recognise(cls, lines: Sequence[bytes]) -> Self | None:
        """Accept a table with six columns, the second of which is an InterPro id."""
        for line in lines:
            cells = line.split(b"\t")
            if len(cells) == 6 and re.fullmatch(rb"IPR\d{6}", cells[1].strip()):
                return cls()
        return None

    def parse(self, text: bytes) -> list[Row]:
        """Return one row for each signature, including those of other databases."""
        return [(accession, signature, b"") for accession, signature in self._line.findall(text)]


class TableBlock(NamedTuple):
    """Whole lines of one table, without its header."""

    format: TableFormat
    text: bytes


class ParsedRows(NamedTuple):
    """The rows of one block.

    Attributes:
        rows: the usable rows, in order; of equal rows that follow each other, one.
        malformed: malformed lines: number of the line in the block (from 1) and the beginning of the line.
        number: number of all rows.
    """

    rows: list[Row]
    malformed: list[tuple[int, str]]
    number: int


def format_of(lines: Sequence[bytes], formats: Iterable[type[TableFormat]] | None = None) -> TableFormat:
    """Return the format of a table from its first lines: that of the first of `formats` that recognises them.

    Args:
        lines: the first lines that are not blank, without line ends.
        formats: default: `table_formats()`.
    """
    for cls in table_formats() if formats is None else formats:
        table_format = cls.recognise(lines)
        if table_format is not None:
            return table_format
    raise AssertionError("TwoColumns recognises any table")


def table_blocks(
    source: SourceFile, size: int = TABLE_BLOCK_BYTES, formats: Iterable[type[TableFormat]] | None = None
) -> Iterator[tuple[int, TableBlock]]:
    """Yield blocks of whole lines, each with the number of lines of the file before it.

    Args:
        source: the table.
        size: approximate size of a block in bytes.
        formats: as in `format_of`.

    Raises:
        InputError: as `SourceFile.lines`; or a line has more than 64 MiB.
    """
    table_format: TableFormat | None = None
    before = 0
    for text in _whole_lines(source, size):
        if table_format is None:
            text = text.removeprefix(_BOM)
            lines = [line for line in text.split(b"\n", _FIRST_LINES)[:_FIRST_LINES] if line.strip()]
            table_format = format_of(lines, formats) if lines else None
            if table_format is not None and table_format.header:
                end = text.index(lines[0]) + len(lines[0]) + 1
                before += text.count(b"\n", 0, end)
                text = text[end:]
        if table_format is not None and text:
            yield before, TableBlock(table_format, text)
        before += text.count(b"\n")


def _whole_lines(source: SourceFile, size: int) -> Iterator[bytes]:
    parts: list[bytes] = []
    length = 0
    for chunk in source.lines():
        parts.append(chunk)
        length += len(chunk)
        if length < size:
            continue
        text = b"".join(parts)
        end = text.rfind(b"\n") + 1
        if end:
            yield text[:end]
        elif length > _LINE_BYTES:
            raise InputError(f"{source.path} has a line of more than {_LINE_BYTES >> 20} MiB: it is not a table.")
        parts, length = [text[end:]], len(text) - end
    if length:
        yield b"".join(parts)


def parse_rows(block: TableBlock) -> ParsedRows:
    """Parse a block. Malformed lines are a part of the result, not an error."""
    table_format, text = block
    num_lines = text.count(b"\n") + (not text.endswith(b"\n"))
    rows = table_format.parse(text)
    if len(rows) == num_lines and all_printed(text):
        return ParsedRows(_usable(rows), [], num_lines)
    # Some line is blank, unusual or malformed: parse each line alone.
    rows, malformed, number = [], [], 0
    for line_number, line in enumerate(text.split(b"\n"), 1):
        if line.strip():
            number += 1
            row = next(iter(table_format.parse(line)), None) or table_format.parse_unusual(line)
            if row is None:
                malformed.append((line_number, line[:60].decode("ascii", "backslashreplace")))
            else:
                accession, families, crc = row
                rows.append((printed(accession).encode(), families, crc))
    return ParsedRows(_usable(rows), malformed, number)


def _usable(rows: Iterable[Row]) -> list[Row]:
    """Leave out signatures of other databases, and repeats: the regions of one family follow each other."""
    return [row for row, _ in groupby(rows) if row[1][:2] in (b"PF", b"")]
