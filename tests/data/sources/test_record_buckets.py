"""What a killed process leaves in a bucket; the rest of record_buckets.py is tested through the ingest."""

import pytest

from proteinlm.data.sources.record_buckets import (
    bucket_folder,
    columns,
    delete_bucket,
    read_bucket,
    spill,
    truncate_bucket,
)
from proteinlm.data.sources.uniprot import Record


@pytest.fixture
def bucket(tmp_path):
    """The file of one writer: two records of source 0, one of source 1, two of source 3."""
    bucket_folder(tmp_path, 0).mkdir(parents=True)
    for source, names in enumerate((["A", "B"], ["C"], [], ["D", "E"])):
        if names:
            records = [Record(name, b"MKV" + name.encode(), (), False, None) for name in names]
            made, sequences = columns(records, [b""] * len(names))
            spill(made, sequences, tmp_path, 1, "writer", source)
    return tmp_path, bucket_folder(tmp_path, 0) / "writer"


def names(work):
    return b"".join(read_bucket(work, 0).accessions).decode()


@pytest.mark.parametrize(("source", "left"), [(0, ""), (1, "AB"), (2, "ABC"), (3, "ABC"), (4, "ABCDE")])
def test_later_sources_are_cut(bucket, source, left):
    work, _ = bucket
    truncate_bucket(work, 0, source)
    assert names(work) == left


def test_chunks_that_are_not_whole_are_cut(bucket):
    work, path = bucket
    whole = path.read_bytes()
    found = set()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        truncate_bucket(work, 0, 4)
        found.add(names(work))
        assert whole.startswith(path.read_bytes())
    assert found == {"", "AB", "ABC", "ABCDE"}


def test_zeros_that_a_power_cut_has_left_are_cut(bucket):
    work, path = bucket
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(200))
    truncate_bucket(work, 0, 4)
    assert path.read_bytes() == whole


def test_a_bucket_is_dropped_once_or_twice(bucket):
    work, path = bucket
    delete_bucket(work, 0)
    delete_bucket(work, 0)
    assert not path.parent.exists()
    truncate_bucket(work, 0, 1)
    assert names(work) == ""
