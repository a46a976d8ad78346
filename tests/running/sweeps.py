"""Sweeps and variants of which `make test` runs a part, and `make test-all` everything."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from zlib import crc32

import pytest


def sweep(values: Iterable, fast: Collection) -> list:
    """Return parameters for pytest; a value is slow unless FAST has it, or its first part."""
    params = []
    for value in values:
        parts = value if isinstance(value, tuple) else (value,)
        params.append(pytest.param(*parts, marks=() if value in fast or parts[0] in fast else pytest.mark.slow))
    return params


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark variants of a test that has the mark `few(n)` as slow, all but n of them.

    Those that stay lie evenly over the variants. Where they begin depends on the test's name, so that tests over the
    same mechanisms take different ones, and `make test` as a whole reaches all.
    """
    variants = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            variants[item.nodeid.partition("[")[0]].append(item)
    for name, these in variants.items():
        count = min(these[0].get_closest_marker("few").args[0], len(these))
        first = crc32(name.encode()) % len(these)
        kept = {(first + i * len(these) // count) % len(these) for i in range(count)}
        for index, item in enumerate(these):
            if index not in kept:
                item.add_marker(pytest.mark.slow)
