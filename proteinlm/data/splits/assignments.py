"""Scratch tables from digest to split, for splits that are assigned before the records are reduced.

There is one table for each bucket of the records. The process that reduces a bucket reads only the table of this
bucket, so that memory does not grow with the dataset.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proteinlm.data.sources.record_buckets import bucket_codes, numbers
from proteinlm.data.splits.rules import LISTED
from proteinlm.errors import InputError

UNLISTED = -1
_ROW = np.dtype([("digest", "S16"), ("code", "i1")])


class Lookup(NamedTuple):
    """The splits of the sequences of a bucket.

    Attributes:
        codes: int8 [n], indices of `LISTED`; -1 for a sequence that the table does not have.
        absent: uint8 [m, 16], digests of the table without a sequence in the bucket, in order.
        absent_codes: int8 [m], their splits.
    """

    codes: np.ndarray
    absent: np.ndarray
    absent_codes: np.ndarray


def assigned_folder(work: Path) -> Path:
    """Return the folder of the tables, which exists if splits are assigned before the records are reduced."""
    return work / "assigned"


def assign(work: Path, num_buckets: int, digests: np.ndarray, codes: np.ndarray) -> None:
    """Append rows to the tables of their buckets. This is fastest for sorted digests.

    Args:
        work: scratch folder.
        num_buckets: number of buckets of the records, a power of two.
        digests: uint8 [n, 16].
        codes: int8 [n], indices of `LISTED`.
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
    """Return the splits of the sequences of a bucket; None if no splits were assigned.

    Args:
        work: scratch folder.
        bucket: number of the bucket.
        digests: uint8 [n, 16], ascending and distinct.

    Raises:
        InputError: the table has a digest twice, because the manifest has (proteinlm does not write such a manifest).
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
            f"the manifest has the digest {text} twice ({first} and {second}), but each sequence must be one row: give "
            "the manifest of one dataset."
        )
    keys = _texts(digests)
    indices = np.searchsorted(rows["digest"], keys)
    codes = np.full(len(keys), UNLISTED, np.int8)
    inside = indices < len(rows)
    listed = np.zeros(len(keys), bool)
    listed[inside] = rows["digest"][indices[inside]] == keys[inside]
    codes[listed] = rows["code"][indices[listed]]
    absent = np.ones(len(rows), bool)
    absent[indices[listed]] = False
    return Lookup(codes, bytes_of(rows["digest"][absent]), rows["code"][absent])


def _texts(digests: np.ndarray) -> np.ndarray:
    # NumPy compares all bytes of S16 values, including zeros at the end, if both sides have the same width.
    return np.ascontiguousarray(digests, np.uint8).view("S16").reshape(-1)


def bytes_of(texts: np.ndarray) -> np.ndarray:
    """Convert digests from S16 [n] to uint8 [n, 16]."""
    return np.ascontiguousarray(texts).view(np.uint8).reshape(-1, 16)


def save_unmatched(folder: Path, splits: Lookup, digests: np.ndarray, names: Sequence[bytes]) -> None:
    """Write the sequences that only the bucket has (unlisted.tsv) or only its table has (absent.rows), if any.

    Args:
        folder: folder of the reduced bucket.
        splits: result of `look_up`.
        digests: uint8 [n, 16], as given to `look_up`.
        names: accession of each sequence.
    """
    rows = np.flatnonzero(splits.codes == UNLISTED).tolist()
    if rows:
        lines = (f"{names[row].decode()}\t{digests[row].tobytes().hex()}\n" for row in rows)
        (folder / "unlisted.tsv").write_text("".join(lines), encoding="utf-8")
    if len(splits.absent):
        absent = np.empty(len(splits.absent), _ROW)
        absent["digest"], absent["code"] = _texts(splits.absent), splits.absent_codes
        (folder / "absent.rows").write_bytes(absent.tobytes())


def unlisted(folder: Path) -> list[str]:
    """Return the lines accession <tab> digest of the sequences of a reduced bucket that the table does not have."""
    path = folder / "unlisted.tsv"
    # Not splitlines: an accession may contain a character that splitlines takes for a line end.
    return path.read_bytes().decode().removesuffix("\n").split("\n") if path.is_file() else []


def absent(folder: Path) -> np.ndarray:
    """Return the digests of the table without a sequence in a reduced bucket, uint8 [m, 16], in order."""
    path = folder / "absent.rows"
    return bytes_of(np.fromfile(path, _ROW)["digest"]) if path.is_file() else np.empty((0, 16), np.uint8)
