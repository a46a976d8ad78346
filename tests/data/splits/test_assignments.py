import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteinlm.data.splits.assignments import absent, assign, look_up, save_unmatched, unlisted
from proteinlm.data.splits.rules import LISTED
from proteinlm.errors import InputError

DIGESTS = st.binary(min_size=16, max_size=16)
TABLES = st.dictionaries(DIGESTS, st.integers(0, len(LISTED) - 1), min_size=1, max_size=40)


def rows(values):
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, 16)


def bucket_of(value, num_buckets):
    return int.from_bytes(value, "big") * num_buckets >> 128


@given(TABLES, st.sets(DIGESTS), st.sampled_from([1, 2, 64]), st.randoms(), st.integers(1, 9))
def test_every_bucket_finds_its_own(tmp_path_factory, table, others, num_buckets, shuffle, batch):
    """Against a dictionary: any order of rows, any cut into batches; digests that end in zeros too."""
    work = tmp_path_factory.mktemp("work")
    table[bytes(16)] = 0
    table[b"\x01" + bytes(15)] = 1
    items = list(table.items())
    shuffle.shuffle(items)
    for start in range(0, len(items), batch):
        part = items[start : start + batch]
        assign(work, num_buckets, rows([value for value, _ in part]), np.array([code for _, code in part], np.int8))
    wanted = {value for value in table if shuffle.random() < 0.5} | others
    missed = set()
    for bucket in range(num_buckets):
        own = sorted(value for value in wanted if bucket_of(value, num_buckets) == bucket)
        found = look_up(work, bucket, rows(own))
        assert found is not None
        assert found.codes.tolist() == [table.get(value, -1) for value in own]
        assert [LISTED[code] for code in found.absent_codes] == [
            LISTED[table[value.tobytes()]] for value in found.absent
        ]
        missed |= {value.tobytes() for value in found.absent}
    assert missed == set(table) - wanted


def test_nothing_is_decided_beforehand_without_a_table(tmp_path):
    assert look_up(tmp_path, 0, rows([bytes(16)])) is None


def test_a_digest_that_is_there_twice(tmp_path):
    assign(tmp_path, 1, rows([b"a" * 16, b"b" * 16]), np.array([0, 0], np.int8))
    assign(tmp_path, 1, rows([b"a" * 16]), np.array([2], np.int8))
    with pytest.raises(InputError, match=rf"digest {(b'a' * 16).hex()} twice \(train and test\)"):
        look_up(tmp_path, 0, rows([b"b" * 16]))


def test_what_only_one_side_has_is_kept_beside_the_bucket(tmp_path):
    assign(tmp_path, 1, rows([b"a" * 16, b"b" * 16, bytes(16)]), np.array([0, 1, 4], np.int8))
    digests = rows([b"b" * 16, b"c" * 16])
    found = look_up(tmp_path, 0, digests)
    assert found is not None
    (tmp_path / "reduced").mkdir()
    save_unmatched(tmp_path / "reduced", found, digests, [b"P1", b"P2"])
    assert unlisted(tmp_path / "reduced") == [f"P2\t{(b'c' * 16).hex()}"]
    assert absent(tmp_path / "reduced").tolist() == [[0] * 16, [97] * 16]
    (tmp_path / "other").mkdir()
    assert unlisted(tmp_path / "other") == []
    assert absent(tmp_path / "other").shape == (0, 16)
