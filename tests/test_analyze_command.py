"""`proteinlm analyze`: each part writes its files; what does not fit is said in a sentence."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from proteinlm.analysis import interactive
from proteinlm.analyze_command import _names_in_windows
from proteinlm.checkpoint import load_run
from proteinlm.cli import main
from proteinlm.data import alphabet
from proteinlm.data.batches import evaluation_batches
from proteinlm.data.dataset import ProteinDataset
from proteinlm.sequence_results import sequence_facts

sys.path.insert(0, str(Path(__file__).parent / "analysis"))
from structure_files import hairpin, pdb_text, protein_atoms

LETTERS = "MKVLATGWCDEFGHIKLMNPQRSTVWYA"


def analyze(run, output, *words):
    return main(["analyze", str(run), "--output", str(output), *words])


def written(folder, kind):
    return sorted(path.stem for path in folder.glob(f"*.{kind}"))


@pytest.mark.slow
def test_what_is_drawn_by_default(tiny_runs, tmp_path, capsys):
    assert analyze(tiny_runs["masked"], tmp_path, "--sequences", "6", "--split", "train") == 0
    assert written(tmp_path, "png") == written(tmp_path, "pdf")
    assert written(tmp_path, "png") == ["attention", "head_kinds", "heads", "lines", "similarity"]
    assert written(tmp_path, "html") == ["attention"]
    assert json.loads((tmp_path / "head_kinds.json").read_text())["num_sequences"] <= 6
    assert json.loads((tmp_path / "similarity.json").read_text())["num_sequences"] == 6
    about = json.loads((tmp_path / "analysis.json").read_text())
    assert (about["run"], about["step"], about["split"]) == ("masked", 4, "train")
    assert about["parts"].keys() == {"maps", "kinds", "similarity"}
    said = " ".join(capsys.readouterr().err.split())
    assert about["parts"]["kinds"]["sentence"] in said
    assert "few proteins, so that chance is large" in said


@pytest.mark.slow
def test_windows_of_a_run_on_windows(tiny_runs, tmp_path, capsys):
    assert analyze(tiny_runs["concat"], tmp_path, "--parts", "windows", "--windows", "3", "--split", "train") == 0
    assert written(tmp_path, "png") == ["windows_pairs", "windows_shares"]
    assert "in 3 windows of 128 tokens" in capsys.readouterr().err
    assert analyze(tiny_runs["masked"], tmp_path, "--parts", "windows") == 2
    assert "masked was trained with batches.form single, and the part windows" in capsys.readouterr().err


def test_proteins_of_windows_have_the_names_of_the_manifest(tiny_runs):
    """The letters of each window's proteins are those of the accessions that name them."""
    run = load_run(tiny_runs["concat"])
    dataset = ProteinDataset.open(run.dataset)
    batches = run.config.batches
    rows = [row for batch in evaluation_batches(dataset, batches, "train") for row in batch["tokens"] if row.any()]
    names = _names_in_windows(dataset, "train", range(len(rows)), batches.length, causal=True)
    sequences = {
        name: dataset.sequences("train", [i])[0].decode()
        for i, name in enumerate(sequence_facts(dataset, "train")["accession"].to_pylist())
    }
    for row, found in zip(rows, names, strict=True):
        # A causal model does not read the last token.
        read = row[row != alphabet.PAD][:-1]
        letters = "".join(alphabet.decode(x) if x[0] >= alphabet.FIRST_RESIDUE else " " for x in read[:, None]).split()
        assert len(letters) == len(found)
        for part, name in zip(letters, found, strict=True):
            whole = sequences[name.strip(".")]
            assert part in whole
            assert name.startswith("...") == (not whole.startswith(part)) or whole == part
            assert ("..." in name) == (part != whole)


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
        (["--parts", "kinds", "--sequences", "0"], "--sequences is 0, and the part kinds is measured on sequences"),
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
