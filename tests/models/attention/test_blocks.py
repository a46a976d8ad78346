"""Rows cut into blocks and put back."""

import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm.models.attention.blocks import join, split, split_mask


@pytest.mark.parametrize(("length", "block"), [(1, 1), (7, 3), (6, 3), (2, 5)])
def test_blocks_join_to_what_was_split(length, block):
    x = jnp.arange(2 * length * 3 * 4, dtype=jnp.float32).reshape(2, length, 3, 4)
    blocks = split(x, block)
    assert blocks.shape == (-(-length // block), 6, block, 4)
    # Row n is batch row n // H and head n % H; what fills the last block is 0.
    np.testing.assert_array_equal(blocks.swapaxes(0, 1).reshape(6, -1, 4)[4, :length], x[1, :, 1])
    assert (blocks.swapaxes(0, 1).reshape(6, -1, 4)[:, length:] == 0).all()
    np.testing.assert_array_equal(join(blocks, 2, length, 3), x)


def test_masks_are_cut_as_the_keys_and_hide_what_fills():
    mask = jnp.array([[True, False, True, True, True], [False, True, True, True, True]])
    cut = split_mask(mask, 2, 5, 3, 2)
    rows = cut.swapaxes(0, 1).reshape(6, -1)
    np.testing.assert_array_equal(rows[:, :5], jnp.repeat(mask, 3, axis=0))
    assert not rows[:, 5:].any()
    assert split_mask(None, 2, 4, 3, 2) is None
    assert split_mask(None, 2, 5, 3, 2).sum() == 2 * 3 * 5
