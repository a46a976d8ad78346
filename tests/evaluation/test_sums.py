"""What is summed on the device, against plain loops over tokens in numpy."""

import dataclasses
import math
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from proteinlm import alphabet
from proteinlm.data.batches.batches import evaluation_batches
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.evaluation.breakdowns import BREAKDOWNS, BY_CONFIDENCE, CONFIDENCE_BINS, range_ends
from proteinlm.evaluation.evaluate import evaluate_split, make_evaluation_step
from proteinlm.evaluation.sums import SUM_TOLERANCE, sum_groups
from proteinlm.models.objective import make_example, token_sums, token_values
from proteinlm.models.randomness import random_key
from proteinlm.runs.loading import load_run

BY_TOKEN = (BREAKDOWNS["residue"], BREAKDOWNS["position"], BY_CONFIDENCE)


def plain_groups(config, model, dataset, split):
    """The same sums, token by token in float64: {(row, breakdown, cell): [nll, correct, count, confidence]}."""
    sums = defaultdict(lambda: np.zeros(4))
    forward = nnx.jit(lambda model, inputs, segments: model(inputs, segments=segments))
    for batch in evaluation_batches(dataset, config.batches, split):
        segments = batch.get("segments")
        on_device = None if segments is None else jnp.asarray(segments)
        tokens, keys = jnp.asarray(batch["tokens"]), jnp.asarray(batch["keys"])
        key = random_key(config.seed, "masks")
        inputs, targets, weights = make_example(tokens, keys, config.objective, key, segments=on_device)
        logits = np.asarray(forward(model, inputs, on_device), np.float64)
        targets, weights = np.asarray(targets), np.asarray(weights)
        for b, row in enumerate(targets):
            for place, token in enumerate(row):
                if not weights[b, place] or token < alphabet.FIRST_RESIDUE:
                    continue
                segment = 0 if segments is None else segments[b, place]
                number = batch["rows"][b] if segments is None else batch["rows"][b, segment - 1]
                start = 0 if segments is None else int(np.argmax(segments[b] == segment))
                x = logits[b, place]
                probabilities = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
                top = probabilities.max()
                value = [-math.log(probabilities[token]), float(x.argmax() == token), 1, top]
                bins = [token - alphabet.FIRST_RESIDUE, None, min(int(top * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)]
                ends = range_ends(config.batches.length)
                bins[1] = next(i for i, end in enumerate(ends) if place - start + 1 <= end)
                for name, cell in zip(BY_TOKEN, bins, strict=True):
                    sums[int(number), name.name, int(cell)] += value
    return sums


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["causal", "masked", "concat", "isolated"])
def test_groups_are_those_of_a_plain_loop_and_add_up_to_the_total(tiny_runs, kind):
    run = load_run(tiny_runs["masked" if kind == "isolated" else kind])
    config = run.config
    if kind == "isolated":
        config = dataclasses.replace(
            config, batches=dataclasses.replace(config.batches, form="isolated", batch_size=3, buckets=())
        )
    dataset = ProteinDataset.open(run.dataset)
    graph, state = nnx.split(run.model)
    result = evaluate_split(config, dataset, "ood", make_evaluation_step(config, graph, breakdowns=BY_TOKEN), state)
    expected = plain_groups(config, run.model, dataset, "ood")
    seen = 0
    for name in (breakdown.name for breakdown in BY_TOKEN):
        found = result.groups[name]
        for place, row in enumerate(result.rows):
            for cell in range(found.count.shape[1]):
                want = expected.get((int(row), name, cell), np.zeros(4))
                got = [found.nll[place, cell], found.correct[place, cell], found.count[place, cell]]
                np.testing.assert_allclose(got, want[:3], rtol=2e-5, atol=2e-6)
                np.testing.assert_allclose(result.confidence[name][place, cell], want[3], rtol=2e-5)
                seen += want[2] > 0
        # Counts to the last bit, of every row and of the split; sums of nll but for the rounding of float32.
        for field in ("correct", "count"):
            np.testing.assert_array_equal(getattr(found, field).sum(axis=1), getattr(result.residues, field))
        np.testing.assert_allclose(found.nll.sum(axis=1), result.residues.nll, rtol=SUM_TOLERANCE)
        np.testing.assert_allclose(found.nll.sum(), result.residues.nll.sum(), rtol=SUM_TOLERANCE)
    assert seen == len(expected)
    np.testing.assert_array_equal(result.groups["residue"].count, result.residue_counts)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 60, width=32), min_size=1, max_size=600))
def test_sums_of_nll_are_those_of_float64_but_for_rounding(values):
    """Through logits whose nll is about the value."""
    padded = np.zeros((1, 600), np.float32)
    padded[0, : len(values)] = values
    logits = jnp.stack([jnp.asarray(-padded), jnp.zeros_like(padded)], axis=-1)
    weights = jnp.asarray((np.arange(600) < len(values)).astype(np.float32))[None]
    found = float(_summed(logits, weights)[0])
    true = np.logaddexp(0, np.array(values, np.float64)).sum()
    np.testing.assert_allclose(found, true, rtol=2e-6)


@jax.jit
def _summed(logits, weights):
    return token_sums(logits, jnp.zeros(weights.shape, jnp.int32), weights).nll


def test_what_is_not_finite_is_seen_in_its_own_group_and_no_other():
    logits = np.zeros((1, 3, alphabet.SIZE), np.float32)
    logits[0, 1] = np.nan
    logits[0, 2, 5] = -np.inf
    targets = jnp.asarray([[4, 4, 5]], jnp.int32)
    values = token_values(jnp.asarray(logits), targets)
    found, _ = jax.device_get(sum_groups(BREAKDOWNS["residue"], values, targets, jnp.ones((1, 3)), None, 8))
    assert math.isnan(found.nll[0, 0])
    assert found.nll[0, 1] == math.inf
    assert (found.nll[0, 2:] == 0).all()
    # Where the weight is 0 nothing is seen at all.
    nothing, _ = jax.device_get(sum_groups(BREAKDOWNS["residue"], values, targets, jnp.zeros((1, 3)), None, 8))
    assert not np.any([nothing.nll, nothing.correct, nothing.count])
