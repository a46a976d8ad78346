"""Where families come from: DR lines (uniprot.py), two-column tables (here); and which are held out."""

import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proteinlm.data.sources import SourceFile
from proteinlm.errors import InputError

PAPER_HELD_OUT_FAMILIES = (
    "PF18369", "PF04680", "PF17988", "PF12325", "PF03272", "PF03938", "PF17724", "PF10696", "PF11968",
    "PF04153", "PF06173", "PF12378", "PF04420", "PF10841", "PF06917", "PF03492", "PF06905", "PF15340",
    "PF17055", "PF05318",
)  # fmt: skip
"""The 20 Pfam families of the Performer paper's out-of-distribution split (appendix C.1)."""

SHOWN = 5
"""How many malformed rows and unknown accessions are kept for showing."""

_FAMILY = re.compile(rb"(PF\d{5})(?:\.\d+)?")
_ISOFORM = re.compile(rb"(.+)-\d+")


@dataclass(frozen=True)
class BadRow:
    """A row of a table that could not be read: its file, line (from 1) and what it holds."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class FamilyTable:
    """Families by accession, sorted, in two arrays and a list of the combinations that occur.

    It is held in memory, about 15 bytes a row; saved and loaded it is mapped, so that worker processes share
    one copy. Tables larger than memory (Pfam-A.regions, protein2ipr) are for a join by partition, which is
    another job.

    Attributes:
        accessions: S[longest], sorted, each once.
        groups: int32, the same length: index into `combinations`.
        combinations: PF ids joined by `;`, sorted; b"" stands for a protein that was searched and has none.
        num_rows: rows that were read, headers not counted.
        num_malformed: how many of them could not be used.
        malformed: the first of those.
        files: path, size in bytes and MD5 of each file.
    """

    accessions: np.ndarray
    groups: np.ndarray
    combinations: tuple[bytes, ...]
    num_rows: int = 0
    num_malformed: int = 0
    malformed: tuple[BadRow, ...] = ()
    files: tuple[tuple[str, int, str], ...] = ()

    @classmethod
    def read(cls, paths: Iterable[str | os.PathLike]) -> "FamilyTable":
        """Read tables of `accession<TAB>PF00001;PF00002`, plain or .gz, header line optional.

        Rows of one accession are united. PF ids may carry a version (PF00001.23) and end in `;` as UniProt's
        downloads do.

        Raises:
            InputError: a file is unreadable, empty, or not one of its rows can be used.
        """
        names: list[bytes] = []
        groups = array("i")
        index: dict[bytes, int] = {}
        bad: list[BadRow] = []
        files = []
        num_rows = num_malformed = 0
        for path in sorted(map(Path, paths)):
            good = 0
            source = SourceFile(path)
            for place, (number, line) in enumerate(_lines(source)):
                row = _row(line)
                if row is None:
                    if place or not _is_header(line):
                        num_rows += 1
                        num_malformed += 1
                        if len(bad) < SHOWN:
                            shown = line[:60].decode("ascii", "backslashreplace")
                            bad.append(BadRow(str(path), number, shown))
                    continue
                num_rows += 1
                good += 1
                names.append(row[0])
                groups.append(index.setdefault(row[1], len(index)))
            if not good:
                raise InputError(
                    f"{path} has no row of the form ACCESSION<TAB>PF00001;PF00002: name a table of families."
                )
            files.append((str(path), source.size, source.md5))
        return cls._sorted(names, groups, list(index), (num_rows, num_malformed, tuple(bad), tuple(files)))

    @classmethod
    def _sorted(cls, names, groups, combinations, counts) -> "FamilyTable":
        accessions = np.array(names, dtype="S") if names else np.zeros(0, "S1")
        order = np.argsort(accessions, kind="stable")
        accessions, codes = accessions[order], np.array(groups, np.int32)[order]
        first = np.ones(len(accessions), bool)
        first[1:] = accessions[1:] != accessions[:-1]
        starts = np.flatnonzero(first)
        sizes = np.diff(np.append(starts, len(accessions)))
        index = {name: i for i, name in enumerate(combinations)}
        united = codes[starts]
        for place in np.flatnonzero(sizes > 1).tolist():
            group = codes[starts[place] : starts[place] + sizes[place]].tolist()
            ids = b";".join(sorted({f for g in group for f in combinations[g].split(b";") if f}))
            united[place] = index.setdefault(ids, len(index))
        return cls(accessions[starts], united, tuple(index), *counts)

    def rows(self, accessions: Sequence[bytes]) -> np.ndarray:
        """Return the row of each accession, int64 [n], -1 where the table has none.

        An isoform (P12345-2) without a row of its own takes its protein's: better one protein too many on
        the held-out side than a leak into train.
        """
        rows = self._find(accessions)
        for place in np.flatnonzero(rows < 0).tolist():
            name = accessions[place]
            if b"-" in name and (isoform := _ISOFORM.fullmatch(name)):
                rows[place] = self._find([isoform[1]])[0]
        return rows

    def _find(self, accessions: Sequence[bytes]) -> np.ndarray:
        if not len(self.accessions) or not len(accessions):
            return np.full(len(accessions), -1, np.int64)
        wanted = np.array(accessions, dtype="S")
        places = np.minimum(np.searchsorted(self.accessions, wanted), len(self.accessions) - 1)
        return np.where(self.accessions[places] == wanted, places, -1)

    def families(self, row: int) -> bytes:
        """Return the PF ids of a row, joined by `;`."""
        return self.combinations[self.groups[row]]

    def save(self, folder: Path) -> None:
        """Write the arrays into an existing folder."""
        np.save(folder / "accessions.npy", self.accessions)
        np.save(folder / "groups.npy", self.groups)
        (folder / "combinations").write_bytes(b"\n".join(self.combinations))

    @classmethod
    def load(cls, folder: Path) -> "FamilyTable":
        """Map the arrays that `save` wrote; the counts of rows are not among them."""
        # An empty array cannot be mapped.
        names, groups = (
            np.load(path, mmap_mode="r" if path.stat().st_size > 256 else None)
            for path in (folder / "accessions.npy", folder / "groups.npy")
        )
        return cls(names, groups, tuple((folder / "combinations").read_bytes().split(b"\n")))


def _lines(source: SourceFile) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1."""
    number, rest = 0, b""
    for chunk in source.lines():
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            number += 1
            if line.strip():
                yield number, line
    if rest.strip():
        yield number + 1, rest


def _row(line: bytes) -> tuple[bytes, bytes] | None:
    cells = line.split(b"\t")
    if len(cells) != 2:
        return None
    name = cells[0].strip()
    ids = [cell.strip() for cell in cells[1].split(b";") if cell.strip()]
    found = [_FAMILY.fullmatch(cell) for cell in ids]
    if not name or b" " in name or not all(found):
        return None
    return name, b";".join(sorted({match[1] for match in found if match}))


def _is_header(line: bytes) -> bool:
    """Tell the first line with words for names, as in `accession pfam` or UniProt's `Entry Pfam`."""
    cells = line.split(b"\t")
    return len(cells) == 2 and not _FAMILY.search(cells[1]) and cells[1].strip()[:1].isalpha()


def check_families(families: Iterable[str], what: str) -> tuple[str, ...]:
    """Return Pfam ids, each once, in the given order, without versions.

    Raises:
        InputError: one is no Pfam id; `what` says where it stands.
    """
    checked = {}
    for family in families:
        match = _FAMILY.fullmatch(family.strip().encode())
        if match is None:
            raise InputError(f"{what}: {family!r} is no Pfam id; one reads PF00001.")
        checked[match[1].decode()] = None
    return tuple(checked)


def read_held_out(path: str | os.PathLike) -> tuple[str, ...]:
    """Read a list of held-out families: one PF id a line, the rest of a line after # is a comment.

    Raises:
        InputError: the file cannot be read, holds no id, or a line that is none.
    """
    families: dict[str, None] = {}
    for number, line in _lines(SourceFile(path)):
        text = line.split(b"#", 1)[0].strip().decode("ascii", "backslashreplace")
        if text:
            families.update(dict.fromkeys(check_families([text], f"{path} line {number}")))
    if not families:
        raise InputError(f"{path} holds no Pfam id: write one a line, or use --held-out none.")
    return tuple(families)
