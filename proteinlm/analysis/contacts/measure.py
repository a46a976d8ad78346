"""Whether attention points at residues that touch: contacts of a structure against symmetrised attention.

As Rao et al. (2021, "Transformer protein language models are unsupervised structure learners") do: contacts are
C-beta atoms nearer than 8 Å (C-alpha of glycine) of residues 6 or more apart in sequence; attention is symmetrised and
corrected by its average product (APC), which takes away that some residues attend or are attended to more than others;
heads are judged alone, and together by logistic regression with an L1 penalty. Precision is that of the L, L/2 and L/5
highest pairs of a range of sequence separation.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from proteinlm.errors import InputError

CUTOFF = 8.0
"""Å between C-beta atoms; nearer is a contact."""
CLOSEST = 6
"""Residues that a pair must be apart in sequence."""
RANGES = {"long": (24, math.inf), "medium": (12, 23), "short": (6, 11)}
"""Separations in sequence, both ends included."""
CUTS = {"L": 1, "L/2": 2, "L/5": 5}
INVERSE_PENALTY = 1 / 0.15
"""C of scikit-learn's LogisticRegression; Rao et al. found 0.15 on a grid."""


class Pairs(NamedTuple):
    """The pairs of a structure that are judged: both residues resolved, 6 or more apart; n pairs.

    Attributes:
        first, second: int64 [n], residues of each pair, first < second.
        contacts: bool [n], which pairs touch.
        num_resolved: resolved residues of the protein, the L of L, L/2, L/5.
    """

    first: Int64[np.ndarray, " n"]
    second: Int64[np.ndarray, " n"]
    contacts: Bool[np.ndarray, " n"]
    num_resolved: int

    @property
    def separation(self) -> Int64[np.ndarray, " n"]:
        """How far apart in sequence the residues of each pair are."""
        return self.second - self.first

    def of(self, maps: Float[np.ndarray, "... L L"]) -> Float[np.ndarray, "... n"]:
        """Return the values of symmetric maps at these pairs."""
        return maps[..., self.first, self.second]


def contact_map(places: Float64[np.ndarray, "L 3"], *, cutoff: float = CUTOFF) -> Bool[np.ndarray, "L L"]:
    """Return which residues are nearer than `cutoff` Å; False where a place is NaN."""
    apart = places[:, None, :] - places[None, :, :]
    with np.errstate(invalid="ignore"):
        return np.sqrt((apart**2).sum(-1)) < cutoff


def judged_pairs(places: Float64[np.ndarray, "L 3"], *, cutoff: float = CUTOFF) -> Pairs:
    """Return the pairs of resolved residues that are 6 or more apart, and which of them touch.

    Args:
        places: of each residue's C-beta, in Å; NaN where it is not resolved.
        cutoff: in Å.

    Raises:
        InputError: no such pair, or none touches.
    """
    resolved = ~np.isnan(places.sum(1))
    first, second = np.triu_indices(len(places), CLOSEST)
    keep = resolved[first] & resolved[second]
    first, second = first[keep], second[keep]
    contacts = contact_map(places, cutoff=cutoff)[first, second]
    if not contacts.any():
        raise InputError(
            f"the structure has {len(first)} pairs of resolved residues {CLOSEST} or more apart in sequence, and none "
            f"is nearer than {cutoff:g} Å: there is no contact to find; take a longer or folded protein."
        )
    return Pairs(first, second, contacts, int(resolved.sum()))


def symmetrised(maps: Float[np.ndarray, "... L L"]) -> Float[np.ndarray, "... L L"]:
    """Return attention from i to j plus that from j to i; of a causal model one of them is 0."""
    return maps + np.swapaxes(maps, -1, -2)


def average_product_corrected(maps: Float[np.ndarray, "... L L"]) -> Float[np.ndarray, "... L L"]:
    """Return F(i, j) - F(i) F(j) / F of symmetric maps, where F(i) is a row's sum and F the whole's (Dunn et al. 2008).

    A map whose whole is 0 has nothing to take away. In a causal model's map early residues are seen by more, in smaller
    shares; the product of sums takes away no more of that than it can say.
    """
    rows = maps.sum(-1, keepdims=True)
    whole = rows.sum(-2, keepdims=True)
    expected = np.divide(rows * np.swapaxes(rows, -1, -2), whole, out=np.zeros_like(maps), where=whole != 0)
    return maps - expected


def precisions(scores: Float[np.ndarray, " n"], pairs: Pairs) -> Float64[np.ndarray, "ranges cuts"]:
    """Return the share of contacts among the highest pairs, [3, 3]: RANGES by CUTS.

    Where a range has fewer pairs than the cut asks for, all of them are taken; NaN where it has none. Pairs of equal
    score at the cut count as if one were drawn from them at random, so that a head without an opinion has the precision
    of chance.
    """
    table = np.full((len(RANGES), len(CUTS)), np.nan)
    for row, chosen in enumerate(_in_ranges(pairs)):
        number = int(chosen.sum())
        order = np.argsort(-scores[chosen], kind="stable")
        values, hits = scores[chosen][order], np.concatenate([[0], np.cumsum(pairs.contacts[chosen][order])])
        for column, part in enumerate(CUTS.values()):
            taken = min(max(pairs.num_resolved // part, 1), number)
            if not taken:
                continue
            # values falls: those equal to the last one taken lie between two places.
            low = int(np.searchsorted(-values, -values[taken - 1], side="left"))
            high = int(np.searchsorted(-values, -values[taken - 1], side="right"))
            share = (hits[high] - hits[low]) / (high - low)
            table[row, column] = (hits[low] + (taken - low) * share) / taken
    return table


def chance(pairs: Pairs) -> Float64[np.ndarray, "ranges cuts"]:
    """Return the precision of guesses at random: the share of contacts among the pairs of each range."""
    return precisions(np.zeros(len(pairs.first)), pairs)


def contacts_by_range(pairs: Pairs) -> dict[str, dict[str, int]]:
    """Return the number of pairs and of contacts of each range."""
    return {
        name: {"pairs": int(chosen.sum()), "contacts": int(pairs.contacts[chosen].sum())}
        for name, chosen in zip(RANGES, _in_ranges(pairs), strict=True)
    }


def fit_heads(
    features: Sequence[Float[np.ndarray, "heads _"]],
    contacts: Sequence[Bool[np.ndarray, " _"]],
    *,
    inverse_penalty: float = INVERSE_PENALTY,
) -> tuple[Float64[np.ndarray, " heads"], float]:
    """Fit logistic regression with an L1 penalty from the heads to contacts over the pairs of several proteins.

    Each head is scaled to a standard deviation of 1 over these pairs first (Rao et al. do not): the penalty would
    otherwise weigh on diffuse heads, whose weights are small, and in long proteins most of all.

    Args:
        features: of each protein, corrected attention of all heads at its judged pairs.
        contacts: of each protein, which of the pairs touch.
        inverse_penalty: scikit-learn's C.

    Returns:
        The coefficients of the heads as they are, unscaled, and the intercept: a score is their product's sum.

    Raises:
        InputError: scikit-learn is not installed, or all pairs are contacts or none is.
    """
    regression = require_regression()
    values, labels = np.concatenate(features, -1).T.astype(np.float64), np.concatenate(contacts)
    if labels.all() or not labels.any():
        raise InputError("the training structures need pairs that touch and pairs that do not; add other structures.")
    spread = values.std(0)
    spread[spread == 0] = 1
    fit = regression(l1_ratio=1, C=inverse_penalty, solver="liblinear", random_state=0, max_iter=1000)
    fit.fit(values / spread, labels)
    return fit.coef_[0] / spread, float(fit.intercept_[0])


def require_regression() -> Any:
    """Return scikit-learn's LogisticRegression.

    Raises:
        InputError: it is not installed.
    """
    try:
        from sklearn.linear_model import LogisticRegression  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            "logistic regression over heads needs scikit-learn 1.8 or later: pip install 'proteinlm[analysis]', or "
            "leave out the training structures."
        ) from error
    return LogisticRegression


def _in_ranges(pairs):
    apart = pairs.separation
    for low, high in RANGES.values():
        yield (apart >= low) & (apart <= high)
