import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.errors import InputError
from proteinlm.evaluation.metrics import Sums
from proteinlm.evaluation.sequences import sequence_facts, write_sequences


def test_facts_are_in_the_datasets_order(tiny_dataset, tmp_path, with_identities):
    dataset = ProteinDataset.open(tiny_dataset)
    for split in dataset.counts:
        facts = sequence_facts(dataset, split)
        np.testing.assert_array_equal(facts["length"].to_numpy(), dataset.lengths(split))
        assert [d.as_py() for d in facts["digest"]] == [d.tobytes() for d in dataset.digests(split)]
        assert "identity" not in facts.column_names
    assert "taxon" in sequence_facts(dataset, "test", ["taxon", "identity"]).column_names
    dataset, identities = with_identities(tmp_path / "copy", tiny_dataset)
    facts = sequence_facts(dataset, "test").to_pylist()
    for row in facts:
        expected = identities[row["digest"]]
        assert row["identity"] == (None if expected is None else pytest.approx(expected))
    assert "identity" not in sequence_facts(dataset, "train").column_names


def test_a_dataset_whose_files_do_not_agree_is_refused(tiny_dataset, tmp_path, with_identities):
    dataset, _ = with_identities(tmp_path / "copy", tiny_dataset, leave_out=1)
    with pytest.raises(InputError, match="identity.parquet lacks 1 of its"):
        sequence_facts(dataset, "ood")
    manifest = pq.read_table(tmp_path / "copy" / "manifest.parquet")
    pq.write_table(manifest.slice(0, len(manifest) - 1), tmp_path / "copy" / "manifest.parquet")
    with pytest.raises(InputError, match="ingest it again"):
        sequence_facts(dataset, "ood")


def test_pandas_reads_it_and_joins_it_with_the_manifest(tiny_dataset, tmp_path):
    dataset = ProteinDataset.open(tiny_dataset)
    generator = np.random.default_rng(0)
    results, facts = {}, {}
    for split in ("test", "ood"):
        n = dataset.counts[split]
        rows = generator.permutation(n)
        # What is known of a sequence is worked out from its row, so that a mix-up would be seen.
        sums = Sums(rows * 0.5, rows // 2, rows + 1)
        results[split], facts[split] = (rows, sums), sequence_facts(dataset, split)
    path = tmp_path / "sequences.parquet"
    write_sequences(path, results, facts, {"run": "a", "step": 3})
    frame = pd.read_parquet(path)
    assert len(frame) == dataset.counts["test"] + dataset.counts["ood"]
    joined = frame.merge(dataset.manifest().to_pandas(), on="accession", suffixes=("", "_manifest"), validate="1:1")
    assert len(joined) == len(frame)
    assert (joined.length == joined.length_manifest).all()
    assert (joined.split == joined.split_manifest).all()
    for one in joined.itertuples():
        assert dataset.find(one.accession) == (one.split, [one.row])
        assert list(one.families) == list(one.families_manifest)
    np.testing.assert_array_equal(frame["nll"], frame.row * 0.5)
    np.testing.assert_array_equal(frame["correct"], frame.row // 2)
    np.testing.assert_array_equal(frame["count"], frame.row + 1)
    kept = pq.read_schema(path).metadata
    assert (kept[b"run"], kept[b"step"]) == (b"a", b"3")
    assert json.dumps(frame.columns.tolist()).startswith('["split", "row", "accession"')


def test_no_split_leaves_no_file(tmp_path):
    write_sequences(tmp_path / "x.parquet", {}, {}, {})
    assert not (tmp_path / "x.parquet").exists()
