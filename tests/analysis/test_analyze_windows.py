import json

import numpy as np
import pytest

from proteinlm.analysis import analyze_windows as analyze_windows_module
from proteinlm.analysis import interactions, windows
from proteinlm.analysis.analyze_windows import analyze_windows
from proteinlm.data import alphabet
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
    np.testing.assert_array_equal(saved["pairs"], [(0, 0, 1), (0, 0, 2), (0, 1, 2), (1, 0, 1)])
    found = [windows.window_attention(model, windows.read_window(model, window)) for window in some]
    share = np.mean([windows.shares(attention) for attention in found], 0)
    np.testing.assert_allclose(saved["shares"], share, rtol=1e-5)
    for number, attention in enumerate(found):
        scores = interactions.pair_scores(attention, saved["profile"], shortest=10)
        np.testing.assert_allclose(saved[f"window{number}_scores"], scores, rtol=1e-4)
        mean = interactions.symmetric(interactions.mean_over_heads(scores))
        for (window, first, second), score in zip(saved["pairs"], saved["pair_scores"], strict=True):
            if window == number:
                assert score == pytest.approx(mean[first, second], rel=1e-4)
    p, _ = interactions.significance(saved["pair_scores"], saved["control_pair_scores"])
    np.testing.assert_array_equal(saved["p_values"], p)
    assert len(saved["control_pair_scores"]) == summary["num_control_pairs"] > 0
    top = summary["highest_pairs"]
    assert [entry["score"] for entry in top] == sorted((entry["score"] for entry in top), reverse=True)
    upper = np.triu_indices(3)
    assert np.isnan(saved["shown_scores"][upper]).all() == causal


def test_the_drawn_control_of_shuffled_residues_is_the_mean_of_its_draws(make_model, some, tmp_path, monkeypatch):
    monkeypatch.setattr(analyze_windows_module, "save_figure", lambda figure, stem: (stem, stem))
    model = make_model("softmax")
    first = analyze_windows(model, some, tmp_path / "a", repeats=2, shown=1, seed=5)
    again = analyze_windows(model, some, tmp_path / "b", repeats=2, shown=1, seed=5)
    other = analyze_windows(model, some, tmp_path / "c", repeats=2, shown=1, seed=6)
    assert {**first, "files": None} == {**again, "files": None}
    assert first["highest_pairs"] != other["highest_pairs"]
    rng = np.random.default_rng(5)
    trimmed = [window[window != 0] for window in some]
    draws = [interactions.control_windows(trimmed, control="residues", rng=rng) for _ in range(2)]
    saved = np.load(tmp_path / "a" / "windows.npz")
    scores = []
    for draw in draws:
        attention = windows.window_attention(model, windows.read_window(model, draw[1]))
        scores.append(interactions.mean_over_heads(interactions.pair_scores(attention, saved["profile"])))
    np.testing.assert_allclose(saved["shown_control_scores"], np.mean(scores, 0), rtol=1e-4)


def test_names_stand_in_the_summary(make_model, some, tmp_path, monkeypatch):
    monkeypatch.setattr(analyze_windows_module, "save_figure", lambda figure, stem: (stem, stem))
    names = [["a", "b", "c"], ["d", "e"]]
    summary = analyze_windows(make_model(), some, tmp_path, names=names, repeats=1)
    assert {tuple(entry["proteins"]) for entry in summary["highest_pairs"]} == {
        ("a", "b"), ("a", "c"), ("b", "c"), ("d", "e"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": []}, "at least one window"),
        ({"repeats": 0}, "repeats is 0"),
        ({"shown": 2}, "no window 2: the windows go from 0 to 1"),
        ({"names": [["a"]]}, "names are given for 1 windows, but there are 2"),
        ({"names": [["a"], ["b", "c"]]}, "window 0 has 3 proteins, and 1 names are given"),
        ({"control": "letters"}, "no control 'letters'"),
        ({"windows": [np.array([5, 6, 2], np.uint8)]}, "window 0 holds 1 protein"),
        ({"shortest": 50}, "no pair of the control has a score"),
    ],
)
def test_what_cannot_be_used_leaves_nothing_behind(make_model, some, tmp_path, options, message):
    given = {"windows": some, "repeats": 1, **options}
    with pytest.raises(InputError, match=message):
        analyze_windows(make_model(), output=tmp_path, **given)
    assert not list(tmp_path.iterdir())
