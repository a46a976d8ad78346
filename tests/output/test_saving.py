import json

import numpy as np
import pandas as pd
import pytest

from proteinlm.output.saving import save_arrays, save_summary, save_table, write_arrays, write_csv, write_json


def test_json_has_an_indent_and_ends_with_a_line_break(tmp_path):
    write_json(tmp_path / "x.json", {"a": [1], "b": None})
    assert (tmp_path / "x.json").read_text() == '{\n  "a": [\n    1\n  ],\n  "b": null\n}\n'
    write_json(tmp_path / "x.json", {"a": 1}, indent=1)
    assert (tmp_path / "x.json").read_text() == '{\n "a": 1\n}\n'


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_leaves_no_file(tmp_path, number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"a": number})
    assert list(tmp_path.iterdir()) == []


def test_csv_has_no_index_and_all_digits_unless_a_format_is_given(tmp_path):
    table = pd.DataFrame({"split": ["test"], "nll": [1 / 3]}, index=[7])
    write_csv(tmp_path / "x.csv", table)
    assert (tmp_path / "x.csv").read_text() == "split,nll\ntest,0.3333333333333333\n"
    assert save_table(tmp_path / "y", table) == str(tmp_path / "y.csv")
    assert (tmp_path / "y.csv").read_text() == "split,nll\ntest,0.333333\n"


@pytest.mark.parametrize("compress", [True, False])
def test_arrays_are_read_back_by_name(tmp_path, compress):
    write_arrays(tmp_path / "x.npz", {"a": np.zeros(1000), "b": np.array([1])}, compress=compress)
    with np.load(tmp_path / "x.npz") as arrays:
        assert sorted(arrays) == ["a", "b"]
        assert arrays["a"].shape == (1000,)
    assert ((tmp_path / "x.npz").stat().st_size < 2000) == compress


def test_stems_get_the_suffix_of_their_format(tmp_path):
    assert save_summary(tmp_path / "x", {"a": 1}) == str(tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    assert save_arrays(tmp_path / "x", {"a": [1, 2]}) == str(tmp_path / "x.npz")
