"""Which lengths share a row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample import sample_records

from proteinlm.data.batches.packing import pack


def rows_of(packing):
    return [packing.lengths[a:b].tolist() for a, b in zip(packing.starts, packing.starts[1:], strict=False)]


@given(lengths=st.lists(st.integers(1, 30), max_size=200), capacity=st.integers(30, 60), seed=st.integers(0, 9))
def test_every_length_once_no_row_too_long_and_nothing_of_their_order(lengths, capacity, seed):
    packing = pack(np.array(lengths, int), capacity)
    rows = rows_of(packing)
    assert sorted(packing.lengths.tolist()) == sorted(lengths)
    assert packing.starts[-1] == len(lengths)
    assert all(row and sum(row) <= capacity for row in rows)
    # Of two rows no two are at most half full: best fit would have joined them.
    assert sum(2 * sum(row) <= capacity for row in rows) <= 1
    again = pack(np.random.default_rng(seed).permutation(np.array(lengths, int)), capacity)
    assert rows_of(again) == rows


def best_fit_decreasing(lengths, capacity):
    """One length after another, as a textbook has it: the number of rows."""
    rooms = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else capacity) - length)
    return sorted(rooms)


@given(lengths=st.lists(st.integers(1, 30), max_size=60), capacity=st.integers(30, 60))
def test_the_rows_are_those_of_best_fit_decreasing(lengths, capacity):
    rooms = [capacity - sum(row) for row in rows_of(pack(np.array(lengths, int), capacity))]
    assert sorted(rooms) == best_fit_decreasing(lengths, capacity)


@pytest.mark.parametrize("length", [1024, 8192])
def test_the_sample_fills_its_rows(length):
    """99 of 100 places hold a token; a row for each sequence fills 24 (L = 1,024) and 3 of them."""
    tokens = np.minimum([len(letters) + 1 for _, letters, _ in sample_records()], length)
    packing = pack(tokens, length)
    assert tokens.sum() / (length * (len(packing.starts) - 1)) > 0.99
    assert tokens.mean() / length < 0.25
