import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from proteinlm import alphabet
from proteinlm.analysis.windows import interactions
from proteinlm.analysis.windows import measure as windows
from proteinlm.errors import InputError


def stream(rng, lengths):
    """A window of random proteins of these lengths."""
    parts = [np.append(rng.integers(4, 24, length), alphabet.EOS) for length in lengths]
    return np.concatenate(parts).astype(np.uint8)


def made_up(lengths, weight, *, heads=2, causal=False):
    """The sums of a window whose relative attention from i to j is weight(i, j, p, q)."""
    tokens = stream(np.random.default_rng(0), lengths)
    starts = np.cumsum([0, *(length + 1 for length in lengths)])[:-1]
    window = windows.Window(tokens, starts, starts + lengths)
    octaves = windows.num_octaves(len(tokens))
    owner = windows._protein_of_tokens(window)
    sums, profile = np.zeros((len(lengths), len(lengths))), np.zeros(2 * octaves)
    for i in np.flatnonzero(owner >= 0):
        for j in np.flatnonzero(owner[: i + 1 if causal else None] >= 0):
            value = weight(i, j, owner[i], owner[j])
            sums[owner[i], owner[j]] += value
            if owner[i] != owner[j]:
                profile[int(np.log2(abs(i - j))) + (octaves if j > i else 0)] += value
    counts = windows._counts(window, octaves, causal=causal)
    sums, profile = (np.broadcast_to(values, (1, heads, *values.shape)) for values in (sums, profile))
    return windows.WindowAttention(window, sums, np.zeros((1, heads)), sums, counts, profile, np.zeros(3))


def by_octave(i, j, p, q):
    """Attention that depends on the distance alone."""
    return 2.0 ** -int(np.log2(max(abs(i - j), 1))) * (1 if i > j else 3)


@pytest.mark.parametrize("causal", [False, True])
def test_distance_and_length_alone_give_no_score(causal):
    lengths = (16, 40, 23, 31)
    attention = made_up(lengths, by_octave, causal=causal)
    # The profile may come from other windows, of other lengths.
    others = [made_up((30, 9, 50), by_octave, causal=causal), made_up((20, 64, 40), by_octave, causal=causal)]
    for profile in (interactions.distance_profile([attention]), interactions.distance_profile(others)):
        scores = interactions.pair_scores(attention, profile)
        off = ~np.eye(4, dtype=bool) & (np.tri(4, dtype=bool) if causal else True)
        np.testing.assert_allclose(scores[:, :, off], 1)
        assert np.isnan(scores[:, :, ~off]).all()


def test_a_pair_that_attends_threefold_scores_three():
    boost = {(0, 2): 5.0, (2, 0): 1.0}
    attention = made_up((20, 25, 30), lambda i, j, p, q: by_octave(i, j, p, q) * boost.get((p, q), 1.0))
    profile = interactions.distance_profile([made_up((20, 25, 30), by_octave)])
    scores = interactions.pair_scores(attention, profile)
    np.testing.assert_allclose(scores[0, 1, 0, 2], 5)
    np.testing.assert_allclose(scores[0, 1, 2, 0], 1)
    both = interactions.symmetric(interactions.mean_over_heads(scores))
    np.testing.assert_allclose([both[0, 2], both[2, 0], both[0, 1], both[1, 2]], [3, 3, 1, 1])
    assert np.isnan(np.diag(both)).all()


def test_the_one_direction_of_a_causal_model_is_its_score():
    scores = np.array([[np.nan, np.nan], [4.0, np.nan]])
    np.testing.assert_array_equal(interactions.symmetric(scores), [[np.nan, 4], [4, np.nan]])


def test_short_proteins_have_no_score():
    attention = made_up((20, 3, 20), by_octave)
    profile = interactions.distance_profile([attention])
    scores = interactions.pair_scores(attention, profile, shortest=16)
    assert np.isnan(scores[:, :, 1]).all()
    assert np.isnan(scores[:, :, :, 1]).all()
    assert np.isfinite(scores[:, :, 0, 2]).all()
    assert np.isfinite(interactions.pair_scores(attention, profile, shortest=3)[:, :, 1, 0]).all()


def test_a_distance_that_the_control_lacks_has_no_score():
    attention = made_up((16, 100, 16), by_octave)
    scores = interactions.pair_scores(attention, interactions.distance_profile([made_up((16, 16), by_octave)]))
    assert np.isnan(scores[:, :, 0, 2]).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=4), min_size=2, max_size=4), st.integers(0, 99))
def test_controls_keep_what_they_say(lengths, seed):
    rng = np.random.default_rng(seed)
    given_windows = [np.append(stream(rng, row), np.zeros(2, np.uint8)) for row in lengths]
    shuffled = interactions.control_windows(given_windows, control="residues", rng=rng)
    for before, after in zip(given_windows, shuffled, strict=True):
        np.testing.assert_array_equal(before < 4, after < 4)
        np.testing.assert_array_equal(before[before < 4], after[after < 4])
        for one, two in zip(interactions._proteins(before), interactions._proteins(after), strict=True):
            np.testing.assert_array_equal(np.sort(one), np.sort(two))
    dealt = interactions.control_windows(given_windows, control="proteins", rng=rng)
    known = [protein.tobytes() for window in given_windows for protein in interactions._proteins(window)]
    found = [protein.tobytes() for window in dealt for protein in interactions._proteins(window)]
    for whole in found:
        # Only the last of a window may have been cut, at the length of the longest window.
        assert any(stretch.startswith(whole) for stretch in known)
    assert all(len(window) <= max(map(len, given_windows)) for window in dealt)


def test_residues_and_proteins_are_really_moved():
    rng = np.random.default_rng(1)
    given_windows = [stream(rng, (30, 20, 25)), stream(rng, (25, 30, 20))]
    for control in interactions.CONTROLS:
        moved = interactions.control_windows(given_windows, control=control, rng=rng)
        assert not any(np.array_equal(a, b) for a, b in zip(given_windows, moved, strict=True))
        if control == "proteins":
            origins = [
                {place for part in interactions._proteins(window) for place, own in enumerate(given_windows)
                 if part.tobytes() in own.tobytes()}
                for window in moved
            ]  # fmt: skip
            assert {0, 1} in origins
    assert (given_windows[0] == stream(np.random.default_rng(1), (30, 20, 25))).all()


def test_unknown_controls_and_too_few_windows():
    window = stream(np.random.default_rng(0), (5, 5))
    with pytest.raises(InputError, match="no control 'letters'; choose one of residues, proteins"):
        interactions.control_windows([window], control="letters", rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="needs at least two windows"):
        interactions.control_windows([window], control="proteins", rng=np.random.default_rng(0))


def test_against_all_controls_p_counts_those_at_least_as_high():
    scores, control = np.array([0.5, 2.0, 9.0]), np.array([1.0, 2.0, 3.0, 0.0])
    judged = interactions.against_all_controls(scores, control)
    np.testing.assert_allclose(judged.p, [4 / 5, 3 / 5, 1 / 5])
    # Benjamini and Hochberg by hand: p times the number of tests over the rank, made monotone from the largest.
    np.testing.assert_allclose(judged.q, [4 / 5, min(3 / 5 * 3 / 2, 4 / 5), min(1 / 5 * 3, 0.8)])
    np.testing.assert_allclose(judged.t, (scores - 1.5) / np.std(control))
    assert judged.degrees is None
    with pytest.raises(InputError, match="no pair of the windows or of the control"):
        interactions.against_all_controls(scores, np.array([]))


def unequal_pairs(rng, number=300, draws=4, varied=0.0):
    """Scores and draws of pairs, exchangeable, and lengths.

    As those of real models, pairs differ far more among themselves than a pair's draws do, and draws scatter the more
    the shorter the protein attended to. `varied` is the standard deviation of the log spread of pairs of one length.
    """
    lengths = np.exp(rng.uniform(np.log(16), np.log(445), (number, 2))).astype(int)
    spread = 0.0053 * (lengths[:, 0] / 16) ** -0.6 * np.exp(varied * rng.normal(size=number))
    level = 1 + 0.0114 * rng.normal(size=(number, 1))
    values = level + spread[:, None] * rng.normal(size=(number, 1 + draws))
    return values[:, 0], values[:, 1:], lengths


def pooled_p(scores, control):
    """p with one spread for all pairs."""
    number, draws = control.shape
    spread = np.sqrt(control.var(1, ddof=1).mean())
    t = (scores - control.mean(1)) / (spread * np.sqrt(1 + 1 / draws))
    return stats.t.sf(t, number * (draws - 1))


@pytest.mark.few(2)
@pytest.mark.parametrize(("draws", "varied"), [(2, 0.0), (4, 0.0), (4, 0.3)])
def test_without_a_plant_p_values_are_uniform_for_short_and_long_pairs(draws, varied):
    rng = np.random.default_rng(1)
    sets = [unequal_pairs(rng, number=600, draws=draws, varied=varied) for _ in range(30)]
    judged = [interactions.against_own_control(*each) for each in sets]
    p, pooled = np.concatenate([each.p for each in judged]), np.concatenate([pooled_p(*each[:2]) for each in sets])
    attended = np.concatenate([lengths[:, 0] for _, _, lengths in sets])
    short, long = attended < 40, attended > 150
    for part in (short, long):
        assert stats.kstest(p[part], "uniform").pvalue > 0.001
        # About 5,000 pairs: 1 % has a standard error of 0.14 %, 0.1 % one of 0.045 %.
        assert np.mean(p[part] < 0.01) == pytest.approx(0.01, abs=0.004)
        assert np.mean(p[part] < 0.001) < 0.0024
    # The test would see a spread that leaves lengths aside.
    assert np.mean(pooled[short] < 0.01) > 0.04
    assert np.mean(pooled[long] < 0.01) < 0.001
    assert np.mean([(each.q < 0.05).any() for each in judged]) < 0.2
    assert np.mean([(stats.false_discovery_control(pooled_p(*each[:2])) < 0.05).any() for each in sets]) > 0.5


def test_a_planted_long_pair_is_found_that_one_spread_for_all_misses():
    found, pooled_found = [], []
    for seed in range(20):
        scores, control, lengths = unequal_pairs(np.random.default_rng(seed))
        plant = int(np.argmax(lengths[:, 0]))
        scores[plant] += 0.005
        judged = interactions.against_own_control(scores, control, lengths)
        found.append(judged.q[plant] < 0.05)
        pooled_found.append(stats.false_discovery_control(pooled_p(scores, control))[plant] < 0.05)
    assert sum(found) > 15
    assert sum(pooled_found) < 5


def test_a_planted_pair_is_found_that_all_controls_together_miss():
    scores, control, lengths = unequal_pairs(np.random.default_rng(1))
    # A pair below the median of its level, so that its score is nothing special.
    plant = int(np.argsort(control.mean(1) + 100 * (lengths[:, 0] < 100))[20])
    scores[plant] += 0.012
    judged = interactions.against_own_control(scores, control, lengths)
    assert np.argmax(judged.t) == plant
    assert judged.q[plant] < 0.01
    pooled = interactions.against_all_controls(scores, control.ravel())
    assert pooled.q[plant] > 0.05
    assert np.argmax(pooled.t) != plant


def test_spreads_follow_the_lengths_and_what_lengths_do_not_tell():
    # Variances of 3 degrees of freedom about true ones, those inverse chi^2 of 8 about a trend.
    rng = np.random.default_rng(0)
    lengths = rng.choice([16, 64, 256], (6000, 2))
    trend = 3e-4 * lengths[:, 0] ** -1.2 * lengths[:, 1] ** -0.4
    true = trend * 8 / rng.chisquare(8, 6000)
    variances = true * rng.chisquare(3, 6000) / 3
    spread, degrees = interactions._spreads(variances, lengths, 3)
    assert degrees == pytest.approx(8 + 3, rel=0.1)
    # By the formula of the moderated variance, from what the trend was made with.
    np.testing.assert_allclose(spread**2, (8 * trend + 3 * variances) / 11, rtol=0.15)
    # Which column is which does not matter, nor does the unit of the score.
    other, again = interactions._spreads(variances * 1e-6, lengths[:, ::-1], 3)
    np.testing.assert_allclose(other, 1e-3 * spread, rtol=1e-3)
    assert again == pytest.approx(degrees, rel=1e-2)


def test_t_and_p_by_hand():
    scores, control, lengths = unequal_pairs(np.random.default_rng(2), number=5)
    judged = interactions.against_own_control(scores, control, lengths)
    np.testing.assert_allclose(judged.control, control.mean(1))
    np.testing.assert_allclose(judged.excess, scores - control.mean(1))
    # The mean of four draws adds a quarter of the variance.
    np.testing.assert_allclose(judged.t, judged.excess / np.sqrt(judged.spread**2 * 1.25))
    # More degrees of freedom than a pair's own draws have, no more than those of all together.
    assert judged.degrees is not None
    assert 3 < judged.degrees <= 15
    np.testing.assert_allclose(judged.p, stats.t.sf(judged.t, judged.degrees))
    # One pair of two draws has its own spread alone: t of one degree of freedom, whose distribution is Cauchy's.
    alone = interactions.against_own_control(np.array([5.0]), np.array([[1.0, 3.0]]), np.array([[20, 30]]))
    assert alone.degrees == 1
    np.testing.assert_allclose(alone.spread, np.sqrt(2), rtol=0.1)
    np.testing.assert_allclose(alone.p, 0.5 - np.arctan(3 / (alone.spread * np.sqrt(1.5))) / np.pi)


def test_a_control_without_spread_gives_finite_numbers():
    lengths = np.array([[16, 20], [30, 40], [50, 16]])
    for value in (0.0, 2.0):
        judged = interactions.against_own_control(np.full(3, value), np.full((3, 2), value), lengths)
        np.testing.assert_array_equal(judged.t, 0)
    with pytest.raises(InputError, match="repeats is 1"):
        interactions.against_own_control(np.ones(3), np.ones((3, 1)), lengths)
    with pytest.raises(InputError, match="no pair of the windows"):
        interactions.against_own_control(np.ones(0), np.ones((0, 2)), lengths[:0])


def test_a_pair_whose_draws_never_change_leaves_the_others_theirs():
    # Residues of one kind are the same however they are shuffled.
    scores, control, lengths = unequal_pairs(np.random.default_rng(3))
    before = interactions.against_own_control(scores, control, lengths)
    control[0] = scores[0] = 1
    after = interactions.against_own_control(scores, control, lengths)
    np.testing.assert_allclose(after.spread[1:], before.spread[1:], rtol=0.05)
    assert after.p[0] == 0.5


@pytest.mark.parametrize(("number", "own"), [(1, 1), (3, 15), (5, 7), (12, 3)])
def test_one_pair_that_varies_among_some_that_do_not(number, own):
    # Searching for the trend meets numbers that over- and underflow.
    variances = np.full(number, 1e-14)
    variances[0] = 1
    spread, degrees = interactions._spreads(variances, np.full((number, 2), 30), own)
    # What varies is told from what does not by its own draws.
    assert 0.5 < spread[0] < 1.1
    assert (spread[1:] < 1e-3).all()
    assert own <= degrees <= number * own
