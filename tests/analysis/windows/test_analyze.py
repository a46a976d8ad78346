import json

import numpy as np
import pytest
from scipy import stats

from proteinlm import alphabet
from proteinlm.analysis.windows import analyze as analyze_windows_module
from proteinlm.analysis.windows import interactions
from proteinlm.analysis.windows import measure as windows
from proteinlm.analysis.windows.analyze import analyze_windows
from proteinlm.errors import InputError


def stream(rng, *lengths, pad=0):
    parts = [np.append(rng.integers(4, 24, length), alphabet.EOS) for length in lengths]
    return np.concatenate([*parts, np.zeros(pad)]).astype(np.uint8)


@pytest.fixture
def some():
    rng = np.random.default_rng(3)
    return [stream(rng, 18, 20, 17, pad=6), stream(rng, 20, 41)]


@pytest.mark.parametrize(("causal", "control"), [(False, "residues"), (True, "proteins")])
def test_files_and_summary(make_model, some, tmp_path, causal, control):
    model = make_model("softmax", causal=causal)
    output = tmp_path / "new"
    # Room for a control as long as the longest window and its <bos>.
    summary = analyze_windows(model, some, output, control=control, repeats=2, shortest=10)
    assert json.loads((output / "windows.json").read_text()) == summary
    assert sorted(path.name for path in output.iterdir()) == [
        "windows.json", "windows.npz", "windows_pairs.pdf", "windows_pairs.png", "windows_shares.pdf",
        "windows_shares.png",
    ]  # fmt: skip
    saved = np.load(output / "windows.npz")
    assert (summary["num_windows"], summary["num_proteins"], summary["num_pairs"]) == (2, 5, 4)
    assert summary["directions"] == ("later protein to earlier" if causal else "both, averaged")
    assert summary["null"].startswith("residues shuffled" if control == "residues" else "proteins dealt")
    np.testing.assert_array_equal(saved["pairs"], [(1, 1, 2), (1, 1, 3), (1, 2, 3), (2, 1, 2)])
    found = [windows.window_attention(model, windows.read_window(model, window)) for window in some]
    share = np.mean([windows.shares(attention) for attention in found], 0)
    np.testing.assert_allclose(saved["shares"], share, rtol=1e-5)
    for number, attention in enumerate(found, 1):
        scores = interactions.pair_scores(attention, saved["profile"], shortest=10)
        np.testing.assert_allclose(saved[f"window{number}_scores"], scores, rtol=1e-4)
        mean = interactions.symmetric(interactions.mean_over_heads(scores))
        for (window, first, second), score in zip(saved["pairs"], saved["pair_scores"], strict=True):
            if window == number:
                assert score == pytest.approx(mean[first - 1, second - 1], rel=1e-4)
    values = saved["pair_scores"], saved["control_pair_scores"]
    if control == "residues":
        # A bidirectional model's pairs: the shorter protein and the longer.
        lengths = np.array([(18, 20), (17, 18), (17, 20), (20, 41)])
        judged = interactions.against_own_control(*values, lengths)
    else:
        judged = interactions.against_all_controls(*values)
    for key, name in (("t", "t"), ("p_values", "p"), ("q_values", "q"), ("excess", "excess"), ("spreads", "spread")):
        np.testing.assert_array_equal(saved[key], getattr(judged, name))
    assert summary["control_spread"] == {
        "smallest": pytest.approx(judged.spread.min(), rel=1e-3),
        "median": pytest.approx(np.median(judged.spread), rel=1e-3),
        "largest": pytest.approx(judged.spread.max(), rel=1e-3),
    }
    assert ("trend over the lengths" in summary["control_spread_is"]) == (control == "residues")
    assert saved["control_pair_scores"].size == summary["num_control_pairs"] > 0
    assert summary["judged_against"].startswith("each pair's own" if control == "residues" else "all pairs")
    if control == "residues":
        assert summary["degrees_of_freedom"] == pytest.approx(judged.degrees, rel=1e-3)
    else:
        assert summary["degrees_of_freedom"] is None
    top = summary["highest_pairs"]
    assert [entry["t"] for entry in top] == sorted((entry["t"] for entry in top), reverse=True)
    best = int(np.argmax(judged.t))
    assert [top[0]["window"], *top[0]["proteins"]] == list(saved["pairs"][best])
    # The figure's numbers are the table's.
    for entry in top:
        if entry["window"] == 1:
            first, second = entry["proteins"]
            assert saved["shown_t"][second - 1, first - 1] == pytest.approx(entry["t"], rel=1e-4)
    upper = np.triu_indices(3)
    assert np.isnan(saved["shown_t"][upper]).all() == causal
    assert not np.isnan(saved["shown_t"][np.tril_indices(3, -1)]).any()


def test_a_pair_is_held_against_the_same_pair_shuffled(make_model, some, tmp_path, monkeypatch):
    monkeypatch.setattr(analyze_windows_module, "save_figure", lambda figure, stem: (stem, stem))
    model = make_model("softmax")
    first = analyze_windows(model, some, tmp_path / "a", repeats=2, shown=2, seed=5)
    again = analyze_windows(model, some, tmp_path / "b", repeats=2, shown=2, seed=5)
    other = analyze_windows(model, some, tmp_path / "c", repeats=2, shown=2, seed=6)
    assert {**first, "files": None} == {**again, "files": None}
    assert first["highest_pairs"] != other["highest_pairs"]
    rng = np.random.default_rng(5)
    trimmed = [window[window != 0] for window in some]
    saved = np.load(tmp_path / "a" / "windows.npz")
    for repeat in range(2):
        draw = interactions.control_windows(trimmed, control="residues", rng=rng)
        expected = []
        for window in draw:
            attention = windows.window_attention(model, windows.read_window(model, window))
            scores = interactions.mean_over_heads(interactions.pair_scores(attention, saved["profile"]))
            both = interactions.symmetric(scores)
            expected += list(both[np.triu_indices(len(both), 1)])
        np.testing.assert_allclose(saved["control_pair_scores"][:, repeat], expected, rtol=1e-4)
    # The drawn draw: the first of window 2's one pair, against the other.
    one, two = saved["control_pair_scores"][-1]
    assert saved["shown_control_t"][1, 0] == pytest.approx((one - two) / (saved["spreads"][-1] * np.sqrt(2)))


def test_pairs_that_attend_to_short_proteins_have_a_wider_spread(make_model, tmp_path, monkeypatch):
    monkeypatch.setattr(analyze_windows_module, "save_figure", lambda figure, stem: (stem, stem))
    rng = np.random.default_rng(9)
    size = np.array([16, 90, 16, 90, 16])
    analyze_windows(
        make_model("softmax", causal=True, max_length=256), [stream(rng, *size) for _ in range(2)], tmp_path
    )
    saved = np.load(tmp_path / "windows.npz")
    # A causal model's pairs: the second attends to the first.
    attended = size[saved["pairs"][:, 1] - 1]
    wide, narrow = saved["spreads"][attended == 16], saved["spreads"][attended == 90]
    assert np.median(wide) > 1.5 * np.median(narrow)


def test_among_random_proteins_only_a_planted_pair_is_found(make_model, tmp_path, monkeypatch):
    # Residues drawn at random are their own control: whatever is found without a plant is false.
    monkeypatch.setattr(analyze_windows_module, "save_figure", lambda figure, stem: (stem, stem))
    rng = np.random.default_rng(8)
    given = [stream(rng, 20, 20, 20, 20, 20, 20) for _ in range(3)]
    model = make_model("softmax", max_length=128)
    summary = analyze_windows(model, given, tmp_path)
    saved = np.load(tmp_path / "windows.npz")
    assert len(saved["p_values"]) == 45
    assert stats.kstest(saved["p_values"], "uniform").pvalue > 0.001
    assert summary["pairs_with_q_below_0.05"] == 0

    def planted(model, window, *, padded):
        attention = windows.window_attention(model, window, padded=padded)
        if np.array_equal(window.tokens, given[1]):
            attention.relative_sums[:, :, 4, 2] *= 1.5
        return attention

    monkeypatch.setattr(analyze_windows_module, "window_attention", planted)
    found = analyze_windows(model, given, tmp_path)["highest_pairs"]
    assert (found[0]["window"], found[0]["proteins"]) == (2, [3, 5])
    assert found[0]["q"] < 0.01
    assert found[1]["q"] > 0.05


def test_names_and_places_stand_in_all_files(make_model, some, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        analyze_windows_module, "save_figure", lambda figure, stem: drawn.update({stem.name: figure}) or (stem,)
    )
    names = [["a", "b", "c…"], ["d", "e"]]
    for causal in (False, True):
        summary = analyze_windows(make_model(causal=causal), some, tmp_path, names=names, repeats=2)
        assert {(entry["window"], *entry["proteins"], *entry["names"]) for entry in summary["highest_pairs"]} == {
            (1, 1, 2, "a", "b"), (1, 1, 3, "a", "c…"), (1, 2, 3, "b", "c…"), (2, 1, 2, "d", "e"),
        }  # fmt: skip
        first, second = summary["windows"]
        assert (first["window"], second["window"]) == (1, 2)
        assert first["proteins"] == [
            {"protein": 1, "name": "a", "start": 1, "stop": 18, "length": 18},
            {"protein": 2, "name": "b", "start": 20, "stop": 39, "length": 20},
            {"protein": 3, "name": "c…", "start": 41, "stop": 57, "length": 17},
        ]
        saved = np.load(tmp_path / "windows.npz")
        assert list(saved["window1_names"]) == names[0]
        np.testing.assert_array_equal(saved["window2_starts"], [causal, 21 + causal])
        rows = drawn["windows_pairs"].axes[0].get_yticklabels()
        assert [row.get_text() for row in rows] == ["1 a (18)", "2 b (20)", "3 c… (17)"]
        assert "window 1," in drawn["windows_pairs"].get_suptitle()
    assert "name" not in analyze_windows(make_model(), some, tmp_path, repeats=2)["windows"][0]["proteins"][0]
    assert "window1_names" not in np.load(tmp_path / "windows.npz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": []}, "at least one window"),
        ({"repeats": 1}, "repeats is 1; the control 'residues' needs at least 2"),
        ({"repeats": 0, "control": "proteins"}, "repeats is 0; the control 'proteins' needs at least 1"),
        ({"shown": 0}, "no window 0: the windows go from 1 to 2"),
        ({"shown": 3}, "no window 3"),
        ({"names": [["a"]]}, "names are given for 1 windows, but there are 2"),
        ({"names": [["a"], ["b", "c"]]}, "window 1 has 3 proteins, but 1 names"),
        ({"control": "letters"}, "no control 'letters'"),
        ({"windows": [np.array([5, 6, 2], np.uint8)]}, "window 1 contains 1 protein"),
        ({"shortest": 50}, "no pair of the windows or of the control has a score"),
    ],
)
def test_what_cannot_be_used_leaves_nothing_behind(make_model, some, tmp_path, options, message):
    given = {"windows": some, "repeats": 2, **options}
    with pytest.raises(InputError, match=message):
        analyze_windows(make_model(), output=tmp_path, **given)
    assert not list(tmp_path.iterdir())
