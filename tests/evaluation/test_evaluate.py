import dataclasses
import errno
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from flax import nnx

from proteinlm import alphabet
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.errors import InputError
from proteinlm.evaluation import evaluate as evaluate_module
from proteinlm.evaluation.evaluate import evaluate, evaluate_command, evaluate_split, make_evaluation_step, write_scores
from proteinlm.output import files
from proteinlm.runs.loading import load_run


def result_of(run, split, **changes):
    config = dataclasses.replace(run.config, batches=dataclasses.replace(run.config.batches, **changes))
    graph, state = nnx.split(run.model)
    dataset = ProteinDataset.open(run.dataset)
    return dataset, evaluate_split(config, dataset, split, make_evaluation_step(config, graph), state)


def test_each_sequence_alone_gives_the_same_sums(tiny_runs):
    """Against a plain loop: one unpadded sequence at a time, float64 log-softmax in numpy."""
    run = load_run(tiny_runs["causal"])
    dataset, result = result_of(run, "ood")
    length = run.config.batches.length
    assert sorted(result.rows.tolist()) == list(range(dataset.counts["ood"]))
    for place, row in list(enumerate(result.rows))[::3]:
        residues = alphabet.encode(dataset.sequences("ood", [int(row)])[0])
        tokens = np.append(residues, alphabet.EOS)[:length] if len(residues) < length else residues[:length]
        inputs = np.concatenate([[alphabet.BOS], tokens[:-1]])
        logits = np.asarray(run.model(jnp.asarray(inputs[None], jnp.int32)), np.float64)[0]
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nll = -log_probs[np.arange(len(tokens)), tokens]
        of_residues = tokens >= alphabet.FIRST_RESIDUE
        np.testing.assert_allclose(result.residues.nll[place], nll[of_residues].sum(), rtol=1e-5)
        np.testing.assert_allclose(result.all_tokens.nll[place], nll.sum(), rtol=1e-5)
        assert result.residues.count[place] == of_residues.sum()
        assert result.all_tokens.count[place] == len(tokens)
        assert result.residues.correct[place] == (logits.argmax(-1) == tokens)[of_residues].sum()
        counts = np.bincount(tokens[of_residues] - alphabet.FIRST_RESIDUE, minlength=alphabet.NUM_RESIDUES)
        np.testing.assert_array_equal(result.residue_counts[place], counts)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["causal", "masked", "concat"])
def test_batches_change_no_number(tiny_runs, kind):
    run = load_run(tiny_runs[kind])
    changes = {"batch_size": 3} if kind == "concat" else {"batch_size": 3, "buckets": ()}
    _, one = result_of(run, "test")
    _, two = result_of(run, "test", **changes)
    a, b = np.argsort(one.rows), np.argsort(two.rows)
    np.testing.assert_array_equal(one.rows[a], two.rows[b])
    np.testing.assert_array_equal(one.residues.count[a], two.residues.count[b])
    np.testing.assert_array_equal(one.residue_counts[a], two.residue_counts[b])
    np.testing.assert_allclose(one.residues.nll[a], two.residues.nll[b], rtol=1e-5)


def test_packing_changes_no_number(tiny_runs):
    """Isolated rows: each sequence's sums are those of its own, however it is packed, and its masks too."""
    run = load_run(tiny_runs["masked"])
    _, one = result_of(run, "test")
    _, two = result_of(run, "test", form="isolated", length=128, batch_size=3, buckets=())
    a, b = np.argsort(one.rows), np.argsort(two.rows)
    np.testing.assert_array_equal(one.rows[a], two.rows[b])
    np.testing.assert_array_equal(one.residue_counts[a], two.residue_counts[b])
    for name in ("residues", "all_tokens"):
        alone, packed = getattr(one, name), getattr(two, name)
        np.testing.assert_array_equal(alone.count[a], packed.count[b])
        np.testing.assert_allclose(alone.nll[a], packed.nll[b], rtol=1e-5)
        np.testing.assert_allclose(alone.correct[a], packed.correct[b])


def test_baselines_are_scored_on_the_very_same_tokens(tiny_runs):
    run = load_run(tiny_runs["masked"])
    dataset, result = result_of(run, "test")
    scores = {s.model: s for s in evaluate(run, dataset, ["test"])}
    assert {s.num_tokens for s in scores.values()} == {int(result.residues.count.sum())}
    assert scores["uniform guess"].accuracy == pytest.approx(1 / 25)
    assert scores["uniform guess"].perplexity == pytest.approx(25)
    # The empirical baseline, from the letters themselves.
    train = "".join(s.decode() for s in dataset.sequences("train", range(dataset.counts["train"])))
    frequency = np.array([train.count(r) + 1 for r in alphabet.RESIDUES], float)
    frequency /= frequency.sum()
    counts = result.residue_counts.sum(0)
    expected = math.exp(-(counts * np.log(frequency)).sum() / counts.sum())
    assert scores["empirical baseline"].perplexity == pytest.approx(expected)
    assert scores["empirical baseline"].accuracy == pytest.approx(counts[frequency.argmax()] / counts.sum())
    model = scores[run.folder.name]
    assert model.accuracy_low <= model.accuracy <= model.accuracy_high
    assert model.perplexity_low <= model.perplexity <= model.perplexity_high


def test_evaluation_repeats_itself_and_draws_nothing(tiny_runs):
    run = load_run(tiny_runs["masked"])
    before = nnx.to_pure_dict(nnx.split(run.model)[1])
    _, one = result_of(run, "test")
    _, two = result_of(run, "test")
    np.testing.assert_array_equal(one.residues.nll, two.residues.nll)
    jax.tree.map(np.testing.assert_array_equal, before, nnx.to_pure_dict(nnx.split(run.model)[1]))


def test_a_limit_takes_a_sample(tiny_runs):
    run = load_run(tiny_runs["causal"])
    graph, state = nnx.split(run.model)
    dataset = ProteinDataset.open(run.dataset)
    step = make_evaluation_step(run.config, graph)
    seen = []
    result = evaluate_split(run.config, dataset, "train", step, state, limit=5, progress=seen.append)
    assert result.num_rows == 5
    assert sum(seen) == 5


def test_an_empty_split_has_no_row(tiny_runs, dataset_without_ood, capsys):
    run = load_run(tiny_runs["causal"])
    dataset = ProteinDataset.open(dataset_without_ood)
    scores = evaluate(run, dataset, ["test", "ood"])
    assert {s.split for s in scores} == {"test"}
    assert "ood" in capsys.readouterr().err
    with pytest.raises(InputError, match="no split 'tset'"):
        evaluate(run, dataset, ["tset"])


def test_the_command_writes_tables_that_say_what_they_are(tiny_runs, capsys):
    evaluate_command([tiny_runs["causal"], tiny_runs["masked"]], ("test", "ood"), None, "last")
    text = capsys.readouterr().out
    for word in ("uniform guess", "empirical baseline", "causal", "masked", "residues+eos", "bits/token", "ood"):
        assert word in text
    table = pd.read_csv(tiny_runs["causal"] / "evaluation.csv")
    assert list(table.split) == ["test"] * 4 + ["ood"] * 4
    assert set(table.rows) == {"first 128 tokens"}
    saved = json.loads((tiny_runs["causal"] / "evaluation.json").read_text())
    assert saved["step"] == load_run(tiny_runs["causal"]).step
    assert saved["scores"][2]["perplexity"] == pytest.approx(table.perplexity[2])


def test_folders_that_cannot_be_written_are_refused_before_a_model_runs(tiny_runs, monkeypatch, tmp_path):
    def read_only(dir):
        if Path(dir) == refused:
            raise OSError(errno.EROFS, "Read-only file system", str(dir))
        return open(tmp_path / "probe", "wb")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", read_only)
    monkeypatch.setattr(evaluate_module, "load_run", lambda *_, **__: pytest.fail("a model was loaded"))
    run = tiny_runs["causal"]
    for refused, options in ((run, {}), (tmp_path / "tables", {"table": True, "output": tmp_path / "tables"})):
        with pytest.raises(InputError, match=rf"{refused} cannot be written \(Read-only file system\)"):
            evaluate_command([run], ("test",), None, "last", **options)


def test_scores_are_shown_though_they_cannot_be_written(tiny_runs, monkeypatch, capsys):
    """The disk is full when the first run's files are written; the second run's are."""
    written = []

    def full(scores, folder, about):
        if folder == tiny_runs["causal"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(folder)

    monkeypatch.setattr(evaluate_module, "write_scores", full)
    with pytest.raises(OSError, match="No space left"):
        evaluate_command([tiny_runs["causal"], tiny_runs["masked"]], ("ood",), None, "last")
    shown = capsys.readouterr().out
    assert "causal (first 128 tokens)" in shown
    assert "masked (first 128 tokens)" in shown
    assert written == [tiny_runs["masked"]]


def test_numbers_that_are_not_numbers_are_null(tmp_path, tiny_runs):
    run = load_run(tiny_runs["causal"])
    one = evaluate(run, ProteinDataset.open(run.dataset), ["ood"])[0]
    write_scores([dataclasses.replace(one, perplexity=math.nan)], tmp_path, {})
    assert json.loads((tmp_path / "evaluation.json").read_text())["scores"][0]["perplexity"] is None
