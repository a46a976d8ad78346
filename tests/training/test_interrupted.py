"""What a run that is refused, told to leave, killed or damaged leaves behind, and that it goes on from there."""

import dataclasses
import json
import os
import shutil
import signal

import pytest
from small_runs import dataset, rows, small, unscored  # noqa: F401 (fixtures)

from proteinlm.data.batches.batches import TrainBatches
from proteinlm.errors import InputError, Interrupted
from proteinlm.evaluation.metrics import Sums
from proteinlm.runs.checkpoints import Checkpoints
from proteinlm.runs.loading import load_run
from proteinlm.training import train as module
from proteinlm.training.resume import differences
from proteinlm.training.train import train


class Killed(BaseException):
    """Leaves at once, as a kill does, but for what `finally` does."""


@pytest.fixture
def at_step(monkeypatch):
    """Return a function that has something done when a step is sent off."""
    add = module.Meter.add

    def at(step, act):
        def added(self, done, batch, metrics):
            add(self, done, batch, metrics)
            if done == step:
                monkeypatch.setattr(module.Meter, "add", add)
                act()

        monkeypatch.setattr(module.Meter, "add", added)

    return at


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def killed():
    raise Killed


@pytest.fixture(scope="module")
def half(tmp_path_factory, dataset):  # noqa: F811
    """A run with checkpoints 2 and 4 of 4 steps, to be copied."""
    run = tmp_path_factory.mktemp("half") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_evaluate", lambda *_, **__: (None, None))
        train(small(), dataset, run)
    return run


@pytest.fixture
def copy(half, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_evaluate", lambda *_, **__: (None, None))
    shutil.copytree(half, tmp_path / "run")
    return tmp_path / "run"


def contents(run):
    return {name: (run / name).read_bytes() for name in ("config.json", "run.json")}


def faster(config):
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=0.5))


@pytest.mark.slow
def test_a_refused_or_killed_resume_leaves_the_folder_to_the_run(copy, dataset, at_step):  # noqa: F811
    before, wider = contents(copy), small(num_steps=6)
    wider = dataclasses.replace(wider, model=dataclasses.replace(wider.model, num_layers=2))
    # Refused, once told to go on all the same and once not.
    for inexact in (True, False):
        with pytest.raises(InputError):
            train(wider, dataset, copy, allow_inexact_resume=inexact)
        assert contents(copy) == before
    # A finished run is what it was trained with, whatever it is started with.
    assert train(faster(small(eval_every=3)), dataset, copy, allow_inexact_resume=True).step == 4
    assert contents(copy) == before
    assert rows(copy, "resume") == []
    # Killed before it has saved anything: what it was trained with until then still goes on, exactly.
    longer = small(num_steps=6)
    at_step(5, killed)
    with pytest.raises(Killed):
        train(faster(longer), dataset, copy, allow_inexact_resume=True)
    assert json.loads((copy / "config.json").read_text())["optimizer"]["learning_rate"] == 0.5
    assert [row["step"] for row in rows(copy, "resume")] == [4]
    assert train(longer, dataset, copy).step == 6
    assert rows(copy, "resume") == []
    assert json.loads((copy / "config.json").read_text()) == json.loads(longer.to_json())


def test_damaged_files_of_a_run_are_written_anew_or_given_up(copy, dataset):  # noqa: F811
    original = contents(copy)
    for name, text in (("run.json", "{}"), ("config.json", ""), ("config.json", "\udcff")):
        (copy / name).write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(
            InputError, match=rf"{name} .*cannot be read .*`proteinlm train` with the config and dataset of"
        ):
            load_run(copy)
        train(small(), dataset, copy)
        assert contents(copy) == original
    shutil.rmtree(copy / "checkpoints")
    (copy / "config.json").write_text("")
    for act in (lambda: load_run(copy), lambda: train(small(), dataset, copy)):
        with pytest.raises(InputError, match="no checkpoint to resume from: remove the folder, or name another one"):
            act()


@pytest.mark.slow
def test_steps_that_happen_again_are_said(copy, dataset):  # noqa: F811
    shutil.rmtree(copy / "checkpoints" / "4")
    train(small(), dataset, copy)
    assert f"resuming {copy} at step 2; steps up to 4 in its metrics.jsonl are repeated" in said(copy)
    shutil.rmtree(copy / "checkpoints")
    train(small(), dataset, copy)
    expected = f"training {copy} from the beginning, because it has no checkpoint; steps up to 4 in its metrics.jsonl"
    assert expected in said(copy)


def said(run):
    return (run / "train.log").read_text()


def test_a_damaged_checkpoint_is_said_when_training_goes_on(copy, dataset):  # noqa: F811
    shutil.rmtree(copy / "checkpoints" / "4" / "rest")
    before = contents(copy), rows(copy, "train")
    with pytest.raises(InputError, match=r"checkpoints/4 cannot be read .* resumes from step 2, the one before"):
        train(small(num_steps=5), dataset, copy)
    assert (contents(copy), rows(copy, "train")) == before
    shutil.rmtree(copy / "checkpoints" / "4")
    assert train(small(num_steps=5), dataset, copy).step == 5


@pytest.mark.slow
def test_an_interruption_loses_no_number(tmp_path, dataset, monkeypatch, at_step):  # noqa: F811
    """A signal at a step of an evaluation, which is then left out, and in the middle of a line; a kill between."""
    config = small(num_steps=8, eval_every=2, log_every=4, checkpoint_every=5, keep_best=1)

    def evaluated(_config, _dataset, _step, state, done, log, *, whole):
        loss = abs(done - 6) + 1.0
        log.write("valid", done, loss=loss, whole=whole)
        assert int(state["step"]) == done
        return Sums(loss, 0.0, 1.0), loss

    monkeypatch.setattr(module, "_evaluate", evaluated)
    train(config, dataset, tmp_path / "whole")
    run = tmp_path / "run"
    at_step(4, ctrl_c)
    with pytest.raises(Interrupted):
        train(config, dataset, run)
    assert [row["step"] for row in rows(run, "valid")] == [2]
    # Killed at step 5, when nothing has been saved that is newer than step 4.
    at_step(5, killed)
    with pytest.raises(Killed):
        train(config, dataset, run)
    at_step(5, ctrl_c)
    with pytest.raises(Interrupted):
        train(config, dataset, run)
    assert train(config, dataset, run).step == 8

    for kind in ("train", "valid"):
        found, expected = (
            [{**row, "tokens_per_second": None} for row in rows(folder, kind)] for folder in (run, tmp_path / "whole")
        )
        assert found == [row for row in expected if (kind, row["step"]) != ("valid", 4)]
    assert [(row["step"], row["steps"]) for row in rows(run, "train")] == [(4, 4), (8, 4)]
    checkpoints = Checkpoints(run, read_only=True)
    assert (checkpoints.best(), checkpoints.steps()) == (6, [5, 6, 8])
    checkpoints.close()


def test_a_signal_before_the_folder_is_ours_writes_nothing(tmp_path, dataset, monkeypatch):  # noqa: F811
    made = TrainBatches.__init__

    def interrupted(self, *arguments, **options):
        ctrl_c()
        made(self, *arguments, **options)

    monkeypatch.setattr(TrainBatches, "__init__", interrupted)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("precious")
    for run in (tmp_path / "new", other):
        with pytest.raises(KeyboardInterrupt):
            train(small(), dataset, run)
    assert not (tmp_path / "new").exists()
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]


def test_the_sample_of_valid_may_change_only_where_nothing_is_compared():
    config = small(eval_examples=4, keep_best=1)
    other = dataclasses.replace(config, eval_examples=5)
    assert differences(config, other) == ["eval_examples is 4 there, 5 here"]
    none = dataclasses.replace(config, keep_best=0)
    assert differences(none, dataclasses.replace(none, eval_examples=5)) == []
