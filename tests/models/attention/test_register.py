"""A mechanism from outside the package: registered, it builds, trains, is saved with a config, read back and probed."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import TINY, some_tokens

from proteinlm.config import (
    ATTENTION,
    Attention,
    BatchesConfig,
    Config,
    MechanismConfig,
    ModelConfig,
    SoftmaxConfig,
    register_attention,
)
from proteinlm.devices.sharding import make_mesh, one_device
from proteinlm.inference.probing import Probe
from proteinlm.models.attention.base import visible_pairs
from proteinlm.models.transformer import ProteinLM
from proteinlm.training.step import TrainStep

LENGTH = 16


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """The registry with the toy for one test: other tests go through all mechanisms."""
    monkeypatch.setitem(ATTENTION, "mean", MeanConfig)


@dataclass(frozen=True)
class MeanConfig(MechanismConfig):
    """The mean of the visible values, all that a mechanism must say of itself: a name and how it is built."""

    kind = "mean"
    gain: float = 1.0

    def build(self, *, num_heads, head_dim, key):
        return MeanAttention(self, num_heads=num_heads, head_dim=head_dim)


class MeanAttention(Attention):
    def _attend(self, q, k, v, causal, key_mask):
        weights = self._weights(q, k, causal, key_mask)
        return jnp.einsum("bhij,bjhe->bihe", weights, v.astype(jnp.float32)).astype(v.dtype)

    def _weights(self, q, k, causal, key_mask):
        pairs = visible_pairs(q.shape[1], causal, key_mask).astype(jnp.float32)
        shape = (q.shape[0], q.shape[2], q.shape[1], q.shape[1])
        weights = self.config.gain * pairs / jnp.maximum(pairs.sum(-1, keepdims=True), 1.0)
        return jnp.broadcast_to(weights, shape)


def config(**options):
    model = dataclasses.replace(TINY, max_length=LENGTH, dropout=0.0, attention=MeanConfig(**options))
    return Config(model=model, batches=BatchesConfig(length=LENGTH, batch_size=8))


def test_a_registered_mechanism_is_read_back_from_json():
    before = config(gain=0.5)
    assert '"kind": "mean"' in before.to_json()
    assert Config.from_json(before.to_json()) == before
    assert MeanConfig(gain=0.5).tiny(64) == MeanConfig(gain=0.5)


def test_a_kind_is_registered_once(monkeypatch):
    monkeypatch.delitem(ATTENTION, "mean")
    assert register_attention(MeanConfig) is MeanConfig
    assert register_attention(MeanConfig) is ATTENTION["mean"]

    @dataclass(frozen=True)
    class Other(SoftmaxConfig):
        kind = "mean"

    with pytest.raises(ValueError, match="Other has the kind 'mean', which MeanConfig is registered under"):
        register_attention(Other)
    assert ATTENTION["mean"] is MeanConfig


def test_a_registered_mechanism_runs_forward_and_is_probed():
    model = ProteinLM(config().model, causal=True, key=jax.random.key(0))
    tokens = some_tokens(2, 9)
    assert model(tokens).shape == (2, 9, TINY.vocab_size)
    maps = Probe(model, np.asarray(tokens, np.uint8)).maps()
    expected = np.tril(np.ones((9, 9))) / np.arange(1, 10)[:, None]
    np.testing.assert_allclose(maps, np.broadcast_to(expected, maps.shape), atol=1e-6)


@pytest.mark.parametrize("mesh", [one_device, make_mesh])
def test_a_registered_mechanism_trains(mesh):
    train_step = TrainStep(config(), mesh())
    state = train_step.init()
    before = np.asarray(nnx.to_pure_dict(state["model"])["blocks"]["value"]["kernel"])
    batch = {"tokens": np.asarray(some_tokens(8, LENGTH), np.uint8), "keys": np.zeros((8, 2), np.uint32)}
    state, metrics = train_step.step(state, batch)
    assert np.isfinite(metrics["loss"])
    assert (np.asarray(nnx.to_pure_dict(state["model"])["blocks"]["value"]["kernel"]) != before).any()


def test_what_a_mechanism_does_not_say_is_refused_with_its_name():
    model = ProteinLM(config().model, causal=True, key=jax.random.key(0))
    with pytest.raises(NotImplementedError, match="MeanAttention has no _prefill: write it"):
        model.prefill(some_tokens(1, 4), 8)
    with pytest.raises(NotImplementedError, match="MeanAttention has no _attend_segments: .* no_segments"):
        model(some_tokens(1, 4), segments=jnp.ones((1, 4), jnp.int32))


def test_a_model_takes_any_mechanism_as_a_default_would():
    assert ModelConfig(vocab_size=5, attention=MeanConfig()).attention.label == "mean"
