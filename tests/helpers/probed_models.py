"""Fixtures of the tests of probing and analysis: small models with sharp attention, and their explicit maps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proteinlm import alphabet
from proteinlm.inference.probing import Probe
from proteinlm.models.attention import ATTENTION
from proteinlm.models.transformer import ModelConfig, ProteinLM


@pytest.fixture(scope="session")
def make_model():
    """Return a function that builds a tiny, untrained model; the same arguments give the same model."""

    @functools.cache
    def make(
        kind="softmax",
        *,
        attention=None,
        causal=False,
        num_layers=2,
        num_heads=2,
        max_length=64,
        dtype="float32",
        **options,
    ):
        if kind in ("favor", "generalized"):
            # Chunks that do not divide the lengths of the tests.
            options = {"num_features": 16, "chunk_size": 7, **options}
        config = ModelConfig(
            vocab_size=alphabet.SIZE,
            num_layers=num_layers,
            num_heads=num_heads,
            embed_dim=8 * num_heads,
            mlp_dim=16,
            max_length=max_length,
            dtype=dtype,
            attention=attention or ATTENTION[kind](**options),
        )
        model = ProteinLM(config, causal=causal, key=jax.random.key(7))
        # Preferences as of a trained model, yet not so sharp that rounding in the layer below decides them.
        for linear in (model.blocks.query, model.blocks.key):
            if linear is not None:
                linear.kernel[...] = 1.2 * linear.kernel[...]
        return model

    return make


@pytest.fixture(scope="session")
def explicit_maps():
    """Return a function that gives every layer's matrix [layers, B, H, L, L] from the mechanisms' own references."""

    def explicit(model, tokens):
        q, k = Probe(model, tokens).queries_keys
        mask = tokens != alphabet.PAD
        maps = [
            model.attention(layer).weights(q[layer], k[layer], causal=model.causal, key_mask=jnp.asarray(mask))
            for layer in range(model.config.num_layers)
        ]
        # Rows of padding mean nothing: 0 by this package's convention.
        return np.where(mask[None, :, None, :, None], np.stack(maps), 0)

    return explicit
