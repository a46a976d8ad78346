import json
import pickle
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_datasets.proto import tf_example_pb2

from proteinlm import alphabet
from proteinlm.data.dataset.dataset import MANIFEST, MANIFEST_SCHEMA, ProteinDataset, decode_sequence, encode_example
from proteinlm.data.ingest.ingest import SAMPLE, IngestConfig, ingest
from proteinlm.data.sources.digests import digest
from proteinlm.data.sources.uniprot import read_records
from proteinlm.data.splits.rules import SPLITS, SplitsConfig
from proteinlm.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The sample in three shards a split, without a valid split."""
    output = tmp_path_factory.mktemp("dataset") / "proteins of mine"
    config = IngestConfig(SplitsConfig(0, 0.1), (SAMPLE / "pfam.tsv.gz",), name="mine", shards=3, workers=1)
    ingest([SAMPLE / "proteins.fasta.gz"], output, config)
    return output


@pytest.fixture(scope="module")
def dataset(folder):
    return ProteinDataset.open(folder)


ASCII = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=200).map(str.encode)


@given(ASCII, st.binary(min_size=16, max_size=16), st.lists(st.integers(0, 99999), max_size=40), ASCII)
def test_examples_are_protobufs_own_bytes(accession, value, families, sequence):
    names = [f"PF{i:05d}".encode() for i in families]
    expected = tf_example_pb2.Example()
    feature = expected.features.feature
    for key, values in (
        ("accession", [accession]), ("digest", [value.hex().encode()]), ("families", names), ("sequence", [sequence]),
    ):  # fmt: skip
        feature[key].bytes_list.value.extend(values)
    assert encode_example(accession, value, b";".join(names), sequence) == expected.SerializeToString(
        deterministic=True
    )


@pytest.mark.parametrize("length", [1, 117, 118, 121, 122, 123, 124, 125, 127, 128, 16376, 16384, 40_000, 1 << 21])
def test_sequences_of_any_length_are_read_back(length):
    sequence = b"ACDEFGHIKLMNPQRSTVWYBZXOU" * (1 + length // 25)
    example = encode_example(b"P1", bytes(16), b"PF00001", sequence[:length])
    assert tf_example_pb2.Example.FromString(example).features.feature["sequence"].bytes_list.value[0] == (
        decode_sequence(example)
    ) == sequence[:length]  # fmt: skip


@given(ASCII, st.text(alphabet.RESIDUES, min_size=1, max_size=200).map(str.encode), st.permutations(range(4)))
def test_examples_in_another_order_are_read_too(accession, sequence, order):
    fields = [("accession", accession), ("digest", b"0" * 32), ("families", b"sequence"), ("sequence", sequence)]
    written = b""
    for i in order:
        example = tf_example_pb2.Example()
        example.features.feature[fields[i][0]].bytes_list.value.append(fields[i][1])
        written += example.SerializeToString()  # messages one after another are one message, their maps united
    assert decode_sequence(written) == sequence


def test_every_sequence_is_there_once(dataset):
    expected = {record.sequence for record in read_records(SAMPLE / "proteins.fasta.gz")}
    found = [s for split in SPLITS for s in dataset.sequences(split, np.arange(dataset.counts[split]))]
    assert len(found) == len(expected)
    assert set(found) == expected


def test_questions_agree_with_each_other(dataset):
    assert dataset.counts["valid"] == 0
    assert all(dataset.counts[split] for split in ("train", "test", "ood"))
    for split in SPLITS:
        sequences = dataset.sequences(split, range(dataset.counts[split]))
        lengths, digests = dataset.lengths(split), dataset.digests(split)
        assert (lengths.dtype, digests.dtype) == (np.int32, np.uint8)
        assert digests.shape == (len(sequences), 16)
        assert lengths.tolist() == [len(s) for s in sequences]
        assert [row.tobytes() for row in digests] == [digest(s) for s in sequences]
        assert [row.tobytes() for row in digests] == sorted(row.tobytes() for row in digests)
        counts = dataset.residue_counts(split)
        assert (counts.dtype, counts.shape) == (np.int64, (25,))
        joined = b"".join(sequences).decode()
        assert counts.tolist() == [joined.count(letter) for letter in alphabet.RESIDUES]


def test_rows_in_any_order_and_more_than_once(dataset):
    last = dataset.counts["train"] - 1
    asked = [last, 0, 5, 5, last // 2]
    whole = dataset.sequences("train", range(last + 1))
    assert dataset.sequences("train", asked) == [whole[i] for i in asked]
    assert dataset.sequences("train", np.array(asked)) == [whole[i] for i in asked]
    assert dataset.sequences("valid", []) == []


@pytest.mark.parametrize(("split", "indices"), [("train", [-1]), ("valid", [0]), ("ood", [10**6])])
def test_rows_that_are_not_there(dataset, split, indices):
    with pytest.raises(IndexError, match="rows 0 to"):
        dataset.sequences(split, indices)


def test_splits_that_are_not_there(dataset):
    for ask in (dataset.lengths, dataset.digests, dataset.residue_counts, lambda split: dataset.sequences(split, [0])):
        with pytest.raises(InputError, match="has no split 'dev'"):
            ask("dev")


def test_the_manifest(dataset):
    manifest = dataset.manifest()
    assert manifest.schema == MANIFEST_SCHEMA
    frame = manifest.to_pandas()
    assert frame["split"].value_counts().to_dict() == {s: n for s, n in dataset.counts.items() if n}
    assert frame["split"].tolist() == sorted(frame["split"], key=SPLITS.index)
    assert frame["copies"].sum() == 4509
    row = frame[frame["accession"] == "P00974"].iloc[0]
    assert row["families"].tolist() == ["PF00014"]
    assert "P00974" in row["accessions"].tolist()


def test_a_protein_is_found_by_any_of_its_accessions(dataset):
    frame = dataset.manifest().to_pandas()
    many = frame[frame["copies"] > 1]
    assert len(many) > 50
    sequences = {record.accession: record.sequence for record in read_records(SAMPLE / "proteins.fasta.gz")}
    for names in many["accessions"].head(5):
        for name in names:
            split, rows = dataset.find(name)
            assert dataset.sequences(split, rows) == [sequences[name]]
    assert dataset.find("P0097") is None


def test_it_can_be_pickled_after_use(dataset):
    expected = dataset.sequences("test", [3, 1])
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.sequences("test", [3, 1]) == expected
    assert copy.fingerprint == dataset.fingerprint


def test_plain_tfds_without_tensorflow_and_without_this_package(folder, dataset, tmp_path):
    """In a process of its own, where importing proteinlm raises and TensorFlow is not imported, be it there or not."""
    script = textwrap.dedent("""
        import json, sys

        sys.modules["proteinlm"] = None
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(sys.argv[1])
        train = builder.as_data_source("train")
        some = [train[5], *train.__getitems__([len(train) - 1, 0])]
        json.dump({
            "name": builder.name,
            "splits": {name: info.num_examples for name, info in builder.info.splits.items()},
            "shards": builder.info.splits["train"].num_shards, "length": len(train),
            "half": len(builder.as_data_source("train[:50%]")), "ood": len(builder.as_data_source("ood")),
            "tensorflow": "tensorflow" in sys.modules,
            "rows": [{**row, "families": list(row["families"])} for row in some],
        }, sys.stdout, default=bytes.decode)
    """)
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(folder)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout)
    assert said["name"] == "mine"
    assert said["tensorflow"] is False
    assert said["splits"] == {split: n for split, n in dataset.counts.items() if n}
    assert (said["shards"], said["length"]) == (3, dataset.counts["train"])
    assert said["half"] == pytest.approx(dataset.counts["train"] / 2, abs=1)
    frame = dataset.manifest().to_pandas()
    for row, place in zip(said["rows"], (5, dataset.counts["train"] - 1, 0), strict=True):
        expected = frame.iloc[place]
        assert row["sequence"].encode() == dataset.sequences("train", [place])[0]
        assert row["accession"] == expected["accession"]
        assert row["digest"] == expected["digest"].hex()
        assert row["families"] == expected["families"].tolist()
    # Nothing to frighten the reader, such as ArrayRecord's error about group sizes.
    assert "ERROR" not in done.stderr
    assert "group" not in done.stderr


def test_what_is_no_dataset_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="there is no dataset .*absent: make one with proteinlm ingest"):
        ProteinDataset.open(tmp_path / "absent")
    (tmp_path / ".absent.partial").mkdir()
    with pytest.raises(InputError, match="was started .* and is not finished"):
        ProteinDataset.open(tmp_path / "absent")
    with pytest.raises(InputError, match=r"lacks dataset_info\.json, so it is no dataset"):
        ProteinDataset.open(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "mine-train.array_record-00001-of-00003").unlink()
    with pytest.raises(InputError, match="lacks mine-train.array_record-00001-of-00003"):
        ProteinDataset.open(copy)
    (copy / MANIFEST).unlink()
    with pytest.raises(InputError, match=r"lacks manifest\.parquet"):
        ProteinDataset.open(copy)
    (copy / "provenance.json").write_text('{"finger')
    with pytest.raises(InputError, match="is damaged"):
        ProteinDataset.open(copy)
