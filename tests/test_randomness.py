import jax
import numpy as np
import pytest

from proteinlm.randomness import random_key


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
