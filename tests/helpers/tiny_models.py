"""Models in a size for tests, one for each mechanism."""

import dataclasses
import functools

import jax
from flax import nnx
from mechanisms import CASES

from proteinlm.models.transformer import ModelConfig, ProteinLM

V = 29
TINY = ModelConfig(
    vocab_size=V,
    num_layers=3,
    num_heads=2,
    embed_dim=16,
    mlp_dim=24,
    max_length=32,
    dropout=0.1,
    attention=CASES["favor"].config,
)
# The first case of every kind.
KINDS = list({case.config.kind: name for name, case in reversed(CASES.items())}.values())[::-1]
# Cases whose parts all occur in other cases; they are not compiled in whole models, and slow where they are tested.
_SIMILAR = {
    *("sigmoid", "exp", "abs", "gelu", "tanh", "identity"),
    *("polysketch_random", "polysketch_2", "polysketch_8", "polysketch_signed"),
    "polynomial_2",
}
DISTINCT = [name for name in CASES if name not in _SIMILAR]
CAUSAL_KINDS = [name for name in KINDS if not CASES[name].config.no_causal]


def mechanism(name, max_length=TINY.max_length):
    """The config of a case, with the length of the model if it has a length."""
    config = CASES[name].config
    return dataclasses.replace(config, max_length=max_length) if hasattr(config, "max_length") else config


def build(*, causal=True, seed=0, **changes):
    graph, state = _built(causal, seed, **changes)
    return nnx.merge(graph, state)


@functools.cache
def _built(causal, seed, **changes):
    return nnx.split(ProteinLM(dataclasses.replace(TINY, **changes), causal=causal, key=jax.random.key(seed)))


def loud(model):
    """The model with parameters large enough that every part matters to the logits."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    params = jax.tree.map(lambda x: 2 * x if x.ndim > 1 else x, params)
    return nnx.merge(graph, params, rest)


def num_parameters(model):
    """The number of trained parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def logits(model, tokens, dropout_key=None, segments=None):
    return _logits(*nnx.split(model), tokens, dropout_key, segments)


@functools.partial(jax.jit, static_argnums=0)
def _logits(graph, state, tokens, dropout_key, segments):
    return nnx.merge(graph, state)(tokens, segments=segments, dropout_key=dropout_key)


def some_tokens(*shape, seed=1):
    return jax.random.randint(jax.random.key(seed), shape, 4, V)
