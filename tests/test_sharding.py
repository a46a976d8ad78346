import jax
import numpy as np
import pytest

from proteinlm import sharding
from proteinlm.errors import InputError


def test_a_batch_lies_on_the_mesh_as_it_was():
    mesh = sharding.make_mesh()
    assert mesh.size == jax.device_count()
    batch = {"tokens": np.arange(12, dtype=np.uint8).reshape(mesh.size * 2, -1)}
    placed = sharding.place_batch(batch, mesh)["tokens"]
    assert placed.dtype == np.uint8
    np.testing.assert_array_equal(placed, batch["tokens"])
    whole = sharding.replicate({"a": np.ones(3)}, mesh)["a"]
    assert whole.sharding.is_fully_replicated


def test_rows_must_divide_among_devices():
    class Four:
        size = 4

    sharding.check_batch_size(8, Four)
    with pytest.raises(InputError, match="6, which 4 devices"):
        sharding.check_batch_size(6, Four)
