import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from array_record.python import array_record_module
from array_record.python.array_record_data_source import ArrayRecordDataSource

from proteinlm.data.dataset.shards import Shards

LENGTHS = (7, 1, 0, 30, 12)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Five files, one of them empty, and their records one after another."""
    folder = tmp_path_factory.mktemp("some shards")
    records = [b"record %d " % i * (i % 9) for i in range(sum(LENGTHS))]
    paths, rest = [], list(records)
    for index, length in enumerate(LENGTHS):
        paths.append(folder / f"{index}.array_record")
        writer = array_record_module.ArrayRecordWriter(str(paths[-1]), "group_size:1,uncompressed")
        for _ in range(length):
            writer.write(rest.pop(0))
        writer.close()
    return paths, records


def test_any_rows_in_any_order_as_array_records_own_source_gives_them(files):
    paths, records = files
    shards = Shards(paths, LENGTHS)
    other = ArrayRecordDataSource([str(path) for path, length in zip(paths, LENGTHS, strict=True) if length])
    assert len(shards) == len(other) == len(records)
    generator = np.random.default_rng(0)
    for size in (1, 2, 5, 50, 200):
        asked = generator.integers(0, len(records), size)
        assert shards.__getitems__(asked) == other.__getitems__(asked.tolist()) == [records[i] for i in asked]
    assert [shards[i] for i in range(len(shards))] == records
    assert shards.__getitems__([]) == []


def test_a_file_is_opened_when_it_is_read(files, tmp_path):
    paths, records = files
    shards = Shards([*paths[:1], tmp_path / "absent"], [7, 3])
    assert shards.__getitems__([6, 0]) == [records[6], records[0]]
    with pytest.raises(Exception, match="absent"):
        shards[7]


@pytest.mark.parametrize("indices", [[-1], [50], [0, 50], [10**12]])
def test_rows_that_are_not_there(files, indices):
    with pytest.raises(IndexError, match=r"rows 0 to 49; asked for"):
        Shards(files[0], LENGTHS).__getitems__(indices)


def test_many_threads_share_it(files):
    paths, records = files
    shards = Shards(paths, LENGTHS)
    meet = threading.Barrier(8)

    def read(seed):
        meet.wait()
        asked = np.random.default_rng(seed).integers(0, len(records), 500)
        return shards.__getitems__(asked) == [records[i] for i in asked]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
