import json
from pathlib import Path

import numpy as np
import pytest
from legible import assert_png_and_pdf

from proteinlm import alphabet
from proteinlm.analysis.maps import analyze
from proteinlm.analysis.maps import measure as protein_maps
from proteinlm.errors import InputError
from proteinlm.inference import probing
from proteinlm.inference.probing import Probe, probe_protein
from proteinlm.inference.proteins import BPT1_BOVIN


@pytest.fixture
def undrawn(monkeypatch):
    """Do not write the figures: that takes seconds, and is tested once."""
    monkeypatch.setattr(analyze, "save_figure", lambda figure, stem: ())


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_proteins_maps_are_saved_without_special_tokens(make_model, tmp_path, undrawn, causal):
    model = make_model("favor", causal=causal)
    protein = BPT1_BOVIN[:60]
    summary = analyze.analyze_protein(probe_protein(model, protein, name="part of P00974"), tmp_path / "new")
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
    whole = Probe(model, tokens).map(1)
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
    summary = analyze.analyze_protein(probe_protein(model, protein, name="p"), tmp_path)
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
    summary = analyze.analyze_protein(probe_protein(model, BPT1_BOVIN[:40], name="p"), tmp_path, layers=[1], heads=[0])
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
    summary = analyze.analyze_protein(probe_protein(model, BPT1_BOVIN[:60], name="p"), tmp_path)
    assert summary["cell"] == 4
    saved = np.load(tmp_path / "attention.npz")
    assert saved["attention"].shape == (2, 2, 15, 15)
    assert len(saved["residues"]) == 60
    # The first residues keep weights of their own.
    layer, head = saved["detail_layers"][0], saved["detail_heads"][0]
    tokens = np.append(np.uint8(alphabet.BOS), alphabet.encode(BPT1_BOVIN[:60]))[None]
    whole = Probe(model, tokens).map(int(layer))[0, head, 1:, 1:]
    np.testing.assert_array_equal(saved["lines"][0], whole[:25, :25])
    np.testing.assert_allclose(saved["attention"][layer, head, 9, 3], whole[36:40, 12:16].mean(), rtol=1e-4)


@pytest.mark.slow
def test_four_layers_of_bpt1_bovin_unless_told_otherwise(make_model, tmp_path, undrawn):
    summary = analyze.analyze_protein(probe_protein(make_model("identity", num_layers=5, max_length=128)), tmp_path)
    assert (summary["protein"], summary["num_residues"]) == ("BPT1_BOVIN (P00974)", 100)
    saved = np.load(tmp_path / "attention.npz")
    assert saved["layers"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(saved["attention"], np.broadcast_to(np.eye(100), (4, 2, 100, 100)))


def test_chosen_layers_and_heads_and_bad_ones(make_model, tmp_path, undrawn):
    model = make_model()
    summary = analyze.analyze_protein(probe_protein(model, b"MKVW", name="short"), tmp_path, layers=[1], heads=[1, 0])
    assert np.load(tmp_path / "attention.npz")["attention"].shape == (1, 2, 4, 4)
    assert (summary["layers"], summary["heads"]) == ([1], [1, 0])
    with pytest.raises(InputError, match="no layer 9: this model's layers go from 0 to 1"):
        analyze.analyze_protein(probe_protein(model, b"MKVW"), tmp_path, layers=[9])
    with pytest.raises(InputError, match="no head 2"):
        analyze.analyze_protein(probe_protein(model, b"MKVW"), tmp_path, heads=[2])


@pytest.mark.parametrize("causal", [False, True])
def test_figures_and_page_of_a_protein_need_one_forward_pass(make_model, tmp_path, undrawn, monkeypatch, causal):
    forward, counted = probing._queries_keys, []
    monkeypatch.setattr(probing, "_queries_keys", lambda *arguments: counted.append(1) or forward(*arguments))
    probe = probe_protein(make_model("favor", causal=causal, num_layers=3), BPT1_BOVIN[:50], name="p")
    summary = analyze.analyze_protein(probe, tmp_path)
    # Kinds, maps, details, lines and row sums are all measured.
    assert (len(summary["heads_in_detail"]), summary["heads_chosen"].startswith("of 6 heads")) == (3, True)
    assert analyze.analyze_interactive(probe, tmp_path).stat().st_size > 0
    assert len(counted) == 1
