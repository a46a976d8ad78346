"""`proteinlm analyze`: each part writes its files; what does not fit is said in a sentence."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from proteinlm.analysis import interactive
from proteinlm.cli import main

sys.path.insert(0, str(Path(__file__).parent / "analysis"))
from structure_files import hairpin, pdb_text, protein_atoms

LETTERS = "MKVLATGWCDEFGHIKLMNPQRSTVWYA"


def analyze(run, output, *words):
    return main(["analyze", str(run), "--output", str(output), *words])


def written(folder, kind):
    return sorted(path.stem for path in folder.glob(f"*.{kind}"))


@pytest.mark.slow
def test_what_is_drawn_by_default(tiny_runs, tmp_path):
    assert analyze(tiny_runs["masked"], tmp_path, "--sequences", "6", "--split", "train") == 0
    assert written(tmp_path, "png") == written(tmp_path, "pdf")
    assert written(tmp_path, "png") == ["attention", "head_kinds", "heads", "lines", "similarity"]
    assert written(tmp_path, "html") == ["attention"]
    assert json.loads((tmp_path / "head_kinds.json").read_text())["num_sequences"] <= 6
    assert json.loads((tmp_path / "similarity.json").read_text())["num_sequences"] == 6


@pytest.mark.slow
def test_windows_of_a_run_on_windows(tiny_runs, tmp_path, capsys):
    assert analyze(tiny_runs["concat"], tmp_path, "--parts", "windows", "--windows", "1", "--split", "train") == 0
    assert written(tmp_path, "png") == ["windows_pairs", "windows_shares"]
    assert analyze(tiny_runs["masked"], tmp_path, "--parts", "windows") == 2
    assert "masked was trained with batches.form single, and the part windows" in capsys.readouterr().err


@pytest.mark.slow
def test_a_structure(tiny_runs, tmp_path, capsys):
    file = tmp_path / "hairpin.pdb"
    file.write_text(pdb_text(protein_atoms(LETTERS, hairpin(LETTERS)), {"A": LETTERS}))
    words = ["--parts", "structure", "--structure", str(file)]
    assert analyze(tiny_runs["causal"], tmp_path / "out", *words, "--chain", "A") == 0
    assert written(tmp_path / "out", "png") == ["contact_precision", "contacts"]
    assert analyze(tiny_runs["causal"], tmp_path / "out", *words, "--chain", "Q") == 2
    assert "Q" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--parts", "structure"], "name a PDB or mmCIF file with --structure"),
        (["--chain", "A"], "--chain and --training-structures go with --structure FILE"),
        (["--windows", "0"], "--windows is 0; it must be at least 1"),
        (["--sequences", "-1"], "--sequences is -1; it cannot be below 0"),
        (["--parts", "maps", "--layers", "7"], "there is no layer 7: this model's layers go from 0 to 1"),
        (["--parts", "maps", "--heads", "9"], "there is no head 9: this model's heads go from 0 to 1"),
        (["--parts", "kinds", "--split", "tset"], "there is no split 'tset'"),
        (["--parts", "maps", "--step", "3"], "no checkpoint of step 3; there are 2, 4"),
    ],
    ids=" ".join,
)
def test_what_does_not_fit_is_said(tiny_runs, tmp_path, capsys, words, message):
    assert analyze(tiny_runs["masked"], tmp_path, *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_run_without_checkpoints_says_so(tiny_runs, tmp_path, capsys):
    shutil.copytree(tiny_runs["masked"], tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    assert analyze(tmp_path / "run", tmp_path) == 2
    assert "has no checkpoints yet: train first" in " ".join(capsys.readouterr().err.split())


def test_an_empty_split_is_said(tiny_runs, make_dataset, tmp_path, capsys):
    """Proteins without families have no ood split."""
    dataset = make_dataset(form="single", batches=7, batch_size=4, length=48)
    words = ["--parts", "kinds", "--split", "ood", "--dataset", str(dataset)]
    assert analyze(tiny_runs["masked"], tmp_path, *words) == 2
    assert f"the split 'ood' of {dataset} is empty" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_page_that_would_be_too_large_is_left_out(tiny_runs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(interactive, "LARGEST", 100)
    assert analyze(tiny_runs["masked"], tmp_path, "--parts", "maps", "--layers", "0", "--heads", "1") == 0
    assert "attention.html is left out: an interactive map of 1 layers" in capsys.readouterr().err
    assert written(tmp_path, "png") == ["attention", "heads", "lines"]
