"""Every experiment, made small, keeps its choices and trains."""

import dataclasses
import functools
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps import sweep

from proteinlm.config import BatchesConfig, Config, load_config, named_configs
from proteinlm.config.scale import LENGTH, scaled
from proteinlm.data.batches.batches import TrainBatches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.devices.sharding import one_device
from proteinlm.training.step import TrainStep, count_parameters

SIZES = {
    "num_layers", "num_heads", "embed_dim", "mlp_dim", "max_length", "attention", "num_features", "chunk_size",
    "block_size", "num_projections", "num_hashes", "num_buckets", "bucket_size", "sketch_size",
}  # fmt: skip


@functools.cache
def compiled(config):
    """The step of a config; those that differ in their batches' form alone share it."""
    train_step = TrainStep(config, one_device())
    lowered = train_step.step.lower(train_step.abstract_state, train_step.abstract_batch(8, LENGTH))
    return train_step, lowered.compile()


def some_state(train_step):
    """Small random parameters, of the optimizer zeros: drawing them as training does would be compiled for each."""
    generator = np.random.default_rng(1)

    def make(path, leaf):
        scale = 0.1 if jax.tree_util.keystr(path).startswith("['model']") else 0
        return jnp.asarray(scale * generator.standard_normal(leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(make, train_step.abstract_state)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", sweep(named_configs(), ["quickstart_concat", "sample_masked", "trembl_transformerpp_causal"])
)
def test_every_recipe_trains_when_tiny(name, tiny_dataset):
    """Two steps on real proteins, by the step that the run itself would compile."""
    config = scaled(load_config(name), "tiny")
    train_step, step = compiled(dataclasses.replace(config, batches=BatchesConfig(length=LENGTH)))
    assert count_parameters(train_step.abstract_state["model"]) < 100_000
    batches = TrainBatches(ProteinDataset.open(tiny_dataset), config.batches)
    state, losses = some_state(train_step), []
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(state["model"])]
    for _ in range(2):
        # Of the length that is compiled.
        batch = next(batch for batch in batches if batch["tokens"].shape[1] == LENGTH)
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    batches.close()
    assert np.isfinite(losses).all()
    # A new model's guess is near uniform over 29 tokens.
    assert all(2 < loss < 6 for loss in losses)
    assert int(state["step"]) == 2
    moved = [(a != b).any() for a, b in zip(before, jax.tree.leaves(state["model"]), strict=True)]
    # All but random features and, where attention returns V, queries and keys.
    assert sum(moved) > len(moved) / 2


@pytest.mark.parametrize("name", named_configs())
def test_tiny_keeps_the_choices(name):
    full = load_config(name)
    tiny = scaled(full, "tiny")
    assert scaled(full, "full") is full
    for before, after in ((full.model, tiny.model), (full.model.attention, tiny.model.attention)):
        assert type(before) is type(after)
        for field in dataclasses.fields(before):
            old, new = getattr(before, field.name), getattr(after, field.name)
            assert new == old or (field.name in SIZES and (field.name == "attention" or 0 < new < old)), field.name
    assert (tiny.objective, tiny.mesh, tiny.accumulate, tiny.seed) == (
        full.objective, full.mesh, full.accumulate, full.seed,
    )  # fmt: skip
    assert dataclasses.replace(tiny.optimizer, warmup_steps=full.optimizer.warmup_steps) == full.optimizer
    assert tiny.batches.form == full.batches.form
    # Small enough for the packaged sample, and still several lengths where there were.
    assert len(tiny.batches.padded_lengths) == min(2, len(full.batches.padded_lengths))
    assert all(a < b for a, b in pairwise((0, *tiny.batches.padded_lengths)))


def test_parts_of_a_batch_still_divide_it():
    parts = dataclasses.replace(Config(), accumulate=8)
    assert scaled(parts, "tiny").batches.batch_size == 64
