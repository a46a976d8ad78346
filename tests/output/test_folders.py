import os

import pytest

from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.ingest.ingest import IngestConfig, ingest
from proteinlm.errors import InputError

CONFIG = IngestConfig(workers=1)


def source(folder):
    path = folder / "x.fasta"
    path.write_text(">P1\nMKV\n")
    return path


def check(tmp_path, message, output):
    """It is refused, and nothing is made."""
    path = source(tmp_path)
    before = set(tmp_path.iterdir())
    with pytest.raises(InputError, match=message):
        ingest([path], output, CONFIG)
    assert set(tmp_path.iterdir()) == before


def test_an_output_that_is_not_empty_or_a_file(tmp_path):
    check(tmp_path, "is not empty", tmp_path)
    check(tmp_path, "is a file", source(tmp_path))


@pytest.mark.parametrize("name", ["gs://bucket/data", "s3://b/x", "file:///tmp/x"])
def test_an_output_that_is_a_url(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    check(tmp_path, "is a URL", name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "is the working folder"),
        ("/", "a mount point"),
        ("/proc/x", "cannot be made"),
        ("n" * 250, "cannot be made .*name too long"),
        ("n" * 247, "cannot be made .*name too long"),
        ("loop", "cannot be made .*symbolic links"),
        (b"caf\xe9", "no name in UTF-8"),
    ],
)
def test_an_output_that_cannot_become_a_folder(tmp_path, monkeypatch, name, message):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    (tmp_path / "loop").symlink_to("loop")
    name = tmp_path / "loop" if name == "loop" else name
    check(tmp_path, f"(?i){message}", os.fsdecode(name))
    assert not list((tmp_path / "empty").iterdir())


def test_a_link_to_an_empty_folder_stays_a_link_and_the_folder_is_filled(tmp_path):
    path = source(tmp_path)
    (tmp_path / "disk" / "data").mkdir(parents=True)
    (tmp_path / "out").symlink_to("disk/data")
    ingest([path], tmp_path / "out", CONFIG)
    assert (tmp_path / "out").is_symlink()
    assert sum(ProteinDataset.open(tmp_path / "disk" / "data").counts.values()) == 1
    assert [each.name for each in (tmp_path / "disk").iterdir()] == ["data"]


@pytest.mark.slow
def test_an_empty_output_folder_and_missing_parents_are_fine(tmp_path):
    path = source(tmp_path)
    for output in (tmp_path / "empty", tmp_path / "with space" / "and ü"):
        if output.name == "empty":
            output.mkdir()
        ingest([path], output, CONFIG)
        assert sum(ProteinDataset.open(output).counts.values()) == 1
