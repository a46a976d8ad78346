"""analysis.json keeps what it can read, and replaces the rest."""

import json

import pytest

from proteinlm.analysis.record import Record


@pytest.mark.parametrize("damage", ['{"run": "masked"}', "[]", "{", '{"parts": [1]}', '{"parts": {"maps": 3}}'])
def test_a_damaged_record_is_replaced(tmp_path, damage, capsys):
    (tmp_path / "analysis.json").write_text(damage)
    Record(tmp_path / "analysis.json").add("maps", {"run": "a"})
    assert json.loads((tmp_path / "analysis.json").read_text()) == {"parts": {"maps": {"run": "a"}}}
    if damage != '{"parts": {"maps": 3}}':
        assert "cannot be read as a record of figures: it is replaced" in " ".join(capsys.readouterr().err.split())


def test_entries_stay_until_they_are_removed(tmp_path):
    path = tmp_path / "analysis.json"
    Record(path).add("maps", {"run": "a"})
    Record(path).add("kinds", {"run": "b"})
    assert json.loads(path.read_text())["parts"] == {"maps": {"run": "a"}, "kinds": {"run": "b"}}
    Record(path).remove("maps")
    Record(path).remove("windows")
    assert json.loads(path.read_text())["parts"] == {"kinds": {"run": "b"}}
