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
from proteinlm.evaluation.evaluate import evaluate_split, make_evaluation_step
from proteinlm.evaluation.sums import CONFIDENCE_BINS, as_sums, bin_ends, cells_of, sum_cells, sum_rows, token_values
from proteinlm.models.objective import make_example
from proteinlm.models.randomness import random_key
from proteinlm.runs.loading import load_run

NAMES = ("residue", "position", "confidence")


def plain_cells(config, model, dataset, split):
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
                ends = bin_ends(config.batches.length)
                bins[1] = next(i for i, end in enumerate(ends) if place - start + 1 <= end)
                for name, cell in zip(NAMES, bins, strict=True):
                    sums[int(number), name, int(cell)] += value
    return sums


@pytest.mark.parametrize("kind", ["causal", "masked", "concat", "isolated"])
def test_cells_are_those_of_a_plain_loop_and_add_up_to_the_total(tiny_runs, kind):
    run = load_run(tiny_runs["masked" if kind == "isolated" else kind])
    config = run.config
    if kind == "isolated":
        config = dataclasses.replace(
            config, batches=dataclasses.replace(config.batches, form="isolated", batch_size=3, buckets=())
        )
    dataset = ProteinDataset.open(run.dataset)
    graph, state = nnx.split(run.model)
    result = evaluate_split(config, dataset, "ood", make_evaluation_step(config, graph, cells=NAMES), state)
    expected = plain_cells(config, run.model, dataset, "ood")
    seen = 0
    for name in NAMES:
        found = result.cells[name]
        for place, row in enumerate(result.rows):
            for cell in range(found.count.shape[1]):
                want = expected.get((int(row), name, cell), np.zeros(4))
                got = [found.nll[place, cell], found.correct[place, cell], found.count[place, cell]]
                np.testing.assert_allclose(got, want[:3], rtol=2e-5, atol=2e-6)
                if name == "confidence":
                    np.testing.assert_allclose(result.confidence[place, cell], want[3], rtol=2e-5)
                seen += want[2] > 0
        # To the last bit, of every row and of the whole split, in whatever order they are added.
        for field in ("nll", "correct", "count"):
            cells, rows = getattr(found, field), getattr(result.residues, field)
            np.testing.assert_array_equal(cells.sum(axis=1), rows)
            assert cells.sum(axis=0).sum() == rows.sum() == rows[::-1].cumsum()[-1]
    assert seen == len(expected)
    np.testing.assert_array_equal(result.cells["residue"].count, result.residue_counts)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 60, width=32), min_size=1, max_size=600), st.randoms())
def test_sums_of_nll_do_not_depend_on_the_order(values, random):
    """Through logits whose nll is about the value: sums in any order are the same bits, and near the true sum."""

    def total(values):
        padded = np.zeros((1, 600), np.float32)
        padded[0, : len(values)] = values
        logits = jnp.stack([jnp.asarray(-padded), jnp.zeros_like(padded)], axis=-1)
        weights = jnp.asarray((np.arange(600) < len(values)).astype(np.float32))[None]
        return as_sums(jax.device_get(_summed(logits, weights))).nll[0]

    shuffled = list(values)
    random.shuffle(shuffled)
    assert total(values) == total(shuffled)
    true = np.logaddexp(0, np.array(values, np.float64)).sum()
    np.testing.assert_allclose(total(values), true, rtol=1e-6, atol=len(values) * 2.0**-20)


@jax.jit
def _summed(logits, weights):
    values = token_values(logits, jnp.zeros(weights.shape, jnp.int32))
    return sum_rows({name: values[name] for name in ("nll", "nll_rest", "correct", "count")}, weights, None)


def test_what_is_not_finite_is_seen_in_its_own_cells_and_no_other():
    logits = np.zeros((1, 3, alphabet.SIZE), np.float32)
    logits[0, 1] = np.nan
    logits[0, 2, 5] = -np.inf
    targets = jnp.asarray([[4, 4, 5]], jnp.int32)
    values = token_values(jnp.asarray(logits), targets)
    values.pop("confidence")
    cells = cells_of("residue", values, targets, None, 8)
    found = as_sums(jax.device_get(sum_cells(values, jnp.ones((1, 3)), cells, None)))
    assert math.isnan(found.nll[0, 0])
    assert found.nll[0, 1] == math.inf
    assert (found.nll[0, 2:] == 0).all()
    # Where the weight is 0 nothing is seen at all.
    nothing = as_sums(jax.device_get(sum_cells(values, jnp.zeros((1, 3)), cells, None)))
    assert not np.any([nothing.nll, nothing.correct, nothing.count])


@pytest.mark.parametrize("limit", [1, 8, 9, 64, 65, 96, 1024, 8191, 74_488])
def test_bins_hold_each_place_once(limit):
    ends = bin_ends(limit)
    assert (np.diff(ends) > 0).all()
    assert ends[-1] >= limit
    assert len(ends) == 1 or ends[-2] < limit


def test_unknown_cells_are_refused():
    with pytest.raises(ValueError, match="no cells by 'colour'"):
        cells_of("colour", {}, jnp.zeros((1, 2), jnp.int32), None, 2)
