"""What is compiled: precision, memory, parts of a batch."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layouts import MODEL
from tiny_models import mechanism

from proteinlm.config import BatchesConfig, Config, ObjectiveConfig
from proteinlm.devices.sharding import one_device
from proteinlm.training.step import TrainStep

ROWS, LENGTH = 8, 64
# Takes a quarter of the time to compile; nothing here depends on how XLA fuses.


def train_step(kind="causal", **changes):
    fields = {"accumulate": changes.pop("accumulate", 1)}
    model = dataclasses.replace(MODEL, max_length=LENGTH, dropout=0.0, attention=mechanism("favor", LENGTH), **changes)
    batches = BatchesConfig(length=LENGTH, batch_size=ROWS)
    config = Config(model=model, objective=ObjectiveConfig(kind), batches=batches, num_steps=4, **fields)
    return TrainStep(config, one_device())


def compiled(made):
    return made.step.lower(made.abstract_state, made.abstract_batch(ROWS, LENGTH)).compile()


def batch():
    generator = np.random.default_rng(0)
    tokens = generator.integers(4, MODEL.vocab_size, (ROWS, LENGTH)).astype(np.uint8)
    tokens[3, 5:] = 0
    return {"tokens": tokens, "keys": generator.integers(0, 2**32, (ROWS, 2), np.uint32)}


@functools.cache
def start():
    return jax.device_get(train_step()._init())


@functools.cache
def after_a_step(kind="causal", **changes):
    """(state, metrics) after one step from the same start, in NumPy."""
    made = train_step(kind, **changes)
    state = jax.device_put(start(), jax.tree.map(lambda leaf: leaf.sharding, made.abstract_state))
    placed = jax.device_put(batch(), made.abstract_batch(ROWS, LENGTH)["tokens"].sharding)
    return jax.device_get(compiled(made)(state, placed))


@pytest.mark.slow
def test_bfloat16_computes_and_float32_keeps():
    made = train_step(dtype="bfloat16")
    arguments = made.abstract_state, made.abstract_batch(ROWS, LENGTH)
    state, metrics = jax.eval_shape(made._step, *arguments)
    for leaf in [*jax.tree.leaves(state), *jax.tree.leaves(metrics)]:
        assert leaf.dtype in (jnp.float32, jnp.int32)
    # Products with kernels are in bfloat16, forward and backward: three each for six kernels of the scanned layer.
    text = str(jax.make_jaxpr(made._step)(*arguments))
    assert len(re.findall(r":bf16\[[\d,]*\] = dot_general", text)) == 18

    (low_state, low), (high_state, high) = after_a_step(dtype="bfloat16"), after_a_step()
    for name in ("loss", "gradient_norm", "parameter_norm"):
        np.testing.assert_allclose(low[name], high[name], rtol=2e-3)
    # The direction of the gradient, of which the first moment is a multiple after one step.
    a, b = (np.concatenate([x.ravel() for x in jax.tree.leaves(moment(s))]) for s in (low_state, high_state))
    assert (a != b).any()
    assert a @ b > 0.999 * np.linalg.norm(a) * np.linalg.norm(b)


def moment(state):
    return nnx.to_pure_dict(state["optimizer"][1][0].mu)


@pytest.mark.slow
def test_remat_trades_memory_for_time():
    """Temporaries of the compiled step, and the numbers of a step."""
    temporary = {}
    for remat in ("none", "dots", "full"):
        wide = train_step(remat=remat, num_layers=6)
        temporary[remat] = compiled(wide).memory_analysis().temp_size_in_bytes
    assert temporary["none"] > 1.5 * temporary["dots"] > 1.5 * 1.1 * temporary["full"], temporary


def test_parts_of_a_batch_add_up_to_it():
    """Masked: each row's mask is that of the whole batch, and parts with more selected residues weigh more."""
    state, metrics = after_a_step("masked")
    parts_state, parts_metrics = after_a_step("masked", accumulate=4)
    assert metrics["count"] == parts_metrics["count"] > 0
    for name, value in metrics.items():
        np.testing.assert_allclose(parts_metrics[name], value, rtol=1e-5)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-7)
    jax.tree.map(close, moment(parts_state), moment(state))


def test_a_step_is_compiled_from_shapes_alone():
    made = train_step()
    state, metrics = jax.eval_shape(made.step, made.abstract_state, made.abstract_batch(ROWS, LENGTH))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), made.abstract_state
    )
    assert metrics["loss"].shape == ()
