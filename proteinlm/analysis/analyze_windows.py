"""From a model and concatenated windows to attention within and across proteins: figures, arrays, a summary."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from proteinlm.analysis import interactions, window_figures
from proteinlm.analysis.windows import WindowAttention, read_window, shares, window_attention
from proteinlm.data import alphabet
from proteinlm.errors import InputError
from proteinlm.figures import save_figure
from proteinlm.files import whole_file
from proteinlm.models.transformer import ProteinLM

NULLS = {
    "residues": "residues shuffled within each protein",
    "proteins": "proteins dealt anew over the windows",
}
MOST_PAIRS = 20
"""Pairs that the summary lists; all are in the arrays."""


def analyze_windows(
    model: ProteinLM,
    windows: Sequence[Integer[np.ndarray, " _"]] | Integer[np.ndarray, "B L"],
    output: str | os.PathLike = ".",
    *,
    names: Sequence[Sequence[str]] | None = None,
    control: str = "residues",
    repeats: int = 4,
    shortest: int = 16,
    shown: int = 0,
    seed: int = 0,
) -> dict:
    """Measure attention within and across the proteins of concatenated windows, beside a shuffled control.

    Writes OUTPUT/windows_shares.png and .pdf (by layer and head), windows_pairs.png and .pdf (proteins by proteins, of
    one window), windows.npz with every array behind them, and windows.json with the summary. Memory is linear in the
    length of a window; time is that of one window times layers, windows, and 1 + `repeats`.

    Args:
        model: a causal or bidirectional model, best one trained on windows.
        windows: ids, residues with <eos> between proteins, right padded with 0; as `TrainBatches` with form "concat"
            gives them. Long ones cost: the attention of each is streamed.
        output: a folder; made if missing, files of the same names are replaced.
        names: of each window's proteins, in order; None calls them by number.
        control: "residues" shuffles each protein's residues, "proteins" deals the proteins of all windows anew; what
            each null says is in interactions.py.
        repeats: how often the control is drawn.
        shortest: residues that a protein must have to be scored.
        shown: the window that is drawn, counted from 0.
        seed: of the control.

    Returns:
        The summary, as written to windows.json.

    Raises:
        InputError: a window that cannot be used (see windows.py), no pair with a score, an unknown control, or
            `shown`, `repeats` or `names` out of range.
    """
    windows = [np.asarray(window) for window in windows]
    _check(windows, names, repeats, shown)
    read = [read_window(model, window, name=f"window {number}") for number, window in enumerate(windows)]
    for number, (window, given) in enumerate(zip(read, names or [], strict=False)):
        if len(given) != len(window.starts):
            raise InputError(f"window {number} has {len(window.starts)} proteins, and {len(given)} names are given.")
    rng = np.random.default_rng(seed)
    trimmed = [window[window != alphabet.PAD] for window in windows]
    drawn = [interactions.control_windows(trimmed, control=control, rng=rng) for _ in range(repeats)]
    controls = [read_window(model, window, name="a control") for repeat in drawn for window in repeat]
    # All are read at one length, so that the model is compiled once.
    padded = max(len(window.tokens) for window in read + controls)
    found, every_control = (
        [window_attention(model, window, padded=padded) for window in each] for each in (read, controls)
    )
    if not every_control:
        raise InputError("no window of the control has two proteins; give more windows, or the control 'residues'.")
    profile = interactions.distance_profile(every_control)
    scores = [interactions.pair_scores(attention, profile, shortest=shortest) for attention in found]
    control_scores = [interactions.pair_scores(attention, profile, shortest=shortest) for attention in every_control]
    pairs = _pairs(scores)
    control_pairs = _pairs(control_scores)
    values = np.array([value for *_, value in pairs])
    p, q = interactions.significance(values, np.array([value for *_, value in control_pairs]))

    stem = Path(output) / "windows"
    share, even = _mean_shares(found), np.mean([attention.even for attention in found], 0)
    control_share = _mean_shares(every_control)
    # With residues shuffled every draw has the proteins of the window in their places, and the mean of all is drawn.
    beside, beside_scores = _control_of(shown, every_control, control_scores, len(windows), control)
    figure, _ = window_figures.share_figure(share, even, num_windows=len(found), causal=model.causal)
    files = save_figure(figure, stem.with_name("windows_shares"))
    one = found[shown].window
    figure, _ = window_figures.score_figure(
        interactions.mean_over_heads(scores[shown]), beside_scores,
        lengths=one.stops - one.starts, control_lengths=beside.window.stops - beside.window.starts,
        name=f"window {shown}", null=NULLS[control], causal=model.causal, labels=names[shown] if names else None,
    )  # fmt: skip
    files += save_figure(figure, stem.with_name("windows_pairs"))
    arrays: dict[str, Any] = {
        "shares": share, "control_shares": control_share, "even": even, "profile": profile,
        "shown_scores": interactions.mean_over_heads(scores[shown]), "shown_control_scores": beside_scores,
        "control_pair_scores": np.array([value for *_, value in control_pairs]),
        "pairs": np.array([place for *place, _ in pairs], np.int64).reshape(-1, 3), "pair_scores": values,
        "p_values": p, "q_values": q,
    }  # fmt: skip
    for number, (attention, score) in enumerate(zip(found, scores, strict=True)):
        arrays |= {
            f"window{number}_tokens": attention.window.tokens, f"window{number}_starts": attention.window.starts,
            f"window{number}_stops": attention.window.stops, f"window{number}_scores": score,
            f"window{number}_sums": attention.sums, f"window{number}_relative_sums": attention.relative_sums,
        }  # fmt: skip
    with whole_file(stem.with_suffix(".npz"), "wb") as handle:
        np.savez_compressed(handle, **arrays)
    summary = {
        "num_windows": len(found),
        "num_proteins": sum(len(window.starts) for window in read),
        "num_tokens": sum(len(window.tokens) for window in read),
        "causal": model.causal,
        "directions": "later protein to earlier" if model.causal else "both, averaged",
        "score": "weight over even attention, summed over a pair's residues, over the control's at the same distances "
        "(octaves); mean over layers and heads",
        "control": control,
        "null": NULLS[control],
        "repeats": repeats,
        "seed": seed,
        "shortest": shortest,
        "share_across": _rounded(share[..., 1]),
        "share_within": _rounded(share[..., 0]),
        "share_across_control": _rounded(control_share[..., 1]),
        "share_even": {"within": float(even[0]), "across": float(even[1]), "special": float(even[2])},
        "num_pairs": len(pairs),
        "num_control_pairs": len(control_pairs),
        "highest_pairs": [_named(pairs[i], p[i], q[i], names) for i in np.argsort(-values)[:MOST_PAIRS]],
        "files": [str(file) for file in (*files, stem.with_suffix(".npz"), stem.with_suffix(".json"))],
    }
    with whole_file(stem.with_suffix(".json")) as handle:
        json.dump(summary, handle, indent=2, allow_nan=False)
        handle.write("\n")
    return summary


def _check(windows, names, repeats, shown):
    if not windows:
        raise InputError("attention across proteins needs at least one window, and was given none.")
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; the control must be drawn once at least.")
    if not 0 <= shown < len(windows):
        raise InputError(f"there is no window {shown}: the windows go from 0 to {len(windows) - 1}.")
    if names is not None and len(names) != len(windows):
        raise InputError(f"names are given for {len(names)} windows, but there are {len(windows)}.")


def _pairs(scores):
    """Return (window, first protein, second protein, score) of each unordered pair that has a score."""
    pairs = []
    for number, matrix in enumerate(scores):
        both = interactions.symmetric(interactions.mean_over_heads(matrix))
        for first, second in zip(*np.triu_indices(len(both), 1), strict=True):
            if not np.isnan(both[first, second]):
                pairs.append((number, int(first), int(second), float(both[first, second])))
    return pairs


def _mean_shares(attentions: Sequence[WindowAttention]):
    """Return the mean of the windows' shares, [layers, H, 3]; NaN where none has one."""
    values = np.stack([shares(attention) for attention in attentions])
    number = (~np.isnan(values)).sum(0)
    return np.divide(np.nansum(values, 0), number, out=np.full(number.shape, np.nan), where=number > 0)


def _control_of(shown, attentions, scores, num_windows, control):
    """Return a control to draw beside window `shown`, and its scores averaged over heads."""
    if control == "residues":
        means = [interactions.mean_over_heads(score) for score in scores[shown::num_windows]]
        return attentions[shown], np.mean(means, 0)
    place = min(shown, len(attentions) - 1)
    return attentions[place], interactions.mean_over_heads(scores[place])


def _named(pair, p, q, names):
    window, first, second, score = pair
    label = (lambda place: names[window][place]) if names else (lambda place: place + 1)
    return {
        "window": window, "proteins": [label(first), label(second)], "score": round(score, 4),
        "p": round(float(p), 6), "q": round(float(q), 6),
    }  # fmt: skip


def _rounded(values):
    return [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in values]
