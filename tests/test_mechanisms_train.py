"""Every mechanism trains in a model by choosing its config: on real proteins, the loss falls."""

import dataclasses

import numpy as np
import pytest
from mechanisms import CAUSAL
from tiny_models import DISTINCT, mechanism

from proteinlm.config import (
    VOCAB_SIZE,
    BatchesConfig,
    Config,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
)
from proteinlm.logs import read_metrics
from proteinlm.train import train

MODEL = ModelConfig(vocab_size=VOCAB_SIZE, num_layers=2, num_heads=2, embed_dim=32, mlp_dim=64, max_length=64)


def losses(model, kind, dataset, run):
    """The 20 losses of a short training."""
    config = Config(
        model=dataclasses.replace(model, dropout=0.0),
        objective=ObjectiveConfig(kind=kind),
        optimizer=OptimizerConfig(learning_rate=1e-2, clip=1.0),
        batches=BatchesConfig(length=64, batch_size=8),
        num_steps=20,
        eval_every=0,
        checkpoint_every=20,
        log_every=1,
        # Features that are redrawn on the way keep what was learned.
        redraw_every=12,
    )
    train(config, dataset, run)
    return [record["loss"] for record in read_metrics(run) if record["kind"] == "train"]


def assert_falls(curve):
    assert len(curve) == 20
    assert np.isfinite(curve).all()
    # The untrained model's loss is about log 29 + 1/2 = 3.9, residue frequencies alone reach 2.9.
    assert np.mean(curve[-5:]) < np.mean(curve[:3]) - 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in DISTINCT for kind in ("causal", "masked") if kind == "masked" or name in CAUSAL],
)
def test_the_loss_falls_in_twenty_steps(tmp_path, tiny_dataset, name, kind):
    model = dataclasses.replace(MODEL, attention=mechanism(name, MODEL.max_length))
    assert_falls(losses(model, kind, tiny_dataset, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_loss_falls_in_a_transformerpp(tmp_path, tiny_dataset, norm):
    model = dataclasses.replace(
        MODEL, attention=mechanism("softmax"), positions="sinusoidal_rotary", feed_forward="geglu", tied_output=True,
        norm=norm, dtype="bfloat16", remat=True,
    )  # fmt: skip
    assert_falls(losses(model, "causal", tiny_dataset, tmp_path / "run"))
