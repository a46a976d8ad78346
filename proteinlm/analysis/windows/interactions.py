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

Shuffled residues leave a pair its composition, and pairs differ by composition far more than a pair's draws do among
themselves. A pair is therefore held against its own draws alone (`against_own_control`): ranked by score, the list
would mostly say which proteins are made of what. Dealt proteins are other pairs; against them there is only the pooled
null (`against_all_controls`), which composition is part of. A pair above its own control says that order matters, not
yet that the two interact: a motif that draws attention from every protein raises all pairs of its protein.

Draws of a pair are few, and how far they scatter depends on the pair: over 16 residues chance averages out less than
over 400, and in a causal model the protein attended to counts most. Each pair therefore has a spread of its own, from
its draws and from those of pairs of similar lengths (`_spreads`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Integer
from scipy import optimize, special, stats

from proteinlm import alphabet
from proteinlm.analysis.windows.measure import WindowAttention
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


class Judgement(NamedTuple):
    """How far the scores of n pairs lie above their control.

    Attributes:
        control: [n], the control's mean: of the pair's own draws, or of all pairs of the control.
        excess: [n], score minus that mean.
        t: [n], the excess in units of its standard deviation; what pairs are ranked by.
        p: [n], one-sided.
        q: [n], Benjamini and Hochberg's false discovery rate. Pairs of one window share proteins and are not
            independent.
        spread: [n], the standard deviation of the control, in units of the score: of the pair's own draws, moderated,
            or, the same for all, of all scores of the control.
        degrees: of freedom of the t distribution that p is from; None where p counts controls.
    """

    control: Float64[np.ndarray, " n"]
    excess: Float64[np.ndarray, " n"]
    t: Float64[np.ndarray, " n"]
    p: Float64[np.ndarray, " n"]
    q: Float64[np.ndarray, " n"]
    spread: Float64[np.ndarray, " n"]
    degrees: float | None


def against_own_control(
    scores: Float64[np.ndarray, " n"], control: Float64[np.ndarray, "n draws"], lengths: Integer[np.ndarray, "n k"]
) -> Judgement:
    """Judge each pair against control draws of the same pair.

    t = (score - mean of the pair's draws) / (s sqrt(1 + 1 / draws)), where s^2 is the variance of the pair's draws,
    moderated by that of other pairs: a few draws alone would tell it badly, and one variance for all would call far
    too many short pairs significant and hide long ones. This is the moderated t test (Smyth 2004,
    https://doi.org/10.2202/1544-6115.1027) with a trend over lengths. It takes draws to be near normal.

    Draws of pairs that share a protein are not independent, so that few proteins tell the trend less well than p has
    it. Of simulated null pairs 1 % have p < 0.01 with six windows of 8 proteins, 1.4 % with one, 2 % with 3 proteins in
    all; of those of an untrained causal model (random proteins of unlike compositions, 6 windows, 4 draws) 1.5 %: 2.3 %
    where fewer than 25 residues are attended to, 1.3 % where 100 or more are. One variance for all gave 6.7 and 0 %.

    Args:
        scores: of the pairs.
        control: the same pairs' scores in each draw.
        lengths: residues of each pair's proteins, 1 or more, in columns whose meaning is the same for all pairs:
            attended to and attending, or, of a model that looks both ways, shorter and longer.

    Raises:
        InputError: no pair, or fewer than two draws.
    """
    number, draws = control.shape
    if draws < 2:
        raise InputError(f"repeats is {draws}; a pair's own control needs two draws at least to have a spread.")
    if not number:
        raise InputError(_NO_SCORES)
    mean = control.mean(1)
    variances = np.maximum(control.var(1, ddof=1), _rounding(control) ** 2)
    spread, degrees = _spreads(variances, lengths, draws - 1)
    t = (scores - mean) / (spread * np.sqrt(1 + 1 / draws))
    p = stats.t.sf(t, degrees)
    return Judgement(mean, scores - mean, t, p, stats.false_discovery_control(p), spread, degrees)


def against_all_controls(scores: Float64[np.ndarray, " n"], control: Float64[np.ndarray, " m"]) -> Judgement:
    """Judge pairs against all pairs of a control that has other pairs.

    p is (1 + controls at least as high) / (1 + controls). t is in units of the control's standard deviation, and for
    figures alone.

    Raises:
        InputError: no pair, or no pair of the control.
    """
    if not len(control) or not len(scores):
        raise InputError(_NO_SCORES)
    higher = len(control) - np.searchsorted(np.sort(control), scores, side="left")
    p = (1 + higher) / (1 + len(control))
    mean = np.full(len(scores), control.mean())
    spread = np.full(len(scores), max(control.std(), _rounding(control)))
    return Judgement(mean, scores - mean, (scores - mean) / spread, p, stats.false_discovery_control(p), spread, None)


_NO_SCORES = (
    "no pair of the windows and of the control has a score: proteins are shorter than `shortest`, or the model's heads "
    "give other proteins nothing (attention that returns its values does)."
)


def _spreads(variances, lengths, own):
    """Return each pair's moderated standard deviation [n], and the degrees of freedom that all have.

    A pair's variance about its draws' mean, of `own` degrees of freedom, is a draw of chi^2 around the pair's true
    one. That in turn is scaled inverse chi^2 of d degrees of freedom around a trend that is a power of each length: d
    says how well lengths alone tell it, composition left aside. Trend and d are the likeliest, under weak priors. The
    moderated variance weighs trend and own as d to `own`.
    """
    log_lengths = np.log(lengths)
    centred = np.column_stack([np.ones(len(lengths)), log_lengths - log_lengths.mean(0)])
    unit, most = variances.mean(), np.log(own * len(variances))

    def minus_log_posterior(values):
        # Sums of squares are kept as logarithms: far from the optimum their exponentials would overflow.
        powers, degrees = values[:-1], np.exp(values[-1])
        prior = values[-1] + centred @ powers
        both = np.logaddexp(prior, np.log(own * variances / unit))
        normaliser = special.gammaln((degrees + own) / 2) - special.gammaln(degrees / 2)
        likelihood = normaliser + degrees / 2 * prior - (degrees + own) / 2 * both
        # Few pairs would fit any power, and, as they share draws, agree too well: powers have a standard normal prior,
        # and d one that is flat in 1 / d. Many pairs overrule both.
        return -likelihood.sum() + (powers[1:] ** 2).sum() / 2 + values[-1]

    start = np.zeros(centred.shape[1] + 1)
    bounds = [(None, None)] * centred.shape[1] + [(0, most)]
    *powers, log_degrees = optimize.minimize(minus_log_posterior, start, method="L-BFGS-B", bounds=bounds).x
    trend, degrees = unit * np.exp(centred @ powers), np.exp(log_degrees)
    moderated = (degrees * trend + own * variances) / (degrees + own)
    # No more than all draws together have.
    return np.sqrt(moderated), float(min(degrees + own, own * len(variances)))


def _rounding(control):
    """Return the standard deviation that rounding to float32 gives at least, so that t is finite."""
    return float(max(np.finfo(np.float32).eps * np.abs(control).mean(), np.finfo(np.float32).tiny))


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
