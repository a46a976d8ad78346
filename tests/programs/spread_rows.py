"""Compare rows split over 8 virtual devices with the same rows on one device; print the differences as JSON.

It is a separate program, because the number of devices is fixed when JAX starts.
usage: python spread_rows.py attention CASE:MODE:DTYPE:PADDING ...    differences of values and gradients
       python spread_rows.py nan CASE:MODE ...                        which rows, padded on the left, read NaN
       python spread_rows.py model LENGTH:DEVICES:STEPS ...           steps of a model: memory, losses
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from mechanisms import CASES
from parameters import shaken

from proteinlm.config import VOCAB_SIZE, BatchesConfig, Config, FavorConfig, MeshConfig, ModelConfig
from proteinlm.devices import sharding
from proteinlm.training.step import TrainStep

B, L, H, D, E = 3, 64, 2, 6, 5
SPREAD = MeshConfig(data=1, sequence=8)


def inputs(dtype, padding):
    """Large queries and keys, so that the largest log scale is on different devices; rows of three lengths."""
    keys = jax.random.split(jax.random.key(0), 4)
    q, k = (3 * jax.random.normal(key, (B, L, H, D)) for key in keys[:2])
    v, weights = (jax.random.normal(key, (B, L, H, E)) for key in keys[2:])
    lengths = jnp.array([L, 21, 0])[:, None]
    mask = jnp.arange(L)[None] < lengths if padding == "right" else jnp.arange(L)[None] >= L - lengths
    return [x.astype(dtype) for x in (q, k, v)], weights, mask


def build(name):
    return shaken(CASES[name].config.build(num_heads=H, head_dim=D, key=jax.random.key(1)))


def difference(found, expected):
    """Return the largest difference divided by the largest absolute value."""
    found, expected = (np.asarray(x, np.float32) for x in (found, expected))
    assert np.abs(expected).max() > 0
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def compare(name, mode, dtype, padding):
    graph, parameters, others = nnx.split(build(name), nnx.Param, ...)
    qkv, weights, mask = inputs(dtype, padding)

    def run(layout):
        def read(parameters, q, k, v):
            mechanism = nnx.merge(graph, parameters, others)
            out = layout.attend(mechanism, q, k, v, causal=mode == "causal", key_mask=mask)
            # The output of a padded query is not specified.
            out = jnp.where(mask[:, :, None, None], out.astype(jnp.float32), 0.0)
            return (out * weights).sum(), out

        read = jax.jit(jax.value_and_grad(read, argnums=(0, 1, 2, 3), has_aux=True))
        (_, out), gradients = read(parameters, *qkv)
        return {"out": out, **dict(zip(("parameters", "q", "k", "v"), gradients, strict=True))}

    spread, whole = run(sharding.MeshLayout(sharding.make_mesh(SPREAD))), run(sharding.WHOLE)
    differences = jax.tree.map(difference, spread, whole)
    return differences | {"parameters": max(jax.tree.leaves(differences["parameters"]), default=0.0)}


def rows_of_nan(name, mode):
    layout, mechanism = sharding.MeshLayout(sharding.make_mesh(SPREAD)), build(name)
    (q, k, v), _, mask = inputs("float32", "left")
    attend = jax.jit(lambda q, k, v: layout.attend(mechanism, q, k, v, causal=mode == "causal", key_mask=mask))
    return np.isnan(attend(q, k, v)).any((1, 2, 3)).tolist()


def train(length, devices, num_steps):
    length, devices = int(length), int(devices)
    config = Config(
        model=ModelConfig(
            vocab_size=VOCAB_SIZE, num_layers=2, num_heads=2, embed_dim=32, mlp_dim=64, max_length=length, remat="full",
            positions="rotary", attention=FavorConfig(num_features=16),
        ),
        batches=BatchesConfig(form="concat", length=length, batch_size=1),
        mesh=MeshConfig(data=1, sequence=devices),
    )  # fmt: skip
    train_step = TrainStep(config, sharding.make_mesh(config.mesh, jax.devices()[:devices]))
    step = train_step.step.lower(train_step.abstract_state, train_step.abstract_batch(1, length)).compile()
    generator, state, steps = np.random.default_rng(0), train_step.init(), []
    batch = {
        "tokens": generator.integers(4, VOCAB_SIZE, (1, length)).astype(np.uint8),
        "keys": generator.integers(0, 2**32, (1, 2), np.uint32),
    }
    for _ in range(int(num_steps)):
        state, metrics = step(state, sharding.place_batch(batch, train_step.mesh))
        steps.append([float(metrics[name]) for name in ("loss", "gradient_norm", "count")])
    return {"steps": steps, "temporary_bytes": step.memory_analysis().temp_size_in_bytes}


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    work = {"attention": compare, "nan": rows_of_nan, "model": train}[sys.argv[1]]
    print(json.dumps({argument: work(*argument.split(":")) for argument in sys.argv[2:]}))
