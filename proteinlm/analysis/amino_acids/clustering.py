"""An order of the amino acids by hierarchical clustering, with similar ones next to each other."""

import numpy as np
from jaxtyping import Float
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform


def clustered_order(similarity: Float[np.ndarray, "a a"]) -> list[int]:
    """Return the indices of the amino acids in the order of the leaves of a hierarchical clustering.

    The distance is max(similarity) - similarity, the mean of both directions of a pair, with average linkage. Of the
    orders that the tree allows, the one with the most similar neighbours is returned (scipy's optimal ordering). Amino
    acids with a missing value come last, in their original order.

    Args:
        similarity: [A, A]; NaN for an amino acid that never occurs. The diagonal is not used.
    """
    both = (similarity + similarity.T) / 2
    off = ~np.eye(len(both), dtype=bool)
    known = list(range(len(both)))
    # The one with most gaps first, so that a missing pair removes only one amino acid.
    while known and (gaps := (np.isnan(both) & off)[np.ix_(known, known)].sum(1)).any():
        known.pop(len(known) - 1 - int(np.argmax(gaps[::-1])))
    rest = [index for index in range(len(both)) if index not in known]
    if len(known) < 3:
        return [*known, *rest]
    values = both[np.ix_(known, known)]
    distances = values[off[np.ix_(known, known)]].max() - values
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "average", optimal_ordering=True)
    return [*(known[leaf] for leaf in leaves_list(tree)), *rest]
