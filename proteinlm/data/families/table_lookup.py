"""Lookup of accessions in joined family tables (table_join.py), which are memory-mapped and not loaded."""

import json
import mmap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proteinlm.data.families.ids import SHOWN, united
from proteinlm.data.families.table_counts import TableFile
from proteinlm.data.families.table_join import COLUMNS, INDEX, USED, hashes_of, key, partition_edges
from proteinlm.data.sources.accessions import protein_of
from proteinlm.data.sources.crc64 import crc64
from proteinlm.data.sources.uniprot import Record

DR_LINES = "DR lines"
"""Name of the source of families that are in the records themselves."""

RESIDENT_BYTES = 64 << 20
"""Size of the tables above which a process releases their memory pages after each lookup."""
_SCANNED_ROWS = 1 << 20


class Mismatch(NamedTuple):
    """A protein whose CRC64 differs from that in a table: the table is about another version of the sequence.

    Attributes:
        accession: accession of the protein.
        of_table: CRC64 in the table.
        of_sequence: CRC64 of the sequence.
        place: index of the record in the batch.
    """

    accession: str
    of_table: int
    of_sequence: int
    place: int


@dataclass
class Joined:
    """Families of a batch of records.

    Attributes:
        families: for each record, Pfam ids joined by `;`: those of the record and those of the tables.
        sources: number of records with families from each source (path of a table, or DR_LINES).
        mismatches: records for which a table has another checksum, so that its families were not used.
    """

    families: list[bytes]
    sources: Counter = field(default_factory=Counter)
    mismatches: list[Mismatch] = field(default_factory=list)


def own_families(records: Sequence[Record]) -> Joined:
    """Return the families in the records themselves (from DR lines)."""
    joined = Joined([";".join(record.families).encode() for record in records])
    joined.sources[DR_LINES] = sum(map(bool, joined.families))
    return joined


class _Hit(NamedTuple):
    """A row of the tables for a record: index in the batch, checksum or 0, families, bits of the tables."""

    place: int
    checksum: int
    families: bytes
    mask: int


class FamilyTables:
    """Joined family tables, open for lookup. Each process opens them itself.

    Args:
        folder: folder of `table_join.join_tables`.

    Attributes:
        files: the tables that were joined.
        num_rows: number of pairs of an accession and a checksum.
    """

    def __init__(self, folder: Path):
        index = json.loads((folder / INDEX).read_text())
        self.files = [TableFile.of_json(file) for file in index["files"]]
        self.num_rows: int = index["rows"]
        self._maps: list[mmap.mmap] = []
        types = COLUMNS | {"keys": f"S{index['width']}"}
        self._hashes, self._keys, self._checksums, self._groups, self._ends, self._masks, self._texts = (
            self._mapped(folder / name, types[name]) for name in COLUMNS
        )
        self._used = self._mapped(folder / USED, np.uint8, mmap.ACCESS_WRITE)
        size = sum(map(len, self._maps))
        # Large tables are looked up in pieces, each with the hashes of the batch that fall into it.
        pieces = min(index["partitions"], -(-2 * size // RESIDENT_BYTES))
        self._pieces = partition_edges(1 << (pieces - 1).bit_length()) if size > RESIDENT_BYTES else None

    def _mapped(self, path: Path, dtype, access: int = mmap.ACCESS_READ) -> np.ndarray:
        # The system cannot map an empty file.
        if not path.stat().st_size:
            return np.zeros(0, dtype)
        with open(path, "r+b" if access == mmap.ACCESS_WRITE else "rb") as handle:
            self._maps.append(mmap.mmap(handle.fileno(), 0, access=access))
        return np.frombuffer(self._maps[-1], dtype)

    def add(self, records: Sequence[Record]) -> Joined:
        """Return the families of records: their own families and those in the tables.

        A row with a checksum is used if the sequence has the same checksum. An isoform (P12345-2) without a row takes
        the families of its protein, although its sequence differs: an unnecessary protein in ood is better than a
        related one in train.
        """
        hits = list(self._find([record.accession.encode() for record in records]))
        checked = sorted({hit.place for hit in hits if hit.checksum})
        crcs = dict(zip(checked, crc64([records[index].sequence for index in checked]).tolist(), strict=True))
        used: dict[int, list[_Hit]] = {}
        other: dict[int, int] = {}
        for hit in hits:
            if hit.checksum and hit.checksum != crcs[hit.place]:
                other[hit.place] = hit.checksum
            else:
                used.setdefault(hit.place, []).append(hit)
        for hit in self._find_proteins(records, {hit.place for hit in hits}):
            used.setdefault(hit.place, []).append(hit)
        return self._joined(records, used, other, crcs)

    def _joined(self, records: Sequence[Record], used: dict, other: dict, crcs: dict) -> Joined:
        joined = own_families(records)
        masks: Counter = Counter()
        for index, hits in used.items():
            texts = [hit.families for hit in hits if hit.families]
            mask = 0
            for hit in hits:
                mask |= hit.mask if hit.families else 0
            masks[mask] += 1
            if joined.families[index]:
                texts.append(joined.families[index])
            if texts:
                joined.families[index] = texts[0] if len(texts) == 1 else united(texts)
        for mask, number in masks.items():
            for table, file in enumerate(self.files):
                joined.sources[file.path] += number * (mask >> table & 1)
        for index in sorted(other):
            # It is no mismatch if a row of another table or another version has the right checksum.
            if not any(hit.checksum for hit in used.get(index, ())):
                joined.mismatches.append(Mismatch(records[index].accession, other[index], crcs[index], index))
        return joined

    def _find_proteins(self, records: Sequence[Record], with_rows: set[int]) -> Iterator[_Hit]:
        """Yield the rows of the proteins of isoforms that have no rows themselves."""
        indices, names = [], []
        for index, record in enumerate(records):
            protein = protein_of(record.accession.encode())
            if protein is not None and index not in with_rows:
                indices.append(index)
                names.append(protein)
        for hit in self._find(names):
            yield hit._replace(place=indices[hit.place])

    def _find(self, accessions: Sequence[bytes]) -> Iterator[_Hit]:
        """Yield all rows of each accession, and mark them as used."""
        if not len(accessions) or not self.num_rows:
            return
        keys = list(map(key, accessions))
        hashes = hashes_of(keys)
        order = np.argsort(hashes, kind="stable")
        hashes, sorted_keys = hashes[order], np.array(keys, "S")[order]
        cuts = [0, len(order)] if self._pieces is None else np.searchsorted(hashes, self._pieces).tolist()
        for start, stop in pairwise(cuts):
            indices, rows = self._rows(hashes[start:stop], sorted_keys[start:stop])
            if len(rows):
                self._used[rows] = 1
                yield from self._hits(order[start:stop][indices], rows)
            if self._pieces is not None:
                self._release_pages()

    def _rows(self, hashes: np.ndarray, sorted_keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the matches of sorted hashes and their keys: indices of keys and rows of the tables, int64 each."""
        indices = np.arange(len(hashes))
        rows = np.searchsorted(self._hashes, hashes).astype(np.int64)
        matches: list[tuple[np.ndarray, np.ndarray]] = []
        # Rows with the same hash are adjacent: those of one accession, and by chance those of other accessions.
        while len(rows):
            same = rows < self.num_rows
            same[same] = self._hashes[rows[same]] == hashes[indices[same]]
            indices, rows = indices[same], rows[same]
            hit = self._keys[rows] == sorted_keys[indices]
            matches.append((indices[hit], rows[hit]))
            rows = rows + 1
        if not matches:
            return indices, rows
        return np.concatenate([index for index, _ in matches]), np.concatenate([row for _, row in matches])

    def _hits(self, indices: np.ndarray, rows: np.ndarray) -> list[_Hit]:
        groups, which = np.unique(self._groups[rows], return_inverse=True)
        ends = self._ends[groups].tolist()
        starts = np.where(groups > 0, self._ends[groups.astype(np.int64) - 1], 0).tolist()
        texts = [self._texts[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
        masks = self._masks[groups].tolist()
        return [
            _Hit(index, checksum, texts[group], masks[group])
            for index, checksum, group in zip(
                indices.tolist(), self._checksums[rows].tolist(), which.tolist(), strict=True
            )
        ]

    def _release_pages(self) -> None:
        """Let the system free the memory pages of the tables; they are read again when needed."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def unused(self) -> tuple[int, tuple[str, ...]]:
        """Return the number of accessions that were never looked up, and the first of them in the tables' order."""
        number = 0
        first: list[str] = []
        last = b""
        for start in range(0, self.num_rows, _SCANNED_ROWS):
            rows = start + np.flatnonzero(self._used[start : start + _SCANNED_ROWS] == 0)
            keys = self._keys[rows]
            # Rows of one accession with several checksums are adjacent.
            new = np.ones(len(keys), bool)
            new[1:] = keys[1:] != keys[:-1]
            new[:1] = keys[:1] != last
            keys = keys[new]
            number += len(keys)
            first += [name.decode("ascii", "backslashreplace") for name in keys[: SHOWN - len(first)].tolist()]
            last = keys[-1] if len(keys) else last
            self._release_pages()
        return number, tuple(first)
