"""The end of a test report: which tests were left out, why, and the command that brings them."""

from collections import Counter

import pytest

_SLOW = pytest.StashKey[int]()


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count the slow tests that `-m "not slow"` leaves out."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.config.stash[_SLOW] = item.config.stash.get(_SLOW, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's count to the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["slow"] = session.config.stash.get(_SLOW, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """Take a worker's count: every worker collects, and leaves out, the same tests."""
    node.config.stash[_SLOW] = getattr(node, "workeroutput", {}).get("slow", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the skipped tests, grouped by reason, and the number of slow ones."""
    lines = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    if slow := config.stash.get(_SLOW, 0):
        lines["slow: make test-all"] = slow
    if lines:
        terminalreporter.section("not run, and what it takes (pip: .venv/bin/pip; apt-get: on Debian)")
        for reason, number in sorted(lines.items()):
            terminalreporter.write_line(f"{number:5d} {reason}")


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
