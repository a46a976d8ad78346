import dataclasses

import pytest

from proteinlm.data.ingest.options import Ingest, parse_ingest


def test_groups_are_one_level_for_the_command():
    given = vars(parse_ingest(["a", "b c", "--output", "out", "--release", "2019_01", "--section", "sprot", "trembl"]))
    assert given["sources"] == ("a", "b c")
    assert given["section"] == ("sprot", "trembl")
    names = []
    for entry in dataclasses.fields(Ingest):
        group = entry.default_factory
        names += [f.name for f in dataclasses.fields(group)] if dataclasses.is_dataclass(group) else [entry.name]
    # No option of one group hides one of another.
    assert sorted(names) == sorted(given)


def test_each_option_is_explained_and_the_page_fits_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as left:
        parse_ingest(["--help"])
    assert left.value.code == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    for heading in ("Sources", "What is wrong", "What is stopped", "What it needs", "Exit status", "Examples"):
        assert f"\n\n{heading}\n  " in page
    for name in vars(parse_ingest(["a", "--output", "x"])):
        assert name == "sources" or f"--{name.replace('_', '-')}" in page
    assert "(default: )" not in page
    assert "None" not in page
    # One paragraph for each option, without the line breaks of the source.
    assert "2019_01" in page
    assert "    " not in " ".join(page.split())
