"""Scores of the attention between two proteins of a window, compared with a shuffled control.

The score of a pair is its relative attention (measure.py: weight over even attention, which removes the effects of
length and, in a causal model, of position) divided by the relative attention in the control at the same distances. 1
means no difference. In a bidirectional model the two directions are averaged. In a causal model only the later protein
can attend to the earlier one: the score has one direction, and half of the matrix is empty.

The control consists of windows in which two proteins are related by chance only. There are two kinds:

- "residues": the residues of each protein are shuffled. Positions, lengths, distances and compositions are unchanged.
  The null hypothesis is that the order of residues has no effect across proteins. One window is enough.
- "proteins": the proteins of all windows are shuffled over the windows. Each protein is unchanged. The null hypothesis
  is that the choice of neighbours has no effect. At least two windows are needed.

Shuffled residues keep the composition of a pair, and scores differ more between pairs of different compositions than
between draws of one pair. Each pair is therefore compared only with its own draws (`against_own_control`); a ranking by
score would mostly rank compositions. Shuffled proteins are different pairs, and all of them together are the control
(`against_all_controls`), with composition as a part of its spread. A pair above its own control shows that the order of
residues matters, but not yet that the two proteins interact: a motif that attracts attention from every protein raises
all pairs of its protein.

There are few draws for each pair, and their spread depends on the pair: chance averages out less over 16 residues than
over 400, and in a causal model the length of the protein attended to is most important. Each pair therefore has its own
spread, estimated from its draws and from those of pairs with similar lengths (`_spreads`).
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
        windows: token ids, as for `measure.read_window`.
        control: "residues" or "proteins" (see the top of this file). With "proteins" each window keeps its number of
            proteins and its length changes. A window that becomes longer than the longest of `windows` is cut to that
            length, and left out if it then has fewer than two proteins.
        rng: random generator of the shuffle.

    Raises:
        InputError: the control is unknown, or is "proteins" with one window.
    """
    if control == "residues":
        return [_shuffled_residues(window, rng) for window in windows]
    if control != "proteins":
        raise InputError(f"there is no control {control!r}; choose one of {', '.join(CONTROLS)}.")
    if len(windows) < 2:
        raise InputError(
            "the control 'proteins' shuffles the proteins of several windows and needs at least two windows; "
            "use more, or choose the control 'residues'."
        )
    limit = max(len(window) for window in windows)
    proteins = [_proteins(window) for window in windows]
    pool = [protein for of_window in proteins for protein in of_window]
    order = iter(rng.permutation(len(pool)))
    shuffled = []
    for of_window in proteins:
        parts = [np.append(pool[next(order)], np.uint8(alphabet.EOS)) for _ in of_window]
        shuffled.append(np.concatenate(parts)[:limit])
    # A causal model does not read the last token.
    return [window for window in shuffled if len(_proteins(window[:-1])) > 1]


def distance_profile(attentions: Sequence[WindowAttention]) -> Float64[np.ndarray, "layers H K"]:
    """Return the mean relative attention across proteins by distance class; NaN where there is no pair.

    The classes are those of WindowAttention.profile_sums, for the window with most classes.
    """
    octaves = max(attention.profile_sums.shape[-1] for attention in attentions) // 2
    sums = sum(_widened(attention.profile_sums, octaves) for attention in attentions)
    counts = sum(_widened(_across(attention), octaves) for attention in attentions)
    counts = np.broadcast_to(counts, np.shape(sums))
    return np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)


def pair_scores(
    attention: WindowAttention, profile: Float64[np.ndarray, "layers H K"], *, shortest: int = 16
) -> Float64[np.ndarray, "layers H P P"]:
    """Return relative attention from protein p to protein q divided by that of the profile at the same distances.

    Args:
        attention: the sums of one window.
        profile: the profile of the control, from `distance_profile`.
        shortest: smallest number of residues of a protein with a score. Windows cut proteins, and the score of a few
            residues is noise.

    Returns:
        1 means no difference from the control. NaN on the diagonal, where a causal model cannot see the key, for short
        proteins, and where the control has no pair or no attention at a distance of the two proteins.
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
    """Return the mean of both directions, or the one direction with a value."""
    both = np.stack([scores, np.swapaxes(scores, -1, -2)])
    number = (~np.isnan(both)).sum(0)
    return np.divide(np.nansum(both, 0), number, out=np.full(scores.shape, np.nan), where=number > 0)


def mean_over_heads(scores: Float64[np.ndarray, "layers H P P"]) -> Float64[np.ndarray, "P P"]:
    """Return the mean over the layers and heads with a score; NaN if none has one."""
    number = (~np.isnan(scores)).sum((0, 1))
    return np.divide(np.nansum(scores, (0, 1)), number, out=np.full(number.shape, np.nan), where=number > 0)


class Judgement(NamedTuple):
    """Comparison of the scores of n pairs with their control.

    Attributes:
        control: [n], mean of the control: of the pair's own draws, or of all pairs of the control.
        excess: [n], score minus that mean.
        t: [n], the excess divided by its standard deviation; pairs are ranked by it.
        p: [n], one-sided p-values.
        q: [n], false discovery rates of Benjamini and Hochberg. Pairs of one window share proteins and are not
            independent.
        spread: [n], standard deviation of the control, in units of the score: the moderated one of the pair's own
            draws, or that of all scores of the control.
        degrees: degrees of freedom of the t distribution of p; None if p is a share of control scores.
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
    """Compare each pair with control draws of the same pair.

    t = (score - mean of the pair's draws) / (s sqrt(1 + 1 / draws)), where s^2 is the variance of the pair's draws,
    moderated by that of other pairs. A few draws alone would give a poor estimate. One variance for all pairs would
    make far too many short pairs significant and hide long ones. This is the moderated t test (Smyth 2004,
    https://doi.org/10.2202/1544-6115.1027) with a trend over lengths. It assumes that draws are approximately normal.

    Draws of pairs with a common protein are not independent, so that with few proteins the trend is less certain than p
    assumes. Of simulated null pairs, 1 % have p < 0.01 with six windows of 8 proteins, 1.4 % with one window, and 2 %
    with 3 proteins in all. With an untrained causal model (random proteins of different compositions, 6 windows, 4
    draws) it is 1.5 %: 2.3 % where fewer than 25 residues are attended to, 1.3 % where there are 100 or more. One
    variance for all pairs gave 6.7 and 0 %.

    Args:
        scores: scores of the pairs.
        control: scores of the same pairs in each draw.
        lengths: numbers of residues of each pair's proteins, at least 1. The columns have the same meaning for all
            pairs: attended to and attending, or, in a bidirectional model, shorter and longer.

    Raises:
        InputError: there is no pair, or there are fewer than two draws.
    """
    number, draws = control.shape
    if draws < 2:
        raise InputError(f"repeats is {draws}; the spread of a pair's own control needs at least two draws.")
    if not number:
        raise InputError(_NO_SCORES)
    mean = control.mean(1)
    variances = np.maximum(control.var(1, ddof=1), _rounding(control) ** 2)
    spread, degrees = _spreads(variances, lengths, draws - 1)
    t = (scores - mean) / (spread * np.sqrt(1 + 1 / draws))
    p = stats.t.sf(t, degrees)
    return Judgement(mean, scores - mean, t, p, stats.false_discovery_control(p), spread, degrees)


def against_all_controls(scores: Float64[np.ndarray, " n"], control: Float64[np.ndarray, " m"]) -> Judgement:
    """Compare pairs with all pairs of a control of different pairs.

    p is (1 + number of control scores at least as high) / (1 + number of control scores). t is in units of the
    control's standard deviation, and is used for figures only.

    Raises:
        InputError: there is no pair, or the control has none.
    """
    if not len(control) or not len(scores):
        raise InputError(_NO_SCORES)
    higher = len(control) - np.searchsorted(np.sort(control), scores, side="left")
    p = (1 + higher) / (1 + len(control))
    mean = np.full(len(scores), control.mean())
    spread = np.full(len(scores), max(control.std(), _rounding(control)))
    return Judgement(mean, scores - mean, (scores - mean) / spread, p, stats.false_discovery_control(p), spread, None)


_NO_SCORES = (
    "no pair of the windows or of the control has a score: proteins are shorter than `shortest`, or the model's heads "
    "do not attend to other proteins (those of the attention kind identity do not)."
)


def _spreads(variances, lengths, freedom):
    """Return each pair's moderated standard deviation [n], and their common degrees of freedom.

    The variance of a pair's draws has `freedom` degrees of freedom: it follows chi^2 around the true variance of the
    pair. The true variances follow a scaled inverse chi^2 with d degrees of freedom around a trend, a power of each
    length. d measures how well lengths predict the variance (composition has an effect too). Trend and d maximise the
    posterior under weak priors. The moderated variance is the mean of trend and variance with weights d and `freedom`.
    """
    log_lengths = np.log(lengths)
    centred = np.column_stack([np.ones(len(lengths)), log_lengths - log_lengths.mean(0)])
    unit, most = variances.mean(), np.log(freedom * len(variances))

    def minus_log_posterior(values):
        # Logarithms of sums of squares: the exponentials would overflow far from the optimum.
        powers, degrees = values[:-1], np.exp(values[-1])
        prior = values[-1] + centred @ powers
        both = np.logaddexp(prior, np.log(freedom * variances / unit))
        normaliser = special.gammaln((degrees + freedom) / 2) - special.gammaln(degrees / 2)
        likelihood = normaliser + degrees / 2 * prior - (degrees + freedom) / 2 * both
        # Few pairs would fit any power, and would agree too well, since they share draws. Powers therefore have a
        # standard normal prior and d a prior that is flat in 1 / d. With many pairs both have little effect.
        return -likelihood.sum() + (powers[1:] ** 2).sum() / 2 + values[-1]

    start = np.zeros(centred.shape[1] + 1)
    bounds = [(None, None)] * centred.shape[1] + [(0, most)]
    *powers, log_degrees = optimize.minimize(minus_log_posterior, start, method="L-BFGS-B", bounds=bounds).x
    trend, degrees = unit * np.exp(centred @ powers), np.exp(log_degrees)
    moderated = (degrees * trend + freedom * variances) / (degrees + freedom)
    # The degrees of freedom are limited to those of all draws together.
    return np.sqrt(moderated), float(min(degrees + freedom, freedom * len(variances)))


def _rounding(control):
    """Return the standard deviation of rounding to float32, a lower limit that keeps t finite."""
    return float(max(np.finfo(np.float32).eps * np.abs(control).mean(), np.finfo(np.float32).tiny))


def _across(attention):
    """Return int64 [K], the number of visible pairs of residues of different proteins by distance."""
    return attention.counts.sum((0, 1)) - np.trace(attention.counts, axis1=0, axis2=1)


def _widened(values, octaves, filling: float = 0):
    """Return [..., 2 * octaves] from values of fewer distance classes; the end of each half is filled."""
    half = values.shape[-1] // 2
    result = np.full((*values.shape[:-1], 2 * octaves), filling, values.dtype)
    result[..., :half], result[..., octaves : octaves + half] = values[..., :half], values[..., half:]
    return result


def _proteins(window):
    """Return the tokens of each protein of a window."""
    window = np.asarray(window).astype(np.uint8)
    return [window[positions] for positions in _positions(window) if len(positions)]


def _positions(window):
    """Return the positions of the residues of each protein of a window."""
    residues = np.flatnonzero(window >= alphabet.FIRST_RESIDUE)
    return np.split(residues, np.flatnonzero(np.diff(residues) > 1) + 1)


def _shuffled_residues(window, rng):
    shuffled = np.array(window)
    for positions in _positions(shuffled):
        shuffled[positions] = rng.permutation(shuffled[positions])
    return shuffled
