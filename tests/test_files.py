import pytest

from proteinlm.errors import InputError
from proteinlm.files import empty_folder, whole_file


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


def test_a_folder_that_holds_something_is_refused(tmp_path):
    assert empty_folder(tmp_path / "a" / "b", "the dataset").is_dir()
    assert empty_folder(tmp_path / "a" / "b", "the dataset").is_dir()
    with pytest.raises(InputError, match="not empty; the dataset"):
        empty_folder(tmp_path / "a", "the dataset")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        empty_folder(tmp_path / "file", "the dataset")
