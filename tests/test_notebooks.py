"""Every notebook runs from its first cell to its last, and shows its figures."""

import ast
import importlib
import shutil
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import proteinlm

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def execute(name, folder, changes=None):
    """Run a notebook in a folder; return the kinds of what its cells show, and what they printed.

    `changes` are made in its first cell of code, as a reader would.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    for old, new in (changes or {}).items():
        assert first.source.count(old) == 1
        first.source = first.source.replace(old, new)
    NotebookClient(notebook, timeout=360, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    kinds += ["table" for output in outputs if 'class="dataframe"' in output.get("data", {}).get("text/html", "")]
    printed = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    return kinds, printed


def own(name, run):
    """The change that names a run of one's own in place of a notebook's."""
    return {f'Path("runs/{name}")': f'Path("{run}")'}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_cells_name_what_the_package_has(path):
    """Without running them: each cell is Python, and each name that it takes from the package is there."""
    for cell in nbformat.read(path, as_version=4).cells:
        # Commands of a shell, !proteinlm ..., become calls.
        source = TransformerManager().transform_cell(cell.source) if cell.cell_type == "code" else ""
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("proteinlm"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "proteinlm":
                assert hasattr(proteinlm, node.attr), f"proteinlm has no {node.attr}"


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
    change = own("masked", tiny_runs["masked"])
    kinds, printed = execute("03_attention", tmp_path, change)
    assert f"{tiny_runs['masked']}: step 4, 2 layers, 2 heads" in printed
    assert kinds.count("image/png") == 4
    # The page itself, which is there when the notebook is rendered elsewhere.
    assert (tmp_path / "runs" / "figures" / "attention.html").is_file()
    assert kinds.count("text/html") == 2
    kinds, _ = execute("04_similarity", tmp_path, change)
    assert kinds.count("image/png") == 2
    assert kinds.count("table") == 3


@pytest.mark.slow
def test_long_sequences_of_a_run_of_ones_own(tmp_path, tiny_runs):
    kinds, printed = execute("05_long_sequences", tmp_path, own("concat", tiny_runs["concat"]))
    assert "2 windows of 128 tokens, each with two proteins" in printed
    assert kinds.count("image/png") == 2
    with pytest.raises(CellExecutionError, match="was trained on single sequences; name a run with batches.form conc"):
        execute("05_long_sequences", tmp_path, own("concat", tiny_runs["masked"]))


@pytest.mark.slow
def test_a_mistyped_run_is_not_trained_in_its_place(tmp_path):
    with pytest.raises(CellExecutionError, match="is not the folder of a training run"):
        execute("04_similarity", tmp_path, own("masked", "runs/maskd"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_evaluation_of_runs_of_one_name(tmp_path, tiny_runs, tiny_dataset):
    for place in ("a", "b"):
        shutil.copytree(tiny_runs["causal" if place == "a" else "masked"], tmp_path / place / "run")
    changes = {
        **own("performer", "a/run"), **own("returns_v", "b/run"), 'Path("runs/dataset")': f'Path("{tiny_dataset}")',
    }  # fmt: skip
    kinds, printed = execute("02_train_and_evaluate", tmp_path, changes)
    assert "a/run: step 4, causal" in printed
    assert "b/run: step 4, masked" in printed
    assert kinds.count("image/png") == 2
