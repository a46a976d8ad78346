"""Sweeps of which `make test` runs a part, and `make test-all` everything."""

from collections.abc import Collection, Iterable

import pytest


def sweep(values: Iterable, fast: Collection) -> list:
    """Return parameters for pytest; a value is slow unless it, or the first of it, is one of FAST."""
    params = []
    for value in values:
        parts = value if isinstance(value, tuple) else (value,)
        params.append(pytest.param(*parts, marks=() if parts[0] in fast else pytest.mark.slow))
    return params
