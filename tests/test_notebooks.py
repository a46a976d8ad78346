"""Every notebook runs from its first cell to its last, and shows its figures."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def execute(name, folder):
    """Run a notebook in a folder; return the kinds of what its cells show, and what they printed."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=360, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    kinds += ["table" for output in outputs if 'class="dataframe"' in output.get("data", {}).get("text/html", "")]
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    return kinds, printed


def with_runs(tiny_runs, folder, *names):
    """A folder that has runs of one's own where the notebooks look for them."""
    for name in names:
        shutil.copytree(tiny_runs[name], folder / "runs" / name)
    return folder


@pytest.mark.slow
def test_data_then_training_then_evaluation(tmp_path, monkeypatch):
    """Trains as a reader would, so XLA optimises as for a reader."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    kinds, _ = execute("01_data", tmp_path)
    assert kinds.count("image/png") == 3
    assert kinds.count("table") == 3
    kinds, printed = execute("02_train_and_evaluate", tmp_path)
    assert kinds.count("image/png") == 2
    assert kinds.count("table") == 1
    assert (tmp_path / "runs" / "returns_v" / "checkpoints" / "90").is_dir()
    assert "evaluating" not in printed


@pytest.mark.slow
def test_attention_and_similarity_of_a_run_of_ones_own(tmp_path, tiny_runs):
    folder = with_runs(tiny_runs, tmp_path, "masked")
    kinds, printed = execute("03_attention", folder)
    assert "runs/masked: step 4, 2 layers, 2 heads" in printed
    assert kinds.count("image/png") == 4
    assert (folder / "runs" / "figures" / "attention.html").is_file()
    kinds, _ = execute("04_similarity", folder)
    assert kinds.count("image/png") == 2
    assert kinds.count("table") == 3


@pytest.mark.slow
def test_long_sequences_of_a_run_of_ones_own(tmp_path, tiny_runs):
    kinds, printed = execute("05_long_sequences", with_runs(tiny_runs, tmp_path, "concat"))
    assert "2 windows of 128 tokens, each with two proteins" in printed
    assert kinds.count("image/png") == 2
