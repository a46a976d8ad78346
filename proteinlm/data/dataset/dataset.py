"""The dataset on disk: a TFDS dataset in ArrayRecord files, with manifest, statistics and provenance beside it.

It can be read without this package and without TensorFlow:

    import tensorflow_datasets as tfds
    train = tfds.builder_from_directory("data/sprot").as_data_source("train")
    train[0]["sequence"]
"""

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from proteinlm.data.dataset.shards import Shards
from proteinlm.data.dataset.statistics import SplitStatistics
from proteinlm.data.splits.rules import SPLITS
from proteinlm.errors import InputError

VERSION = "1.0.0"
"""Version of the layout: the features of the examples, and the files beside them."""

DATASET_INFO = "dataset_info.json"
MANIFEST = "manifest.parquet"
STATISTICS = "statistics.json"
PROVENANCE = "provenance.json"
REJECTS = "rejects.tsv"

RECORD_OPTIONS = "group_size:1,uncompressed"
"""Options of ArrayRecord: each example is a group of its own, without compression.

Grain and TFDS log an error for every file with another group size. Compression of single proteins saves little space
and makes writing four times slower. Groups of 16 would make the files half as large, but writing no faster.
"""

MANIFEST_SCHEMA = pa.schema(
    {
        "accession": pa.string(),
        "digest": pa.binary(16),
        "length": pa.int32(),
        "families": pa.list_(pa.string()),
        "split": pa.dictionary(pa.int8(), pa.string()),
        "copies": pa.int32(),
        "accessions": pa.list_(pa.string()),
        "taxon": pa.int32(),
    }
)
"""Columns of the manifest. It has one row for each example, in dataset order: by split (train, valid, test, ood), and
by digest within a split.

Splits by identity add rows with the split `near` at the end: sequences that are in no split and so are no examples.
"""

DESCRIPTION = (
    "Protein sequences, each once, in the order of their MD5. Written by proteinlm; datasheet.md beside it says where "
    "they come from and how they are split, manifest.parquet, statistics.json and provenance.json what it holds."
)


def shard_name(name: str, split: str, shard: int, num_shards: int) -> str:
    """Return the file name of a shard in TFDS."""
    return f"{name}-{split}.array_record-{shard:05d}-of-{num_shards:05d}"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(payload: bytes) -> bytes:
    """Return a length-delimited protobuf field with number 1."""
    return b"\x0a" + _varint(len(payload)) + payload


def _entry(key: bytes, values: Sequence[bytes]) -> bytes:
    """Return an entry of Example.features.feature: a key, and its Feature with a BytesList."""
    feature = _field(b"".join(map(_field, values)))
    return _field(_field(key) + b"\x12" + _varint(len(feature)) + feature)


@functools.lru_cache(1 << 16)
def _head(key: bytes, length: int) -> bytes:
    """Return the bytes before a single value of `length` bytes; they are the same for all values of this length."""
    return _entry(key, [bytes(length)])[: -length or None]


_DIGEST_HEAD = _head(b"digest", 32)


@functools.lru_cache(1 << 16)
def _middle(families: bytes, length: int) -> bytes:
    """Return the bytes between the digest and a sequence of `length` letters."""
    return _entry(b"families", families.split(b";") if families else []) + _head(b"sequence", length)


@functools.lru_cache(1 << 16)
def _features_head(size: int) -> bytes:
    return b"\x0a" + _varint(size)


def encode_example(accession: bytes, digest: bytes, families: bytes, sequence: bytes) -> bytes:
    """Return a serialised tf.train.Example, with the fields in the order of their keys.

    The bytes are those of protobuf's deterministic serialisation (a test compares them). This function takes a fifth of
    its time and does not depend on the version of protobuf.

    Args:
        accession: accession in ASCII.
        digest: MD5 of the sequence, 16 bytes; stored as 32 hexadecimal digits.
        families: PF ids joined by `;`; stored as a list.
        sequence: sequence in canonical letters.
    """
    head, middle = _head(b"accession", len(accession)), _middle(families, len(sequence))
    size = len(head) + len(accession) + len(_DIGEST_HEAD) + 32 + len(middle) + len(sequence)
    return b"".join((_features_head(size), head, accession, _DIGEST_HEAD, digest.hex().encode(), middle, sequence))


def decode_sequence(example: bytes) -> bytes:
    """Return the sequence of a serialised example.

    `encode_example` writes the sequence last, and a sequence never contains a key, so it is searched from the end. This
    takes a tenth of the time of protobuf, which reads examples with another order of the fields.
    """
    rest = len(example) - example.rfind(_SEQUENCE_KEY) - len(_SEQUENCE_KEY)
    # Three sizes are between key and letters: two bytes each and two tags, except for short and very long proteins.
    for between in (8, 5, 6, 7, 9, 10, 11):
        length = max(0, rest - between)
        if example.endswith(_head(b"sequence", length), 0, len(example) - length):
            return example[len(example) - length :]
    from tensorflow_datasets.proto import tf_example_pb2

    read = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    return read(example).features.feature["sequence"].bytes_list.value[0]


_SEQUENCE_KEY = _field(b"sequence") + b"\x12"


def write_tfds_metadata(folder: Path, name: str, shard_lengths: Mapping[str, Sequence[int]]) -> None:
    """Write dataset_info.json and features.json for the shards in `folder`.

    Args:
        folder: folder of the dataset.
        name: name of the dataset in TFDS, [a-z0-9_].
        shard_lengths: number of examples in each shard of each split; a split without examples is left out, since TFDS
            cannot open an empty split.
    """
    # Slow to import, and only the last step of an ingest needs it.
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.dataset_info import DatasetIdentity
    from tensorflow_datasets.core.splits import SplitDict

    text = tfds.features.Text
    features = tfds.features.FeaturesDict(
        {
            "accession": text(),
            "digest": text(),
            "families": tfds.features.Sequence(text()),
            "sequence": text(),
        }
    )
    identity = DatasetIdentity(
        name=name, version=tfds.core.Version(VERSION), data_dir=os.fspath(folder), module_name=""
    )
    info = tfds.core.DatasetInfo(
        builder=identity,
        description=DESCRIPTION,
        features=features,
        homepage="https://www.uniprot.org",
        # Examples are in the order of their digests, which is random enough, and TFDS must not change it.
        disable_shuffling=True,
    )
    info.set_file_format("array_record")
    infos = []
    for split, lengths in shard_lengths.items():
        if sum(lengths):
            files = [folder / shard_name(name, split, i, len(lengths)) for i in range(len(lengths))]
            size = sum(file.stat().st_size for file in files)
            infos.append(tfds.core.SplitInfo(name=split, shard_lengths=list(lengths), num_bytes=size))
    info.set_splits(SplitDict(infos))
    info.write_to_directory(os.fspath(folder))


class ProteinDataset:
    """A dataset written by `proteinlm ingest`, open for reading; it can be pickled.

    Attributes:
        path: folder of the dataset.
        name, version: name and version in TFDS.
        counts: number of sequences in train, valid, test and ood; 0 for an empty split.
        fingerprint: identifier of the sequences of every split and their order; it does not depend on the shards.
        provenance: content of provenance.json: sources, settings, counts of rejected records.
        statistics: statistics of each split, over unclipped sequences.
    """

    def __init__(self, path: Path, info: dict[str, Any], provenance: dict[str, Any], statistics: dict[str, Any]):
        self.path = path
        self.name: str = info["name"]
        self.version: str = info["version"]
        self.provenance = provenance
        self.fingerprint: str = provenance["fingerprint"]
        self.statistics = {split: SplitStatistics.from_json(statistics["splits"][split]) for split in SPLITS}
        self.counts = {split: s.count for split, s in self.statistics.items()}
        self._shards = {
            split["name"]: [int(length) for length in split.get("shardLengths", [])] for split in info.get("splits", [])
        }
        self._sources: dict[str, Shards] = {}

    @property
    def how_split(self) -> str:
        """Method of the splits, in a few words for a table."""
        splits = self.provenance["splits"]
        if "held_out" not in splits:
            return "splits of a published dataset"
        drawn = "test drawn at random"
        if splits.get("identity"):
            drawn = f"test by clusters, below {100 * splits['identity']['threshold']:g} % identity to train"
        return f"{drawn}; ood: held-out families" if self.counts["ood"] else drawn

    @classmethod
    def open(cls, path: str | os.PathLike) -> "ProteinDataset":
        """Open the folder of a dataset.

        Raises:
            InputError: the folder does not exist, is no dataset of this package, is unfinished, or lacks a file.
        """
        path = Path(path)
        partial = path.with_name(f".{path.name}.partial")
        if not path.is_dir():
            hint = f"; an ingest was started ({partial}) and is not finished" if partial.is_dir() else ""
            raise InputError(f"there is no dataset {path}{hint}: make one with proteinlm ingest --output {path}.")
        try:
            parts = [json.loads((path / part).read_bytes()) for part in (DATASET_INFO, PROVENANCE, STATISTICS)]
            dataset = cls(path, *parts)
        except FileNotFoundError as error:
            raise InputError(
                f"{path} lacks {Path(error.filename).name}, so it is no dataset of proteinlm: name a "
                "folder that proteinlm ingest wrote."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged: its JSON files cannot be read ({error!r}); ingest again.") from error
        for file in (path / MANIFEST, *(file for split in dataset._shards for file in dataset._files(split))):
            if not file.is_file():
                raise InputError(f"{path} is incomplete: it lacks {file.name}; copy it again or ingest again.")
        return dataset

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sources": {}}

    def _files(self, split: str) -> list[Path]:
        lengths = self._shards.get(split, [])
        return [self.path / shard_name(self.name, split, i, len(lengths)) for i in range(len(lengths))]

    def _check(self, split: str) -> None:
        if split not in self.counts:
            raise InputError(f"{self.path} has no split {split!r}; it has {', '.join(self.counts)}.")

    def _column(self, split: str, column: str) -> pa.ChunkedArray:
        """Read a column of the manifest for one split; only row groups with rows of the split are read."""
        self._check(split)
        start = sum(self.counts[s] for s in SPLITS[: SPLITS.index(split)])
        stop = start + self.counts[split]
        with pq.ParquetFile(self.path / MANIFEST) as file:
            first = 0
            groups, skip = [], 0
            for index in range(file.num_row_groups):
                rows = file.metadata.row_group(index).num_rows
                if first < stop and first + rows > start:
                    skip = start - first if not groups else skip
                    groups.append(index)
                first += rows
            return file.read_row_groups(groups, columns=[column]).column(column).slice(skip, stop - start)

    def lengths(self, split: str) -> np.ndarray:
        """Return the number of residues of each sequence of a split, int32 [n], in dataset order."""
        return self._column(split, "length").to_numpy().astype(np.int32)

    def digests(self, split: str) -> np.ndarray:
        """Return the MD5 of each sequence of a split, uint8 [n, 16], in dataset order."""
        column = self._column(split, "digest").combine_chunks()
        if not len(column):
            return np.zeros((0, 16), np.uint8)
        joined = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)
        return joined[column.offset : column.offset + len(column)].copy()

    def sequences(self, split: str, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """Return the canonical letters of the sequences with these `indices` in a split, in the given order.

        Raises:
            IndexError: an index is outside 0 ... counts[split] - 1.
        """
        self._check(split)
        try:
            return list(map(decode_sequence, self._source(split).__getitems__(indices)))
        except IndexError as error:
            raise IndexError(f"{self.path}, split {split}: {error}") from None

    def _source(self, split: str) -> Shards:
        # Several threads may call this at the same time; all use the object of the first one.
        return self._sources.get(split) or self._sources.setdefault(
            split, Shards(self._files(split), self._shards.get(split, []))
        )

    def residue_counts(self, split: str) -> np.ndarray:
        """Return the count of each residue in a split, int64 [25], in the order of `alphabet.RESIDUES`."""
        self._check(split)
        return self.statistics[split].residues

    def manifest(self) -> pa.Table:
        """Read the whole manifest (see MANIFEST_SCHEMA) into memory; `.to_pandas()` gives a data frame."""
        return pq.read_table(self.path / MANIFEST, schema=MANIFEST_SCHEMA)

    def find(self, accession: str) -> tuple[str, list[int]] | None:
        """Return the split of a protein and its indices for `sequences`; None if no record has the accession."""
        table = pq.read_table(self.path / MANIFEST, columns=["accession", "accessions"])
        row = pc.index(table.column("accession"), accession).as_py()
        if row < 0:
            names = table.column("accessions").combine_chunks()
            index = pc.index(names.flatten(), accession).as_py()
            if index < 0:
                return None
            row = int(np.searchsorted(names.offsets.to_numpy(), index, "right")) - 1
        for split in SPLITS:
            if row < self.counts[split]:
                return split, [row]
            row -= self.counts[split]
        return None
