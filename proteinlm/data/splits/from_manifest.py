"""Splits from the manifest of a published dataset, which lists the split of each sequence by its digest.

Before the records are reduced, the rows of the manifest are written to tables, one for each bucket of the records
(assignments.py). Memory holds one batch of the manifest, and later the table of one bucket.
"""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from proteinlm.data.splits.assignments import absent, assign, unlisted
from proteinlm.data.splits.rules import LISTED
from proteinlm.errors import InputError
from proteinlm.output.files import whole_file

UNMATCHED = "unmatched.tsv"
_BATCH = 1 << 17


class PublishedManifest(NamedTuple):
    """A manifest whose splits are used.

    Attributes:
        path: path of the file.
        size: size in bytes.
        md5: MD5 of the file in hexadecimal.
        rows: number of sequences in it.
    """

    path: Path
    size: int
    md5: str
    rows: int

    def to_json(self) -> dict[str, Any]:
        """Return its entry in provenance.json."""
        return {"path": str(self.path), "bytes": self.size, "md5": self.md5, "sequences": self.rows}


class Unmatched(NamedTuple):
    """Number of sequences that only the sources have (unlisted), and number that only the manifest has (absent)."""

    unlisted: int
    absent: int


def assign_from_manifest(manifest: Path, work: Path, num_buckets: int) -> PublishedManifest:
    """Write the splits of a manifest to the tables of the buckets.

    Args:
        manifest: Parquet file with the columns digest (16 bytes, MD5 of the sequence) and split; others are not read.
        work: scratch folder.
        num_buckets: number of buckets of the records, a power of two.

    Raises:
        InputError: the file cannot be read, lacks a column, or has an unknown split.
    """
    check_manifest_exists(manifest)
    try:
        with pq.ParquetFile(manifest) as file:
            _check_columns(manifest, file.schema_arrow)
            rows = 0
            for batch in file.iter_batches(_BATCH, columns=["digest", "split"]):
                digests = _digests(manifest, batch.column("digest"), rows)
                assign(work, num_buckets, digests, _codes(manifest, batch.column("split"), rows))
                rows += batch.num_rows
        with open(manifest, "rb") as handle:
            md5 = hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{manifest} cannot be read as a manifest ({reason}): give the complete manifest.parquet of a dataset."
        ) from error
    if not rows:
        raise InputError(f"{manifest} lists no sequence: give the manifest.parquet of a dataset that is not empty.")
    return PublishedManifest(manifest, manifest.stat().st_size, md5, rows)


def check_manifest_exists(manifest: Path) -> None:
    """Raise `InputError` if the manifest is missing or is a folder."""
    if manifest.is_dir():
        raise InputError(f"{manifest} is a folder: give the manifest.parquet in it.")
    if not manifest.is_file():
        raise InputError(f"there is no manifest {manifest}: give the manifest.parquet of a dataset.")


def _check_columns(manifest: Path, schema: pa.Schema) -> None:
    for column in ("digest", "split"):
        if column not in schema.names:
            raise InputError(
                f"{manifest} lacks the column {column}; it has {', '.join(schema.names)}: give a manifest.parquet "
                "written by proteinlm ingest."
            )
    kind = schema.field("digest").type
    if kind != pa.binary(16) and not pa.types.is_binary(kind):
        raise InputError(f"the column digest of {manifest} is {kind}; it must be binary, the 16 bytes of an MD5.")
    kind = schema.field("split").type
    if not pa.types.is_string(kind.value_type if pa.types.is_dictionary(kind) else kind):
        raise InputError(f"the column split of {manifest} is {kind}; it must be text, one of {', '.join(LISTED)}.")


def _digests(manifest: Path, column: pa.Array, first: int) -> np.ndarray:
    values = column.to_pylist() if column.null_count or column.type != pa.binary(16) else None
    if values is None:
        return np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)[column.offset :][: len(column)]
    for row, value in enumerate(values):
        if value is None or len(value) != 16:
            length = "none" if value is None else f"{len(value)} bytes"
            raise InputError(f"row {first + row} of {manifest} has {length} for a digest; an MD5 has 16 bytes.")
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, 16)


def _codes(manifest: Path, column: pa.Array, first: int) -> np.ndarray:
    names = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    indices = pc.index_in(names, pa.array(LISTED, names.type))  # pyright: ignore[reportAttributeAccessIssue]
    codes = indices.fill_null(-1).to_numpy()
    unknown = np.flatnonzero(codes < 0)
    if len(unknown):
        row = int(unknown[0])
        raise InputError(
            f"row {first + row} of {manifest} has the split {names[row].as_py()!r}; it must be one of "
            f"{', '.join(LISTED)}."
        )
    return codes.astype(np.int8)


def write_unmatched(reduced: list[Path], path: Path) -> Unmatched:
    """Write a table (side, accession, digest) of sequences that only the sources or only the manifest has, if any.

    Args:
        reduced: folders of the reduced buckets, in order.
        path: path of the table.
    """
    counts = [0, 0]

    def rows():
        for folder in reduced:
            lines = unlisted(folder)
            counts[0] += len(lines)
            yield from (f"not in the published split\t{line}\n" for line in lines)
            digests = absent(folder)
            counts[1] += len(digests)
            yield from (f"not in the sources\t\t{digest.tobytes().hex()}\n" for digest in digests)

    lines = rows()
    first = next(lines, None)
    if first is not None:
        with whole_file(path) as handle:
            handle.write("side\taccession\tdigest\n")
            handle.write(first)
            handle.writelines(lines)
    return Unmatched(*counts)
