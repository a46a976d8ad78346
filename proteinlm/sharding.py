"""Devices: the mesh, and where batches and state lie on it. No other file knows about devices."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from proteinlm.errors import InputError


def make_mesh() -> Mesh:
    """Return all devices of all processes on one axis, "data": each holds the whole model and a share of the batch."""
    return Mesh(np.asarray(jax.devices()), ("data",))


def check_batch_size(batch_size: int, mesh: Mesh) -> None:
    """Raise InputError unless the rows of a batch divide evenly among the devices."""
    if batch_size % mesh.size:
        raise InputError(
            f"batches.batch_size is {batch_size}, which {mesh.size} devices cannot share evenly: make it a multiple."
        )


def place_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Turn this process's rows of a batch into global arrays, split by row among the devices."""
    rows = NamedSharding(mesh, PartitionSpec("data"))
    return {name: jax.make_array_from_process_local_data(rows, array) for name, array in batch.items()}


def replicate(tree, mesh: Mesh):
    """Put a copy of every array of a tree on every device."""
    return jax.device_put(tree, replicated(mesh))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the placement of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())
