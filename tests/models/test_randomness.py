import itertools

import jax
import numpy as np
import pytest
from sweeps import sweep

from proteinlm.models.randomness import random_key, redraws_until


def bits(*arguments):
    return tuple(np.asarray(jax.random.key_data(random_key(*arguments))).tolist())


def test_a_key_is_a_pure_function_of_seed_purpose_and_step():
    every = [
        bits(seed, purpose, step)
        for seed in (0, 1)
        for purpose in ("parameters", "dropout", "masks", "features")
        for step in (0, 1, 2)
    ]
    assert len(set(every)) == len(every)
    assert bits(0, "dropout", 7) == bits(0, "dropout", 7)
    assert bits(0, "dropout", 7) == tuple(
        np.asarray(jax.jit(lambda s: jax.random.key_data(random_key(0, "dropout", s)))(7)).tolist()
    )


def test_an_unknown_purpose_is_an_error():
    with pytest.raises(KeyError):
        random_key(0, "luck")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("every", "growth"), sweep([(0, 1.0), (5, 1.0), (7, 1.5), (100, 2.0), (3, 1.01), (1, 1.0000001)], [0, 5, 7])
)
def test_redraws_by_step(every, growth):
    """Beside a count that walks from one redraw to the next."""
    places = []
    if every:
        total = 0.0
        while total < 2000:
            total += every * growth ** len(places)
            places.append(total)
    found = [redraws_until(step, every, growth) for step in range(2000)]
    # The walk adds up small errors, which matter at a half alone.
    expected = [sum(round(place - 1e-9) <= step for place in places) for step in range(2000)]
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= 2
    assert all(b - a in (0, 1) for a, b in itertools.pairwise(found))
    assert redraws_until(0, every, growth) == 0
    assert redraws_until(-1, every, growth) == 0
