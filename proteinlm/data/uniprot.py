"""UniProtKB flat files and FASTA -> records, as bytes; of a flat entry only ID, AC, OX, DR Pfam and SQ."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from proteinlm.data import alphabet
from proteinlm.data.crc64 import crc64
from proteinlm.data.sources import Block, SourceFile
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
_TAXON = re.compile(rb"(?:\bOX|\bTaxID|NCBI_TaxID)=(\d{1,9})\b")
_PFAM = re.compile(rb"PF\d{5}")
_SQ = re.compile(rb"SQ   SEQUENCE\s+(\d{1,9}) AA;(?:.*?([0-9A-Fa-f]{16}) CRC64)?")
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


def parse(block: Block) -> Parsed:
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
    return name.decode("ascii", "backslashreplace"), reviewed


def _taxon(text: bytes) -> int | None:
    found = _TAXON.search(text)
    return int(found[1]) if found and int(found[1]) < _TAXON_LIMIT else None


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


def _code(text: bytes) -> int:
    return text[0] << 8 | text[1]


def _parse_flat(block: Block) -> Parsed:
    """Find all lines of a block at once by their first two letters, then look at the few that matter.

    One pass of NumPy over the bytes costs less than one search of bytes.find per line code, and it cannot
    mistake text inside a line for a line.
    """
    data = block.data + b"\n\n"
    array = np.frombuffer(data, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(array[:-2] == ord("\n")) + 1))
    codes = array[starts].astype(np.uint16) << 8 | array[starts + 1]
    starts_of = {name: starts[codes == _code(name)] for name in (b"ID", b"AC", b"OX", b"DR", b"SQ", b"//")}
    starts_of[b"DR"] = _pfam_lines(array, starts_of[b"DR"])
    ids = starts_of[b"ID"].tolist()
    ends = starts_of[b"//"].tolist()
    # An entry begins at an ID line and ends at // or, if that is missing, at the next ID line.
    begins = sorted([(place, False) for place in ids] + [(place, True) for place in ends])
    rejects: list[Reject] = []
    entries: list[_Entry] = []
    where = {name: places.tolist() for name, places in starts_of.items()}
    at = dict.fromkeys(where, 0)
    number, open_at, seen = 0, -1, 0
    for place, is_end in [*begins, (len(block.data), None)]:
        if open_at >= 0:
            number += 1
            _read_entry(data, open_at, place, bool(is_end), number, where, at, entries, rejects)
        elif is_end or (is_end is None and data[seen:place].strip()):
            number += 1
            rejects.append(Reject(number, "", NO_ID, "the entry does not start with an ID line"))
        open_at = place if is_end is False else -1
        seen = data.find(b"\n", place) + 1 if is_end else place
    return _checked(entries, rejects, number)


def _pfam_lines(array: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Keep those DR lines that read `DR   Pfam;`, in whatever case."""
    lines = lines[lines + 10 <= len(array)]
    for offset, letter in enumerate(b"pfam", 5):
        lines = lines[array[lines + offset] | 0x20 == letter]
    return lines[array[lines + 9] == ord(";")]


def _first(places: list[int], index: int, start: int) -> int:
    while index < len(places) and places[index] < start:
        index += 1
    return index


def _read_entry(data, start, end, finished, number, where, at, entries, rejects) -> None:
    """Read data[start:end] into `entries` or `rejects`; `at` remembers how far each list was used."""
    for name in (b"AC", b"OX", b"DR", b"SQ"):
        at[name] = _first(where[name], at[name], start)

    def line(name: bytes) -> bytes:
        places, index = where[name], at[name]
        if index == len(places) or places[index] >= end:
            return b""
        return data[places[index] : data.find(b"\n", places[index])]

    # The first AC line's first word: later AC lines go on with secondary accessions.
    accession = line(b"AC")[5:].split(b";", 1)[0].strip().decode("ascii", "backslashreplace")
    if accession.split() != [accession]:
        rejects.append(Reject(number, accession, NO_NAME, "the entry has no AC line with an accession"))
        return
    sq = line(b"SQ")
    said = _SQ.match(sq)
    if said is None:
        detail = "SQ line missing" if not sq else f"SQ line reads {sq[:60].decode('ascii', 'backslashreplace')!r}"
        reason = NO_SQ if finished else UNFINISHED
        rejects.append(Reject(number, accession, reason, detail))
        return
    letters = data[where[b"SQ"][at[b"SQ"]] + len(sq) : end].translate(None, _SPACES)
    if len(letters) != int(said[1]):
        reason = LENGTH if finished else UNFINISHED
        rejects.append(Reject(number, accession, reason, f"{len(letters)} residues, the SQ line says {int(said[1])}"))
        return
    head = data[start : data.find(b"\n", start)].split()
    if head[-1:] == [b"AA."] and head[-2] != said[1]:
        # Where a stretch of a file is lost, one entry's accession can meet another one's sequence.
        detail = f"the ID line has {head[-2].decode('ascii', 'backslashreplace')}, the SQ line {int(said[1])}"
        rejects.append(Reject(number, accession, LENGTH, detail))
        return
    families = set()
    places = where[b"DR"]
    while at[b"DR"] < len(places) and places[at[b"DR"]] < end:
        family = line(b"DR")[10:].split(b";", 1)[0].strip()
        if _PFAM.fullmatch(family):
            families.add(family.decode())
        at[b"DR"] += 1
    # STANDARD is what Reviewed was called before 2006.
    reviewed = len(head) > 2 and head[2] in (b"Reviewed;", b"STANDARD;")
    checksum = int(said[2], 16) if said[2] else None
    entries.append(
        _Entry(
            number,
            accession,
            letters,
            tuple(sorted(families)),
            reviewed,
            _taxon(line(b"OX")),
            checksum,
            finished,
        )
    )


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
