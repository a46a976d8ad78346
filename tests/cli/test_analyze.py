"""`proteinlm analyze`: each part writes its files; what does not fit is said in a sentence."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest

from proteinlm import alphabet
from proteinlm.analysis.maps import interactive
from proteinlm.cli import analyze as analyze_command
from proteinlm.cli.analyze import names_in_windows
from proteinlm.cli.main import main
from proteinlm.config import IdentityConfig
from proteinlm.data.batches.batches import evaluation_batches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.errors import InputError
from proteinlm.evaluation.sequences import sequence_facts
from proteinlm.runs.loading import load_run
from proteinlm.training.train import train

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
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
    assert about["parts"].keys() == {"maps", "kinds", "similarity"}
    assert {(part["run"], part["step"], part.get("split")) for part in about["parts"].values()} == {
        ("masked", 4, "train"), ("masked", 4, None),
    }  # fmt: skip
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
    names = names_in_windows(dataset, "train", range(len(rows)), batches.length, causal=True)
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


@pytest.mark.few(4)
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
        (["--parts", "maps", "similarity", "--blosum", "FOO"], "FOO"),
        (["--parts", "kinds", "--blosum", "BLOSUM45"], "--blosum is of the part similarity, which is not drawn"),
        (["--parts", "maps", "--windows", "4"], "--windows is of the part windows, which is not drawn"),
        (["--parts", "maps", "--structure", "a.pdb"], "--structure is of the part structure, which is not drawn"),
        (["--structure", "nowhere.pdb"], "the structure nowhere.pdb cannot be read"),
        (["--parts", "maps", "--step", "3"], "no checkpoint of step 3; there are 2, 4"),
    ],
    ids=" ".join,
)
def test_what_does_not_fit_is_said_before_anything_is_drawn(tiny_runs, tmp_path, capsys, words, message):
    assert analyze(tiny_runs["masked"], tmp_path, *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder_for_figures(tiny_runs, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert analyze(tiny_runs["masked"], tmp_path / "file", "--parts", "maps") == 2
    assert "is a file, and the figures belong there: nothing was drawn." in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "file").read_text() == "mine"


def fails(*_):
    raise InputError("a part of another run cannot be drawn.")


def test_the_record_is_of_the_files_that_are_there(tiny_runs, tmp_path, capsys, monkeypatch):
    """Parts keep the run and the split that they are of; one that fails is in it no more."""
    drawn = dict.fromkeys(analyze_command.PARTS, lambda *_: ({"found": 1}, ["said"]))
    monkeypatch.setattr(analyze_command, "PARTS", drawn)

    def record():
        return json.loads((tmp_path / "analysis.json").read_text())["parts"]

    assert analyze(tiny_runs["masked"], tmp_path, "--parts", "maps", "kinds") == 0
    assert analyze(tiny_runs["causal"], tmp_path, "--parts", "similarity", "--split", "train") == 0
    assert {part: (about["run"], about.get("split")) for part, about in record().items()} == {
        "maps": ("masked", None), "kinds": ("masked", "test"), "similarity": ("causal", "train"),
    }  # fmt: skip
    drawn["kinds"] = fails
    # Where parts are named, the others are drawn first.
    assert analyze(tiny_runs["causal"], tmp_path, "--parts", "kinds", "maps") == 2
    assert "cannot be drawn" in capsys.readouterr().err
    assert {part: about["run"] for part, about in record().items()} == {"similarity": "causal", "maps": "causal"}
    # Where they are not, what this run cannot have is left out.
    assert analyze(tiny_runs["causal"], tmp_path) == 0
    assert "kinds: left out: a part of another run cannot be drawn." in capsys.readouterr().err
    assert record().keys() == {"similarity", "maps"}
    drawn.update(dict.fromkeys(drawn, fails))
    assert analyze(tiny_runs["causal"], tmp_path) == 2
    assert record() == {}


@pytest.mark.slow
def test_a_model_without_attention_has_the_parts_that_it_can_have(tiny_runs, tiny_dataset, tmp_path, capsys):
    config = load_run(tiny_runs["masked"]).config
    model = dataclasses.replace(config.model, attention=IdentityConfig())
    train(dataclasses.replace(config, model=model), tiny_dataset, tmp_path / "run")
    assert analyze(tmp_path / "run", tmp_path, "--sequences", "6", "--split", "train") == 0
    assert "similarity: left out: " in " ".join(capsys.readouterr().err.split())
    assert json.loads((tmp_path / "analysis.json").read_text())["parts"].keys() == {"maps", "kinds"}


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
