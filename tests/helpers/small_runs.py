"""Configs of small training runs, and fixtures that several test modules of training share."""

import pytest

from proteinlm.config import (
    VOCAB_SIZE,
    BatchesConfig,
    Config,
    FavorConfig,
    GeneralizedConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
)
from proteinlm.runs.logs import read_metrics

BATCH, LENGTH = 4, 48


def config(kind="causal", form="single", **fields):
    """A config of two layers, redrawn features, dropout and two padded lengths."""
    model = ModelConfig(
        vocab_size=VOCAB_SIZE,
        num_layers=2,
        num_heads=2,
        embed_dim=16,
        mlp_dim=32,
        max_length=LENGTH,
        dropout=0.1,
        attention=FavorConfig(num_features=8),
    )
    buckets = (24, LENGTH) if form == "single" else ()
    return Config(
        model=model,
        objective=ObjectiveConfig(kind=kind),
        optimizer=OptimizerConfig(learning_rate=3e-3, schedule="cosine", warmup_steps=3),
        batches=BatchesConfig(form=form, length=LENGTH, batch_size=BATCH, buckets=buckets),
        **{
            "num_steps": 20, "eval_every": 8, "eval_examples": 4, "checkpoint_every": 10, "log_every": 1,
            "redraw_every": 4, "keep_best": 0, **fields,
        },
    )  # fmt: skip


def small(**fields):
    """A config of one layer and one shape: little to compile."""
    model = ModelConfig(
        vocab_size=VOCAB_SIZE, num_layers=1, num_heads=2, embed_dim=16, mlp_dim=16, max_length=LENGTH, dropout=0.1,
        attention=GeneralizedConfig(num_features=8),
    )  # fmt: skip
    batches = BatchesConfig(length=LENGTH, batch_size=BATCH)
    return Config(
        model=model, batches=batches, optimizer=OptimizerConfig(warmup_steps=3),
        **{"num_steps": 4, "eval_every": 0, "checkpoint_every": 2, "log_every": 1, "redraw_every": 0, **fields},
    )  # fmt: skip


@pytest.fixture(scope="module")
def dataset(make_dataset):
    """A dataset of seven batches an epoch."""
    return make_dataset(form="single", batches=7, batch_size=BATCH, length=LENGTH)


@pytest.fixture
def unscored(monkeypatch):
    """Train without evaluating, which would be one more program to compile."""
    monkeypatch.setattr("proteinlm.training.train._evaluate", lambda *_, **__: (None, None))


def rows(run, kind):
    """The lines of a kind in a run's metrics.jsonl."""
    return [row for row in read_metrics(run) if row["kind"] == kind]
