"""Loading a run: the model that was trained, of the step asked for."""

import doctest
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from proteinlm.errors import InputError
from proteinlm.runs import loading
from proteinlm.runs.checkpoints import named_arrays
from proteinlm.runs.folder import read_run_files
from proteinlm.runs.loading import load_run


def test_a_run_comes_back_as_the_model_that_was_trained(tiny_runs):
    run = load_run(tiny_runs["causal"])
    tokens = jnp.asarray([[5, 6, 7, 8]])
    one = run.model(tokens)
    two = load_run(tiny_runs["causal"], run.step).model(tokens)
    np.testing.assert_array_equal(one, two)
    assert run.config == read_run_files(tiny_runs["causal"])[0]
    # Random features are part of it.
    assert any("rojection" in name for name in named_arrays(nnx.split(run.model)[1]))


def test_bad_runs_are_named(tiny_runs, tmp_path):
    with pytest.raises(InputError, match="not the folder of a training run"):
        load_run(tmp_path)
    with pytest.raises(InputError, match="no checkpoint of step 999; there are"):
        load_run(tiny_runs["causal"], 999)
    run = tmp_path / "run"
    shutil.copytree(tiny_runs["causal"], run)
    # The config inside a checkpoint is read strictly; here it is damaged by hand.
    step = load_run(run).step
    saved = run / "checkpoints" / str(step) / "config" / "metadata"
    text = saved.read_text()
    saved.write_text(text.replace('"mlp_dim": 32', '"mlp_dim": 40').replace('"mlp_dim":32', '"mlp_dim":40'))
    with pytest.raises(InputError, match="of another config"):
        load_run(run)
    saved.write_text(text.replace("mlp_dim", "mlp_dimm"))
    with pytest.raises(InputError, match="did you mean 'mlp_dim'"):
        load_run(run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(InputError, match="no checkpoints yet"):
        load_run(run)


def test_best_and_last(tiny_runs, tmp_path):
    assert load_run(tiny_runs["causal"]).step == load_run(tiny_runs["causal"], "last").step == 4
    assert load_run(tiny_runs["causal"], "best").step in (2, 4)
    shutil.copytree(tiny_runs["causal"], tmp_path / "run")
    for metrics in (tmp_path / "run" / "checkpoints").glob("*/metrics/metrics"):
        metrics.write_text('{"loss": 1.0}' if metrics.parts[-3] == "2" else '{"loss": 2.0}')
    assert load_run(tmp_path / "run", "best").step == 2
    for metrics in (tmp_path / "run" / "checkpoints").glob("*/metrics"):
        shutil.rmtree(metrics)
    with pytest.raises(InputError, match="run has no best checkpoint: none was saved with a loss on valid; there are"):
        load_run(tmp_path / "run", "best")


def test_the_example(tiny_runs, tmp_path, monkeypatch):
    (tmp_path / "runs").symlink_to(tiny_runs["masked"].parent)
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(loading).attempted == 2
    assert doctest.testmod(loading).failed == 0
