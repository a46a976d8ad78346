import errno
import os

import pytest

from proteinlm.errors import InputError
from proteinlm.output.files import refuse_occupied, sync, sync_file_system, whole_file


def fail_in_the_middle(path):
    with pytest.raises(RuntimeError, match="power cut"), whole_file(path) as handle:  # noqa: PT012
        handle.write("half")
        raise RuntimeError("power cut")


def test_a_file_appears_only_when_whole(tmp_path):
    path = tmp_path / "deep" / "table.csv"
    fail_in_the_middle(path)
    assert list(path.parent.iterdir()) == []
    with whole_file(path, "wb") as handle:
        handle.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(path.parent.iterdir()) == [path]


def test_an_old_file_survives_a_failed_writing(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    fail_in_the_middle(path)
    assert path.read_text() == "old"


def test_files_and_names_reach_the_disk(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("x")
    reached = []
    monkeypatch.setattr(os, "fsync", lambda number: reached.append(os.readlink(f"/proc/self/fd/{number}")))
    sync(tmp_path / "x")
    sync(tmp_path)
    assert reached == [str(tmp_path / "x"), str(tmp_path)]


def test_a_whole_file_system_reaches_its_disk(tmp_path, monkeypatch):
    sync_file_system(tmp_path)
    opened = []
    monkeypatch.setattr(os, "open", lambda path, flags: opened.append(path) or 10_000)
    monkeypatch.setattr(os, "close", lambda number: None)
    with pytest.raises(OSError, match="Bad file descriptor") as error:
        sync_file_system(tmp_path)
    assert (error.value.errno, opened) == (errno.EBADF, [tmp_path])


def test_where_one_file_system_cannot_be_told_all_are_waited_for(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr("proteinlm.output.files.ctypes.CDLL", lambda *_, **__: object())
    monkeypatch.setattr(os, "sync", lambda: called.append(True))
    sync_file_system(tmp_path)
    assert called == [True]


def test_a_folder_that_holds_something_is_refused(tmp_path):
    refuse_occupied(tmp_path / "a", "the dataset")
    assert not (tmp_path / "a").exists()
    (tmp_path / "a" / "b").mkdir(parents=True)
    refuse_occupied(tmp_path / "a" / "b", "the dataset")
    with pytest.raises(InputError, match="not empty; the dataset"):
        refuse_occupied(tmp_path / "a", "the dataset")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        refuse_occupied(tmp_path / "file", "the dataset")
