import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from legible import assert_png_and_pdf

from proteinlm.analysis.heads import analyze
from proteinlm.errors import InputError
from proteinlm.inference.proteins import BPT1_BOVIN


def test_head_kinds_files_and_summary(make_model, tmp_path):
    model = make_model("favor", num_heads=4)
    proteins = [BPT1_BOVIN[start : start + 64 - start] for start in range(0, 30, 10)] + [b"ACD", BPT1_BOVIN]
    summary = analyze.analyze_head_kinds(model, proteins, tmp_path)
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
    with pytest.raises(InputError, match="sequence 1: the letter"):
        analyze.analyze_head_kinds(make_model(), [b"M K"], tmp_path)
    with pytest.raises(InputError, match="none of the 1 sequences has 32 residues or more"):
        analyze.analyze_head_kinds(make_model(), [b"MKV"], tmp_path)
    assert list(tmp_path.iterdir()) == []
