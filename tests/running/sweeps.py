"""Sweeps of which `make test` runs a part, and `make test-all` everything."""

from collections.abc import Collection, Iterable

import pytest


def sweep(values: Iterable, fast: Collection) -> list:
    """Return parameters for pytest; a value is slow unless FAST has it, or its first part."""
    params = []
    for value in values:
        parts = value if isinstance(value, tuple) else (value,)
        params.append(pytest.param(*parts, marks=() if value in fast or parts[0] in fast else pytest.mark.slow))
    return params
