"""Train tiny models for a few steps on several meshes of 8 virtual devices; print their metrics as JSON.

It is a separate program, because the number of devices is fixed when JAX starts.
usage: python layouts.py MECHANISM:LAYOUT[,LAYOUT...] ...
"""

import dataclasses
import json
import sys

import jax
import numpy as np
from tiny_models import TINY, mechanism

from proteinlm.config import BatchesConfig, Config, MeshConfig, ObjectiveConfig, OptimizerConfig
from proteinlm.devices import sharding
from proteinlm.training.step import TrainStep

ROWS, LENGTH, STEPS = 8, 16, 3
MODEL = dataclasses.replace(TINY, num_layers=2, num_heads=4, embed_dim=32, mlp_dim=48, max_length=LENGTH)
LAYOUTS = {
    "one": {"data": 1},
    "data8": {"data": 8},
    "fsdp8": {"fsdp": 8},
    "data2_fsdp2_tensor2": {"data": 2, "fsdp": 2, "tensor": 2},
    "fsdp2_tensor2_sequence2": {"data": 1, "fsdp": 2, "tensor": 2, "sequence": 2},
    # Without dropout.
    "still": {"data": 1},
    "accumulate": {"data": 2, "fsdp": 2, "tensor": 2},
}
# The initial state of each mechanism, the same on every mesh.
START = {}


def first_state(name, layout, train_step):
    """Return the initial state with the shardings of the train step.

    To save time, `init` is compiled only for favor, on one device and on one mesh of eight.
    """
    if name == "favor" and layout in ("one", "data2_fsdp2_tensor2"):
        state = train_step.init()
        START.setdefault(name, jax.device_get(state))
        return state
    if name not in START:
        generator = np.random.default_rng(1)

        def make(path, leaf):
            of_model = jax.tree_util.keystr(path).startswith("['model']")
            values = 0.2 * generator.standard_normal(leaf.shape) if of_model else np.zeros(leaf.shape)
            return values.astype(leaf.dtype)

        START[name] = jax.tree_util.tree_map_with_path(make, train_step.abstract_state)
    return jax.tree.map(lambda x, leaf: jax.device_put(x, leaf.sharding), START[name], train_step.abstract_state)


def batches():
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        tokens = generator.integers(4, TINY.vocab_size, (ROWS, LENGTH)).astype(np.uint8)
        # Rows of all lengths, one of them empty.
        for row, length in enumerate(generator.permutation(ROWS) * LENGTH // (ROWS - 1)):
            tokens[row, length:] = 0
        yield {"tokens": tokens, "keys": generator.integers(0, 2**32, (ROWS, 2), np.uint32)}


def train(name, layout):
    attention = mechanism(name, LENGTH)
    accumulate = 2 if layout == "accumulate" else 1
    rate = 0.0 if layout in ("still", "accumulate") else MODEL.dropout
    config = Config(
        model=dataclasses.replace(MODEL, attention=attention, dropout=rate),
        objective=ObjectiveConfig("masked" if attention.no_causal else "causal"),
        optimizer=OptimizerConfig(learning_rate=1e-2),
        batches=BatchesConfig(length=LENGTH, batch_size=ROWS),
        num_steps=STEPS,
        mesh=MeshConfig(**LAYOUTS[layout]),
        accumulate=accumulate,
    )
    mesh = sharding.make_mesh(config.mesh, jax.devices()[: 1 if layout in ("one", "still") else 8])
    train_step = TrainStep(config, mesh)
    state = first_state(name, layout, train_step)
    size = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    losses = []
    for batch in batches():
        state, metrics = train_step.step(state, sharding.place_batch(batch, mesh))
        losses.append([float(metrics[key]) for key in ("loss", "gradient_norm", "parameter_norm", "count")])
    return {"steps": losses, "state_bytes_a_device": size}


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    found = {}
    for argument in sys.argv[1:]:
        name, layouts = argument.split(":")
        found[name] = {layout: train(name, layout) for layout in layouts.split(",")}
    print(json.dumps(found))
