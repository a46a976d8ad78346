"""Analysis of attention within and across the proteins of concatenated windows: figures, arrays and a summary."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from proteinlm import alphabet
from proteinlm.analysis.windows import figures as window_figures
from proteinlm.analysis.windows import interactions
from proteinlm.analysis.windows.measure import WindowAttention, read_window, shares, window_attention
from proteinlm.errors import InputError
from proteinlm.models.transformer import ProteinLM
from proteinlm.output.figures import save_figure
from proteinlm.output.saving import rounded, save_arrays, save_summary

NULLS = {
    "residues": "residues shuffled within each protein",
    "proteins": "proteins dealt anew over the windows",
}
JUDGED_AGAINST = {
    "residues": "each pair's own control draws (moderated t test)",
    "proteins": "all pairs of the control together: they are other pairs, of other compositions",
}
SPREADS = {
    "residues": "standard deviation of each pair's control draws about their mean, moderated: its square is averaged "
    "with a trend over the lengths of the pair's proteins that is fitted to all pairs",
    "proteins": "standard deviation of all scores of the control",
}
MOST_PAIRS = 20
"""Largest number of pairs in the summary; the arrays contain all pairs."""


def analyze_windows(
    model: ProteinLM,
    windows: Sequence[Integer[np.ndarray, " _"]] | Integer[np.ndarray, "B L"],
    output: str | os.PathLike = ".",
    *,
    names: Sequence[Sequence[str]] | None = None,
    control: str = "residues",
    repeats: int = 4,
    shortest: int = 16,
    shown: int = 1,
    seed: int = 0,
) -> dict:
    """Measure attention within and across the proteins of concatenated windows, and compare it with a shuffled control.

    Writes OUTPUT/windows_shares.png and .pdf (by layer and head), windows_pairs.png and .pdf (proteins by proteins, for
    one window), windows.npz with all arrays, and windows.json with the summary. Windows and proteins are counted from
    1; starts and stops in windows.npz are indices of its tokens, as in Python. Memory is linear in the length of a
    window. Time is proportional to layers x windows x (1 + `repeats`).

    The comparison of pairs with the control is described in interactions.py.

    Args:
        model: a causal or bidirectional model, preferably trained on windows.
        windows: token ids, residues with <eos> between proteins, padded on the right with 0, as in the batches of form
            "concat".
        output: the folder of the files; created if missing. Files of the same names are replaced.
        names: names of each window's proteins, in order; None means numbers.
        control: "residues" shuffles the residues of each protein, "proteins" shuffles the proteins over all windows;
            interactions.py describes the null hypothesis of each.
        repeats: number of draws of the control; "residues" needs two, for the spread of a pair.
        shortest: smallest number of residues of a protein with a score.
        shown: the window in the figure, counted from 1.
        seed: seed of the control.

    Returns:
        The summary, as written to windows.json.

    Raises:
        InputError: a window cannot be used (see measure.py), no pair has a score, the control is unknown, or `shown`,
            `repeats` or `names` are out of range.
    """
    windows = [np.asarray(window) for window in windows]
    _check(windows, names, control, repeats, shown)
    parsed = [read_window(model, window, name=f"window {number}") for number, window in enumerate(windows, 1)]
    for number, (window, labels) in enumerate(zip(parsed, names or [], strict=False), 1):
        if len(labels) != len(window.starts):
            raise InputError(f"window {number} has {len(window.starts)} proteins, but {len(labels)} names.")
    rng = np.random.default_rng(seed)
    trimmed = [window[window != alphabet.PAD] for window in windows]
    draws = [interactions.control_windows(trimmed, control=control, rng=rng) for _ in range(repeats)]
    controls = [read_window(model, window, name="a control") for draw in draws for window in draw]
    # All windows have one padded length, so that the model is compiled once.
    padded = max(len(window.tokens) for window in parsed + controls)
    attentions, control_attentions = (
        [window_attention(model, window, padded=padded) for window in each] for each in (parsed, controls)
    )
    if not control_attentions:
        raise InputError("no window of the control has two proteins; use more windows, or the control 'residues'.")
    profile = interactions.distance_profile(control_attentions)
    scores = [interactions.pair_scores(attention, profile, shortest=shortest) for attention in attentions]
    control_scores = [
        interactions.pair_scores(attention, profile, shortest=shortest) for attention in control_attentions
    ]
    matrices, control_matrices = ([_symmetric(score) for score in each] for each in (scores, control_scores))
    pairs = _pairs(matrices)
    values = _at(matrices, pairs)
    if control == "residues":
        # A draw has the same proteins at the same positions: column r has the scores of the same pairs in draw r.
        starts = range(0, len(control_matrices), len(windows))
        control_values = np.stack([_at(control_matrices[i : i + len(windows)], pairs) for i in starts], 1)
        judged = interactions.against_own_control(values, control_values, _lengths(pairs, parsed, causal=model.causal))
    else:
        control_values = _at(control_matrices, _pairs(control_matrices))
        judged = interactions.against_all_controls(values, control_values)

    stem = Path(output) / "windows"
    share, even = _mean_shares(attentions), np.mean([attention.even for attention in attentions], 0)
    control_share = _mean_shares(control_attentions)
    figure, _ = window_figures.share_figure(share, even, num_windows=len(attentions), causal=model.causal)
    files = save_figure(figure, stem.with_name("windows_shares"))
    shown_window = shown_control = parsed[shown - 1]
    of_shown = pairs[:, 0] == shown
    shown_t = _matrix(pairs[of_shown], judged.t[of_shown], len(shown_window.starts), causal=model.causal)
    if control == "residues":
        control_t = _first_draw(control_values[of_shown], judged.spread[of_shown])
        shown_control_t = _matrix(pairs[of_shown], control_t, len(shown_window.starts), causal=model.causal)
    else:
        index = min(shown, len(controls)) - 1
        shown_control, matrix = controls[index], control_matrices[index : index + 1]
        control_pairs = _pairs(matrix)
        # Mean and spread are the same for all pairs.
        control_t = (_at(matrix, control_pairs) - judged.control[0]) / judged.spread[0]
        shown_control_t = _matrix(control_pairs, control_t, len(shown_control.starts), causal=model.causal)
    figure, _ = window_figures.score_figure(
        shown_t, shown_control_t, lengths=shown_window.stops - shown_window.starts,
        control_lengths=shown_control.stops - shown_control.starts, name=f"window {shown}", null=NULLS[control],
        same_pairs=control == "residues", causal=model.causal, labels=names[shown - 1] if names else None,
    )  # fmt: skip
    files += save_figure(figure, stem.with_name("windows_pairs"))
    arrays: dict[str, Any] = {
        "shares": share, "control_shares": control_share, "even": even, "profile": profile, "shown_t": shown_t,
        "shown_control_t": shown_control_t, "pairs": pairs, "pair_scores": values,
        "control_pair_scores": control_values, "control_means": judged.control, "excess": judged.excess,
        "t": judged.t, "p_values": judged.p, "q_values": judged.q, "spreads": judged.spread,
    }  # fmt: skip
    for number, (attention, score) in enumerate(zip(attentions, scores, strict=True), 1):
        arrays |= {
            f"window{number}_tokens": attention.window.tokens, f"window{number}_starts": attention.window.starts,
            f"window{number}_stops": attention.window.stops, f"window{number}_scores": score,
            f"window{number}_sums": attention.sums, f"window{number}_relative_sums": attention.relative_sums,
        }  # fmt: skip
        if names:
            arrays[f"window{number}_names"] = np.array([str(name) for name in names[number - 1]])
    save_arrays(stem, arrays)
    highest = np.argsort(-judged.t, kind="stable")[:MOST_PAIRS]
    summary = {
        "num_windows": len(attentions),
        "num_proteins": sum(len(window.starts) for window in parsed),
        "num_tokens": sum(len(window.tokens) for window in parsed),
        "causal": model.causal,
        "directions": "later protein to earlier" if model.causal else "both, averaged",
        "score": "weight over even attention, summed over a pair's residues, over the control's at the same distances "
        "(octaves); mean over layers and heads",
        "control": control,
        "null": NULLS[control],
        "judged_against": JUDGED_AGAINST[control],
        "control_spread": {
            name: float(f"{function(judged.spread):.4g}")
            for name, function in (("smallest", np.min), ("median", np.median), ("largest", np.max))
        },
        "control_spread_is": SPREADS[control],
        "degrees_of_freedom": None if judged.degrees is None else float(f"{judged.degrees:.4g}"),
        "repeats": repeats,
        "seed": seed,
        "shortest": shortest,
        "share_across": rounded(share[..., 1]),
        "share_within": rounded(share[..., 0]),
        "share_across_control": rounded(control_share[..., 1]),
        "share_even": {"within": float(even[0]), "across": float(even[1]), "special": float(even[2])},
        "num_pairs": len(pairs),
        "num_control_pairs": control_values.size,
        "pairs_with_q_below_0.05": int((judged.q < 0.05).sum()),
        "highest_pairs": [_described_pair(i, pairs, values, judged, names) for i in highest],
        "shown_window": shown,
        "places": "tokens of the window as it was given, from 1, both ends included",
        "windows": [_described_window(number, each, model.causal, names) for number, each in enumerate(parsed, 1)],
        "files": [str(file) for file in (*files, stem.with_suffix(".npz"), stem.with_suffix(".json"))],
    }
    save_summary(stem, summary)
    return summary


def _check(windows, names, control, repeats, shown):
    if not windows:
        raise InputError("attention across proteins needs at least one window, but there is none.")
    least = 2 if control == "residues" else 1
    if repeats < least:
        raise InputError(f"repeats is {repeats}; the control {control!r} needs at least {least}.")
    if not 1 <= shown <= len(windows):
        raise InputError(f"there is no window {shown}: the windows go from 1 to {len(windows)}.")
    if names is not None and len(names) != len(windows):
        raise InputError(f"names are given for {len(names)} windows, but there are {len(windows)}.")


def _symmetric(scores):
    return interactions.symmetric(interactions.mean_over_heads(scores))


def _pairs(matrices):
    """Return int64 [n, 3], the (window, first protein, second protein), from 1, of each pair with a score."""
    pairs = [
        (number, first + 1, second + 1)
        for number, matrix in enumerate(matrices, 1)
        for first, second in zip(*np.triu_indices(len(matrix), 1), strict=True)
        if not np.isnan(matrix[first, second])
    ]
    return np.array(pairs, np.int64).reshape(-1, 3)


def _at(matrices, pairs):
    """Return float64 [n], the scores of the pairs."""
    return np.array([matrices[window - 1][first - 1, second - 1] for window, first, second in pairs])


def _lengths(pairs, windows, *, causal):
    """Return int64 [n, 2], the numbers of residues of each pair: attended to and attending, or shorter and longer."""
    sizes = [window.stops - window.starts for window in windows]
    lengths = np.array([sizes[window - 1][[first - 1, second - 1]] for window, first, second in pairs], np.int64)
    lengths = lengths.reshape(-1, 2)
    # In a causal model the second protein attends to the first.
    return lengths if causal else np.sort(lengths, 1)


def _matrix(pairs, values, size, *, causal):
    """Return [P, P] with the value of each pair, for causal models in the row of the later protein only; else NaN."""
    matrix = np.full((size, size), np.nan)
    first, second = pairs[:, 1] - 1, pairs[:, 2] - 1
    matrix[second, first] = values
    if not causal:
        matrix[first, second] = values
    return matrix


def _first_draw(control, spread):
    """Return t [n] of each pair's first draw, compared with its other draws; the spread is that of all draws."""
    others = control[:, 1:]
    return (control[:, 0] - others.mean(1)) / (spread * np.sqrt(1 + 1 / others.shape[1]))


def _mean_shares(attentions: Sequence[WindowAttention]):
    """Return the mean shares of the windows, [layers, H, 3]; NaN where no window has a share."""
    values = np.stack([shares(attention) for attention in attentions])
    number = (~np.isnan(values)).sum(0)
    return np.divide(np.nansum(values, 0), number, out=np.full(number.shape, np.nan), where=number > 0)


def _described_pair(index, pairs, values, judged, names):
    window, first, second = (int(number) for number in pairs[index])
    labels = names[window - 1] if names else None
    numbers = {
        "score": values, "control": judged.control, "excess": judged.excess, "spread": judged.spread, "t": judged.t,
    }  # fmt: skip
    return {
        "window": window,
        "proteins": [first, second],
        **({"names": [str(labels[first - 1]), str(labels[second - 1])]} if labels else {}),
        **{name: float(f"{value[index]:.6g}") for name, value in numbers.items()},
        "p": float(f"{judged.p[index]:.3g}"),
        "q": float(f"{judged.q[index]:.3g}"),
    }


def _described_window(number, window, causal, names):
    # A causal model reads <bos> first: its index of a token is the token's position in the window, counted from 1.
    shift = 0 if causal else 1
    proteins = []
    for index, (start, stop) in enumerate(zip(window.starts, window.stops, strict=True)):
        name = {"name": str(names[number - 1][index])} if names else {}
        first, last = int(start) + shift, int(stop) + shift - 1
        proteins.append({"protein": index + 1, **name, "start": first, "stop": last, "length": int(stop - start)})
    return {"window": number, "proteins": proteins}
