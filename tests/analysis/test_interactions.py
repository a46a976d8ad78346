import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from proteinlm.analysis import interactions, windows
from proteinlm.data import alphabet
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
    owner = windows._owners(window)
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


def test_short_stretches_have_no_score():
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
        for one, two in zip(interactions._stretches(before), interactions._stretches(after), strict=True):
            np.testing.assert_array_equal(np.sort(one), np.sort(two))
    dealt = interactions.control_windows(given_windows, control="proteins", rng=rng)
    known = [stretch.tobytes() for window in given_windows for stretch in interactions._stretches(window)]
    found = [stretch.tobytes() for window in dealt for stretch in interactions._stretches(window)]
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
                {place for part in interactions._stretches(window) for place, own in enumerate(given_windows)
                 if part.tobytes() in own.tobytes()}
                for window in moved
            ]  # fmt: skip
            assert {0, 1} in origins
    assert (given_windows[0] == stream(np.random.default_rng(1), (30, 20, 25))).all()


def test_unknown_controls_and_too_few_windows():
    window = stream(np.random.default_rng(0), (5, 5))
    with pytest.raises(InputError, match="no control 'letters'; choose one of residues, proteins"):
        interactions.control_windows([window], control="letters", rng=np.random.default_rng(0))
    with pytest.raises(InputError, match="needs two windows"):
        interactions.control_windows([window], control="proteins", rng=np.random.default_rng(0))


def test_against_all_controls_p_counts_those_at_least_as_high():
    scores, control = np.array([0.5, 2.0, 9.0]), np.array([1.0, 2.0, 3.0, 0.0])
    judged = interactions.against_all_controls(scores, control)
    np.testing.assert_allclose(judged.p, [4 / 5, 3 / 5, 1 / 5])
    # Benjamini and Hochberg by hand: p times the number of tests over the rank, made monotone from the largest.
    np.testing.assert_allclose(judged.q, [4 / 5, min(3 / 5 * 3 / 2, 4 / 5), min(1 / 5 * 3, 0.8)])
    np.testing.assert_allclose(judged.t, (scores - 1.5) / np.std(control))
    assert judged.degrees is None
    with pytest.raises(InputError, match="no pair of the windows and of the control"):
        interactions.against_all_controls(scores, np.array([]))


def unequal_pairs(rng, number=80, draws=4):
    """Scores of pairs that differ far more among themselves than a pair's draws do, as those of real models."""
    level = 1 + 0.0114 * rng.normal(size=(number, 1))
    values = level + 0.0025 * rng.normal(size=(number, 1 + draws))
    return values[:, 0], values[:, 1:]


def test_without_a_plant_p_values_are_uniform():
    rng = np.random.default_rng(0)
    judged = [interactions.against_own_control(*unequal_pairs(rng)) for _ in range(50)]
    p = np.concatenate([each.p for each in judged])
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert np.mean([(each.q < 0.05).any() for each in judged]) < 0.15
    assert judged[0].spread == pytest.approx(0.0025, rel=0.15)
    assert judged[0].degrees == 80 * 3


def test_a_planted_pair_is_found_that_the_pooled_null_misses():
    scores, control = unequal_pairs(np.random.default_rng(1))
    plant = int(np.argsort(control.mean(1))[20])
    scores[plant] += 0.02
    judged = interactions.against_own_control(scores, control)
    assert np.argmax(judged.t) == plant
    assert (judged.q < 0.01).sum() == 1
    pooled = interactions.against_all_controls(scores, control.ravel())
    assert pooled.q[plant] > 0.05
    assert np.argmax(pooled.t) != plant


def test_t_by_hand():
    control = np.array([[1.0, 3.0], [10.0, 10.0]])
    judged = interactions.against_own_control(np.array([5.0, 10.0]), control)
    # Squares about the means: 1 + 1 + 0 + 0, on 2 degrees of freedom: s = 1.
    assert (judged.spread, judged.degrees) == (1, 2)
    np.testing.assert_allclose(judged.t, [3 / np.sqrt(1.5), 0])
    np.testing.assert_allclose(judged.excess, [3, 0])
    # The t distribution of two degrees has a closed form.
    t = judged.t[0]
    np.testing.assert_allclose(judged.p, [0.5 - t / (2 * np.sqrt(2 + t**2)), 0.5])


def test_a_control_without_spread_gives_finite_numbers():
    for value in (0.0, 2.0):
        judged = interactions.against_own_control(np.full(3, value), np.full((3, 2), value))
        np.testing.assert_array_equal(judged.t, 0)
    with pytest.raises(InputError, match="repeats is 1"):
        interactions.against_own_control(np.ones(3), np.ones((3, 1)))
    with pytest.raises(InputError, match="no pair of the windows"):
        interactions.against_own_control(np.ones(0), np.ones((0, 2)))
