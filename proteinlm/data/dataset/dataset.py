"""The dataset on disk: plain TFDS in ArrayRecord files, and beside it manifest, statistics, provenance.

Anyone can read it without this package and without TensorFlow:

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
"""Of the layout: the features of the examples and the files beside them."""

DATASET_INFO = "dataset_info.json"
MANIFEST = "manifest.parquet"
STATISTICS = "statistics.json"
PROVENANCE = "provenance.json"
REJECTS = "rejects.tsv"

RECORD_OPTIONS = "group_size:1,uncompressed"
"""How ArrayRecord stores examples: each by itself.

Grain and TFDS log an error for every file whose group size is not 1. Compressed one by one proteins hardly
shrink, and writing takes four times as long; in groups of 16 files would be half as large and written no
faster.
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
"""One row an example, in the dataset's order: train, valid, test, ood, and by digest inside each.

Splits by identity add the split `near` at the end: sequences that are no examples, since they are in no split.
"""

DESCRIPTION = (
    "Protein sequences, each once, in the order of their MD5. Written by proteinlm; datasheet.md beside it says where "
    "they come from and how they are split, manifest.parquet, statistics.json and provenance.json what it holds."
)


def shard_name(name: str, split: str, shard: int, num_shards: int) -> str:
    """Return the file name that TFDS expects for one shard."""
    return f"{name}-{split}.array_record-{shard:05d}-of-{num_shards:05d}"


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(payload: bytes) -> bytes:
    """One length-delimited protobuf field number 1."""
    return b"\x0a" + _varint(len(payload)) + payload


def _entry(key: bytes, values: Sequence[bytes]) -> bytes:
    """One entry of Example.features.feature: a key and its Feature with a BytesList."""
    feature = _field(b"".join(map(_field, values)))
    return _field(_field(key) + b"\x12" + _varint(len(feature)) + feature)


@functools.lru_cache(1 << 16)
def _head(key: bytes, length: int) -> bytes:
    """What stands before a single value of `length` bytes: the same for all values of that length."""
    return _entry(key, [bytes(length)])[: -length or None]


_DIGEST_HEAD = _head(b"digest", 32)


@functools.lru_cache(1 << 16)
def _middle(families: bytes, length: int) -> bytes:
    """What stands between the digest and a sequence of `length` letters."""
    return _entry(b"families", families.split(b";") if families else []) + _head(b"sequence", length)


@functools.lru_cache(1 << 16)
def _features_head(size: int) -> bytes:
    return b"\x0a" + _varint(size)


def encode_example(accession: bytes, digest: bytes, families: bytes, sequence: bytes) -> bytes:
    """Return a serialised tf.train.Example, fields in the order of their keys.

    Written by hand: the bytes are those of protobuf's deterministic serialisation (a test compares them), in
    a fifth of the time, and on every version of protobuf.

    Args:
        accession: ASCII.
        digest: 16 bytes; stored as 32 hexadecimal digits.
        families: PF ids joined by `;`; stored as a list.
        sequence: canonical letters.
    """
    head, middle = _head(b"accession", len(accession)), _middle(families, len(sequence))
    size = len(head) + len(accession) + len(_DIGEST_HEAD) + 32 + len(middle) + len(sequence)
    return b"".join((_features_head(size), head, accession, _DIGEST_HEAD, digest.hex().encode(), middle, sequence))


def decode_sequence(example: bytes) -> bytes:
    """Return the sequence of a serialised example.

    `encode_example` puts it last, and letters are never a key, so it is found from the end, in a tenth of the time of
    protobuf. An example in another order goes through protobuf.
    """
    rest = len(example) - example.rfind(_SEQUENCE_KEY) - len(_SEQUENCE_KEY)
    # Between key and letters stand three sizes: two bytes each and two tags, unless a protein is short or a giant.
    for between in (8, 5, 6, 7, 9, 10, 11):
        length = max(0, rest - between)
        if example.endswith(_head(b"sequence", length), 0, len(example) - length):
            return example[len(example) - length :]
    from tensorflow_datasets.proto import tf_example_pb2

    read = tf_example_pb2.Example.FromString  # pyright: ignore[reportAttributeAccessIssue]
    return read(example).features.feature["sequence"].bytes_list.value[0]


_SEQUENCE_KEY = _field(b"sequence") + b"\x12"


def write_tfds_metadata(folder: Path, name: str, shard_lengths: Mapping[str, Sequence[int]]) -> None:
    """Write dataset_info.json and features.json for shards that lie in `folder`.

    Args:
        folder: of the dataset.
        name: TFDS's name of it, [a-z0-9_].
        shard_lengths: examples in each shard of each split; a split without examples is left out, since TFDS
            refuses to open an empty one.
    """
    # Slow to import, and only the last step of ingest needs it.
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
        # Examples come in the order of their digests, which is as good as shuffled and must stay.
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
    """A dataset that `proteinlm ingest` wrote, open for reading; it can be pickled.

    Attributes:
        path: its folder.
        name, version: as TFDS has them.
        counts: number of sequences in train, valid, test and ood; 0 for an empty split.
        fingerprint: identifies the sequences of every split and their order, however many shards hold them.
        provenance: sources, settings, and what was rejected, as in provenance.json.
        statistics: of each split, over whole sequences.
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
        """How its splits were drawn, in a few words for a table."""
        splits = self.provenance["splits"]
        if "held_out" not in splits:
            return "splits of a published dataset"
        drawn = "test drawn at random"
        if splits.get("identity"):
            drawn = f"test by clusters, below {100 * splits['identity']['threshold']:g} % identity to train"
        return f"{drawn}; ood: held-out families" if self.counts["ood"] else drawn

    @classmethod
    def open(cls, path: str | os.PathLike) -> "ProteinDataset":
        """Open a dataset's folder.

        Raises:
            InputError: it does not exist, is no dataset of this package, is unfinished, or lacks a file.
        """
        path = Path(path)
        partial = path.with_name(f".{path.name}.partial")
        if not path.is_dir():
            hint = f"; an ingest was begun ({partial}) and has not ended" if partial.is_dir() else ""
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
        """Read one column of one split: whole row groups where the split's rows lie, and no others."""
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
        """Return the residues of each sequence of a split, int32 [n], in the dataset's order."""
        return self._column(split, "length").to_numpy().astype(np.int32)

    def digests(self, split: str) -> np.ndarray:
        """Return the MD5 of each sequence of a split, uint8 [n, 16], in the dataset's order."""
        column = self._column(split, "digest").combine_chunks()
        if not len(column):
            return np.zeros((0, 16), np.uint8)
        joined = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)
        return joined[column.offset : column.offset + len(column)].copy()

    def sequences(self, split: str, indices: Sequence[int] | np.ndarray) -> list[bytes]:
        """Return the canonical letters of the sequences at `indices` of a split, in the order asked for.

        Raises:
            IndexError: an index is outside 0 ... counts[split] - 1.
        """
        self._check(split)
        try:
            return list(map(decode_sequence, self._source(split).__getitems__(indices)))
        except IndexError as error:
            raise IndexError(f"{self.path}, split {split}: {error}") from None

    def _source(self, split: str) -> Shards:
        # Threads may ask at the same time; the one that comes first decides.
        return self._sources.get(split) or self._sources.setdefault(
            split, Shards(self._files(split), self._shards.get(split, []))
        )

    def residue_counts(self, split: str) -> np.ndarray:
        """Return how often each residue occurs in a split, int64 [25], order of `alphabet.RESIDUES`."""
        self._check(split)
        return self.statistics[split].residues

    def manifest(self) -> pa.Table:
        """Return the whole manifest (see MANIFEST_SCHEMA) in memory; `.to_pandas()` gives a data frame."""
        return pq.read_table(self.path / MANIFEST, schema=MANIFEST_SCHEMA)

    def find(self, accession: str) -> tuple[str, list[int]] | None:
        """Return the split and the row of a protein, for `sequences`; None if no copy has the accession."""
        table = pq.read_table(self.path / MANIFEST, columns=["accession", "accessions"])
        row = pc.index(table.column("accession"), accession).as_py()
        if row < 0:
            names = table.column("accessions").combine_chunks()
            place = pc.index(names.flatten(), accession).as_py()
            if place < 0:
                return None
            row = int(np.searchsorted(names.offsets.to_numpy(), place, "right")) - 1
        for split in SPLITS:
            if row < self.counts[split]:
                return split, [row]
            row -= self.counts[split]
        return None
