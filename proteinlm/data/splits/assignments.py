"""Splits that are decided before records are reduced: digest -> split on disk, in the buckets of the records.

The table of a bucket is looked up by the process that reduces the bucket, so that memory holds one bucket's. All
of it is scratch of one run.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proteinlm.data.sources.spill import bucket_codes, numbers
from proteinlm.data.splits.rules import LISTED
from proteinlm.errors import InputError

UNLISTED = -1
_ROW = np.dtype([("digest", "S16"), ("code", "i1")])


class Lookup(NamedTuple):
    """What a table says about the sequences of a bucket.

    Attributes:
        codes: int8 [n], indices into `LISTED`; -1 where the table lacks the sequence.
        absent: uint8 [m, 16], digests of the table that no sequence of the bucket has, in order.
        absent_codes: int8 [m].
    """

    codes: np.ndarray
    absent: np.ndarray
    absent_codes: np.ndarray


def assigned_folder(work: Path) -> Path:
    """Return the folder of the tables; it exists if splits are decided beforehand."""
    return work / "assigned"


def assign(work: Path, num_buckets: int, digests: np.ndarray, codes: np.ndarray) -> None:
    """Add rows to the tables of their buckets; quickest when they come in the order of the digests.

    Args:
        work: scratch folder.
        num_buckets: a power of two, that of the records.
        digests: uint8 [n, 16].
        codes: int8 [n], indices into `LISTED`.
    """
    folder = assigned_folder(work)
    folder.mkdir(exist_ok=True)
    rows = np.empty(len(digests), _ROW)
    rows["digest"] = _texts(digests)
    rows["code"] = codes
    buckets = bucket_codes(numbers(digests)[:, 0], num_buckets)
    order = np.argsort(buckets, kind="stable")
    edges = np.flatnonzero(np.diff(buckets[order], prepend=-1, append=num_buckets))
    for start, stop in itertools.pairwise(edges.tolist()):
        with open(folder / f"{buckets[order[start]]:05d}", "ab") as handle:
            handle.write(rows[order[start:stop]].tobytes())


def look_up(work: Path, bucket: int, digests: np.ndarray) -> Lookup | None:
    """Return the splits of the sequences of a bucket; None if splits are decided by digest alone.

    Args:
        work, bucket: as for the records.
        digests: uint8 [n, 16], ascending and distinct.

    Raises:
        InputError: the table has a digest twice (which only a manifest from elsewhere can have).
    """
    folder = assigned_folder(work)
    if not folder.is_dir():
        return None
    path = folder / f"{bucket:05d}"
    rows = np.fromfile(path, _ROW) if path.is_file() else np.empty(0, _ROW)
    rows = rows[np.argsort(rows["digest"], kind="stable")]
    twice = np.flatnonzero(rows["digest"][1:] == rows["digest"][:-1])
    if len(twice):
        first, second = (LISTED[code] for code in rows["code"][twice[0] : twice[0] + 2])
        text = bytes_of(rows["digest"])[twice[0]].tobytes().hex()
        raise InputError(
            f"the manifest has the digest {text} twice ({first} and {second}), but each sequence is one row: name the "
            "manifest of one dataset."
        )
    wanted = _texts(digests)
    places = np.searchsorted(rows["digest"], wanted)
    codes = np.full(len(wanted), UNLISTED, np.int8)
    inside = places < len(rows)
    found = np.zeros(len(wanted), bool)
    found[inside] = rows["digest"][places[inside]] == wanted[inside]
    codes[found] = rows["code"][places[found]]
    absent = np.ones(len(rows), bool)
    absent[places[found]] = False
    return Lookup(codes, bytes_of(rows["digest"][absent]), rows["code"][absent])


def _texts(digests: np.ndarray) -> np.ndarray:
    # NumPy compares fixed-width bytes whole, zeros at the end included, when all have the same width.
    return np.ascontiguousarray(digests, np.uint8).view("S16").reshape(-1)


def bytes_of(texts: np.ndarray) -> np.ndarray:
    """Return S16 [n] as uint8 [n, 16]."""
    return np.ascontiguousarray(texts).view(np.uint8).reshape(-1, 16)


def save_unmatched(folder: Path, found: Lookup, digests: np.ndarray, names: Sequence[bytes]) -> None:
    """Write what a bucket and its table do not share: unlisted.tsv and absent.rows; nothing if they share all.

    Args:
        folder: of the reduced bucket.
        found: of `look_up`.
        digests: uint8 [n, 16], as given to `look_up`.
        names: accession of each.
    """
    rows = np.flatnonzero(found.codes == UNLISTED).tolist()
    if rows:
        lines = (f"{names[row].decode()}\t{digests[row].tobytes().hex()}\n" for row in rows)
        (folder / "unlisted.tsv").write_text("".join(lines), encoding="utf-8")
    if len(found.absent):
        absent = np.empty(len(found.absent), _ROW)
        absent["digest"], absent["code"] = _texts(found.absent), found.absent_codes
        (folder / "absent.rows").write_bytes(absent.tobytes())


def unlisted(folder: Path) -> list[str]:
    """Return the lines accession <tab> digest of a reduced bucket's sequences that the table lacks."""
    path = folder / "unlisted.tsv"
    # Not splitlines: an accession may hold a character that it takes for the end of a line.
    return path.read_bytes().decode().removesuffix("\n").split("\n") if path.is_file() else []


def absent(folder: Path) -> np.ndarray:
    """Return uint8 [m, 16], the digests of the table that a reduced bucket lacks, in order."""
    path = folder / "absent.rows"
    return bytes_of(np.fromfile(path, _ROW)["digest"]) if path.is_file() else np.empty((0, 16), np.uint8)
