"""Substitution matrices, and the agreement of an amino-acid similarity with one of them."""

from dataclasses import asdict, dataclass

import numpy as np
from Bio.Align import substitution_matrices
from jaxtyping import Float, Float64
from scipy import stats

from proteinlm.alphabet import NUM_STANDARD, STANDARD_RESIDUES
from proteinlm.errors import InputError

BLOSUMS = ("BLOSUM45", "BLOSUM50", "BLOSUM62", "BLOSUM80", "BLOSUM90")


def normalised_blosum(name: str = "BLOSUM62") -> Float64[np.ndarray, "a b"]:
    """Return B(a, b) / sqrt(B(a, a) B(b, b)), [20, 20], in the order of alphabet.STANDARD_RESIDUES.

    The diagonal is 1, which puts a rare, well conserved residue (W scores 11 with itself) on the same scale as others.

    Raises:
        InputError: the name is not one of BLOSUM45, 50, 62, 80 and 90.
    """
    if name.upper() not in BLOSUMS:
        raise InputError(f"there is no substitution matrix {name!r}; choose one of {', '.join(BLOSUMS)}.")
    matrix = substitution_matrices.load(name.upper())
    assert isinstance(matrix, substitution_matrices.Array)
    order = [matrix.alphabet.index(letter) for letter in STANDARD_RESIDUES]
    scores = np.asarray(matrix, np.float64)[np.ix_(order, order)]
    norms = np.sqrt(np.diag(scores))
    return scores / (norms[:, None] * norms[None, :])


@dataclass(frozen=True)
class Agreement:
    """The correlation of two similarities over pairs of different amino acids.

    Attributes:
        pearson, spearman: correlation coefficients; NaN if one of the similarities is constant.
        pearson_p, spearman_p: one-sided p-values of Mantel's test: the share of permutations of the amino acids with a
            correlation at least as high.
        num_pairs: number of pairs compared; 190 if all 20 amino acids occur.
        num_permutations: number of permutations.
    """

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float
    num_pairs: int
    num_permutations: int

    def to_dict(self) -> dict:
        """Return the fields for JSON; NaN, which JSON does not have, becomes None."""
        return {key: None if value != value else value for key, value in asdict(self).items()}


def compare(
    first: Float[np.ndarray, "a a"],
    second: Float[np.ndarray, "a a"],
    *,
    permutations: int = 9999,
    seed: int = 0,
) -> Agreement:
    """Correlate two similarity matrices over their off-diagonal pairs, with Mantel's permutation test.

    The 190 pairs share 20 amino acids and are not independent. The test therefore permutes the amino acids of one
    matrix (rows and columns together) and not the pairs. p = (1 + number of permutations with a correlation at least as
    high) / (1 + number of permutations).

    Args:
        first, second: [A, A]; of an asymmetric matrix the mean of both directions is used. An amino acid whose row is
            NaN is left out.
        permutations: number of permutations.
        seed: seed of the permutations.

    Raises:
        InputError: fewer than four amino acids can be compared.
    """
    first, second = (first + first.T) / 2, (second + second.T) / 2
    known = _known(first) & _known(second)
    first, second = first[np.ix_(known, known)], second[np.ix_(known, known)]
    size = len(first)
    if size < 4:
        raise InputError(f"only {size} amino acids can be compared, and four are needed: use more sequences.")
    upper = np.triu_indices(size, 1)
    rng = np.random.default_rng(seed)
    orders = np.stack([np.arange(size), *(rng.permutation(size) for _ in range(permutations))])
    values = {}
    for name, rank in (("pearson", False), ("spearman", True)):
        x, y = first[upper], second[upper]
        if rank:
            x, y = stats.rankdata(x), stats.rankdata(y)
        # The ranks of pairs move with the pairs, so that a matrix of ranks can be permuted like one of values.
        square = np.zeros((size, size))
        square[upper] = x
        square += square.T
        values[name] = _mantel(square, y - y.mean(), orders, upper)
    (pearson, pearson_p), (spearman, spearman_p) = values["pearson"], values["spearman"]
    return Agreement(pearson, pearson_p, spearman, spearman_p, len(upper[0]), permutations)


def _known(matrix: np.ndarray) -> np.ndarray:
    """Return bool [A], the amino acids with values. One that never occurs has a row of NaN, off the diagonal too."""
    off = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
    known = np.logical_not(np.isnan(off).all(1))
    # Pairs of occurring amino acids can be missing too: leave out the one with most gaps until no pair is missing.
    while np.isnan(off[np.ix_(known, known)]).sum() > known.sum():
        gaps = np.where(known, np.isnan(off[:, known]).sum(1), -1)
        known[np.argmax(gaps)] = False
    return known


def _mantel(square, target, orders, upper):
    """Return the correlation for the first order (the identity) and the share of orders with at least this value."""
    moved = square[orders[:, upper[0]], orders[:, upper[1]]]
    moved = moved - moved.mean(1, keepdims=True)
    scale = np.sqrt((moved[0] ** 2).sum() * (target**2).sum())
    if scale < 1e-12:
        return float("nan"), float("nan")
    correlations = moved @ target / scale
    # The identity counts as a permutation. Differences by rounding count as ties.
    p = float((correlations >= correlations[0] - 1e-12).mean())
    return float(correlations[0]), p


def closest_pairs(
    similarity: Float[np.ndarray, "a b"], reference: Float[np.ndarray, "a b"], *, number: int = 10
) -> list[dict]:
    """Return the most similar pairs of different amino acids, the highest first; ties are in alphabetical order.

    Args:
        similarity: [20, 20] in the order of alphabet.STANDARD_RESIDUES; the mean of both directions is used.
        reference: [20, 20], a normalised BLOSUM.
        number: largest number of pairs; there are 190.

    Returns:
        dicts with "pair" (two letters), "rank" (from 1), "similarity", "blosum" and "blosum_rank" (1 + the number of
        pairs with a higher score). Pairs without a value are left out.
    """
    rows, columns = np.triu_indices(NUM_STANDARD, 1)
    values = ((similarity + similarity.T) / 2)[rows, columns]
    scores = reference[rows, columns]
    order = [int(pair) for pair in np.argsort(-values, kind="stable") if not np.isnan(values[pair])]
    return [
        {
            "pair": STANDARD_RESIDUES[rows[pair]] + STANDARD_RESIDUES[columns[pair]],
            "rank": rank,
            "similarity": float(values[pair]),
            "blosum": float(scores[pair]),
            "blosum_rank": 1 + int((scores > scores[pair] + 1e-12).sum()),
        }
        for rank, pair in enumerate(order[:number], 1)
    ]
