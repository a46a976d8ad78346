import json

import numpy as np
import pytest

from proteinlm.analysis import analyze, attention_maps
from proteinlm.analysis.proteins import BPT1_BOVIN
from proteinlm.data import alphabet
from proteinlm.errors import InputError

SEQUENCES = [BPT1_BOVIN[start : start + 40] for start in range(0, 60, 20)]
SEQUENCES += [b"WHWHMMNQNQ", b"ACDEFGHIKLMNPQRSTVWY"]


def assert_png_and_pdf(stem):
    assert stem.with_suffix(".png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert stem.with_suffix(".pdf").read_bytes()[:5] == b"%PDF-"
    assert not [path for path in stem.parent.iterdir() if path.name.endswith(".partial")]


@pytest.mark.parametrize("causal", [False, True])
def test_a_proteins_maps_are_saved_without_special_tokens(make_model, tmp_path, causal):
    model = make_model("favor", causal=causal)
    protein = BPT1_BOVIN[:60]
    summary = analyze.analyze_protein(model, protein, tmp_path / "new", name="part of P00974")
    assert_png_and_pdf(tmp_path / "new" / "attention")
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
    whole = attention_maps.attention_map(model, tokens, layer=1)
    np.testing.assert_array_equal(saved["attention"][1], whole[0, :, cut, cut])
    # Not renormalised: what went to the special token is missing.
    sums = saved["attention"].sum(-1)
    assert 0 < sums.mean() < 0.9999
    assert sums.max() < 1.0001
    np.testing.assert_allclose(summary["attention_on_residues"], sums.mean(-1), atol=1e-4)
    assert summary["num_residues"] == 60
    json.dumps(summary)


def test_four_layers_of_bpt1_bovin_unless_told_otherwise(make_model, tmp_path):
    summary = analyze.analyze_protein(make_model("identity", num_layers=5, max_length=128), output=tmp_path)
    assert (summary["protein"], summary["num_residues"]) == ("BPT1_BOVIN (P00974)", 100)
    saved = np.load(tmp_path / "attention.npz")
    assert saved["layers"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(saved["attention"], np.broadcast_to(np.eye(100), (4, 2, 100, 100)))


def test_chosen_layers_and_heads_and_bad_ones(make_model, tmp_path):
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


def test_similarity_refuses_what_it_cannot_use(make_model, tmp_path):
    model = make_model()
    with pytest.raises(InputError, match="BLOSUM63"):
        analyze.analyze_similarity(model, SEQUENCES, tmp_path, blosum="BLOSUM63")
    with pytest.raises(InputError, match="sequence 2: the letter"):
        analyze.analyze_similarity(model, [b"MKV", b"M K"], tmp_path)
    with pytest.raises(InputError, match="at least one sequence"):
        analyze.analyze_similarity(model, [], tmp_path)
    with pytest.raises(InputError, match="only 0 of this model's heads"):
        analyze.analyze_similarity(make_model("identity"), SEQUENCES, tmp_path)
    assert list(tmp_path.iterdir()) == []
