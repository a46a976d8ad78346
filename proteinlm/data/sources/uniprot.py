"""UniProtKB flat files and FASTA -> records, as bytes; of a flat entry only ID, AC, OX, DR Pfam and SQ."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from proteinlm import alphabet
from proteinlm.data.sources.crc64 import crc64
from proteinlm.data.sources.files import SourceFile, TextBlock
from proteinlm.data.sources.names import printed
from proteinlm.errors import InputError


class Record(NamedTuple):
    """One protein.

    Attributes:
        accession: the primary one; an isoform keeps its suffix (P12345-2).
        sequence: canonical letters, ASCII (see `alphabet.canonical`).
        families: Pfam ids from DR lines, sorted, each once; empty for FASTA.
        reviewed: Swiss-Prot.
        taxon: NCBI taxonomy id, None when the record has none.
    """

    accession: str
    sequence: bytes
    families: tuple[str, ...]
    reviewed: bool
    taxon: int | None


class Reject(NamedTuple):
    """One record that was not taken.

    Attributes:
        number: of the record within its block or file, from 1.
        accession: as far as it could be read.
        reason: a class of reasons, to be counted.
        detail: what exactly.
    """

    number: int
    accession: str
    reason: str
    detail: str


class Parsed(NamedTuple):
    """A block's records and rejects, in order, and how many records it held in all."""

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
# Larger ones would not fit the manifest's int32; NCBI is at 3.5 million.
_TAXON_LIMIT = 1 << 31


def read_records(path: str | os.PathLike) -> Iterator[Record]:
    """Yield the good records of one file, in its order; `parse` tells about the others as well.

    Raises:
        InputError: the file as a whole is wrong (see `SourceFile`), or it holds not one good record.
    """
    found = False
    first: Reject | None = None
    for block in SourceFile(path).blocks():
        parsed = parse(block)
        first = first or next(iter(parsed.rejects), None)
        for record in parsed.records:
            found = True
            yield record
    if not found:
        why = f"; the first one: {first.reason} ({first.detail})" if first else ""
        raise InputError(f"{path} holds no usable record{why}.")


def first_record(path: str | os.PathLike) -> Record:
    """Return the first record of a file.

    Raises:
        InputError: the file as a whole is wrong, or just this record; another one is never taken in its place.
    """
    for block in SourceFile(path).blocks():
        parsed = parse(block)
        if parsed.rejects and (not parsed.records or parsed.rejects[0].number == 1):
            first = parsed.rejects[0]
            raise InputError(f"{path}: its first record, {first.accession}: {first.reason} ({first.detail}).")
        if parsed.records:
            return parsed.records[0]
    raise InputError(f"{path} holds no record.")


def parse(block: TextBlock) -> Parsed:
    """Parse a block of whole records; what is wrong with one of them is a reject, never an error."""
    return _parse_fasta(block.data) if block.format == "fasta" else _parse_flat(block)


def _parse_fasta(data: bytes) -> Parsed:
    records, rejects = [], []
    number = 0
    for number, piece in enumerate(data[1:].split(b"\n>"), 1):
        header, _, body = piece.partition(b"\n")
        name, reviewed = _fasta_name(header)
        letters = body.translate(None, _SPACES)
        # Whatever is left after all residues are taken away needs a closer look; so does an empty sequence.
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
    """Return the accession (of sp|P12345|NAME, UniRef50_P12345, a plain name), and if it is Swiss-Prot's."""
    words = header.split(None, 1)
    if not words:
        return "", False
    name = words[0]
    reviewed = False
    if name[:3] in (b"sp|", b"tr|"):
        reviewed = name[:1] == b"s"
        name = name.split(b"|", 2)[1]
    elif name[:6] == b"UniRef" and (cluster := _UNIREF.fullmatch(name)):
        # A cluster is named after one member; its sequence is that member's.
        name = cluster[1]
    return printed(name), reviewed


def _taxon(header: bytes) -> int | None:
    # UniProt's own first: a pattern that starts with a choice of words is tried at every letter.
    return _number(_UNIPROT_OX.search(header) or _TAXON.search(header))


def _number(found: re.Match[bytes] | None) -> int | None:
    taxon = int(found[1]) if found else _TAXON_LIMIT
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
    """A flat entry that waits for its checksum."""

    number: int
    accession: str
    letters: bytes
    families: tuple[str, ...]
    reviewed: bool
    taxon: int | None
    checksum: int | None
    finished: bool


class _Place(NamedTuple):
    """Where an entry's lines are: offsets into the block, -1 for a line that it has not.

    Attributes:
        start, end: of the entry; at `end` is its //, or what follows if `finished` is false.
        ac, ox, sq: its first lines of that code.
        pfam: all its DR lines that read Pfam.
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
    places, rejects, number = _places(data, len(block.data))
    entries = []
    for place in places:
        found = _read_entry(data, place)
        if isinstance(found, _Entry):
            entries.append(found)
        else:
            rejects.append(found)
    return _checked(entries, rejects, number)


def _places(data: bytes, length: int) -> tuple[Iterator[_Place], list[Reject], int]:
    """Find all lines of a block at once by their first two letters, and what each entry has of those that matter.

    One pass of NumPy over the bytes costs less than one search of bytes.find per line code, and it cannot mistake text
    inside a line for a line.

    Returns:
        The entries, rejects for what belongs to none, and how many of both there are.
    """
    array = np.frombuffer(data, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(array[:-2] == ord("\n")) + 1))
    codes = array[starts].astype(np.uint16) << 8 | array[starts + 1]
    lines = {name: starts[codes == _code(name)] for name in (b"ID", b"AC", b"OX", b"DR", b"SQ", b"//")}
    pfam = _pfam_lines(array, lines[b"DR"])
    # An entry begins at an ID line and ends at // or, if that is missing, at the next ID line.
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

    def lookup(where: np.ndarray) -> list[int]:
        index = np.searchsorted(where, first)
        found = np.append(where, length)[index]
        return np.where(found < last, found, -1).tolist()

    bounds = np.searchsorted(pfam, np.concatenate((first, last))).reshape(2, -1).tolist()
    pfam_places = pfam.tolist()
    made = zip(
        numbers[begins].tolist(), first.tolist(), last.tolist(), is_end[begins + 1].tolist(),
        lookup(lines[b"AC"]), lookup(lines[b"OX"]), lookup(lines[b"SQ"]),
        (pfam_places[low:high] for low, high in zip(*bounds, strict=True)), strict=True,
    )  # fmt: skip
    return map(_Place._make, made), rejects, len(both)


def _pfam_lines(array: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Keep those DR lines that read `DR   Pfam;`, in whatever case."""
    lines = lines[lines + 10 <= len(array)]
    for offset, letter in enumerate(b"pfam", 5):
        lines = lines[array[lines + offset] | 0x20 == letter]
    return lines[array[lines + 9] == ord(";")]


def _line(data: bytes, place: int) -> bytes:
    return data[place : data.find(b"\n", place)] if place >= 0 else b""


def _read_entry(data: bytes, place: _Place) -> _Entry | Reject:
    number, start, end, finished, ac, ox, sq, pfam = place
    # The first AC line's first word: later AC lines go on with secondary accessions.
    usual = _AC.match(data, ac) if ac >= 0 else None
    if usual:
        accession = usual[1].decode("ascii")
    else:
        name = _line(data, ac)[5:].partition(b";")[0].strip()
        accession = printed(name)
        if name.split() != [name]:
            return Reject(number, accession, NO_NAME, "the entry has no AC line with an accession")
    said = _SQ.match(data, sq) if sq >= 0 else None
    # A checksum that cannot be read is not the same as none.
    if said is None or (said[2] is None and b"CRC64" in _line(data, sq)):
        line = _line(data, sq)
        detail = f"SQ line reads {line[:60].decode('ascii', 'backslashreplace')!r}" if line else "SQ line missing"
        return Reject(number, accession, NO_SQ if finished else UNFINISHED, detail)
    letters = data[data.find(b"\n", said.end()) : end].translate(None, _SPACES)
    length = int(said[1])
    if len(letters) != length:
        detail = f"{len(letters)} residues, the SQ line says {length}"
        return Reject(number, accession, LENGTH if finished else UNFINISHED, detail)
    head = _line(data, start).split()
    if head[-1] == b"AA." and head[-2] != said[1]:
        # Where a stretch of a file is lost, one entry's accession can meet another one's sequence.
        detail = f"the ID line has {head[-2].decode('ascii', 'backslashreplace')}, the SQ line {length}"
        return Reject(number, accession, LENGTH, detail)
    families = tuple([found[1].decode() for line in pfam if (found := _DR_PFAM.match(data, line))])
    if len(families) > 1:
        families = tuple(sorted(set(families)))
    taxon = _number(_OX.match(data, ox)) if ox >= 0 else None
    # STANDARD is what Reviewed was called before 2006.
    reviewed = len(head) > 2 and head[2] in (b"Reviewed;", b"STANDARD;")
    checksum = int(said[2], 16) if said[2] else None
    return _Entry(number, accession, letters, families, reviewed, taxon, checksum, finished)


def _checked(entries: list[_Entry], rejects: list[Reject], number: int) -> Parsed:
    """Compare checksums, all at once, and make the letters canonical."""
    records = []
    for entry, found in zip(entries, crc64([e.letters for e in entries]).tolist(), strict=True):
        if entry.checksum is None and not entry.finished:
            # Without a checksum nothing says that the rest of the sequence is not missing.
            rejects.append(Reject(entry.number, entry.accession, UNFINISHED, "no // at its end and no CRC64"))
        elif entry.checksum not in (None, found):
            detail = f"the sequence has {found:016X}, the SQ line says {entry.checksum:016X}"
            rejects.append(Reject(entry.number, entry.accession, CHECKSUM, detail))
        else:
            letters = entry.letters
            if not letters or letters.translate(None, _RESIDUES):
                letters = _canonical(letters, entry.number, entry.accession, rejects)
            if letters is not None:
                records.append(Record(entry.accession, letters, entry.families, entry.reviewed, entry.taxon))
    rejects.sort()
    return Parsed(records, rejects, number)
