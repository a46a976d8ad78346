"""A run that died goes on to the same losses: the promise that everything else in train.py serves."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import jax
import numpy as np
import pytest
from flax import nnx
from in_memory import dataset
from small_runs import BATCH, config
from sweeps import sweep

from proteinlm.config import (
    BatchesConfig,
    GeneralizedConfig,
    OptimizerConfig,
)
from proteinlm.data.batches.batches import evaluation_batches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.errors import InputError
from proteinlm.evaluation.evaluate import evaluate_split, make_evaluation_step
from proteinlm.runs.checkpoints import Checkpoints
from proteinlm.runs.loading import load_run
from proteinlm.runs.logs import read_metrics
from proteinlm.training.step import TrainStep
from proteinlm.training.train import Interrupted, train


def losses(run):
    return {r["step"]: (r["loss"], r["accuracy"], r["tokens"]) for r in read_metrics(run) if r["kind"] == "train"}


def same_state(a, b):
    left, right = (nnx.to_pure_dict(nnx.split(load_run(run).model)[1]) for run in (a, b))
    jax.tree.map(np.testing.assert_array_equal, left, right)


# Trains in a process of its own and kills it, without warning, in the middle of step 13.
KILLED = """
    import os, signal, sys, time
    from proteinlm.training import train as module
    from proteinlm.config import Config
    write = module.MetricsLog.write
    def write_or_die(self, kind, step, **values):
        if step == 13:
            while not os.path.isdir(sys.argv[3] + "/checkpoints/10"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, kind, step, **values)
    module.MetricsLog.write = write_or_die
    module.train(Config.from_json(open(sys.argv[1]).read()), sys.argv[2], sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "form", "where"),
    [
        (kind, form, where)
        for where in ("middle of an epoch", "end of an epoch")
        for form in ("single", "concat")
        for kind in ("causal", "masked")
    ]
    + [("causal", "isolated", "middle of an epoch")],
)
def test_killed_and_resumed_equals_never_stopped(tmp_path, make_dataset, kind, form, where):
    # At step 10 the checkpoint stands at the end of an epoch of 10 batches, or inside one of 7 or so.
    dataset = make_dataset(form=form, batches=10 if where == "end of an epoch" else 7, batch_size=BATCH, length=48)
    experiment = config(kind, form)
    train(experiment, dataset, tmp_path / "whole")

    saved = tmp_path / "config.json"
    saved.write_text(experiment.to_json())
    died = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), saved, dataset, tmp_path / "killed"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert Checkpoints(tmp_path / "killed", read_only=True).steps() == [10]
    # With no thread that reads ahead, or more of them.
    threads = dataclasses.replace(experiment.batches, num_threads=0 if kind == "causal" else 5)
    train(dataclasses.replace(experiment, batches=threads), dataset, tmp_path / "killed")

    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert sorted(losses(tmp_path / "whole")) == list(range(1, 21))
    valid = [[(r["step"], r["loss"]) for r in read_metrics(tmp_path / run) if r["kind"] == "valid"]
             for run in ("whole", "killed")]  # fmt: skip
    assert valid[0] == valid[1]
    assert [step for step, _ in valid[0]] == [8, 16, 20]
    same_state(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_a_step_on_isolated_rows_is_the_step_on_single_ones():
    """Loss and gradient: a batch's are the mean over its tokens, packed or not."""
    experiment = config()
    model = dataclasses.replace(experiment.model, dropout=0.0, num_layers=1)
    train_step = TrainStep(dataclasses.replace(experiment, model=model))
    state, found = train_step.init(), []
    for form, rows in (("single", 10), ("isolated", 6)):
        shape = BatchesConfig(form, length=48, batch_size=rows)
        (batch,) = evaluation_batches(dataset(10, longest=40), shape, "train")
        batch.pop("rows")
        found.append(train_step.step(jax.tree.map(jax.numpy.copy, state), batch))
    (alone, of_alone), (packed, of_packed) = found
    for name in ("count", "correct", "tokens"):
        assert of_packed[name] == of_alone[name]
    for name in ("loss", "nll", "gradient_norm"):
        np.testing.assert_allclose(of_packed[name], of_alone[name], rtol=1e-5)
    # Adam divides by the gradient's size, so parameters show its rounding in full: its moments are the gradient.
    for a, b in zip(*(jax.tree.leaves(state["optimizer"]) for state in (alone, packed)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(a).max())


@pytest.mark.parametrize("number", sweep([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_a_signal_saves_and_leaves(tmp_path, make_dataset, number):
    dataset = make_dataset(form="single", batches=7, batch_size=BATCH, length=48)
    # Some minutes of steps at most, should the signal be lost.
    experiment = config(num_steps=20_000, checkpoint_every=20_000, eval_every=0)
    run = tmp_path / "run"

    def interrupt():
        for _ in range(2000):
            if (run / "metrics.jsonl").is_file() and len(read_metrics(run)) >= 3:
                os.kill(os.getpid(), number)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(Interrupted) as stopped:
        train(experiment, dataset, run)
    thread.join()
    step = stopped.value.step
    assert stopped.value.signal_number == number
    assert Checkpoints(run, read_only=True).steps() == [step]
    assert max(losses(run)) == step
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    shorter = dataclasses.replace(experiment, optimizer=dataclasses.replace(experiment.optimizer, schedule="constant"))
    with pytest.raises(InputError, match="schedule is cosine there, constant here"):
        train(shorter, dataset, run)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, make_dataset):
    """A finished short run, and its dataset."""
    run = tmp_path_factory.mktemp("finished") / "run"
    dataset = make_dataset(form="single", batches=7, batch_size=BATCH, length=48)
    train(config(num_steps=4), dataset, run)
    return run, dataset


def test_a_finished_run_is_left_as_it_is(finished):
    run, dataset = finished
    before = (run / "metrics.jsonl").read_bytes()
    assert train(config(num_steps=4), dataset, run).step == 4
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_the_last_checkpoint_is_compared_on_the_sample_of_the_others(tmp_path, make_dataset):
    dataset = make_dataset(form="single", batches=3, batch_size=BATCH, length=48)
    experiment = config(num_steps=3, eval_every=2, eval_examples=2, keep_best=3, redraw_every=0)
    result = train(experiment, dataset, tmp_path / "run")
    run, data = load_run(tmp_path / "run"), ProteinDataset.open(dataset)
    graph, state = nnx.split(run.model)
    step = make_evaluation_step(experiment, graph, run.mesh)
    sample = evaluate_split(experiment, data, "valid", step, state, limit=2).residues.loss
    assert data.counts["valid"] > 2
    assert result.valid.loss != pytest.approx(sample, rel=1e-4)
    assert Checkpoints(tmp_path / "run", read_only=True)._losses()[3] == pytest.approx(sample, rel=1e-6)


def test_another_config_or_dataset_is_refused(finished, make_dataset, tmp_path):
    run, dataset = finished
    with pytest.raises(InputError, match="num_steps is 4 there, 5 here"):
        train(config(num_steps=5), dataset, run)
    with pytest.raises(InputError, match="objective.kind is causal there, masked here"):
        train(config("masked", num_steps=4), dataset, run)
    other = make_dataset(form="single", batches=10, batch_size=BATCH, length=48)
    with pytest.raises(InputError, match="another dataset"):
        train(config(num_steps=4), other, run)
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        train(config(num_steps=4), dataset, tmp_path)


def test_how_often_to_look_may_change(finished):
    run, dataset = finished
    assert train(config(num_steps=4, eval_every=2, keep_checkpoints=1), dataset, run).step == 4


@pytest.mark.slow
@pytest.mark.parametrize("number", ["loss", "parameter_norm"])
def test_what_is_not_finite_stops_before_it_is_saved(tmp_path, make_dataset, monkeypatch, number):
    dataset = make_dataset(form="single", batches=7, batch_size=BATCH, length=48)
    step = TrainStep._step

    def poisoned(self, state, batch):
        state, metrics = step(self, state, batch)
        bad = state["step"] >= 5
        return state, {**metrics, number: jax.numpy.where(bad, jax.numpy.nan, metrics[number])}

    monkeypatch.setattr(TrainStep, "_step", poisoned)
    with pytest.raises(InputError) as error:
        train(config(checkpoint_every=2), dataset, tmp_path / "run")
    for words in ("step 5", "nan", "last good checkpoint is of step 4", "learning_rate", "0.003"):
        assert words in str(error.value)
    assert Checkpoints(tmp_path / "run", read_only=True).steps() == [2, 4]
    assert max(losses(tmp_path / "run")) == 4


@pytest.mark.slow
def test_parameters_that_blow_up_are_never_called_good(tmp_path, make_dataset):
    dataset = make_dataset(form="single", batches=7, batch_size=BATCH, length=48)
    wild = dataclasses.replace(config(checkpoint_every=1), optimizer=OptimizerConfig(learning_rate=1e30))
    with pytest.raises(InputError, match=r"step 1 \(batch 0\) is not finite: .* there is no checkpoint before it"):
        train(wild, dataset, tmp_path / "run")
    assert Checkpoints(tmp_path / "run", read_only=True).steps() == []


@pytest.mark.slow
def test_a_checkpoint_of_another_config_is_not_resumed(tmp_path, finished, make_dataset):
    run, dataset = finished
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    train(config("masked", num_steps=4), dataset, tmp_path / "masked")
    shutil.copytree(tmp_path / "masked" / "checkpoints", tmp_path / "run" / "checkpoints")
    with pytest.raises(InputError, match="checkpoint 4 of .* objective.kind is masked there, causal here"):
        train(config(num_steps=4), dataset, tmp_path / "run")


def as_numpy(state):
    """Parameters and random features as numpy trees (the state itself is given away to each compiled step)."""
    parameters, others = nnx.split_state(state["model"], nnx.Param, ...)
    return tuple(jax.tree.map(np.array, nnx.to_pure_dict(part)) for part in (parameters, others))


def test_redraw_is_by_step_and_seed_and_leaves_the_parameters():
    train_step = TrainStep(config())
    first = train_step.init()
    parameters, features = as_numpy(first)
    redrawn = train_step.redraw(first)
    parameters_after, features_after = as_numpy(redrawn)
    jax.tree.map(np.testing.assert_array_equal, parameters_after, parameters)
    assert jax.tree.leaves(features_after)
    for old, new in zip(jax.tree.leaves(features), jax.tree.leaves(features_after), strict=True):
        assert old.shape == new.shape
        assert not np.isclose(old, new).any()
    again = as_numpy(train_step.redraw(train_step.init()))[1]
    jax.tree.map(np.testing.assert_array_equal, again, features_after)
    later = as_numpy(train_step.redraw({**redrawn, "step": redrawn["step"] + 1}))[1]
    assert not np.array_equal(jax.tree.leaves(later)[0], jax.tree.leaves(features_after)[0])


@pytest.mark.slow
def test_training_memorises(tmp_path, make_dataset):
    dataset = make_dataset(form="single", batches=2, batch_size=BATCH, length=48)
    quick = config(num_steps=150, eval_every=0, checkpoint_every=150, log_every=10, redraw_every=0)
    model = dataclasses.replace(quick.model, dropout=0.0, attention=GeneralizedConfig(num_features=16), embed_dim=32)
    quick = dataclasses.replace(quick, model=model, optimizer=OptimizerConfig(learning_rate=1e-2))
    train(quick, dataset, tmp_path / "run")
    curve = [loss for loss, _, _ in losses(tmp_path / "run").values()]
    assert curve[0] > 2.5
    assert curve[-1] < 1.5
