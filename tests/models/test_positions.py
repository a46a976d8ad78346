"""Places do not move with padding."""

import jax
import jax.numpy as jnp
import numpy as np

from proteinlm.models.positions import LearnedPositions, positions_of


def test_positions_do_not_move_with_padding():
    mask = jnp.array([[True, True, True, False, False], [False, False, True, True, True]])
    np.testing.assert_array_equal(positions_of(mask), [[0, 1, 2, 2, 2], [0, 0, 0, 1, 2]])


def test_learned_positions_are_rows_of_one_table():
    positions = LearnedPositions(5, 4, jax.random.key(0))
    places = jnp.array([[4, 0, 4]])
    np.testing.assert_array_equal(positions(places)[0], positions.embedding[...][places[0]])
    assert positions(places).dtype == jnp.float32
