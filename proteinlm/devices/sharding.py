"""The device mesh, and the sharding of batches, model and optimizer state on it.

Rows of a batch are split over the axes "data" and "fsdp", the tokens of a row over "sequence", parameters over "fsdp"
and "tensor" by the rules below. Layers of a model are stacked; the axis of layers is scanned over and not split.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from proteinlm.config import Config, MeshConfig
from proteinlm.errors import InputError
from proteinlm.models.attention import Attention, MechanismConfig
from proteinlm.models.sharding_hooks import WHOLE, Layout

AXES = ("data", "fsdp", "tensor", "sequence")
ROWS = ("data", "fsdp")
"""Mesh axes that split the rows of a batch."""

# (pattern of `leaf_name`, axis of each dimension); the first pattern that matches counts. Names of the optimizer's
# moments end with the names of their parameters. A dimension that its axis does not divide is not split.
RULES: tuple[tuple[str, P], ...] = (
    # [N, in, out], split where heads are (out of the first, into the last) or where the feed-forward part is wide.
    (r"blocks/(query|key|value|up|gate)/kernel/", P(None, "fsdp", "tensor")),
    (r"blocks/(query|key|value|up|gate)/bias/", P(None, "tensor")),
    (r"blocks/(out|down)/kernel/", P(None, "tensor", "fsdp")),
    (r"blocks/(out|down)/bias/", P()),
    (r"(^|/)(attention_norm|mlp_norm|norm)/(scale|bias)/", P()),
    # [V, F] and [max_length, F], [F, V].
    (r"(^|/)embedding/", P(None, "fsdp")),
    (r"(^|/)head/kernel/", P("fsdp", None)),
    (r"(^|/)(head/bias|output_bias)/", P()),
    # Counters.
    (r"(^|/)(count|step)$", P()),
)


def make_mesh(config: MeshConfig | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh of a config, with the devices of each process next to one another.

    Args:
        config: sizes of the axes; None puts all devices on "data".
        devices: devices of the mesh; None takes all devices of the run.

    Raises:
        InputError: the product of the sizes is not the number of devices.
    """
    all_devices = list(jax.devices() if devices is None else devices)
    sizes = [getattr(config or MeshConfig(), axis) for axis in AXES]
    number, fixed = len(all_devices), int(np.prod([size for size in sizes if size != -1]))
    if -1 in sizes and number % fixed == 0:
        sizes[sizes.index(-1)] = number // fixed
    if -1 in sizes or np.prod(sizes) != number:
        options = ", ".join(f"mesh.{axis} {size}" for axis, size in zip(AXES, sizes, strict=True))
        raise InputError(
            f"{options} do not fit {number} devices: the product must be the number of devices; one of the four may be "
            "-1, for all devices that the others leave."
        )
    return Mesh(np.asarray(all_devices).reshape(sizes), AXES)


def describe(mesh: Mesh) -> dict[str, Any]:
    """Return mesh, kind of device and number of processes, on which the last digits of sums depend, in JSON's types."""
    devices = list(mesh.devices.flat)
    return {
        "mesh": dict(mesh.shape),
        "device": devices[0].device_kind,
        "processes": len({device.process_index for device in devices}),
    }


def one_device() -> Mesh:
    """Return the mesh of one device, the first of this process."""
    return make_mesh(devices=jax.local_devices()[:1])


def check_fits(config: Config, mesh: Mesh) -> None:
    """Raise InputError unless the axes of the mesh divide the rows, tokens and heads of a config."""
    rows, parts = row_blocks(mesh), config.accumulate
    if config.batches.batch_size % (rows * parts):
        of_parts = f" in each of {parts} parts (accumulate)" if parts > 1 else ""
        raise InputError(
            f"batches.batch_size is {config.batches.batch_size}, which cannot be split evenly over {rows} devices "
            f"(mesh.data x mesh.fsdp){of_parts}: make it a multiple of {rows * parts}."
        )
    if config.model.num_heads % mesh.shape["tensor"]:
        raise InputError(
            f"model.num_heads is {config.model.num_heads}, which mesh.tensor, {mesh.shape['tensor']}, does not divide: "
            "every device of that axis must have the same number of heads."
        )
    devices, attention = mesh.shape["sequence"], config.model.attention
    spread = devices > 1 and not attention.no_spread and config.batches.form != "isolated"
    block = attention.spread_multiple if spread else 1
    for length in config.batches.padded_lengths:
        if length % (devices * block):
            of_blocks = f" in whole blocks of {block} (model.attention.block_size)" if block > 1 else ""
            raise InputError(
                f"a batch may be {length} tokens long, which mesh.sequence, {devices}, does not divide{of_blocks}: "
                f"make batches.length and batches.buckets multiples of {devices * block}."
            )


def evaluation_mesh(config: Config) -> Mesh:
    """Return the mesh to evaluate a run on.

    Use the run's mesh if it fits this machine; otherwise split rows over the largest number of devices that divides the
    batch.

    Raises:
        InputError: there are several processes, which must use all devices, and these do not divide the batch.
    """
    try:
        mesh = make_mesh(config.mesh)
        check_fits(config, mesh)
    except InputError:
        count = len(jax.devices())
        if jax.process_count() == 1:
            count = int(np.gcd(config.batches.batch_size, count))
        mesh = make_mesh(devices=jax.devices()[:count])
        if config.batches.batch_size % count:
            raise
    return mesh


def partition(name: str, shape: Sequence[int], mesh: Mesh, attention: MechanismConfig) -> P:
    """Return the partition spec of one array.

    Args:
        name: name from `leaf_name`.
        shape: shape of the array.
        mesh: mesh of devices.
        attention: config of the model's mechanism, which places the mechanism's arrays.

    Raises:
        ValueError: there is no rule for the name, or the rule has more dimensions than the array.
    """
    spec = _rule(name, len(shape), attention)
    if len(spec) > len(shape):
        raise ValueError(f"{name} has shape {tuple(shape)}, but its rule in sharding.RULES is {spec}")
    pairs = zip(spec, shape[: len(spec)], strict=True)
    return P(*(axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in pairs))


def _rule(name: str, dimensions: int, attention: MechanismConfig) -> P:
    _, mechanism, inside = name.rpartition("/mechanism/")
    if mechanism:
        # A mechanism's arrays are whole on every device, except where its config names an axis.
        axes = [axis % dimensions for pattern, axis in attention.split_axes if re.search(pattern, inside)]
        return P(*("fsdp" if axis == axes[0] else None for axis in range(dimensions))) if axes else P()
    for pattern, spec in RULES:
        if re.search(pattern, name):
            return spec
    raise ValueError(f"sharding.RULES has no rule for {name}: add one")


def state_shardings(state: Any, mesh: Mesh, attention: MechanismConfig) -> Any:
    """Return the tree of shardings of a model or of a training state.

    Args:
        state: tree of arrays or ShapeDtypeStructs.
        mesh: mesh of devices.
        attention: config of the model's mechanism, which places the mechanism's arrays.
    """

    def place(path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, partition(leaf_name(path), leaf.shape, mesh, attention))

    return jax.tree_util.tree_map_with_path(place, state)


def leaf_name(path: Any) -> str:
    """Return the name of a leaf by its path in a tree, such as "model/blocks/mlp/up/kernel/value"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def abstract(state: Any, mesh: Mesh, attention: MechanismConfig) -> Any:
    """Return the tree of shapes, dtypes and shardings of a state, to compile for or to restore into.

    Arguments are those of `state_shardings`.
    """

    def described(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(described, state, state_shardings(state, mesh, attention))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch's arrays: rows, the first axis, over "data" and "fsdp"."""
    return NamedSharding(mesh, P(ROWS))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array of which every device has a copy."""
    return NamedSharding(mesh, P())


def row_blocks(mesh: Mesh) -> int:
    """Return the number of blocks into which the rows of a batch are split."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def row_share(mesh: Mesh) -> tuple[int, int]:
    """Return (i, n): this process reads the rows [i B/n, (i + 1) B/n) of every batch of B rows.

    n is below the number of processes if devices of several processes share a row ("tensor", "sequence").

    Raises:
        InputError: the rows are not split evenly among the processes.
    """
    process = np.vectorize(lambda device: device.process_index, otypes=[int])(mesh.devices)
    mine = np.unique(np.nonzero((process == jax.process_index()).reshape(row_blocks(mesh), -1))[0])
    share, rest = divmod(row_blocks(mesh), len(mine))
    if rest or mine[0] % len(mine) or mine[-1] - mine[0] != len(mine) - 1:
        raise InputError(
            f"the mesh {dict(mesh.shape)} does not split rows evenly among processes: process {jax.process_index()} "
            f"has blocks {mine.tolist()} of {row_blocks(mesh)}. Make mesh.tensor x mesh.sequence a divisor or a "
            "multiple of the number of devices of a process."
        )
    return int(mine[0]) // len(mine), share


def place_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Turn the rows of a batch that this process read into global arrays, with rows split over the devices."""
    rows, (_, share) = batch_sharding(mesh), row_share(mesh)

    def place(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(rows, array, (len(array) * share, *array.shape[1:]))

    return {name: place(array) for name, array in batch.items()}


class MeshLayout(Layout):
    """The layout of a model on a mesh: rows, tokens and heads are split; parameters are gathered layer by layer."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh

    def tables(self, state: Any) -> Any:
        """Gather the embedding tables: a lookup in a split table would give vectors split by width and not by row."""

        def gather(path: Any, leaf: jax.Array) -> jax.Array:
            if "embedding" not in leaf_name(path):
                return leaf
            return jax.lax.with_sharding_constraint(leaf, replicated(self._mesh))

        return jax.tree_util.tree_map_with_path(gather, state)

    def residual(self, x: jax.Array) -> jax.Array:
        """Split [B, L, F] by rows and tokens, so that parameters and not activations move between devices."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(self._mesh, P(ROWS, "sequence", None)))

    def attend(
        self,
        mechanism: Attention,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        causal: bool,
        key_mask: jax.Array | None = None,
        segments: jax.Array | None = None,
    ) -> jax.Array:
        """Compute attention on each device for its rows and heads, without communication: no mechanism mixes them.

        If the mechanism supports it (`axis` of `Attention`), each device of "sequence" has a part of the tokens of a
        row. Otherwise all devices of that axis compute the same whole rows.
        """
        graph, state = nnx.split(mechanism)
        alone = self._mesh.shape["sequence"] == 1
        spread = not (alone or mechanism.config.no_spread) and segments is None
        # Gradients are summed over each axis that has no name in the specs; an axis of one device needs no sum.
        tokens = "sequence" if alone or spread else None
        heads, rows = P(ROWS, tokens, "tensor", None), P(ROWS, tokens)

        @partial(
            jax.shard_map, mesh=self._mesh, in_specs=(P(), heads, heads, heads, rows, rows), out_specs=heads,
            check_vma=False,
        )  # fmt: skip
        def local(state: Any, q: Any, k: Any, v: Any, key_mask: Any, segments: Any) -> jax.Array:
            mechanism = nnx.merge(graph, state)
            mechanism.num_heads = q.shape[2]
            axis = "sequence" if spread else None
            return mechanism(q, k, v, causal=causal, key_mask=key_mask, segments=segments, axis=axis)

        return local(state, q, k, v, key_mask, segments)


def layout(mesh: Mesh) -> Layout:
    """Return the layout of a model on a mesh."""
    return WHOLE if mesh.size == 1 else MeshLayout(mesh)
