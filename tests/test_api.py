"""The public Python API: instant to import, complete, documented by examples that run, and equal to the commands."""

import dataclasses
import doctest
import inspect
import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import pytest

import proteinlm
from proteinlm.cli.analyze_options import Analyze
from proteinlm.errors import InputError

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "proteinlm"


def python(program, *arguments, cwd=None):
    """Run a program in a process of its own, without the type checks of the tests; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def workplace(tiny_runs, tiny_dataset, tmp_path, monkeypatch):
    """A folder with runs/ as the examples name them."""
    (tmp_path / "runs").mkdir()
    for name, run in tiny_runs.items():
        (tmp_path / "runs" / name).symlink_to(run)
    (tmp_path / "runs" / "quickstart").symlink_to(tiny_runs["masked"].parent)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_import_loads_no_library():
    program = "import proteinlm, sys, json; dir(proteinlm); print(json.dumps(sorted(sys.modules)))"
    modules = set(json.loads(python(program)))
    heavy = {"jax", "flax", "numpy", "pandas", "matplotlib", "pyarrow", "grain", "orbax", "tyro", "rich", "scipy"}
    assert not modules & heavy
    assert {name for name in modules if name.startswith("proteinlm")} == {
        "proteinlm",
        "proteinlm.output",
        "proteinlm.output.version",
    }


def test_every_name_is_there_and_no_other():
    assert [*proteinlm.__all__] == sorted(proteinlm.__all__)
    assert dir(proteinlm) == proteinlm.__all__
    for name in proteinlm.__all__:
        assert getattr(proteinlm, name) is not None
        assert getattr(proteinlm, name).__doc__
    assert proteinlm.__version__ == version("proteinlm")
    with pytest.raises(AttributeError, match="No proteinlm attribute load_runs"):
        _ = proteinlm.load_runs
    assert (PACKAGE / "py.typed").is_file()


def test_analyze_has_the_options_of_the_command():
    options = {field.name: field.default for field in dataclasses.fields(Analyze)}
    parameters = {name: p.default for name, p in inspect.signature(proteinlm.analyze).parameters.items()}
    assert list(parameters) == list(options)
    assert {k: v for k, v in parameters.items() if k != "run"} == {k: v for k, v in options.items() if k != "run"}


def test_the_examples_of_the_docstrings(workplace, tiny_dataset):
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
    for name in ("", "ingest", "evaluate", "analyze", "report", "open_dataset"):
        subject = getattr(proteinlm, name) if name else proteinlm
        (example,) = finder.find(subject, "proteinlm", globs={"proteinlm": proteinlm})[:1]
        assert runner.run(example).failed == 0, name
        assert example.examples, name


def test_wrong_types_are_one_sentence(workplace):
    """In a process of its own: the tests check types before the code does."""
    program = """if True:
        import proteinlm
        run = proteinlm.load_run("runs/masked")
        for call in (
            lambda: run.logits(["MKT", 3]),
            lambda: run.attention(["MKT"]),
            lambda: run.hidden_states(["MKT"], layers=1),
            lambda: proteinlm.load_run("runs/masked", step="4"),
            lambda: proteinlm.train("quickstart_causal", "dataset", "runs/new"),
            lambda: proteinlm.plan("quickstart_causal"),
            lambda: proteinlm.ingest("sample", "new", held_out="PF04420"),
            lambda: proteinlm.ingest("sample", "new", families="families.tsv"),
            lambda: proteinlm.evaluate("runs/masked", "ood"),
            lambda: proteinlm.evaluate("runs/masked", []),
            lambda: proteinlm.analyze("runs/masked", parts="maps"),
            lambda: proteinlm.analyze("runs/masked", parts=["mapps"]),
            lambda: proteinlm.analyze("runs/masked", layers=0),
            lambda: proteinlm.report(["runs/masked"]),
        ):
            try:
                call()
            except proteinlm.InputError as error:
                print(error)
    """
    lines = python(program, cwd=workplace).splitlines()
    assert lines == [
        "sequences[1] is int; a sequence is str or bytes.",
        "attention takes one sequence, str or bytes; this is list.",
        "layers is 1; it must be a sequence of layers from 0 to 1, or -2 to -1.",
        "step is '4'; it must be an integer, 'best' or 'last' (runs/masked: there are 2, 4).",
        "config is str; it must be a Config: proteinlm.load_config(NAME) gives one.",
        "config is str; it must be a Config: proteinlm.load_config(NAME) gives one.",
        "held_out is 'PF04420'; it must be a list: write ['PF04420'].",
        "families is 'families.tsv'; it must be a list: write ['families.tsv'].",
        "splits is 'ood'; it must be a list: write ['ood'].",
        "name at least one split: train, valid, test or ood.",
        "parts is 'maps'; it must be a list: write ['maps'].",
        "there is no part 'mapps'; there are maps, kinds, similarity, windows, structure.",
        "layers is 0; it must be a list: write [0].",
        "report takes each folder as an argument, report(FOLDER, FOLDER); this is list.",
    ]


def test_scores_are_those_of_the_file(workplace, capsys):
    scores = proteinlm.evaluate(["runs/causal", "runs/masked"], ["test"], step="best", by=["length"])
    assert capsys.readouterr().out == ""
    for name, rows in scores.groupby("run"):
        saved = pd.read_csv(workplace / "runs" / str(name) / "evaluation.csv")
        pd.testing.assert_frame_equal(rows.reset_index(drop=True), saved, check_dtype=False)
        assert (workplace / "runs" / str(name) / "evaluation_by_length.csv").is_file()
    assert set(scores["run"]) == {"causal", "masked"}
    with pytest.raises(InputError, match="no split 'tset'"):
        proteinlm.evaluate("runs/causal", ["tset"])


def test_from_sequences_to_a_page(tmp_path, sample_fasta):
    """Every function once, from a file of sequences to a report."""
    dataset = proteinlm.ingest(
        sample_fasta[0],
        tmp_path / "data",
        families=[sample_fasta[1]],
        valid=0.1,
        test=0.1,
        held_out=["PF00014"],
        workers=1,
    )
    assert dataset.counts["ood"] > 0
    assert proteinlm.open_dataset(tmp_path / "data").fingerprint == dataset.fingerprint
    config = proteinlm.load_config("quickstart_causal")
    model = dataclasses.replace(config.model, num_layers=1, embed_dim=16, mlp_dim=16, num_heads=2)
    config = dataclasses.replace(config, model=model, num_steps=2, eval_every=2, eval_examples=8, checkpoint_every=2)
    assert isinstance(config, proteinlm.Config)
    plan = proteinlm.plan(config)
    result = proteinlm.train(config, dataset, tmp_path / "runs" / "causal")
    assert (result.step, result.num_parameters) == (2, plan.num_parameters)
    run = proteinlm.load_run(tmp_path / "runs" / "causal", step="best")
    assert isinstance(run, proteinlm.Run)
    assert run.config == config
    assert proteinlm.report(tmp_path / "runs") == tmp_path / "runs" / "report.md"
    with pytest.raises(InputError, match="name at least one folder"):
        proteinlm.report()


def test_the_five_lines_of_the_readme(workplace, tiny_dataset):
    """As they stand in README.md and in docs/api.md."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```python\n(import proteinlm\n.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(compile(lines, "README.md", "exec"), names)
    assert [x.shape[0] for x in names["logits"]] == [10, 10]
    assert names["hidden"][0].shape[:2] == (1, 10)
    assert names["maps"].shape[2:] == (10, 10)
