import math
import time

import numpy as np
import pytest

from proteinlm.evaluation import metrics
from proteinlm.evaluation.metrics import Sums, bootstrap, score

ROW = {"split": "test", "objective": "causal", "model": "m", "tokens": "residues"}


def test_figures_of_a_known_case():
    # Ten tokens, each with probability 1/4: perplexity 4, two bits.
    sums = Sums(nll=10 * math.log(4), correct=3, count=10)
    assert sums.accuracy == pytest.approx(0.3)
    assert sums.perplexity == pytest.approx(4)
    assert sums.bits_per_residue == pytest.approx(2)
    assert sums.loss == pytest.approx(math.log(4))


def test_division_happens_once_and_not_by_batch():
    first, second = Sums(1.0, 1.0, 1.0), Sums(9.0, 0.0, 9.0)
    assert (first + second) == Sums(10.0, 1.0, 10.0)
    assert (first + second).accuracy == pytest.approx(0.1)  # the mean of the batches' accuracies is 0.5
    assert sum([first, second], Sums()).count == 10


def test_float32_sums_are_added_in_float64():
    # In float32 a running sum of ones stops at 2^24.
    ones = np.ones(2**24 + 3, np.float32)
    sums = Sums(ones, ones, ones)
    assert sums.total().count == 2**24 + 3
    assert sums.accuracy == 1


def test_nothing_counted_is_nan_and_not_a_crash():
    for sums in (
        Sums(),
        Sums(np.zeros(0), np.zeros(0), np.zeros(0)),
        Sums(np.zeros(3), np.zeros(3), np.zeros(3)),
    ):
        assert all(math.isnan(x) for x in (sums.loss, sums.accuracy, sums.perplexity, sums.bits_per_residue))
    row = score(Sums(np.zeros(0), np.zeros(0), np.zeros(0)), **ROW)
    assert (row.num_tokens, row.num_sequences) == (0, 0)
    assert math.isnan(row.perplexity)
    assert math.isnan(row.accuracy_low)


def test_perplexity_beyond_float64_is_infinite():
    assert Sums(1e6, 0.0, 1.0).perplexity == math.inf


def test_score_says_what_it_is_of():
    nll, correct, count = np.array([8.0, 0.0, 4.0]), np.array([1.0, 0.0, 3.0]), np.array([4.0, 0.0, 4.0])
    row = score(Sums(nll, correct, count), **ROW)
    assert (row.split, row.objective, row.model, row.tokens) == ("test", "causal", "m", "residues")
    assert (row.num_tokens, row.num_sequences) == (8, 2)  # nothing counts in the second
    assert row.accuracy == pytest.approx(0.5)
    assert row.perplexity == pytest.approx(math.exp(1.5))
    assert row.bits_per_residue == pytest.approx(1.5 / math.log(2))


@pytest.mark.parametrize("number", [1, 2, 4, 5])
def test_few_sequences_have_no_interval(number):
    """Two of one accuracy would have an interval of no width."""
    row = score(Sums(np.full(number, 2.0), np.arange(number, dtype=float), np.full(number, 2.0)), **ROW)
    assert row.perplexity == pytest.approx(math.e)
    ends = row.accuracy_low, row.accuracy_high, row.perplexity_low, row.perplexity_high
    assert np.isnan(ends).all() == (number < metrics.FEWEST)
    # Five: the ends are among the means of resamples, none beyond the sequences themselves.
    assert number < metrics.FEWEST or 0 <= row.accuracy_low < row.accuracy < row.accuracy_high <= 2


def test_arrays_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"shapes \[\(2,\), \(3,\), \(2,\)\]"):
        bootstrap(Sums(np.zeros(2), np.zeros(3), np.zeros(2)))
    with pytest.raises(ValueError, match="expected"):
        bootstrap(Sums(1.0, 1.0, 1.0))


def simulated(generator: np.random.Generator, n: int) -> Sums:
    """Sequences of very different lengths, each with its own difficulty; the truth is 2.5 nats and 30 %."""
    count = np.ceil(generator.lognormal(5, 0.7, n))
    nll = count * (2.5 + 0.4 * generator.standard_normal(n))
    correct = count * np.clip(0.3 + 0.1 * generator.standard_normal(n), 0, 1)
    return Sums(nll, correct, count)


def test_intervals_are_the_same_each_time_and_for_any_memory(monkeypatch):
    sums = simulated(np.random.default_rng(0), 50)
    whole = bootstrap(sums)
    assert bootstrap(sums) == whole
    assert bootstrap(sums, seed=1) != whole
    monkeypatch.setattr(metrics, "_DRAWS", 130)  # two resamples at a time
    assert bootstrap(sums) == whole


def test_intervals_agree_with_a_plain_bootstrap():
    sums = simulated(np.random.default_rng(1), 40)
    generator = np.random.default_rng(2)
    perplexities, accuracies = [], []
    for _ in range(4000):
        drawn = generator.choice(40, 40)
        part = Sums(sums.nll[drawn], sums.correct[drawn], sums.count[drawn])
        perplexities.append(part.perplexity)
        accuracies.append(part.accuracy)
    intervals = bootstrap(sums, num_resamples=4000)
    spread = np.std(perplexities)
    np.testing.assert_allclose(intervals.perplexity, np.percentile(perplexities, [2.5, 97.5]), atol=0.15 * spread)
    spread = np.std(accuracies)
    np.testing.assert_allclose(intervals.accuracy, np.percentile(accuracies, [2.5, 97.5]), atol=0.15 * spread)


def test_intervals_cover_the_truth():
    generator = np.random.default_rng(3)
    inside = np.zeros(2)
    trials = 400
    for _ in range(trials):
        intervals = bootstrap(simulated(generator, 100), num_resamples=200)
        inside += [
            intervals.perplexity[0] <= math.exp(2.5) <= intervals.perplexity[1],
            intervals.accuracy[0] <= 0.3 <= intervals.accuracy[1],
        ]
    # 95 %, a little less for percentiles of a skewed ratio at n = 100; the trials' standard error is 1.1 %.
    assert (inside / trials > 0.90).all()
    assert (inside / trials < 0.99).all()


def test_a_million_sequences_stay_within_time_and_memory():
    import tracemalloc

    sums = simulated(np.random.default_rng(4), 1_000_000)
    tracemalloc.start()
    start = time.perf_counter()
    intervals = bootstrap(sums, num_resamples=8)
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300e6
    assert seconds < 20
    assert intervals.perplexity[0] < math.exp(2.5) * 1.01
    assert intervals.perplexity[1] > math.exp(2.5) * 0.99


def test_cells_of_one_draw_are_each_the_bootstrap_of_their_own():
    """Where every sequence has tokens in each cell, the draws are those of the cell alone."""
    parts = [simulated(np.random.default_rng(seed), 30) for seed in range(3)]
    joined = Sums(*(np.stack([getattr(p, name) for p in parts], axis=1) for name in ("nll", "correct", "count")))
    for found, part in zip(metrics.bootstrap_groups(joined), parts, strict=True):
        alone = bootstrap(part)
        assert found.accuracy == pytest.approx(alone.accuracy, rel=1e-12)
        assert found.perplexity == pytest.approx(alone.perplexity, rel=1e-12)


def test_rare_cells_have_wide_intervals_and_rarer_ones_none():
    sums = simulated(np.random.default_rng(5), 200)
    columns = [np.stack([x, np.where(np.arange(200) < 5, x, 0), np.where(np.arange(200) < 4, x, 0)], axis=1)
               for x in (sums.nll, sums.correct, sums.count)]  # fmt: skip
    whole, rare, fewer = metrics.bootstrap_groups(Sums(*columns))
    assert np.diff(whole.accuracy) < np.diff(rare.accuracy)
    accuracies = sums.correct[:5] / sums.count[:5]
    assert accuracies.min() <= rare.accuracy[0] < rare.accuracy[1] <= accuracies.max()
    assert fewer == metrics.NO_INTERVALS
    nothing = Sums(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros((0, 2)))
    assert metrics.bootstrap_groups(nothing) == [metrics.NO_INTERVALS] * 2
