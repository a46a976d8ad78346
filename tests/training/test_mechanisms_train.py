"""Every mechanism trains in a model by choosing its config: on real proteins, the loss falls."""

import dataclasses

import numpy as np
import pytest
from mechanisms import CAUSAL
from sweeps import sweep
from tiny_models import DISTINCT, mechanism

from proteinlm.config import (
    VOCAB_SIZE,
    BatchesConfig,
    Config,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
)
from proteinlm.data.batches.batches import TrainBatches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.training.step import TrainStep

MODEL = ModelConfig(
    vocab_size=VOCAB_SIZE, num_layers=2, num_heads=2, embed_dim=32, mlp_dim=64, max_length=64, dropout=0.0
)  # fmt: skip
BATCHES = BatchesConfig(length=64, batch_size=8)


@pytest.fixture(scope="module")
def batches(tiny_dataset):
    """Twenty batches of the sample."""
    loader = TrainBatches(ProteinDataset.open(tiny_dataset), BATCHES)
    taken = [next(loader) for _ in range(20)]
    loader.close()
    return taken


def losses(model, kind, batches):
    """The losses of twenty steps."""
    config = Config(
        model=model,
        objective=ObjectiveConfig(kind=kind),
        optimizer=OptimizerConfig(learning_rate=1e-2, clip=1.0),
        batches=BATCHES,
        num_steps=20,
    )
    train_step = TrainStep(config)
    # Not compiled: one by one, the programs that draw parameters serve all these tests.
    state, curve = train_step._init(), []
    for batch in batches:
        state, metrics = train_step.step(state, batch)
        curve.append(float(metrics["loss"]))
    return curve


def assert_falls(curve):
    assert len(curve) == 20
    assert np.isfinite(curve).all()
    # The untrained model's loss is about log 29 + 1/2 = 3.9, residue frequencies alone reach 2.9.
    assert np.mean(curve[-5:]) < np.mean(curve[:3]) - 0.2


@pytest.mark.parametrize(
    ("name", "kind"),
    sweep(
        [(name, kind) for name in DISTINCT for kind in ("causal", "masked") if kind == "masked" or name in CAUSAL],
        [("favor", "causal")],
    ),
)
def test_the_loss_falls_in_twenty_steps(batches, name, kind):
    model = dataclasses.replace(MODEL, attention=mechanism(name, MODEL.max_length))
    assert_falls(losses(model, kind, batches))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_loss_falls_in_a_transformerpp(batches, norm):
    model = dataclasses.replace(
        MODEL, attention=mechanism("softmax"), positions="sinusoidal_rotary", feed_forward="geglu", tied_output=True,
        norm=norm, dtype="bfloat16", remat="full",
    )  # fmt: skip
    assert_falls(losses(model, "causal", batches))
