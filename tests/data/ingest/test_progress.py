import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from proteinlm.data.ingest import progress
from proteinlm.data.ingest.progress import Marker, anything_finished
from proteinlm.errors import InputError


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "SAVE_SECONDS", 0.0)
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch" / "marker.json"


def test_what_is_noted_is_there_for_the_next_one(path):
    first = Marker(path, {"valid": 0.1, "table": (3, 4), "file": Path("x")})
    assert (first.state, first.resumes, first.differences) == ({}, False, "")
    assert first.note(reduced=3)
    assert first.note(reduced=4, written=["a"])
    again = Marker(path, {"valid": 0.1, "table": [3, 4], "file": "x"})
    assert (again.state, again.resumes, again.differences) == ({"reduced": 4, "written": ["a"]}, True, "")


def test_it_is_saved_no_more_often_than_every_so_many_seconds(path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(progress, "SAVE_SECONDS", 10.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    one = Marker(path, {})
    assert not one.note(reduced=1)
    assert not path.exists()
    now = 10.5
    assert one.note(reduced=2)
    now = 20.0
    assert not one.note(reduced=3)
    assert Marker(path, {}).state == {"reduced": 2}


def test_everything_else_is_on_the_disk_before_the_marker(path, monkeypatch):
    order = []
    monkeypatch.setattr(progress, "sync_file_system", lambda folder: order.append((folder, path.exists())))
    one = Marker(path, {})
    one.save()
    path.unlink()
    one.note(reduced=1)
    # Where nothing is finished there is nothing to wait for.
    assert order == [(path.parent, False)]


def test_other_inputs_are_named(path):
    Marker(path, {"valid": 0.1, "source a": [1, 2], "source b": [1, 2], "c": 1, "d": 1}).note(reduced=1)
    with pytest.raises(InputError, match=r"differs in valid \(0\.1, now 0\.2\), source a, source b and 2 more: give"):
        Marker(path, {"valid": 0.2, "source a": [1, 3], "c": 2, "e": None, "d": 2})
    assert anything_finished(path)


def test_other_inputs_do_not_matter_where_nothing_is_finished(path):
    Marker(path, {"valid": 0.1}).save()
    assert not anything_finished(path)
    other = Marker(path, {"valid": 0.2})
    assert (other.resumes, other.differences) == (False, "valid (0.1, now 0.2)")


@pytest.mark.parametrize("content", ["", "{", "[1]", "7", '{"inputs": {}}', "\x00" * 40])
def test_what_is_no_marker_is_none(path, content):
    assert not anything_finished(path)
    path.write_text(content)
    assert not anything_finished(path)
    assert not Marker(path, {}).resumes
    path.write_text(json.dumps({"inputs": {}, "state": {"reduced": 1}}))
    assert anything_finished(path)
    assert Marker(path, {}).resumes
