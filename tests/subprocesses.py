"""The environment of a Python process that a test starts."""

import os
from pathlib import Path

TESTS = Path(__file__).parent


def environment(devices):
    """Return the variables for a process with so many CPU devices, which imports this checkout and these tests."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    return {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
