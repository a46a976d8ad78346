"""TensorBoard and wandb get the numbers; what is missing is one sentence."""

import struct
import sys
import types

import pytest
from small_runs import dataset, small, unscored  # noqa: F401 (fixtures)

from proteinlm.config import Config
from proteinlm.errors import InputError
from proteinlm.runs.logs import MetricsLog
from proteinlm.runs.trackers import check_trackers, open_trackers
from proteinlm.training.train import train


def module(monkeypatch, name, **contents):
    """A package of this name that holds nothing else."""
    made = types.ModuleType(name)
    made.__spec__ = types.SimpleNamespace()  # pyright: ignore[reportAttributeAccessIssue]
    made.__dict__.update(contents)
    monkeypatch.setitem(sys.modules, name, made)


def test_names_are_checked_before_anything_is_made(monkeypatch):
    assert check_trackers("") == ()
    with pytest.raises(InputError, match="'tensorbord' is unknown; there are tensorboard, wandb"):
        check_trackers("tensorbord")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--track wandb needs the package wandb: pip install 'proteinlm\[logging\]'"):
        check_trackers("wandb")


def test_wandb_is_one_run_however_often_it_is_resumed(tmp_path, monkeypatch):
    calls = []

    class Run:
        def log(self, values, step):
            calls.append((step, values))

        def finish(self):
            calls.append("finished")

    def init(**options):
        calls.append(options)
        return Run()

    module(monkeypatch, "wandb", init=init, Error=KeyError)
    names = check_trackers("wandb")
    for start in (0, 3):
        log = MetricsLog(tmp_path, start, trackers=open_trackers(names, tmp_path, start, Config()))
        log.write("train", start + 1, loss=2.0, accuracy=float("nan"), counted="residues", flag=True)
        log.close()
    first, numbers, finished, second, *_ = calls
    assert (numbers, finished) == ((1, {"train/loss": 2.0}), "finished")
    assert first == second
    assert first["name"] == tmp_path.name
    assert first["resume"] == "allow"
    assert first["config"]["optimizer"]["b2"] == 0.98

    def refuse(**_):
        raise KeyError("no API key")

    module(monkeypatch, "wandb", init=refuse, Error=KeyError)
    with pytest.raises(InputError, match="no API key.*wandb login"):
        open_trackers(names, tmp_path, 0, Config())


def test_tensorboard_drops_what_happens_again(tmp_path, monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            calls.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            calls.append((name, value, step))

        def close(self):
            calls.append("closed")

    module(monkeypatch, "tensorboardX", SummaryWriter=SummaryWriter)
    for start in (0, 3):
        (tracker,) = open_trackers(check_trackers("tensorboard"), tmp_path, start, Config())
        tracker.log(start + 1, {"valid/loss": 1.5})
        tracker.close()
    folder = str(tmp_path / "tensorboard")
    assert calls == [
        (folder, 1), ("valid/loss", 1.5, 1), "closed", (folder, 4), ("valid/loss", 1.5, 4), "closed",
    ]  # fmt: skip


def test_a_finished_run_has_no_new_file_of_a_tracker(tmp_path, dataset, unscored, monkeypatch):  # noqa: F811
    opened = []
    monkeypatch.setattr("proteinlm.training.train.check_trackers", lambda text: (text,))
    monkeypatch.setattr("proteinlm.training.train.open_trackers", lambda *arguments: opened.append(arguments[2]) or [])
    for _ in range(2):
        train(small(num_steps=2), dataset, tmp_path / "run", track="tensorboard")
    assert opened == [0]


def test_real_event_files_hold_the_numbers(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs tensorboardX: pip install -e '.[logging]'")
    (tracker,) = open_trackers(check_trackers("tensorboard"), tmp_path, 0, Config())
    tracker.log(7, {"valid/loss": 1.5})
    tracker.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    content = file.read_bytes()
    assert b"valid/loss" in content
    assert struct.pack("<f", 1.5) in content
