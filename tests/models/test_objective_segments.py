"""Objectives on isolated rows: every protein is asked what it is asked alone in its row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_memory import dataset

from proteinlm import alphabet
from proteinlm.config import ObjectiveConfig
from proteinlm.data.batches.batches import BatchesConfig, evaluation_batches
from proteinlm.models.objective import make_example, residue_weights, sum_tokens, token_sums
from proteinlm.models.objective_segments import bits_at, residues_at, uniform_at

KEY = jax.random.key(7)


def test_draws_at_a_place_are_those_of_jax():
    # What everything here rests on; a JAX that changes its bits is to be seen here first.
    keys = jax.random.split(KEY, 3)
    places = jnp.arange(400)
    first = alphabet.FIRST_RESIDUE
    for key in keys:
        own = jnp.broadcast_to(key, places.shape)
        np.testing.assert_array_equal(bits_at(own, places), jax.random.bits(key, (400,), jnp.uint32))
        np.testing.assert_array_equal(uniform_at(own, places), jax.random.uniform(key, (400,)))
        expected = jax.random.randint(key, (400,), first, first + alphabet.NUM_STANDARD, jnp.int32)
        np.testing.assert_array_equal(residues_at(own, places), expected)


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["causal", "masked"])
@pytest.mark.parametrize("step", [None, 3])
def test_a_protein_has_one_example_wherever_it_is_packed(kind, step):
    """Inputs, targets, weights and sums of tokens, against single rows; some proteins are clipped."""
    config, data = ObjectiveConfig(kind=kind), dataset(60, longest=50)

    def examples(form):
        found = {}
        for batch in evaluation_batches(data, BatchesConfig(form, length=40, batch_size=4), "train"):
            segments = jnp.asarray(batch["segments"]) if form == "isolated" else None
            tokens, keys = jnp.asarray(batch["tokens"]), jnp.asarray(batch["keys"])
            example = make_example(tokens, keys, config, KEY, step, segments)
            # Any logits that are a function of the token asked for and of the one read.
            known = 3 * example.targets + example.inputs
            logits = jnp.sin(known[:, :, None] * jnp.arange(1, alphabet.SIZE + 1)[None, None])
            sums = token_sums(logits, example.targets, example.weights, segments)
            residues = sum_tokens(residue_weights(example.targets, example.weights), segments)
            parts = np.stack([np.asarray(x, np.float64) for x in (*sums, residues)], axis=-1)
            for place in np.argwhere(batch["rows"] >= 0):
                row, number = int(place[0]), int(batch["rows"][tuple(place)])
                own = batch["tokens"][row] > 0 if segments is None else segments[row] == place[1] + 1
                found[number] = [np.asarray(x)[row][own] for x in example], parts[tuple(place)]
        return found

    alone, packed = examples("single"), examples("isolated")
    assert sorted(alone) == sorted(packed) == list(range(60))
    for number, (example, sums) in alone.items():
        for a, b in zip(example, packed[number][0], strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(packed[number][1], sums, rtol=1e-5)
        if kind == "causal":
            assert example[0][0] == alphabet.BOS
