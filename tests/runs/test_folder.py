"""A run's folder: one writer, what each file is; and what a whole run leaves in it."""

import json
import shlex
import signal
import subprocess
import sys

import pytest
from small_runs import dataset, rows, small  # noqa: F401 (a fixture)

from proteinlm import __version__
from proteinlm.config import load_config
from proteinlm.errors import InputError
from proteinlm.evaluation.metrics import Sums
from proteinlm.runs.checkpoints import Checkpoints
from proteinlm.runs.folder import RunLock
from proteinlm.training.train import train

HOLDS = """
import pathlib, sys, time
from proteinlm.runs.folder import RunLock
RunLock(pathlib.Path(sys.argv[1])).take()
held = RunLock(pathlib.Path(sys.argv[2]))
held.take()
print("held", flush=True)
time.sleep(300)
"""


def test_one_training_at_a_time_and_a_dead_one_holds_nothing(tmp_path, dataset):  # noqa: F811
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, other, run], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=rf"another training \(process {holder.pid} on .*\): stop that one"):
            train(small(), dataset, run)
        assert [path.name for path in run.iterdir()] == [".lock"]
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    lock = RunLock(run)
    lock.take()
    with pytest.raises(InputError, match="another training"):
        RunLock(run).take()
    lock.release()
    again = RunLock(run)
    again.take()
    again.release()


def test_what_a_run_leaves_explains_itself(tmp_path, dataset, monkeypatch):  # noqa: F811
    """The best and the last checkpoint, a trace, trackers' numbers, and files that say what they are."""
    losses = iter([3.0, 2.0, 2.5, 2.75, 9.0])
    told = []

    class Tracker:
        def log(self, step, values):
            told.append((step, values))

        def close(self):
            told.append("closed")

    monkeypatch.setattr("proteinlm.training.train.check_trackers", lambda text: (text,))
    monkeypatch.setattr("proteinlm.training.train.open_trackers", lambda names, run, start, config: [Tracker()])

    def evaluated(_config, _dataset, _step, _state, done, log, *, whole):
        sums = Sums(next(losses), 0.0, 1.0)
        log.write("valid", done, loss=sums.loss, perplexity=sums.perplexity, whole=whole)
        return sums, sums.loss

    monkeypatch.setattr("proteinlm.training.train._evaluate", evaluated)
    config = small(num_steps=5, eval_every=1, checkpoint_every=100, keep_checkpoints=1)
    run = tmp_path / "run"
    train(config, dataset, run, track="any", profile="3:4")

    checkpoints = Checkpoints(run, read_only=True)
    assert (checkpoints.steps(), checkpoints.best()) == ([2, 5], 2)
    checkpoints.close()
    assert list((run / "profile").rglob("*.xplane.pb"))
    assert told[-1] == "closed"
    assert (2, {"valid/loss": 2.0, "valid/perplexity": pytest.approx(7.389, abs=1e-3)}) in told[:-1]
    assert {step: values["train/loss"] for step, values in told[:-1] if "train/loss" in values} == {
        row["step"]: row["loss"] for row in rows(run, "train")
    }
    (start,) = json.loads((run / "environment.json").read_text())["starts"]
    assert start["versions"]["proteinlm"] == __version__
    assert {"python", "jax", "flax", "optax", "orbax-checkpoint"} <= set(start["versions"])
    assert start["devices"]["mesh"] == {"data": 1, "fsdp": 1, "tensor": 1, "sequence": 1}
    assert start["command"] == shlex.join(sys.argv)
    text = (run / "README.md").read_text()
    assert f"proteinlm train {run}/config.json --dataset {dataset} --run {run}" in text
    # Every file is explained, and the command's config is this one.
    for path in run.iterdir():
        assert path.name in text, path.name
    assert load_config(str(run / "config.json")) == config
    log = (run / "train.log").read_text()
    assert "from the beginning" in log
    assert "run: step 5 of 5" in log
    with pytest.raises(InputError, match="3:4 has no step to trace: the run is finished, at step 5"):
        train(config, dataset, run, profile="3:4")
    assert "ended by InputError: --profile 3:4" in (run / "train.log").read_text()
