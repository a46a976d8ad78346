import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteinlm.data.sources.digests import digest
from proteinlm.data.sources.record_buckets import NO_TAXON
from proteinlm.data.sources.uniprot import Record
from proteinlm.data.splits.rules import (
    SPLITS,
    SplitsConfig,
    merge,
    split_codes,
    split_of,
)
from proteinlm.errors import InputError

CONFIG = SplitsConfig(valid=0.1, test=0.2, held_out=("PF00001",))


def test_the_ends_of_the_splits():
    def at(fraction):
        return round(fraction * 2**64).to_bytes(8, "big") + bytes(8)

    assert [split_of(at(x), (), CONFIG) for x in (0, 0.199999, 0.200001, 0.299999, 0.300001, 0.99)] == [
        "test", "test", "valid", "valid", "train", "train",
    ]  # fmt: skip


def test_a_held_out_family_decides_whatever_the_digest():
    for first in range(0, 256, 15):
        assert split_of(bytes([first] * 16), ["PF00009", "PF00001"], CONFIG) == "ood"
        assert split_of(bytes([first] * 16), ["PF00009"], CONFIG) != "ood"


@given(st.floats(0, 1), st.floats(0, 1), st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.booleans())))
def test_many_at_once_are_one_by_one(valid, test, items):
    scale = max(valid + test, 1) * (1 + 1e-12)
    config = SplitsConfig(valid / scale, test / scale, ("PF00001",))
    items += [(bytes(16), False), (b"\xff" * 16, False)]
    numbers = np.array([int.from_bytes(value[:8], "big") for value, _ in items], np.uint64)
    codes = split_codes(numbers, np.array([held for _, held in items], bool), config)
    assert [SPLITS[code] for code in codes] == [
        split_of(value, ["PF00001"] if held else [], config) for value, held in items
    ]


@pytest.mark.parametrize(("valid", "test"), [(0, 0), (1, 0), (0, 1), (0.5, 0.5)])
def test_whole_splits(valid, test):
    config = SplitsConfig(valid, test, ())
    found = {split_of(digest(str(i).encode()), (), config) for i in range(200)}
    assert found == {name for name, share in (("valid", valid), ("test", test), ("train", 1 - valid - test)) if share}


def test_fractions_are_met():
    splits = [split_of(digest(b"M" * i), (), CONFIG) for i in range(1, 5000)]
    assert abs(splits.count("test") / 5000 - 0.2) < 4 * (0.2 * 0.8 / 5000) ** 0.5
    assert abs(splits.count("valid") / 5000 - 0.1) < 4 * (0.1 * 0.9 / 5000) ** 0.5


def test_defaults_are_about_the_papers():
    config = SplitsConfig()
    assert (config.valid, config.test, len(config.held_out)) == (0.001, 0.01, 20)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"valid": -0.1}, "valid is -0.1"),
        ({"test": 1.5}, "test is 1.5"),
        ({"valid": float("nan")}, "valid is nan"),
        ({"valid": 0.6, "test": 0.5}, "the sum of valid .* is more than 1"),
        ({"held_out": ("PF1",)}, "'PF1' is not a Pfam id"),
    ],
)
def test_wrong_settings_are_refused(fields, message):
    with pytest.raises(InputError, match=message):
        SplitsConfig(**fields)


def record(accession, families=(), reviewed=False, taxon=None):
    return Record(accession, b"MKV", tuple(families), reviewed, taxon)


def merge_records(copies):
    return merge(
        [record.accession.encode() for record in copies],
        [";".join(sorted(record.families)).encode() for record in copies],
        [record.reviewed for record in copies],
        [NO_TAXON if record.taxon is None else record.taxon for record in copies],
    )


@pytest.mark.parametrize(
    ("first", "others"),
    [
        (record("A0A0000000", reviewed=True), [record("P1")]),
        (record("Q12345"), [record("P1-2"), record("P1-10")]),
        (record("P12345"), [record("A0A000AAA0")]),
        (record("P12345"), [record("Q12345")]),
        (record("P1", taxon=None), [record("P1", taxon=5)]),
        (record("P1", taxon=4), [record("P1", taxon=5)]),
    ],
)
def test_the_canonical_accession(first, others):
    copies = [*others, first]
    assert copies[merge_records(copies).canonical] == first


@given(
    st.lists(
        st.builds(
            record,
            st.sampled_from(["P1", "P2", "P1-2", "Q9", "LONGER"]),
            st.sets(st.sampled_from(["PF00001", "PF00002", "PF00003"])),
            st.booleans(),
            st.sampled_from([None, 1, 2]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.randoms(),
)
def test_merging_does_not_depend_on_order(records, shuffle):
    merged = merge_records(records)
    assert merged.families == ";".join(sorted({f for r in records for f in r.families})).encode()
    assert merged.accessions == sorted({r.accession.encode() for r in records})
    others = records.copy()
    shuffle.shuffle(others)
    again = merge_records(others)
    assert again[1:] == merged[1:]
    one, other = records[merged.canonical], others[again.canonical]
    assert (one.accession, one.reviewed, one.taxon) == (other.accession, other.reviewed, other.taxon)


def test_annotated_copies_of_one_protein_are_on_one_side():
    """Trap 33: a family known for one copy only decides for all of them, since the split is of what was merged."""
    letters = "ACDEFGHIKLMNPQRSTVWY"
    source = random.Random(0)
    for _ in range(50):
        sequence = "".join(source.choices(letters, k=30)).encode()
        copies = [Record("P1", sequence, (), True, 1), Record("Q1", sequence, ("PF00001",), False, 2)]
        families = merge_records(copies).families.decode().split(";")
        assert split_of(digest(sequence), families, CONFIG) == "ood"
