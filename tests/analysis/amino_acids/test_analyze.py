import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from legible import assert_png_and_pdf

from proteinlm import alphabet
from proteinlm.analysis.amino_acids import analyze
from proteinlm.errors import InputError
from proteinlm.inference.proteins import BPT1_BOVIN

SEQUENCES = [BPT1_BOVIN[start : start + 40] for start in range(0, 60, 20)]
SEQUENCES += [b"WHWHMMNQNQ", b"ACDEFGHIKLMNPQRSTVWY"]


def test_similarity_files_and_summary(make_model, tmp_path):
    model = make_model("generalized", num_heads=4, max_length=32)
    summary = analyze.analyze_similarity(model, SEQUENCES, tmp_path, permutations=199)
    assert_png_and_pdf(tmp_path / "similarity")
    assert json.loads((tmp_path / "similarity.json").read_text()) == summary
    assert summary["num_sequences"] == 5
    assert summary["num_clipped"] == 3
    assert summary["num_residues"] == 3 * 32 + 10 + 20
    assert summary["num_heads_used"] == summary["num_heads"] == 8
    assert summary["agreement"]["num_pairs"] == 190
    assert 1 / 200 <= summary["agreement"]["pearson_p"] <= 1
    assert [entry["rank"] for entry in summary["closest_pairs"]] == list(range(1, 11))
    assert {entry["pair"] for entry in summary["paper_pairs"]} == {"DE", "FY"}
    evolved = [entry["blosum_rank"] for entry in summary["blosum_pairs"]]
    assert evolved == sorted(evolved)
    assert summary["blosum_pairs"][0]["pair"] == "IV"
    assert {Path(file).name for file in summary["files"]} == {file.name for file in tmp_path.iterdir()}
    layers = pd.read_csv(tmp_path / "similarity_by_layer.csv")
    assert layers["layer"].tolist() == [0, 1]
    assert summary["best_layer"]["pearson"] == pytest.approx(layers["similarity_pearson"].max(), abs=1e-5)
    assert len(pd.read_csv(tmp_path / "similarity_by_head.csv")) == 8
    assert sorted(summary["clustered_order"]) == sorted(alphabet.STANDARD_RESIDUES)
    saved = np.load(tmp_path / "similarity.npz")
    upper = np.triu_indices(20, 1)
    correlation = np.corrcoef(saved["similarity"][upper], saved["blosum"][upper])[0, 1]
    assert correlation == pytest.approx(summary["agreement"]["pearson"])
    direct = saved["pair_enrichment"]
    correlation = np.corrcoef(((direct + direct.T) / 2)[upper], saved["blosum"][upper])[0, 1]
    assert np.isnan(correlation) == (summary["pair_enrichment_agreement"]["num_pairs"] < 190)
    assert saved["head_profiles"].shape == (2, 4, 20)
    assert saved["pair_sums"].shape == (2, 4, 25, 25)


@pytest.mark.slow
def test_similarity_repeats_and_takes_another_blosum(make_model, tmp_path):
    model = make_model("generalized", num_heads=4, max_length=32)
    one = analyze.analyze_similarity(model, SEQUENCES, tmp_path / "a", permutations=99)
    two = analyze.analyze_similarity(model, SEQUENCES, tmp_path / "b", permutations=99)
    assert one["agreement"] == two["agreement"]
    for name in ("similarity.npz", "similarity.png", "similarity.pdf"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    other = analyze.analyze_similarity(model, SEQUENCES, tmp_path / "c", blosum="BLOSUM45", permutations=99)
    assert other["blosum"] == "BLOSUM45"
    assert other["agreement"]["pearson"] != one["agreement"]["pearson"]


@pytest.mark.slow
def test_the_clustered_order_changes_the_figure_alone(make_model, tmp_path):
    model = make_model("generalized", num_heads=4, max_length=32)
    one = analyze.analyze_similarity(model, SEQUENCES, tmp_path / "a", permutations=9)
    two = analyze.analyze_similarity(model, SEQUENCES, tmp_path / "b", permutations=9, order="clustered")
    assert (tmp_path / "a" / "similarity.npz").read_bytes() == (tmp_path / "b" / "similarity.npz").read_bytes()
    assert (tmp_path / "a" / "similarity.png").read_bytes() != (tmp_path / "b" / "similarity.png").read_bytes()
    assert (one["order"], two["order"]) == ("classes", "clustered")
    assert one["clustered_order"] == two["clustered_order"]


def test_similarity_refuses_what_it_cannot_use(make_model, tmp_path):
    model = make_model()
    with pytest.raises(InputError, match="BLOSUM63"):
        analyze.analyze_similarity(model, SEQUENCES, tmp_path, blosum="BLOSUM63")
    with pytest.raises(InputError, match=r"no order 'random'.*classes, clustered"):
        analyze.analyze_similarity(model, SEQUENCES, tmp_path, order="random")
    with pytest.raises(InputError, match="sequence 2: the letter"):
        analyze.analyze_similarity(model, [b"MKV", b"M K"], tmp_path)
    with pytest.raises(InputError, match="at least one sequence"):
        analyze.analyze_similarity(model, [], tmp_path)
    with pytest.raises(InputError, match="only 0 of this model's heads"):
        analyze.analyze_similarity(make_model("identity"), SEQUENCES, tmp_path)
    assert list(tmp_path.iterdir()) == []
