import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from proteinlm.data.splits.by_identity import IdentitySplits
from proteinlm.data.splits.identity_report import describe, plot, to_markdown, write_identity_report
from proteinlm.data.splits.rules import LISTED

TRAIN, VALID, TEST, OOD, NEAR = range(5)


def made(codes, *identities):
    digests = np.arange(16 * len(codes), dtype=np.uint8).reshape(-1, 16)
    before, after = np.array(identities, np.int16)
    return IdentitySplits(0.5, digests, np.array(codes, np.int8), before, after, 7, 1, (2, 1), "99")


@pytest.fixture
def splits():
    return made(
        [TRAIN, TRAIN, NEAR, NEAR, VALID, TEST, TEST, TEST, TEST],
        [-1, -1, -1, -1, -1, 1000, 300, 499, 498],
        [-1, -1, -1, -1, -1, -1, 300, 400, 498],
    )


def test_the_report_counts_what_is_there(splits):
    report = describe(splits)
    assert report["sequences"] == {"train": 2, "valid": 1, "test": 4, "ood": 0, "near": 2}
    assert (report["clusters"], report["moved_out_of_train_by_search"], report["too_short_to_be_searched"]) == (
        7, [2, 1], 1,
    )  # fmt: skip
    before, after = report["nearest_in_train"]["test"].values()
    # 499 may have been 0.5 before it was cut off.
    keys = ("sequences", "no_alignment", "within_threshold", "largest")
    assert [before[key] for key in keys] == [4, 0, 2, 1.0]
    assert [after[key] for key in keys] == [4, 1, 0, 0.498]
    assert before["quantile_0.5"] == pytest.approx((498 + 499) / 2000, abs=1e-4)
    assert after["quantile_0.5"] == 0.4
    wanted = [0] * 20
    wanted[6], wanted[9], wanted[19] = 1, 2, 1
    assert before["histogram"] == wanted
    assert report["nearest_in_train"]["valid"]["before"]["no_alignment"] == 1
    assert report["nearest_in_train"]["ood"]["after"] == {
        "sequences": 0, "no_alignment": 0, "within_threshold": 0, "quantile_0.25": None, "quantile_0.5": None,
        "quantile_0.75": None, "largest": None, "histogram": [0] * 20,
    }  # fmt: skip


def test_the_page_says_what_identity_means_and_shows_the_numbers(splits):
    page = to_markdown(describe(splits))
    for part in (
        "--seq-id-mode 0",
        "--cov-mode 1 or 2",
        "E-value",
        "MMseqs2 99 made 7 clusters",
        "(2, then 1, then 0 sequ",
    ):
        assert part in page
    lines = page.splitlines()
    assert "| sequences | 2 | 1 | 4 | 0 | 2 |" in lines
    assert "| test | before | 4 | 0 | 2 | 0.449 | 0.498 | 0.624 | 1.000 |" in lines
    assert "| test | after | 4 | 1 | 0 | 0.350 | 0.400 | 0.449 | 0.498 |" in lines
    assert "| ood | before | 0 | 0 | 0 | - | - | - | - |" in lines
    assert "![Identity to the most similar sequence of train](identity.png)" in lines


def test_a_panel_for_each_split_that_is_not_empty(splits):
    figure = plot(describe(splits))
    assert [panel.get_title() for panel in figure.axes] == ["valid (n = 1)", "test (n = 4)"]
    heights = figure.axes[1].patches[0].get_data().values
    assert heights[[6, 9, 19]].tolist() == [25, 50, 25]


def test_the_files(splits, tmp_path):
    report = write_identity_report(tmp_path, splits)
    assert json.loads((tmp_path / "identity.json").read_text()) == report == describe(splits)
    assert (tmp_path / "identity.md").read_text() == to_markdown(report)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".png", ".pdf", ".parquet"}
    rows = pq.read_table(tmp_path / "identity.parquet").to_pylist()
    assert [row["split"] for row in rows] == [LISTED[code] for code in splits.codes[4:]]
    assert [row["digest"] for row in rows] == [splits.digests[i].tobytes() for i in range(4, 9)]
    assert rows[0]["before"] is rows[0]["after"] is rows[1]["after"] is None
    assert rows[3]["before"] == pytest.approx(0.499)
    assert rows[3]["after"] == pytest.approx(0.4)


def test_one_dataset_twice_is_the_same_bytes(splits, tmp_path):
    for name in ("one", "two"):
        write_identity_report(tmp_path / name, splits)
    assert [p.read_bytes() for p in sorted((tmp_path / "one").iterdir())] == [
        p.read_bytes() for p in sorted((tmp_path / "two").iterdir())
    ]


def test_no_evaluated_sequence_at_all(tmp_path):
    report = write_identity_report(tmp_path, made([TRAIN, NEAR], [-1, -1], [-1, -1]))
    assert report["nearest_in_train"]["test"]["before"]["sequences"] == 0
    assert (tmp_path / "identity.png").is_file()
