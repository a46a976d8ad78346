"""Parsing of FASTA and UniProtKB flat files into records. Of a flat entry, ID, AC, OX, DR Pfam and SQ are read."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from proteinlm import alphabet
from proteinlm.data.sources.accessions import printed
from proteinlm.data.sources.crc64 import crc64
from proteinlm.data.sources.files import SourceFile, TextBlock
from proteinlm.errors import InputError


class Record(NamedTuple):
    """One protein.

    Attributes:
        accession: primary accession; that of an isoform has a suffix (P12345-2).
        sequence: canonical letters, ASCII (see `alphabet.canonical`).
        families: Pfam ids of the DR lines, sorted, each once; empty for FASTA.
        reviewed: whether the record is from Swiss-Prot.
        taxon: NCBI taxonomy id; None if the record has none.
    """

    accession: str
    sequence: bytes
    families: tuple[str, ...]
    reviewed: bool
    taxon: int | None


class Reject(NamedTuple):
    """One rejected record.

    Attributes:
        number: number of the record in its block or file, from 1.
        accession: the accession, as far as it could be read.
        reason: one of the reasons below; rejects are counted by reason.
        detail: details of this record.
    """

    number: int
    accession: str
    reason: str
    detail: str


class Parsed(NamedTuple):
    """Records and rejects of a block, in order, and the number of both together."""

    records: list[Record]
    rejects: list[Reject]
    number: int


NO_NAME = "no accession"
NO_SEQUENCE = "no sequence"
LETTER = "letter outside the alphabet"
NO_ID = "text outside an entry"
NO_SQ = "no readable SQ line"
LENGTH = "length differs from ID or SQ line"
CHECKSUM = "CRC64 differs from SQ line"
UNFINISHED = "entry without its end"

_RESIDUES = alphabet.RESIDUES.encode()
_SPACES = b" \t\n"
_UNIREF = re.compile(rb"UniRef\d+_(.+)")
_UNIPROT_OX = re.compile(rb" OX=(\d{1,9})\b")
_TAXON = re.compile(rb"(?:\bOX|\bTaxID|NCBI_TaxID)=(\d{1,9})\b")
_AC = re.compile(rb"AC   (\w+)(?:;|\n)")
_OX = re.compile(rb"OX   NCBI_TaxID=(\d{1,9})\b")
_DR_PFAM = re.compile(rb"DR   ....; *(PF\d{5}) *[;\n]")
_SQ = re.compile(rb"SQ   SEQUENCE[ \t]+(\d{1,9}) AA;(?:(?: +\d+ MW; +|.*?)([0-9A-Fa-f]{16}) CRC64)?")
# Larger ids do not fit into the int32 of the manifest; NCBI has 3.5 million taxa.
_TAXON_LIMIT = 1 << 31


def read_records(path: str | os.PathLike) -> Iterator[Record]:
    """Yield the usable records of one file, in order. (`parse` also returns the rejects.)

    Raises:
        InputError: the file cannot be read as FASTA or flat file (see `SourceFile`), or has no usable record.
    """
    empty = True
    first: Reject | None = None
    for block in SourceFile(path).blocks():
        parsed = parse(block)
        first = first or next(iter(parsed.rejects), None)
        for record in parsed.records:
            empty = False
            yield record
    if empty:
        why = f"; the first one: {first.reason} ({first.detail})" if first else ""
        raise InputError(f"{path} has no usable record{why}.")


def first_record(path: str | os.PathLike) -> Record:
    """Return the first record of a file.

    Raises:
        InputError: the file cannot be read, or its first record is rejected; the next record is not returned instead.
    """
    for block in SourceFile(path).blocks():
        parsed = parse(block)
        if parsed.rejects and (not parsed.records or parsed.rejects[0].number == 1):
            first = parsed.rejects[0]
            raise InputError(f"{path}: its first record, {first.accession}: {first.reason} ({first.detail}).")
        if parsed.records:
            return parsed.records[0]
    raise InputError(f"{path} has no record.")


def parse(block: TextBlock) -> Parsed:
    """Parse a block of whole records. A wrong record becomes a reject, not an error."""
    return _parse_fasta(block.data) if block.format == "fasta" else _parse_flat(block)


def _parse_fasta(data: bytes) -> Parsed:
    records, rejects = [], []
    number = 0
    for number, piece in enumerate(data[1:].split(b"\n>"), 1):
        header, _, body = piece.partition(b"\n")
        name, reviewed = _fasta_name(header)
        letters = body.translate(None, _SPACES)
        # A sequence with other letters than residues, or without letters, is checked letter by letter.
        if not letters or letters.translate(None, _RESIDUES):
            letters = _canonical(letters, number, name, rejects)
            if letters is None:
                continue
        if not name:
            rejects.append(Reject(number, "", NO_NAME, "nothing follows the '>'"))
            continue
        records.append(Record(name, letters, (), reviewed, _taxon(header) if b"=" in header else None))
    return Parsed(records, rejects, number)


def _fasta_name(header: bytes) -> tuple[str, bool]:
    """Return the accession of a FASTA header (sp|P12345|NAME, UniRef50_P12345, any name), and if it is reviewed."""
    words = header.split(None, 1)
    if not words:
        return "", False
    name = words[0]
    reviewed = False
    if name[:3] in (b"sp|", b"tr|"):
        reviewed = name[:1] == b"s"
        name = name.split(b"|", 2)[1]
    elif name[:6] == b"UniRef" and (cluster := _UNIREF.fullmatch(name)):
        # The name of a cluster contains the accession of one member, whose sequence is given.
        name = cluster[1]
    return printed(name), reviewed


def _taxon(header: bytes) -> int | None:
    # UniProt's pattern is tried first, because a pattern that starts with alternatives is slower.
    return _number(_UNIPROT_OX.search(header) or _TAXON.search(header))


def _number(match: re.Match[bytes] | None) -> int | None:
    taxon = int(match[1]) if match else _TAXON_LIMIT
    return taxon if taxon < _TAXON_LIMIT else None


def _canonical(letters: bytes, number: int, name: str, rejects: list[Reject]) -> bytes | None:
    try:
        return alphabet.canonical(letters)
    except InputError as error:
        detail = str(error)
        if b">" in letters:
            detail += "; a line break is missing before '>'"
        rejects.append(Reject(number, name, LETTER if letters.strip(b"*") else NO_SEQUENCE, detail))
        return None


class _Entry(NamedTuple):
    """A flat entry before its checksum is checked."""

    number: int
    accession: str
    letters: bytes
    families: tuple[str, ...]
    reviewed: bool
    taxon: int | None
    checksum: int | None
    finished: bool


class _Offsets(NamedTuple):
    """Offsets in the block of the lines of one flat entry; -1 for a missing line.

    Attributes:
        number: number of the entry in the block, from 1.
        start: its ID line.
        end: its // line; if `finished` is false, the next entry or the end of the block.
        finished: whether it has a // line.
        ac, ox, sq: its first line of each code.
        pfam: all its DR Pfam lines.
    """

    number: int
    start: int
    end: int
    finished: bool
    ac: int
    ox: int
    sq: int
    pfam: list[int]


def _code(text: bytes) -> int:
    return text[0] << 8 | text[1]


def _parse_flat(block: TextBlock) -> Parsed:
    data = block.data + b"\n\n"
    offsets, rejects, number = _find_entries(data, len(block.data))
    entries = []
    for entry_offsets in offsets:
        entry = _read_entry(data, entry_offsets)
        if isinstance(entry, _Entry):
            entries.append(entry)
        else:
            rejects.append(entry)
    return _check_checksums(entries, rejects, number)


def _find_entries(data: bytes, length: int) -> tuple[Iterator[_Offsets], list[Reject], int]:
    """Find the entries of a block and their lines, by the first two letters of all lines at once.

    One pass of NumPy over the bytes is faster than bytes.find for each line code, and does not mistake text inside a
    line for the beginning of a line.

    Returns:
        The offsets of each entry, rejects for text outside entries, and the number of both together.
    """
    array = np.frombuffer(data, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(array[:-2] == ord("\n")) + 1))
    codes = array[starts].astype(np.uint16) << 8 | array[starts + 1]
    lines = {name: starts[codes == _code(name)] for name in (b"ID", b"AC", b"OX", b"DR", b"SQ", b"//")}
    pfam = _pfam_lines(array, lines[b"DR"])
    # An entry begins at an ID line and ends at its // line or, if // is missing, at the next ID line.
    marks = np.concatenate((lines[b"ID"], lines[b"//"]))
    order = np.argsort(marks, kind="stable")
    marks = np.append(marks[order], length)
    is_end = np.append(order >= len(lines[b"ID"]), False)
    begins = np.flatnonzero(~is_end[:-1])
    strays = np.flatnonzero(is_end & np.append(True, is_end[:-1]))
    after = int(data.find(b"\n", marks[-2]) + 1) if len(marks) > 1 and is_end[-2] else 0
    if (len(marks) == 1 or is_end[-2]) and data[after:length].strip():
        strays = np.append(strays, len(marks) - 1)
    numbers = np.empty(len(marks), np.int64)
    both = np.sort(np.concatenate((begins, strays)))
    numbers[both] = np.arange(1, len(both) + 1)
    rejects = [Reject(n, "", NO_ID, "the entry does not start with an ID line") for n in numbers[strays].tolist()]
    first, last = marks[begins], marks[begins + 1]

    def first_in_each(offsets: np.ndarray) -> list[int]:
        following = np.append(offsets, length)[np.searchsorted(offsets, first)]
        return np.where(following < last, following, -1).tolist()

    bounds = np.searchsorted(pfam, np.concatenate((first, last))).reshape(2, -1).tolist()
    pfam_offsets = pfam.tolist()
    entries = zip(
        numbers[begins].tolist(), first.tolist(), last.tolist(), is_end[begins + 1].tolist(),
        first_in_each(lines[b"AC"]), first_in_each(lines[b"OX"]), first_in_each(lines[b"SQ"]),
        (pfam_offsets[low:high] for low, high in zip(*bounds, strict=True)), strict=True,
    )  # fmt: skip
    return map(_Offsets._make, entries), rejects, len(both)


def _pfam_lines(array: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Return the offsets of the DR lines that begin with `DR   Pfam;` (in any case)."""
    lines = lines[lines + 10 <= len(array)]
    for offset, letter in enumerate(b"pfam", 5):
        lines = lines[array[lines + offset] | 0x20 == letter]
    return lines[array[lines + 9] == ord(";")]


def _line(data: bytes, offset: int) -> bytes:
    return data[offset : data.find(b"\n", offset)] if offset >= 0 else b""


def _read_entry(data: bytes, offsets: _Offsets) -> _Entry | Reject:
    number, start, end, finished, ac, ox, sq, pfam = offsets
    # The primary accession is the first word of the first AC line; secondary accessions follow.
    usual = _AC.match(data, ac) if ac >= 0 else None
    if usual:
        accession = usual[1].decode("ascii")
    else:
        name = _line(data, ac)[5:].partition(b";")[0].strip()
        accession = printed(name)
        if name.split() != [name]:
            return Reject(number, accession, NO_NAME, "the entry has no AC line with an accession")
    header = _SQ.match(data, sq) if sq >= 0 else None
    # A checksum that cannot be read is not the same as a missing one.
    if header is None or (header[2] is None and b"CRC64" in _line(data, sq)):
        line = _line(data, sq)
        detail = f"SQ line reads {line[:60].decode('ascii', 'backslashreplace')!r}" if line else "SQ line missing"
        return Reject(number, accession, NO_SQ if finished else UNFINISHED, detail)
    letters = data[data.find(b"\n", header.end()) : end].translate(None, _SPACES)
    length = int(header[1])
    if len(letters) != length:
        detail = f"{len(letters)} residues, the SQ line says {length}"
        return Reject(number, accession, LENGTH if finished else UNFINISHED, detail)
    head = _line(data, start).split()
    if head[-1] == b"AA." and head[-2] != header[1]:
        # If a part of the file is lost, the accession of one entry may be followed by the sequence of another entry.
        detail = f"the ID line has {head[-2].decode('ascii', 'backslashreplace')}, the SQ line {length}"
        return Reject(number, accession, LENGTH, detail)
    families = tuple([match[1].decode() for line in pfam if (match := _DR_PFAM.match(data, line))])
    if len(families) > 1:
        families = tuple(sorted(set(families)))
    taxon = _number(_OX.match(data, ox)) if ox >= 0 else None
    # Before 2006, UniProt wrote STANDARD instead of Reviewed.
    reviewed = len(head) > 2 and head[2] in (b"Reviewed;", b"STANDARD;")
    checksum = int(header[2], 16) if header[2] else None
    return _Entry(number, accession, letters, families, reviewed, taxon, checksum, finished)


def _check_checksums(entries: list[_Entry], rejects: list[Reject], number: int) -> Parsed:
    """Check the CRC64 of all entries at once, and convert their letters to canonical ones."""
    records = []
    for entry, crc in zip(entries, crc64([e.letters for e in entries]).tolist(), strict=True):
        if entry.checksum is None and not entry.finished:
            # Without a checksum and //, the end of the sequence may be missing.
            rejects.append(Reject(entry.number, entry.accession, UNFINISHED, "no // at its end and no CRC64"))
        elif entry.checksum not in (None, crc):
            detail = f"the sequence has {crc:016X}, the SQ line says {entry.checksum:016X}"
            rejects.append(Reject(entry.number, entry.accession, CHECKSUM, detail))
        else:
            letters = entry.letters
            if not letters or letters.translate(None, _RESIDUES):
                letters = _canonical(letters, entry.number, entry.accession, rejects)
            if letters is not None:
                records.append(Record(entry.accession, letters, entry.families, entry.reviewed, entry.taxon))
    rejects.sort()
    return Parsed(records, rejects, number)
