import json
import shutil

import pytest

from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.evaluate import evaluate_command
from proteinlm.report import RunFiles, find_runs, markdown_table, what_the_scores_say, write_report


def scores(test, ood, half_width=0.1, baselines=(18.0, 18.0)):
    rows = []
    for split, perplexity, baseline in (("test", test, baselines[0]), ("ood", ood, baselines[1])):
        for model, value in (("empirical baseline", baseline), ("run", perplexity)):
            rows.append(
                {
                    "split": split, "model": model, "tokens": "residues", "accuracy": 0.1, "perplexity": value,
                    "perplexity_low": value - half_width, "perplexity_high": value + half_width,
                }
            )  # fmt: skip
    return rows


def said(tmp_path, rows):
    return what_the_scores_say(RunFiles(tmp_path / "run", Config(), tmp_path, [], {"scores": rows}))


def test_sentences_follow_from_the_numbers(tmp_path):
    below, _, verdict = said(tmp_path, scores(9.0, 12.0))
    assert "50.0 % below the baseline's 18.00" in below
    assert "12.00 on ood is worse than 9.00 on test, beyond both intervals and by more than" in verdict
    above, _, verdict = said(tmp_path, scores(19.8, 20.0, half_width=1.0))
    assert "10.0 % above" in above
    assert "overlap" in verdict
    assert "is not worse than 12.00 on test" in said(tmp_path, scores(12.0, 11.0))[-1]
    # The baseline finds this ood just as much harder: nothing follows for families.
    assert "no more so than for the baseline" in said(tmp_path, scores(17.5, 18.5, baselines=(17.6, 18.6)))[-1]
    assert said(tmp_path, []) == []


def test_a_page_with_everything(tiny_runs):
    folder = tiny_runs["causal"].parent
    evaluate_command([tiny_runs["causal"]], ("test", "ood"), None, None)
    page = write_report(folder).read_text()
    for word in ("# Report", "| causal | causal | generalized (relu)", "## Data", "| train |", "curves.png", "tokens/s",
                 "empirical baseline", "causal on test: perplexity"):  # fmt: skip
        assert word in page, word
    assert (folder / "curves.png").stat().st_size > 10_000
    assert (folder / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert [run.name for run in find_runs(folder)] == ["causal", "concat", "masked"]
    assert [run.name for run in find_runs(folder / "masked")] == ["masked"]


def test_several_runs_in_one_figure_and_how_each_went(tmp_path, tiny_runs):
    """Runs of the same name from two folders; one of them with a bad step and a start that was not exact."""
    other = tmp_path / "other" / "causal"
    shutil.copytree(tiny_runs["causal"], other)
    with open(other / "metrics.jsonl", "a") as handle:
        handle.write('{"kind": "skipped", "step": 3, "batch": 7, "loss": null}\n')
        handle.write('{"kind": "resume", "step": 2, "inexact": ["batches.batch_size is 4 there, 8 here"]}\n')
    page = write_report(tiny_runs["causal"], tiny_runs["masked"], other, tiny_runs["masked"], output=tmp_path / "page")
    assert page == tmp_path / "page" / "report.md"
    text = page.read_text()
    assert [run.label for run in find_runs(tiny_runs["causal"], tiny_runs["masked"], other)] == [
        f"{tiny_runs['causal'].parent.name}/causal", "masked", "other/causal",
    ]  # fmt: skip
    assert "other/causal: 4 steps; " in text
    assert "1 steps were not finite and were skipped (3)" in text
    assert "resumed at step 2, not exactly: batches.batch_size is 4 there, 8 here" in text
    rows = [json.loads(line) for line in (tiny_runs["masked"] / "metrics.jsonl").read_text().splitlines()]
    sampled = next(row for row in rows if row["kind"] == "valid")
    assert "masked: 4 steps; " in text
    assert f"lowest loss on valid {sampled['loss']:.4f} at step 2 (its checkpoint is kept: `--step 2`)" in text
    assert (tmp_path / "page" / "curves.png").stat().st_size > 10_000
    # Without a place of its own the page lies where all its runs do.
    assert write_report(tiny_runs["causal"], tiny_runs["masked"]).parent == tiny_runs["causal"].parent.resolve()


def test_one_ood_sequence_has_no_interval_and_no_crash(tmp_path, tiny_runs):
    run = tmp_path / "run"
    shutil.copytree(tiny_runs["causal"], run)
    evaluate_command([run], ("test", "ood"), None, None)
    saved = json.loads((run / "evaluation.json").read_text())
    for row in saved["scores"]:
        if row["split"] == "ood":
            row.update({name: None for name in row if name.endswith(("_low", "_high"))})
    (run / "evaluation.json").write_text(json.dumps({**saved, "step": 2}))
    page = write_report(run).read_text()
    assert "| - to - |" in page
    assert "no interval can be given" in page
    assert "checkpoint of step 2" in page
    assert "gone on to step 4" in page
    (run / "evaluation.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        write_report(run)


def test_a_folder_without_runs_is_said(tmp_path):
    with pytest.raises(InputError, match="holds no training run"):
        write_report(tmp_path)


def test_markdown():
    assert (
        markdown_table(["a", "b"], [("x", 1234), ("y", 2.5)]) == "| a | b |\n|---|---|\n| x | 1,234 |\n| y | 2.50 |\n"
    )
