import pytest

from proteinlm.errors import InputError
from proteinlm.files import empty_folder, whole_file


def test_a_file_appears_only_when_whole(tmp_path):
    path = tmp_path / "deep" / "table.csv"
    with pytest.raises(RuntimeError), whole_file(path) as handle:
        handle.write("half")
        raise RuntimeError
    assert list(path.parent.iterdir()) == []
    with whole_file(path, "wb") as handle:
        handle.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    assert list(path.parent.iterdir()) == [path]


def test_an_old_file_survives_a_failed_writing(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(RuntimeError), whole_file(path) as handle:
        handle.write("new")
        raise RuntimeError
    assert path.read_text() == "old"


def test_a_folder_that_holds_something_is_refused(tmp_path):
    assert empty_folder(tmp_path / "a" / "b", "the dataset").is_dir()
    assert empty_folder(tmp_path / "a" / "b", "the dataset").is_dir()
    with pytest.raises(InputError, match="not empty; the dataset"):
        empty_folder(tmp_path / "a", "the dataset")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        empty_folder(tmp_path / "file", "the dataset")
