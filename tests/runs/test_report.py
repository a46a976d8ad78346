import json
import shutil

import pytest

from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.evaluation.evaluate import evaluate_command
from proteinlm.runs.report import RunFiles, _course, find_runs, markdown_table, what_the_scores_say, write_report


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
    evaluate_command([tiny_runs["causal"]], ("test", "ood"), None, "last")
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
    valid = [row for row in rows if row["kind"] == "valid"]
    best = min(valid, key=lambda row: row["sample_loss"])
    assert [row["sample_sequences"] for row in valid] == [8, 8]
    assert valid[-1]["sequences"] > 8
    assert "masked: 4 steps; " in text
    assert (
        f"lowest loss on valid {best['sample_loss']:.4f} at step {best['step']} (compared on the same 8 sequences in 2 "
        f"evaluations; its checkpoint is kept: `--step {best['step']}`)"
    ) in text
    assert (tmp_path / "page" / "curves.png").stat().st_size > 10_000
    # Without a place of its own the page lies where all its runs do.
    assert write_report(tiny_runs["causal"], tiny_runs["masked"]).parent == tiny_runs["causal"].parent.resolve()


def course(tmp_path, rows, num_steps=20):
    return "; ".join(_course(RunFiles(tmp_path / "run", Config(num_steps=num_steps), tmp_path, rows, {})))


def test_how_a_run_ended_and_what_was_compared(tmp_path):
    def valid(step, loss, sequences, **more):
        return {"kind": "valid", "step": step, "loss": loss, "sequences": sequences, **more}

    train = [
        {"kind": "train", "step": s, "tokens_per_second": r} for s, r in ((1, None), (2, 100.0), (3, 300.0), (5, None))
    ]
    bad = {"kind": "not_finite", "step": 6, "loss": None, "gradient_norm": None, "parameter_norm": 1.5}
    text = course(tmp_path, [*train, bad])
    assert text.startswith("5 of 20 steps; ended at step 6, which was not finite (")
    assert "-, -, 1.5000" in text
    assert "200 tokens/s (median of 2 lines" in text
    assert course(tmp_path, train, num_steps=5).startswith("5 steps; ")
    # The number of sequences of the sample was changed at a start that was not exact.
    mixed = [
        valid(2, 3.5, 8, sample_loss=3.5, sample_sequences=8),
        valid(4, 3.25, 20, sample_loss=3.25, sample_sequences=20),
    ]
    assert (
        "lowest loss on valid 3.5000 at step 2 (compared on the same 8 sequences in 1 evaluations of 2; the others "
        "used another number)"
    ) in course(tmp_path, mixed)
    new = [
        valid(2, 3.5, 8, sample_loss=3.5, sample_sequences=8),
        valid(4, 3.4, 20, sample_loss=3.25, sample_sequences=8),
    ]
    text = course(tmp_path, new)
    assert "lowest loss on valid 3.2500 at step 4 (compared on the same 8 sequences in 2 evaluations)" in text
    assert "lowest loss" not in course(tmp_path, train)


def test_one_ood_sequence_has_no_interval_and_no_crash(tmp_path, tiny_runs):
    run = tmp_path / "run"
    shutil.copytree(tiny_runs["causal"], run)
    evaluate_command([run], ("test", "ood"), None, "last")
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
