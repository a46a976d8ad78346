"""An order of amino acids in which those that a model treats alike stand together."""

import numpy as np
from jaxtyping import Float
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform


def clustered_order(similarity: Float[np.ndarray, "a a"]) -> list[int]:
    """Return the amino acids in the order of the leaves of a hierarchical clustering.

    Average linkage of the distance max(similarity) - similarity, both directions of a pair averaged; of the orders that
    a tree allows, that in which neighbours are most alike (scipy's optimal ordering). Amino acids with a missing value
    come last, in the order given.

    Args:
        similarity: [A, A]; NaN for an amino acid that never occurs. The diagonal does not count.
    """
    both = (similarity + similarity.T) / 2
    off = ~np.eye(len(both), dtype=bool)
    known = list(range(len(both)))
    # The worst first, so that one missing pair costs one amino acid alone.
    while known and (gaps := (np.isnan(both) & off)[np.ix_(known, known)].sum(1)).any():
        known.pop(len(known) - 1 - int(np.argmax(gaps[::-1])))
    rest = [place for place in range(len(both)) if place not in known]
    if len(known) < 3:
        return [*known, *rest]
    values = both[np.ix_(known, known)]
    distances = values[off[np.ix_(known, known)]].max() - values
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "average", optimal_ordering=True)
    return [*(known[leaf] for leaf in leaves_list(tree)), *rest]
