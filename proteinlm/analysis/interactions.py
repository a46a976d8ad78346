"""How much two proteins of one window attend to each other, beyond place, distance and chance.

The score of a pair is its relative attention (windows.py: weight over even attention, which takes out length and, in a
causal model, place) over what pairs of the control have at the same distances, 1 if it is the same. A bidirectional
model's two directions are averaged; in a causal model only the later protein can attend to the earlier one, so that
its score is one direction and half of the matrix is not there.

The control is what the model does with windows in which nothing but chance relates two proteins. Two nulls:

- "residues": each protein's residues are shuffled within it. Places, lengths, distances and compositions are kept;
  the null is that across proteins the order of residues does not matter. One window is enough.
- "proteins": the proteins of all windows are dealt anew. Each stays whole and natural; the null is that it does not
  matter who the neighbour is. It needs two windows at least.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Integer
from scipy import stats

from proteinlm.analysis.windows import WindowAttention
from proteinlm.data import alphabet
from proteinlm.errors import InputError

CONTROLS = ("residues", "proteins")


def control_windows(
    windows: Sequence[Integer[np.ndarray, " _"]], *, control: str, rng: np.random.Generator
) -> list[Integer[np.ndarray, " _"]]:
    """Return a control for each window: the same tokens with residues or proteins shuffled.

    Args:
        windows: ids, as `windows.read_window` takes them.
        control: "residues" or "proteins" (see above). Proteins keep to the number that each window had, so that
            windows change in length; where one grows past the longest of `windows` it is cut there, as any window is,
            and left out if that leaves no two proteins.
        rng: draws the shuffle.

    Raises:
        InputError: an unknown control, or "proteins" with one window.
    """
    if control == "residues":
        return [_shuffled_residues(window, rng) for window in windows]
    if control != "proteins":
        raise InputError(f"there is no control {control!r}; choose one of {', '.join(CONTROLS)}.")
    if len(windows) < 2:
        raise InputError(
            "the control 'proteins' deals the proteins of several windows anew and needs two windows at least; "
            "give more, or choose the control 'residues'."
        )
    limit = max(len(window) for window in windows)
    stretches = [_stretches(window) for window in windows]
    pool = [stretch for own in stretches for stretch in own]
    order = iter(rng.permutation(len(pool)))
    dealt = []
    for own in stretches:
        parts = [np.append(pool[next(order)], np.uint8(alphabet.EOS)) for _ in own]
        dealt.append(np.concatenate(parts)[:limit])
    # A causal model does not read the last token.
    return [window for window in dealt if len(_stretches(window[:-1])) > 1]


def distance_profile(attentions: Sequence[WindowAttention]) -> Float64[np.ndarray, "layers H K"]:
    """Return the mean relative attention across proteins by class of distance; NaN where there is no pair.

    Classes as in WindowAttention.profile_sums, of the window that has most of them.
    """
    octaves = max(attention.profile_sums.shape[-1] for attention in attentions) // 2
    sums = sum(_widened(attention.profile_sums, octaves) for attention in attentions)
    counts = sum(_widened(_across(attention), octaves) for attention in attentions)
    counts = np.broadcast_to(counts, np.shape(sums))
    return np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)


def pair_scores(
    attention: WindowAttention, profile: Float64[np.ndarray, "layers H K"], *, shortest: int = 16
) -> Float64[np.ndarray, "layers H P P"]:
    """Return relative attention from protein p to protein q over that of the profile at the same distances.

    Args:
        attention: one window's sums.
        profile: from `distance_profile`, of the control.
        shortest: residues that a protein must have; windows cut proteins, and a stretch of a few residues has a score
            that is noise.

    Returns:
        1 is as in the control. NaN on the diagonal (a protein and itself), where a causal model cannot look, for short
        stretches, and where the control has no pair at a distance that the two have or gives it nothing.
    """
    octaves = max(profile.shape[-1], attention.counts.shape[-1]) // 2
    counts, profile = _widened(attention.counts, octaves), _widened(profile, octaves, np.nan)
    at_distance = np.where(counts[None, None] > 0, profile[:, :, None, None, :], 0)
    expected = (at_distance * counts).sum(-1)
    long = attention.window.stops - attention.window.starts >= shortest
    usable = long[:, None] & long[None, :] & ~np.eye(len(long), dtype=bool) & (counts.sum(-1) > 0)
    scores = np.full(expected.shape, np.nan)
    return np.divide(attention.relative_sums, expected, out=scores, where=usable & (expected > 0))


def symmetric(scores: Float64[np.ndarray, "... P P"]) -> Float64[np.ndarray, "... P P"]:
    """Return the mean of both directions, or the one that there is."""
    both = np.stack([scores, np.swapaxes(scores, -1, -2)])
    number = (~np.isnan(both)).sum(0)
    return np.divide(np.nansum(both, 0), number, out=np.full(scores.shape, np.nan), where=number > 0)


def mean_over_heads(scores: Float64[np.ndarray, "layers H P P"]) -> Float64[np.ndarray, "P P"]:
    """Return the mean over layers and heads that have a score; NaN where none has."""
    number = (~np.isnan(scores)).sum((0, 1))
    return np.divide(np.nansum(scores, (0, 1)), number, out=np.full(number.shape, np.nan), where=number > 0)


def significance(
    scores: Float64[np.ndarray, " n"], control: Float64[np.ndarray, " m"]
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Return p-values of scores against those of the control, and q-values for the whole of them.

    p is (1 + controls at least as high) / (1 + controls), one-sided; q is Benjamini and Hochberg's false discovery
    rate. Pairs of one window share proteins, and are not independent.

    Raises:
        InputError: no score of the control.
    """
    if not len(control):
        raise InputError(
            "no pair of the control has a score: its proteins are shorter than `shortest`, or the model's heads give "
            "other proteins nothing (attention that returns its values does)."
        )
    higher = len(control) - np.searchsorted(np.sort(control), scores, side="left")
    p = (1 + higher) / (1 + len(control))
    return p, stats.false_discovery_control(p) if len(p) else p


def _across(attention):
    """Return int64 [K], the visible pairs of residues of two proteins by distance."""
    return attention.counts.sum((0, 1)) - np.trace(attention.counts, axis1=0, axis2=1)


def _widened(values, octaves, filling: float = 0):
    """Return [..., 2 * octaves] from values of fewer classes: both halves are filled up at their ends."""
    own = values.shape[-1] // 2
    result = np.full((*values.shape[:-1], 2 * octaves), filling, values.dtype)
    result[..., :own], result[..., octaves : octaves + own] = values[..., :own], values[..., own:]
    return result


def _stretches(window):
    window = np.asarray(window).astype(np.uint8)
    residue = np.flatnonzero(window >= alphabet.FIRST_RESIDUE)
    return [window[places] for places in np.split(residue, np.flatnonzero(np.diff(residue) > 1) + 1) if len(places)]


def _shuffled_residues(window, rng):
    shuffled = np.array(window)
    residue = np.flatnonzero(shuffled >= alphabet.FIRST_RESIDUE)
    for places in np.split(residue, np.flatnonzero(np.diff(residue) > 1) + 1):
        shuffled[places] = rng.permutation(shuffled[places])
    return shuffled
