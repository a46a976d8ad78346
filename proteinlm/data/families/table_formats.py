"""Tables of families as blocks of rows: three formats, told apart by what the first rows hold, never by a name.

two columns             ACCESSION <tab> PF00001;PF00002, a header line is optional
Pfam-A.regions          its header names the columns; accession, crc64 and pfamA_acc are read, a row is one region
protein2ipr             accession, IPR000001, name, signature, start, end; rows whose signature is PF00001 are read
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from proteinlm.data.families.ids import FAMILY
from proteinlm.data.sources.files import SourceFile
from proteinlm.data.sources.names import all_printed, printed
from proteinlm.errors import InputError

TABLE_BLOCK_BYTES = 4 << 20
_LINE_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"
_LOOKED_AT = 100

Kind = Literal["two columns", "Pfam-A.regions", "protein2ipr"]

_ACCESSION_COLUMNS = (b"uniprot_acc", b"pfamseq_acc")
# One pattern reads a block whose lines are all written as they should be; `_two_columns` is more patient.
_TWO = re.compile(rb"^([^\s]+)\t((?:PF\d{5}(?:;PF\d{5})*)?);?$", re.MULTILINE)
_IPR = re.compile(rb"^([^\s]+)\tIPR\d{6}\t[^\t\n]*\t(PF\d{5}|(?!PF)[^\s]+)\t\d+\t\d+$", re.MULTILINE)
_ID = rb"(PF\d{5})(?:\.\d+)?"
_CRC = rb"([0-9A-Fa-f]{16})"
_NO_CRC = b"0" * 16

Row = tuple[bytes, bytes, bytes]
"""Accession; PF ids joined by `;` (none for a protein that was searched and has none); CRC64 of the sequence that was
searched as 16 hexadecimal digits, empty where the table has none."""


@dataclass(frozen=True)
class Form:
    """The format of one table.

    Attributes:
        kind: its name.
        cells: of a row.
        header: whether its first line that is not blank is one.
        columns: of Pfam-A.regions: where accession, CRC64 and family stand.
    """

    kind: Kind
    cells: int
    header: bool
    columns: tuple[int, int, int] = (0, 0, 0)


class TableBlock(NamedTuple):
    """Whole lines of one table, without its header."""

    form: Form
    data: bytes


class ParsedRows(NamedTuple):
    """What one block holds.

    Attributes:
        rows: those of use, in order; equal ones that follow each other are one.
        bad: those that cannot be read: line within the block (from 1), and how it begins.
        number: rows in all, of use or not.
    """

    rows: list[Row]
    bad: list[tuple[int, str]]
    number: int


def form_of(lines: list[bytes]) -> Form:
    """Tell the format from the first lines that are not blank; two columns where nothing else fits."""
    for place, line in enumerate(lines):
        cells = [cell.strip() for cell in line.split(b"\t")]
        if place == 0 and cells[0].lower() in _ACCESSION_COLUMNS and {b"crc64", b"pfamA_acc"} <= set(cells):
            return Form("Pfam-A.regions", len(cells), True, (0, cells.index(b"crc64"), cells.index(b"pfamA_acc")))
        if len(cells) == 6 and re.fullmatch(rb"IPR\d{6}", cells[1]):
            return Form("protein2ipr", 6, False)
        # A part of the file, cut out with grep or zcat | tail.
        if len(cells) == 7 and re.fullmatch(_CRC, cells[2]) and FAMILY.fullmatch(cells[4]):
            return Form("Pfam-A.regions", 7, False, (0, 2, 4))
    return Form("two columns", 2, bool(lines) and _is_header(lines[0]))


def _is_header(line: bytes) -> bool:
    """Tell the first line with words for names, as in `accession pfam` or UniProt's `Entry Pfam`."""
    cells = line.split(b"\t")
    # A damaged id (PF0442O) is no name of a column.
    second = cells[-1].strip()
    like_an_id = second[:2].upper() == b"PF" and second[2:3].isdigit()
    return len(cells) == 2 and not FAMILY.search(second) and second[:1].isalpha() and not like_an_id


def table_blocks(source: SourceFile, size: int = TABLE_BLOCK_BYTES) -> Iterator[tuple[int, TableBlock]]:
    """Yield blocks of whole lines, and for each how many lines of the file stand before it.

    Raises:
        InputError: as `SourceFile.lines`; or a line is longer than any table's.
    """
    form: Form | None = None
    before = 0
    for data in _whole_lines(source, size):
        if form is None:
            data = data.removeprefix(_BOM)
            lines = [line for line in data.split(b"\n", _LOOKED_AT)[:_LOOKED_AT] if line.strip()]
            form = form_of(lines) if lines else None
            if form is not None and form.header:
                end = data.index(lines[0]) + len(lines[0]) + 1
                before += data.count(b"\n", 0, end)
                data = data[end:]
        if form is not None and data:
            yield before, TableBlock(form, data)
        before += data.count(b"\n")


def _whole_lines(source: SourceFile, size: int) -> Iterator[bytes]:
    held: list[bytes] = []
    length = 0
    for chunk in source.lines():
        held.append(chunk)
        length += len(chunk)
        if length < size:
            continue
        text = b"".join(held)
        cut = text.rfind(b"\n") + 1
        if cut:
            yield text[:cut]
        elif length > _LINE_BYTES:
            raise InputError(f"{source.path} has a line of more than {_LINE_BYTES >> 20} MiB: this is no table.")
        held, length = [text[cut:]], len(text) - cut
    if length:
        yield b"".join(held)


def parse_rows(block: TableBlock) -> ParsedRows:
    """Read a block; rows that cannot be read are a part of the result, never an error."""
    form, data = block
    num_lines = data.count(b"\n") + (not data.endswith(b"\n"))
    found = _found(data, form)
    if len(found) == num_lines and all_printed(data):
        return ParsedRows(_of_use(found), [], num_lines)
    # Some line is blank, unusual or wrong: one after another.
    rows, bad, number = [], [], 0
    for place, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            number += 1
            one = _found(line, form) or ([row] if form.kind == "two columns" and (row := _two_columns(line)) else [])
            rows += [(printed(name).encode(), families, crc) for name, families, crc in one]
            if not one:
                bad.append((place, line[:60].decode("ascii", "backslashreplace")))
    return ParsedRows(_of_use(rows), bad, number)


def _found(data: bytes, form: Form) -> list[Row]:
    """Return the rows of all lines that are written exactly as the format has it."""
    if form.kind == "two columns":
        return [(name, families, b"") for name, families in _TWO.findall(data)]
    if form.kind == "protein2ipr":
        return [(name, signature, b"") for name, signature in _IPR.findall(data)]
    cells = [rb"[^\t\n]*"] * form.cells
    for column, pattern in zip(form.columns, (rb"([^\s]+)", _CRC, _ID), strict=True):
        cells[column] = pattern
    found = re.findall(rb"^" + rb"\t".join(cells) + rb"$", data, re.MULTILINE)
    # The three columns are found in the order of the file.
    order = sorted(form.columns)
    name, crc, family = map(order.index, form.columns)
    return [(row[name], row[family], row[crc].upper()) for row in found if row[crc] != _NO_CRC]


def _of_use(rows: Iterable[Row]) -> list[Row]:
    """Leave out other databases' signatures (protein2ipr), and repeats: regions of one family follow each other."""
    return [row for row, _ in groupby(rows) if row[1][:2] in (b"PF", b"")]


def _two_columns(line: bytes) -> Row | None:
    """Read a row with spaces, versions of families, or `;` at the end."""
    cells = line.split(b"\t")
    if len(cells) != 2:
        return None
    name = cells[0].strip()
    ids = [cell.strip() for cell in cells[1].split(b";") if cell.strip()]
    found = [FAMILY.fullmatch(cell) for cell in ids]
    if not name or b" " in name or not all(found):
        return None
    return name, b";".join(match[1] for match in found if match), b""
