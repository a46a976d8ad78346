"""Devices: the mesh, and where batches and state lie on it. No other file knows about devices.

Rows of a batch are split over the axes "data" and "fsdp", parameters over "fsdp" and "tensor" by the rules below, the
places of a row over "sequence". Layers of a model are stacked; their axis is scanned over and stays whole.
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
from proteinlm.models.layout import WHOLE, Layout

AXES = ("data", "fsdp", "tensor", "sequence")
ROWS = ("data", "fsdp")
"""The axes that split the rows of a batch."""

# Names are those of checkpoint.py; the first rule that is found in a name holds. The optimizer's moments have their
# parameters' names behind their own. An axis that does not divide a dimension leaves it whole.
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
    """Return the grid of devices that a config asks for, process after process along its rows.

    Args:
        config: sizes of the axes; None puts all devices on "data".
        devices: all devices of all processes, or some; of this run by default.

    Raises:
        InputError: the sizes do not multiply to the number of devices.
    """
    found = list(jax.devices() if devices is None else devices)
    sizes = [getattr(config or MeshConfig(), axis) for axis in AXES]
    rest, given = len(found), int(np.prod([size for size in sizes if size != -1]))
    if -1 in sizes and rest % given == 0:
        sizes[sizes.index(-1)] = rest // given
    if -1 in sizes or np.prod(sizes) != len(found):
        asked = ", ".join(f"mesh.{axis} {size}" for axis, size in zip(AXES, sizes, strict=True))
        raise InputError(
            f"{asked} do not make up the {len(found)} devices that there are: their product must be that number, and "
            "one of them may be -1, for what the others leave."
        )
    return Mesh(np.asarray(found).reshape(sizes), AXES)


def describe(mesh: Mesh) -> dict[str, Any]:
    """Return in JSON's types what sums depend on in their last digits: the mesh, the kind of device, the processes."""
    devices = list(mesh.devices.flat)
    return {
        "mesh": dict(mesh.shape),
        "device": devices[0].device_kind,
        "processes": len({device.process_index for device in devices}),
    }


def one_device() -> Mesh:
    """Return the mesh of this process's first device alone."""
    return make_mesh(devices=jax.local_devices()[:1])


def check_fits(config: Config, mesh: Mesh) -> None:
    """Raise InputError unless batches and heads of a config divide among the devices."""
    rows, parts = row_blocks(mesh), config.accumulate
    if config.batches.batch_size % (rows * parts):
        of_parts = f" in each of {parts} parts (accumulate)" if parts > 1 else ""
        raise InputError(
            f"batches.batch_size is {config.batches.batch_size}, which {rows} devices (mesh.data x mesh.fsdp) cannot "
            f"share evenly{of_parts}: make it a multiple of {rows * parts}."
        )
    if config.model.num_heads % mesh.shape["tensor"]:
        raise InputError(
            f"model.num_heads is {config.model.num_heads}, which mesh.tensor, {mesh.shape['tensor']}, does not divide: "
            "each device of that axis takes as many heads."
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
    """Return the mesh to evaluate a run on: the run's own, or where this machine differs, rows over what divides them.

    Raises:
        InputError: there are several processes, which cannot leave devices out, and batches do not divide among them.
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
    """Return how the array of a name (as of `checkpoint.named_arrays`) is split.

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
    raise ValueError(f"there is no rule for {name} in sharding.RULES: say there how it is split")


def state_shardings(state: Any, mesh: Mesh, attention: MechanismConfig) -> Any:
    """Return the placement of each array of a model's or a training state, by its name.

    Args:
        state: tree of arrays or ShapeDtypeStructs.
        mesh: of devices.
        attention: config of the model's mechanism, which places the mechanism's own arrays.
    """

    def place(path: Any, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, partition(leaf_name(path), leaf.shape, mesh, attention))

    return jax.tree_util.tree_map_with_path(place, state)


def leaf_name(path: Any) -> str:
    """Return the name of a leaf by its path in a tree, such as "model/blocks/mlp/up/kernel/value"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def abstract(state: Any, mesh: Mesh, attention: MechanismConfig) -> Any:
    """Return a state's shapes and dtypes with the placement of each array on the mesh: enough to compile or restore.

    Arguments are those of `state_shardings`.
    """

    def described(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(described, state, state_shardings(state, mesh, attention))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the placement of a batch's arrays: rows, the first axis, over "data" and "fsdp"."""
    return NamedSharding(mesh, P(ROWS))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the placement of an array that every device holds whole."""
    return NamedSharding(mesh, P())


def row_blocks(mesh: Mesh) -> int:
    """Return how many blocks the rows of a batch are split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def row_share(mesh: Mesh) -> tuple[int, int]:
    """Return (i, n): this process reads the rows [i B/n, (i + 1) B/n) of every batch of B.

    n is below the number of processes where a row's devices ("tensor", "sequence") belong to several of them.
    """
    process = np.vectorize(lambda device: device.process_index, otypes=[int])(mesh.devices)
    mine = np.unique(np.nonzero((process == jax.process_index()).reshape(row_blocks(mesh), -1))[0])
    share, rest = divmod(row_blocks(mesh), len(mine))
    if rest or mine[0] % len(mine) or mine[-1] - mine[0] != len(mine) - 1:
        raise InputError(
            f"the mesh {dict(mesh.shape)} gives process {jax.process_index()} the blocks of rows {mine.tolist()} of "
            f"{row_blocks(mesh)}, which are no even share: make mesh.tensor x mesh.sequence divide the devices of a "
            "process, or be a multiple of them."
        )
    return int(mine[0]) // len(mine), share


def place_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Turn this process's rows of a batch into global arrays, split by row among the devices."""
    rows, (_, share) = batch_sharding(mesh), row_share(mesh)

    def place(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_process_local_data(rows, array, (len(array) * share, *array.shape[1:]))

    return {name: place(array) for name, array in batch.items()}


class MeshLayout(Layout):
    """A model's arrays on a mesh: rows, places and heads split; a layer's parameters gathered where it works."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh

    def tables(self, state: Any) -> Any:
        """Gather the embeddings first: rows looked up in a split table would be split by width, and not by row."""

        def gather(path: Any, leaf: jax.Array) -> jax.Array:
            if "embedding" not in leaf_name(path):
                return leaf
            return jax.lax.with_sharding_constraint(leaf, replicated(self._mesh))

        return jax.tree_util.tree_map_with_path(gather, state)

    def residual(self, x: jax.Array) -> jax.Array:
        """Split [B, L, F] by rows and places, so that it is parameters that travel between devices."""
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
        """Attend on each device to its own rows and heads: no mechanism mixes either, so nothing travels.

        Over "sequence" each device has its own places where the mechanism can do with that (`axis` of `Attention`).
        Otherwise rows are whole, and every device of that axis does the work of all.
        """
        graph, state = nnx.split(mechanism)
        alone = self._mesh.shape["sequence"] == 1
        spread = not (alone or mechanism.config.no_spread) and segments is None
        # Gradients are summed over each axis that is not named here, so an axis of one device is.
        places = "sequence" if alone or spread else None
        heads, rows = P(ROWS, places, "tensor", None), P(ROWS, places)

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
