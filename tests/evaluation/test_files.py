"""Everything that `proteinlm evaluate` writes of a run, on tiny models."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from proteinlm.cli.main import main
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.errors import InputError
from proteinlm.evaluation.breakdowns import BREAKDOWNS
from proteinlm.evaluation.evaluate import evaluate_command
from proteinlm.evaluation.files import facts_of
from proteinlm.evaluation.sums import SUM_TOLERANCE
from proteinlm.runs.loading import load_run


@pytest.fixture(scope="module")
def details(trained_runs, tiny_dataset, tmp_path_factory, with_identities):
    """The folder of a masked run evaluated with everything, on a dataset that has identities."""
    folder = tmp_path_factory.mktemp("details")
    with_identities(folder / "dataset", tiny_dataset)
    shutil.copytree(trained_runs["masked"], folder / "masked")
    evaluate_command(
        [folder / "masked"],
        ("test", "ood"),
        folder / "dataset",
        "last",
        by=list(BREAKDOWNS),
        calibrate=True,
        table=True,
        paper=True,
    )
    return folder


def test_every_breakdown_adds_up_to_the_score(details):
    scores = pd.read_csv(details / "masked" / "evaluation.csv")
    scores = scores[scores.model == "masked"].set_index("split")
    for by in (*BREAKDOWNS, "confidence"):
        name = "evaluation_calibration" if by == "confidence" else f"evaluation_by_{by}"
        for kind in ("csv", "npz", "png", "pdf"):
            assert (details / "masked" / f"{name}.{kind}").stat().st_size > 0
        cells = pd.read_csv(details / "masked" / f"{name}.csv")
        assert set(cells.by) == {by}
        assert set(cells.tokens) == {"residues"}
        assert set(cells.objective) == {"masked"}
        for split, part in cells.groupby("split"):
            assert part.num_tokens.sum() == scores.num_tokens[split]
            assert part.correct.sum() / part.num_tokens.sum() == scores.accuracy[split]
            loss = part.nll.sum() / part.num_tokens.sum()
            assert loss == pytest.approx(math.log(scores.perplexity[split]), rel=SUM_TOLERANCE)
        with np.load(details / "masked" / f"{name}.npz") as arrays:
            np.testing.assert_array_equal(arrays["tokens"], cells.num_tokens)
            np.testing.assert_allclose(arrays["accuracy_low"], cells.accuracy_low)


def test_sequences_add_up_too_and_join_with_the_manifest(details):
    frame = pd.read_parquet(details / "masked" / "sequences.parquet")
    scores = pd.read_csv(details / "masked" / "evaluation.csv")
    scores = scores[scores.model == "masked"].set_index("split")
    by = frame.groupby("split")[["nll", "correct", "count"]].sum()
    for split in ("test", "ood"):
        assert by["count"][split] == scores.num_tokens[split]
        # The same rows, added in another order in float64.
        assert math.exp(by.nll[split] / by["count"][split]) == pytest.approx(scores.perplexity[split], rel=1e-12)
    dataset = ProteinDataset.open(details / "dataset")
    assert set(frame.accession) <= set(dataset.manifest()["accession"].to_pylist())
    # A breakdown can be made anew from the file.
    families = frame[frame.split == "ood"].families.map(lambda f: "+".join(sorted(f)) or "none")
    again = frame[frame.split == "ood"].groupby(families)["count"].sum()
    cells = pd.read_csv(details / "masked" / "evaluation_by_family.csv")
    cells = cells[cells.split == "ood"].set_index("cell")
    assert again.to_dict() == cells.num_tokens.to_dict()


def test_the_program_of_evaluation_md_runs(details, tmp_path, monkeypatch):
    (tmp_path / "runs" / "causal").mkdir(parents=True)
    (tmp_path / "runs" / "causal" / "sequences.parquet").symlink_to(details / "masked" / "sequences.parquet")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict = {}
    exec(compile(program, "evaluation.md", "exec"), found)
    frame = pd.read_parquet("runs/causal/sequences.parquet")
    held = frame[(frame.split == "ood") & frame.families.map(lambda families: "PF03938" in families)]
    assert found["sums"].loc[("ood", "PF03938"), "count"] == held["count"].sum() > 0


def test_calibration_and_table_are_there(details):
    saved = json.loads((details / "masked" / "evaluation_calibration.json").read_text())
    bins = pd.read_csv(details / "masked" / "evaluation_calibration.csv")
    for one in saved["calibration"]:
        part = bins[bins.split == one["split"]]
        error = (part.num_tokens * (part.accuracy - part.confidence).abs()).sum() / part.num_tokens.sum()
        assert one["expected_calibration_error"] == pytest.approx(error)
        assert one["num_tokens"] == part.num_tokens.sum()
        assert ((part.low <= part.confidence + 1e-6) & (part.confidence <= part.high + 1e-6)).all()
    table = pd.read_csv(details / "masked" / "table.csv")
    assert list(table.objective) == ["BID"] * len(table)
    assert table[table.model == "masked"].paper_model.tolist() == ["Performer (generalized)"] * 2


def test_windows_have_breakdowns_by_token_alone(tiny_runs, tmp_path, capsys):
    shutil.copytree(tiny_runs["concat"], tmp_path / "concat")
    for by in ("family", "length", "identity"):
        with pytest.raises(InputError, match=f"no breakdown by {by}: .* residue and position|no breakdown by {by}"):
            evaluate_command([tmp_path / "concat"], ("test",), None, "last", by=[by])
    evaluate_command([tmp_path / "concat"], ("test",), None, "last", by=["residue", "position"])
    cells = pd.read_csv(tmp_path / "concat" / "evaluation_by_position.csv")
    assert set(cells.rows) == {"windows of 128 tokens"}
    assert not (tmp_path / "concat" / "sequences.parquet").exists()


def test_what_a_dataset_has_not_is_said_before_the_model_runs(tiny_runs, tiny_dataset, monkeypatch):
    monkeypatch.setattr("proteinlm.evaluation.evaluate.evaluate_splits", None)
    with pytest.raises(InputError, match="--split-identity"):
        evaluate_command([tiny_runs["causal"]], ("test",), None, "last", by=["identity"])
    assert set(facts_of(ProteinDataset.open(tiny_dataset), ("test", "ood"), "isolated", ())) == {"test", "ood"}


def test_a_split_of_nothing_is_said_and_stops_nothing(tiny_runs, dataset_without_ood, tmp_path, capsys):
    run = tmp_path / "causal"
    shutil.copytree(tiny_runs["causal"], run)
    words = [
        str(run),
        "--dataset",
        str(dataset_without_ood),
        "--by",
        "residue",
        "position",
        "family",
        "length",
        "--calibration",
        "--table",
    ]
    assert main(["evaluate", *words, "--splits", "ood"]) == 0
    assert "is empty (no protein has a held-out family)" in capsys.readouterr().err
    assert not (run / "evaluation_by_residue.csv").exists()
    assert pd.read_csv(run / "evaluation.csv").empty


def test_the_best_checkpoint_is_scored(tiny_runs, tmp_path, capsys):
    run = tmp_path / "causal"
    shutil.copytree(tiny_runs["causal"], run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # The last step is scored on the whole of valid too; what is compared is the sample.
    losses = {row["step"]: row["sample_loss"] for row in lines if row["kind"] == "valid"}
    assert {row["sample_sequences"] for row in lines if row["kind"] == "valid"} == {8}
    best = load_run(run, "best").step
    assert losses[best] == min(losses.values())
    assert main(["evaluate", str(run), "--step", "best", "--splits", "test"]) == 0
    assert f"best on valid is step {best}" in capsys.readouterr().err
    assert json.loads((run / "evaluation.json").read_text())["step"] == best


def test_a_run_without_a_best_checkpoint_names_those_there_are(tiny_runs, tmp_path):
    run = tmp_path / "causal"
    shutil.copytree(tiny_runs["causal"], run)
    for metrics in run.glob("checkpoints/*/metrics"):
        shutil.rmtree(metrics)
    with pytest.raises(InputError, match="no best checkpoint: .*; there are 2, 4: name one"):
        load_run(run, "best")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--paper"], "add --table"),
        (["--output", "x"], "add --table"),
        (["--step", "3"], "no checkpoint of step 3; there are 2, 4, or best"),
        (["--splits", "tset"], "no split 'tset'"),
        (["causal"], "named twice"),
    ],
)
def test_what_the_user_can_mend(tiny_runs, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tiny_runs["causal"].parent)
    assert main(["evaluate", "causal", *words]) == 2
    assert said in capsys.readouterr().err


def test_runs_of_one_name_are_told_apart(tiny_runs, tmp_path, capsys):
    for name in ("one", "two"):
        shutil.copytree(tiny_runs["causal"], tmp_path / name / "causal")
    evaluate_command([tmp_path / "one/causal", tmp_path / "two/causal"], ("ood",), None, "last", table=True)
    assert list(pd.read_csv(tmp_path / "table.csv").model) == ["Empirical baseline", "one/causal", "two/causal"]
    assert "two/causal (first" in capsys.readouterr().out.replace("\n", "")
