import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from proteinlm import alphabet
from proteinlm.analysis import analyze
from proteinlm.analysis.maps import measure as protein_maps
from proteinlm.errors import InputError
from proteinlm.inference import probing
from proteinlm.inference.proteins import BPT1_BOVIN

SEQUENCES = [BPT1_BOVIN[start : start + 40] for start in range(0, 60, 20)]
SEQUENCES += [b"WHWHMMNQNQ", b"ACDEFGHIKLMNPQRSTVWY"]


def assert_png_and_pdf(stem):
    assert stem.with_suffix(".png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert stem.with_suffix(".pdf").read_bytes()[:5] == b"%PDF-"
    assert not [path for path in stem.parent.iterdir() if path.name.endswith(".partial")]


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made and not written: that takes seconds, and is tested once."""
    monkeypatch.setattr(analyze, "_save", lambda figure, stem: [])


@pytest.mark.parametrize("causal", [False, True])
def test_a_proteins_maps_are_saved_without_special_tokens(make_model, tmp_path, undrawn, causal):
    model = make_model("favor", causal=causal)
    protein = BPT1_BOVIN[:60]
    summary = analyze.analyze_protein(model, protein, tmp_path / "new", name="part of P00974")
    saved = np.load(tmp_path / "new" / "attention.npz")
    assert "".join(saved["residues"]) == protein.decode()
    assert saved["attention"].shape == (2, 2, 60, 60)
    assert saved["attention"].dtype == np.float32
    assert saved["layers"].tolist() == summary["layers"] == [0, 1]
    assert saved["heads"].tolist() == summary["heads"] == [0, 1]
    residues = alphabet.encode(protein)
    if causal:
        tokens, cut = np.append(np.uint8(alphabet.BOS), residues)[None], slice(1, None)
    else:
        tokens, cut = np.append(residues, np.uint8(alphabet.EOS))[None], slice(0, -1)
    whole = probing.attention_map(model, tokens, layer=1)
    np.testing.assert_array_equal(saved["attention"][1], whole[0, :, cut, cut])
    # Not renormalised: what went to the special token is missing.
    sums = saved["attention"].sum(-1)
    assert 0 < sums.mean() < 0.9999
    assert sums.max() < 1.0001
    np.testing.assert_allclose(summary["attention_on_residues"], sums.mean(-1), atol=1e-4)
    assert summary["num_residues"] == 60
    json.dumps(summary)


def test_heads_and_lines_stand_beside_the_map(make_model, tmp_path):
    model = make_model("favor", num_layers=3)
    protein = BPT1_BOVIN[:50]
    summary = analyze.analyze_protein(model, protein, tmp_path, name="p")
    for name in ("attention", "heads", "lines"):
        assert_png_and_pdf(tmp_path / name)
    assert sorted(Path(file).name for file in summary["files"]) == sorted(file.name for file in tmp_path.iterdir())
    saved = np.load(tmp_path / "attention.npz")
    assert saved["detail"].shape == (3, 50, 50)
    assert saved["lines"].shape == (3, 25, 25)
    chosen = list(zip(saved["detail_layers"], saved["detail_heads"], strict=True))
    assert chosen == [(one["layer"], one["head"]) for one in summary["heads_in_detail"]]
    for place, (layer, head) in enumerate(chosen):
        np.testing.assert_array_equal(saved["detail"][place], saved["attention"][layer, head])
        np.testing.assert_array_equal(saved["lines"][place], saved["attention"][layer, head, :25, :25])
    assert "of 6 heads the clearest" in summary["heads_chosen"]
    assert summary["row_sums"]["to_one"]
    assert summary["cell"] == 1
    np.testing.assert_allclose(saved["row_sums"], 1, atol=1e-3)


def test_rows_that_do_not_sum_to_one_are_said_to_be_so(make_model, tmp_path, undrawn):
    model = make_model("generalized", renormalize=False)
    summary = analyze.analyze_protein(model, BPT1_BOVIN[:40], tmp_path, name="p", layers=[1], heads=[0])
    found = summary["row_sums"]
    assert not found["to_one"]
    assert found["reason"].startswith("renormalize is off")
    assert found["least"] <= found["mean"] <= found["largest"]
    saved = np.load(tmp_path / "attention.npz")
    np.testing.assert_allclose(found["largest"], saved["row_sums"].max(), rtol=1e-5)
    assert summary["heads_chosen"] == "all that were given"
    assert [one["layer"] for one in summary["heads_in_detail"]] == [1]


def test_a_long_protein_is_averaged_over_cells(make_model, tmp_path, undrawn, monkeypatch):
    monkeypatch.setattr(protein_maps, "DRAWN", 16)
    model = make_model("favor", causal=True)
    summary = analyze.analyze_protein(model, BPT1_BOVIN[:60], tmp_path, name="p")
    assert summary["cell"] == 4
    saved = np.load(tmp_path / "attention.npz")
    assert saved["attention"].shape == (2, 2, 15, 15)
    assert len(saved["residues"]) == 60
    # The first residues keep weights of their own.
    layer, head = saved["detail_layers"][0], saved["detail_heads"][0]
    tokens = np.append(np.uint8(alphabet.BOS), alphabet.encode(BPT1_BOVIN[:60]))[None]
    whole = probing.attention_map(model, tokens, layer=int(layer))[0, head, 1:, 1:]
    np.testing.assert_array_equal(saved["lines"][0], whole[:25, :25])
    np.testing.assert_allclose(saved["attention"][layer, head, 9, 3], whole[36:40, 12:16].mean(), rtol=1e-4)


def test_head_kinds_files_and_summary(make_model, tmp_path):
    model = make_model("favor", num_heads=4)
    proteins = [BPT1_BOVIN[start : start + 64 - start] for start in range(0, 30, 10)] + [b"ACD", BPT1_BOVIN]
    summary = analyze.analyze_head_kinds(model, proteins, tmp_path, asked=5)
    assert_png_and_pdf(tmp_path / "head_kinds")
    assert json.loads((tmp_path / "head_kinds.json").read_text()) == summary
    assert sorted(Path(file).name for file in summary["files"]) == sorted(file.name for file in tmp_path.iterdir())
    assert (summary["num_sequences"], summary["num_too_short"], summary["num_clipped"]) == (4, 1, 1)
    table = pd.read_csv(tmp_path / "head_kinds.csv")
    assert table[["layer", "head"]].to_numpy().tolist() == [[layer, head] for layer in range(2) for head in range(4)]
    assert summary["counts"] == {kind: int((table["kind"] == kind).sum()) for kind in summary["counts"]}
    assert sum(summary["counts"].values()) == summary["num_heads"] == 8
    saved = np.load(tmp_path / "head_kinds.npz")
    np.testing.assert_allclose(saved["vertical"].mean(0).ravel(), table["vertical"], rtol=1e-4, atol=1e-6)
    assert saved["offset_excess"].shape == (4, 2, 4, len(saved["offsets"]))


def test_head_kinds_refuse_what_they_cannot_use(make_model, tmp_path):
    with pytest.raises(InputError, match="800 sequences were asked for, but there are only 1"):
        analyze.analyze_head_kinds(make_model(), [BPT1_BOVIN], tmp_path, asked=800)
    with pytest.raises(InputError, match="sequence 1: the letter"):
        analyze.analyze_head_kinds(make_model(), [b"M K"], tmp_path)
    with pytest.raises(InputError, match="none of the 1 sequences has the 32 residues"):
        analyze.analyze_head_kinds(make_model(), [b"MKV"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_four_layers_of_bpt1_bovin_unless_told_otherwise(make_model, tmp_path, undrawn):
    summary = analyze.analyze_protein(make_model("identity", num_layers=5, max_length=128), output=tmp_path)
    assert (summary["protein"], summary["num_residues"]) == ("BPT1_BOVIN (P00974)", 100)
    saved = np.load(tmp_path / "attention.npz")
    assert saved["layers"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(saved["attention"], np.broadcast_to(np.eye(100), (4, 2, 100, 100)))


def test_chosen_layers_and_heads_and_bad_ones(make_model, tmp_path, undrawn):
    model = make_model()
    summary = analyze.analyze_protein(model, b"MKVW", tmp_path, name="short", layers=[1], heads=[1, 0])
    assert np.load(tmp_path / "attention.npz")["attention"].shape == (1, 2, 4, 4)
    assert (summary["layers"], summary["heads"]) == ([1], [1, 0])
    with pytest.raises(InputError, match="no layer 9: this model's layers go from 0 to 1"):
        analyze.analyze_protein(model, b"MKVW", tmp_path, name="short", layers=[9])
    with pytest.raises(InputError, match="no head 2"):
        analyze.analyze_protein(model, b"MKVW", tmp_path, name="short", heads=[2])


def test_a_protein_that_cannot_be_read_leaves_nothing_behind(make_model, tmp_path):
    with pytest.raises(InputError, match=r"BPT1.*100 residues.*at most 64"):
        analyze.analyze_protein(make_model(), output=tmp_path)
    with pytest.raises(InputError, match="mine: the letter '@' at residue 1"):
        analyze.analyze_protein(make_model(), b"@", tmp_path, name="mine")
    assert list(tmp_path.iterdir()) == []


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
    with pytest.raises(InputError, match="6 sequences were asked for, but there are only 5"):
        analyze.analyze_similarity(model, SEQUENCES, tmp_path, asked=6)
    with pytest.raises(InputError, match="sequence 2: the letter"):
        analyze.analyze_similarity(model, [b"MKV", b"M K"], tmp_path)
    with pytest.raises(InputError, match="at least one sequence"):
        analyze.analyze_similarity(model, [], tmp_path)
    with pytest.raises(InputError, match="only 0 of this model's heads"):
        analyze.analyze_similarity(make_model("identity"), SEQUENCES, tmp_path)
    assert list(tmp_path.iterdir()) == []
