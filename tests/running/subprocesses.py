"""Processes that tests start: their programs and environment, all below one, and an end whatever happens."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "programs"


def environment(devices):
    """Return the variables for a process with so many CPU devices, which imports this checkout and these tests."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join(map(str, (TESTS / "helpers", TESTS.parent)))
    return {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}


@contextlib.contextmanager
def killed_at_the_end(process: subprocess.Popen) -> Iterator[None]:
    """Kill a process, and its group if it leads one, and close its pipes, also when a test fails in between.

    A process that is left behind is reported as a leak much later, by whichever test runs then.
    """
    with process:
        leads = os.getpgid(process.pid) == process.pid
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                if leads:
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()


def children(pid):
    """Return the ids of all processes below `pid`."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]
