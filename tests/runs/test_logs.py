import json

import pytest
from rich.console import Console

from proteinlm.errors import InputError
from proteinlm.runs import logs
from proteinlm.runs.logs import METRICS_FILE, MetricsLog, progress_line, read_metrics


def test_lines_are_appended_and_those_after_the_resumed_step_go(tmp_path):
    log = MetricsLog(tmp_path, 0)
    for step in (1, 2, 3):
        log.write("train", step, loss=float(step))
    log.close()
    with open(tmp_path / METRICS_FILE, "a") as handle:
        handle.write('{"kind": "train", "st')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    again = MetricsLog(tmp_path, 2)
    again.write("train", 3, loss=7.0)
    again.close()
    assert [row["loss"] for row in read_metrics(tmp_path)] == [1.0, 2.0, 7.0]


def test_what_is_said_of_the_resumed_step_itself_can_happen_again(tmp_path):
    log = MetricsLog(tmp_path, 0)
    for kind in ("train", "valid", "resume"):
        for step in (1, 2):
            log.write(kind, step)
    log.close()
    MetricsLog(tmp_path, 2).close()
    assert [(row["kind"], row["step"]) for row in read_metrics(tmp_path)] == [
        ("train", 1), ("train", 2), ("valid", 1), ("valid", 2), ("resume", 1),
    ]  # fmt: skip


def test_what_is_not_finite_is_null(tmp_path):
    log = MetricsLog(tmp_path, 0)
    log.write("train", 1, loss=float("nan"), accuracy=float("inf"), count=3)
    log.close()
    row = json.loads((tmp_path / METRICS_FILE).read_text())
    assert row == {"kind": "train", "step": 1, "loss": None, "accuracy": None, "count": 3}


def test_bad_files_are_named(tmp_path):
    with pytest.raises(InputError, match="not the folder of a training run"):
        read_metrics(tmp_path)
    good = b'{"kind": "train", "step": 1}\n'
    for bad in (b"nonsense", b"[]", b"{}", b"\xff\xfe"):
        (tmp_path / METRICS_FILE).write_bytes(good + bad + b"\n" + good)
        with pytest.raises(InputError, match="line 2, is not a line of a metrics file"):
            read_metrics(tmp_path)


def test_a_log_file_gets_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr(logs, "console", Console(stderr=True, force_terminal=False, width=200))
    monkeypatch.setattr(logs.ProgressLine, "PLAIN_EVERY_SECONDS", 0.0)
    with progress_line(10, 4, "run") as line:
        line.update(5, 2.5, 0.125, 1234.0)
    text = capsys.readouterr().err
    for word in ("run: step 5 of 10", "loss 2.500", "accuracy 12.5 %", "1,234 tokens/s", "s left"):
        assert word in text
