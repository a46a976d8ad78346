"""Contacts of a structure, and the precision with which attention predicts them.

The definitions are those of Rao et al. (2021, "Transformer protein language models are unsupervised structure
learners"). A contact is a pair of residues 6 or more apart in sequence whose C-beta atoms (C-alpha of glycine) are
nearer than 8 Å. Attention is symmetrised, and corrected by its average product (APC), which removes the tendency of
some residues to attend or be attended to more than others. Heads are judged separately, and together by logistic
regression with an L1 penalty. Precision is that of the L, L/2 and L/5 highest pairs in a range of sequence separation.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from proteinlm.errors import InputError

CUTOFF = 8.0
"""Distance in Å between C-beta atoms below which residues are in contact."""
CLOSEST = 6
"""Smallest separation in sequence of a pair."""
RANGES = {"long": (24, math.inf), "medium": (12, 23), "short": (6, 11)}
"""Ranges of separation in sequence, both ends included."""
CUTS = {"L": 1, "L/2": 2, "L/5": 5}
"""Divisors of L, for the numbers of highest pairs."""
INVERSE_PENALTY = 1 / 0.15
"""C of scikit-learn's LogisticRegression. Rao et al. chose the penalty 0.15 by a grid search."""


class Pairs(NamedTuple):
    """The n judged pairs of a structure: both residues are resolved and 6 or more apart.

    Attributes:
        first, second: int64 [n], the residues of each pair, first < second.
        contacts: bool [n], True for pairs in contact.
        num_resolved: number of resolved residues of the protein, the L of L, L/2 and L/5.
    """

    first: Int64[np.ndarray, " n"]
    second: Int64[np.ndarray, " n"]
    contacts: Bool[np.ndarray, " n"]
    num_resolved: int

    @property
    def separation(self) -> Int64[np.ndarray, " n"]:
        """The separation in sequence of each pair, in residues."""
        return self.second - self.first

    def of(self, maps: Float[np.ndarray, "... L L"]) -> Float[np.ndarray, "... n"]:
        """Return the values of symmetric maps at the pairs."""
        return maps[..., self.first, self.second]


def contact_map(coordinates: Float64[np.ndarray, "L 3"], *, cutoff: float = CUTOFF) -> Bool[np.ndarray, "L L"]:
    """Return True for pairs of residues nearer than `cutoff` Å; False where a coordinate is NaN."""
    apart = coordinates[:, None, :] - coordinates[None, :, :]
    with np.errstate(invalid="ignore"):
        return np.sqrt((apart**2).sum(-1)) < cutoff


def judged_pairs(coordinates: Float64[np.ndarray, "L 3"], *, cutoff: float = CUTOFF) -> Pairs:
    """Return the pairs of resolved residues that are 6 or more apart, with their contacts.

    Args:
        coordinates: coordinates of each residue's C-beta in Å; NaN where it is not resolved.
        cutoff: distance in Å below which residues are in contact.

    Raises:
        InputError: there is no such pair, or none in contact.
    """
    resolved = ~np.isnan(coordinates.sum(1))
    first, second = np.triu_indices(len(coordinates), CLOSEST)
    keep = resolved[first] & resolved[second]
    first, second = first[keep], second[keep]
    contacts = contact_map(coordinates, cutoff=cutoff)[first, second]
    if not contacts.any():
        raise InputError(
            f"the structure has {len(first)} pairs of resolved residues {CLOSEST} or more apart in sequence, and none "
            f"is nearer than {cutoff:g} Å: it has no contacts; use a longer or folded protein."
        )
    return Pairs(first, second, contacts, int(resolved.sum()))


def symmetrised(maps: Float[np.ndarray, "... L L"]) -> Float[np.ndarray, "... L L"]:
    """Return attention from i to j plus attention from j to i; in a causal model one of them is 0."""
    return maps + np.swapaxes(maps, -1, -2)


def average_product_corrected(maps: Float[np.ndarray, "... L L"]) -> Float[np.ndarray, "... L L"]:
    """Return F(i, j) - F(i) F(j) / F for symmetric maps, with row sums F(i) and total F (Dunn et al. 2008).

    A map with a total of 0 is not changed. In a causal model early residues are seen by more residues, which give them
    smaller shares; the correction removes only the part of this effect that a product of row sums describes.
    """
    rows = maps.sum(-1, keepdims=True)
    total = rows.sum(-2, keepdims=True)
    expected = np.divide(rows * np.swapaxes(rows, -1, -2), total, out=np.zeros_like(maps), where=total != 0)
    return maps - expected


def precisions(scores: Float[np.ndarray, " n"], pairs: Pairs) -> Float64[np.ndarray, "ranges cuts"]:
    """Return the share of contacts among the pairs with the highest scores, [3, 3]: RANGES by CUTS.

    If a range has fewer pairs than the cut, all are used; NaN if it has none. Among pairs with the same score at the
    cut, the expected share of a random choice is used, so that a head with constant scores has the precision of chance.
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
            # `values` is in descending order: values equal to the last one taken are between two indices.
            low = int(np.searchsorted(-values, -values[taken - 1], side="left"))
            high = int(np.searchsorted(-values, -values[taken - 1], side="right"))
            share = (hits[high] - hits[low]) / (high - low)
            table[row, column] = (hits[low] + (taken - low) * share) / taken
    return table


def chance(pairs: Pairs) -> Float64[np.ndarray, "ranges cuts"]:
    """Return the precision of random guesses: the share of contacts among the pairs of each range."""
    return precisions(np.zeros(len(pairs.first)), pairs)


def contacts_by_range(pairs: Pairs) -> dict[str, dict[str, int]]:
    """Return the numbers of pairs and of contacts in each range."""
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
    """Fit a logistic regression with an L1 penalty, from heads to contacts, to the pairs of several proteins.

    Heads are first scaled to a standard deviation of 1 over these pairs, unlike in Rao et al. Without scaling, the
    penalty would be larger for diffuse heads, whose weights are small, above all in long proteins.

    Args:
        features: the corrected attention of all heads at the judged pairs, for each protein.
        contacts: True for pairs in contact, for each protein.
        inverse_penalty: C of scikit-learn.

    Returns:
        The coefficients of the unscaled heads, and the intercept. The score of a pair is the sum of coefficient times
        attention.

    Raises:
        InputError: scikit-learn is not installed, or the pairs are all contacts or all non-contacts.
    """
    regression = require_regression()
    values, labels = np.concatenate(features, -1).T.astype(np.float64), np.concatenate(contacts)
    if labels.all() or not labels.any():
        raise InputError("the training structures need pairs in contact and other pairs; add other structures.")
    spread = values.std(0)
    spread[spread == 0] = 1
    fit = regression(l1_ratio=1, C=inverse_penalty, solver="liblinear", random_state=0, max_iter=1000)
    fit.fit(values / spread, labels)
    return fit.coef_[0] / spread, float(fit.intercept_[0])


def require_regression() -> Any:
    """Return scikit-learn's LogisticRegression.

    Raises:
        InputError: scikit-learn is not installed.
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
