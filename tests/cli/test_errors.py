"""Real pipes: a command whose reader has gone ends quietly, with 141 as its exit code."""

import os
import subprocess
import sys

import pytest
from sweeps import sweep

from proteinlm.cli.errors import CLOSED_PIPE
from proteinlm.cli.main import COMMANDS, main

WITHOUT_READER = {"stdin": subprocess.DEVNULL, "check": False}


def into_a_closed_pipe(*arguments, stderr=False, environment=None):
    """Run a command with standard output, or also standard error, on a pipe that nobody reads; (code, stderr)."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "proteinlm.cli.main", *map(str, arguments)],
            stdout=writer, stderr=writer if stderr else subprocess.PIPE, env={**os.environ, **(environment or {})},
            **WITHOUT_READER,
        )  # fmt: skip
    finally:
        os.close(writer)
    return done.returncode, (done.stderr or b"").decode()


HELP = [[], ["--version"], *([command, "--help"] for command in COMMANDS)]


@pytest.mark.few(2)
@pytest.mark.parametrize("arguments", sweep(HELP, [["train", "--help"]]))
def test_help_into_a_closed_pipe(arguments):
    assert into_a_closed_pipe(*arguments) == (CLOSED_PIPE, "") == (141, "")


def test_without_a_buffer_it_breaks_at_the_first_line():
    assert into_a_closed_pipe("train", "--help", environment={"PYTHONUNBUFFERED": "1"}) == (141, "")


def test_an_error_message_into_a_closed_pipe():
    assert into_a_closed_pipe("evaluate", "nowhere", stderr=True) == (141, "")
    assert into_a_closed_pipe("trian", stderr=True) == (141, "")


@pytest.mark.slow
def test_results_into_a_closed_pipe(tiny_runs, tmp_path):
    """report prints a path, evaluate a table by rich; analyze and evaluate also write to standard error."""
    assert into_a_closed_pipe("report", tiny_runs["causal"], "--output", tmp_path) == (141, "")
    assert (tmp_path / "report.md").is_file()
    code, text = into_a_closed_pipe("evaluate", tiny_runs["masked"], "--splits", "ood")
    assert code == 141
    assert "Traceback" not in text
    assert "BrokenPipe" not in text
    assert into_a_closed_pipe("evaluate", tiny_runs["masked"], "--splits", "ood", stderr=True) == (141, "")


def test_a_reader_that_reads_to_the_end_changes_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "proteinlm.cli.main", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("proteinlm ")


def test_a_broken_pipe_to_anything_else_is_a_bug(monkeypatch):
    def broken(_arguments):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setitem(COMMANDS, "report", broken)
    with pytest.raises(BrokenPipeError):
        main(["report"])
