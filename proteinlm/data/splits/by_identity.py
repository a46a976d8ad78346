"""Splits by sequence identity: no sequence of train is as similar as a threshold to one of valid, test or ood.

Method:
1. Only distinct sequences take part; copies have been united by digest. This is not left to MMseqs2, which treats
   sequences that differ only in X and U as identical and does not put every fragment into a cluster.
2. Sequences with a held-out family are ood, as in splits by digest.
3. MMseqs2 clusters the sequences. Each cluster goes as a whole to train, valid or test, by a digest of its smallest
   digest and the fractions.
4. MMseqs2 searches all sequences of valid, test and ood against all of train. Sequences of train within the threshold
   leave train: they are `near` and in no split. The search is repeated against the rest of train until it finds no
   more. The last search thus proves the result, as far as its sensitivity goes. The number of hits is not limited
   (see `Mmseqs.search`).

Identity is that of MMseqs2's local alignment: identical columns divided by all columns, including gaps (--seq-id-mode
0). An alignment counts if it covers 80 % of one of its two sequences (--cov-mode 1 or 2, -c 0.8; so fragments count).
Its E-value is not limited, since E-values depend on the size of train. A search does not reliably find sequences below
30 residues, and so their similarity is unknown; they are `near` as well, even with a held-out family.

Sensitivity, measured: (a) 226 sequences of the packaged sample against the whole sample, compared with a finer search
(words of 5 residues instead of 6): the search missed 0 of 15,626 pairs at identity 0.5 and above, 4 of 18,219 at 0.4,
and 53 of 20,055 at 0.3. (b) 586 x 2,220 pairs of Swiss-Prot's sequences, 400 of them with 12 to 30 residues, compared
with alignments of all pairs: at 0.5 the search missed 19 pairs, each with a sequence of 14 to 22 residues.

Speed: MMseqs2 aligns a pair if one diagonal without gaps has a score of at least 15. Pairs of sequences of 100 residues
or more with an identity of 0.5 have a far higher score. For thresholds of 0.4 and above, such sequences are searched
with a minimum of 35 or 50, which saves nine of ten alignments. Between 400 sequences of Swiss-Prot and 433,405 others
no pair was missed: 0 of 34,667 at 0.5 with a minimum of 50, and 0 of 58,726 at 0.4 with a minimum of 35. Shorter
sequences are searched with a minimum of 15.

The result depends only on the sequences and their families, since rows are in the order of the digests.
"""

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proteinlm.data.sources.digests import digest
from proteinlm.data.sources.record_buckets import numbers
from proteinlm.data.splits.assignments import assign
from proteinlm.data.splits.mmseqs import COVERAGE, SHORTEST, UNGAPPED, Hits, Mmseqs
from proteinlm.data.splits.rules import NEAR, OOD, SPLITS, TRAIN, SplitsConfig, split_codes

NO_ALIGNMENT = -1
"""Identity, in permille, of a sequence without an alignment that counts."""
IDENTITY_RULE = (
    "Identity is that of MMseqs2's local alignment: identical columns divided by all columns, including gaps "
    f"(--seq-id-mode 0). An alignment counts if it covers {100 * COVERAGE:g} % of one of its two sequences "
    f"(--cov-mode 1 or 2, -c {COVERAGE}). Its E-value is not limited."
)
_CUT_OFF = 1
_LONG = 100
_UNGAPPED_LONG = {0.5: 50, 0.4: 35}
# Number of pairs below which one search is faster: MMseqs2 builds an index for each search.
_FEW_PAIRS = 10_000_000
_ROW = np.dtype([("digest", "u1", (16,)), ("length", "<u4"), ("ood", "?")])


class IdentitySplits(NamedTuple):
    """Splits by identity of n distinct sequences, in the order of their digests, with statistics.

    Attributes:
        threshold: identity as a fraction.
        digests: uint8 [n, 16].
        codes: int8 [n], indices of `LISTED`.
        before, after: int16 [n], for each sequence of valid, test and ood the identity to the most similar sequence of
            train, before and after near sequences left train, in permille, truncated (up to 1 too low); -1 without an
            alignment that counts, and for other sequences.
        num_clusters: number of clusters, including those of one sequence.
        num_short: number of sequences that are near because they are too short for a search.
        moved: number of sequences that each search moved out of train, without the last search, which moved none.
        version: version of MMseqs2.
    """

    threshold: float
    digests: np.ndarray
    codes: np.ndarray
    before: np.ndarray
    after: np.ndarray
    num_clusters: int
    num_short: int
    moved: tuple[int, ...]
    version: str


def identity_folder(work: Path) -> Path:
    """Return the scratch folder with the sequences for MMseqs2."""
    return work / "identity"


def write_sequences(
    work: Path, bucket: int, digests: np.ndarray, lengths: np.ndarray, ood: np.ndarray, sequences: Iterable[bytes]
) -> None:
    """Write the distinct sequences of one bucket as FASTA for MMseqs2, named by digest.

    Args:
        work: scratch folder, in which `identity_folder` exists.
        bucket: number of the bucket.
        digests: uint8 [n, 16], ascending.
        lengths: lengths in residues, [n].
        ood: bool [n], whether a sequence has a held-out family.
        sequences: the n sequences.
    """
    folder = identity_folder(work)
    rows = np.empty(len(digests), _ROW)
    rows["digest"], rows["length"], rows["ood"] = digests, lengths, ood
    rows.tofile(folder / f"{bucket:05d}.rows")
    with open(folder / f"{bucket:05d}.fasta", "wb") as handle:
        for value, sequence in zip(digests, sequences, strict=True):
            handle.write(b">%s\n%s\n" % (value.tobytes().hex().encode(), sequence))


def split_by_identity(
    work: Path,
    num_buckets: int,
    config: SplitsConfig,
    threads: int,
    report: Callable[[str], None] = lambda text: None,
) -> IdentitySplits:
    """Split the sequences of all buckets by identity, and write the splits for `assignments.look_up`.

    Memory: about 60 bytes for each sequence in this process, and the memory of MMseqs2.

    Args:
        work: scratch folder with the sequences of each bucket (`write_sequences`), which are removed.
        num_buckets: number of buckets.
        config: options with an identity.
        threads: number of threads of MMseqs2; the result does not depend on it.
        report: called with a short text at the beginning of each step.

    Raises:
        InputError: MMseqs2 is missing or has failed.
    """
    threshold = config.identity
    assert threshold is not None
    folder = identity_folder(work)
    parts = [np.fromfile(folder / f"{bucket:05d}.rows", _ROW) for bucket in range(num_buckets)]
    edges = np.cumsum([0, *map(len, parts)])
    rows = np.concatenate(parts)
    del parts
    mmseqs = Mmseqs(folder / "mmseqs", threads, int(rows["length"].max()))
    # MMseqs2 refuses empty files.
    filled = np.flatnonzero(np.diff(edges)).tolist()
    database = mmseqs.database(folder, [f"{bucket:05d}.fasta" for bucket in filled])
    report("clustering")
    clusters = mmseqs.clusters(database, len(rows), threshold)
    codes, num_clusters = cluster_splits(clusters, rows["digest"], rows["ood"], config)
    short = rows["length"] < SHORTEST
    codes[short] = NEAR

    def search(queries: np.ndarray, targets: np.ndarray) -> Iterator[Hits]:
        for left, right, ungapped in _searches(queries, targets, rows["length"], threshold):
            yield from mmseqs.search(database, left, right, ungapped)

    before, after, moved = _move_near(search, codes, threshold, report)
    shutil.rmtree(folder)
    for start, stop in itertools.pairwise(edges.tolist()):
        assign(work, num_buckets, rows["digest"][start:stop], codes[start:stop])
    return IdentitySplits(
        threshold, rows["digest"], codes, before, after, num_clusters, int(short.sum()), moved, mmseqs.version
    )


def cluster_splits(
    clusters: np.ndarray, digests: np.ndarray, ood: np.ndarray, config: SplitsConfig
) -> tuple[np.ndarray, int]:
    """Assign each cluster as a whole to train, valid or test.

    The digest of a cluster's smallest digest decides. The smallest digest itself would put large clusters into test,
    since the minimum of many numbers is small.

    Args:
        clusters: int64 [n], for each sequence the row of one sequence of its cluster, the same for the whole cluster.
        digests: uint8 [n, 16], ascending and distinct.
        ood: bool [n], sequences that are ood in any cluster. The smallest digest of a cluster may be one of theirs.
        config: fractions of valid and test.

    Returns:
        The splits, int8 [n], and the number of clusters.
    """
    smallest = np.full(len(clusters), len(clusters))
    np.minimum.at(smallest, clusters, np.arange(len(clusters)))
    keys, of_each = np.unique(smallest[clusters], return_inverse=True)
    hashed = b"".join(digest(digests[key].tobytes()) for key in keys.tolist())
    high = numbers(np.frombuffer(hashed, np.uint8).reshape(-1, 16))[:, 0]
    codes = split_codes(high, np.zeros(len(keys), bool), config)[of_each]
    codes[ood] = OOD
    return codes, len(keys)


def is_near(permille: np.ndarray, threshold: float) -> np.ndarray:
    """Return whether identities reach the threshold, bool [n].

    MMseqs2 computes identities in float32 and truncates them to three digits. An identity that may have reached the
    threshold before truncation counts as reaching it.

    Args:
        permille: identities, int16 [n].
        threshold: a fraction.
    """
    # In floating point, 1000 * 0.57 is below 570.
    return permille >= int(round(1000 * threshold, 6)) - _CUT_OFF


def _searches(
    queries: np.ndarray, targets: np.ndarray, lengths: np.ndarray, threshold: float, few: int = _FEW_PAIRS
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Divide all pairs into searches: yield queries, targets and the minimum score of a pair to be aligned."""
    ungapped = next((score for least, score in _UNGAPPED_LONG.items() if threshold >= least), UNGAPPED)
    if ungapped == UNGAPPED or len(queries) * len(targets) < few:
        yield queries, targets, UNGAPPED
        return
    short, long = queries[lengths[queries] < _LONG], queries[lengths[queries] >= _LONG]
    long_targets = targets[lengths[targets] >= _LONG]
    yield queries, targets[lengths[targets] < _LONG], UNGAPPED
    yield short, long_targets, UNGAPPED
    yield long, long_targets, ungapped


def _move_near(
    search: Callable[[np.ndarray, np.ndarray], Iterable[Hits]],
    codes: np.ndarray,
    threshold: float,
    report: Callable[[str], None],
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Set near sequences to NEAR in `codes`; return `before`, `after` and `moved` of `IdentitySplits`."""
    queries, moved = np.flatnonzero((codes < len(SPLITS)) & (codes != TRAIN)), []
    before = np.full(len(codes), NO_ALIGNMENT, np.int16)
    while True:
        report(f"search {len(moved) + 1}")
        nearest = np.full(len(codes), NO_ALIGNMENT, np.int16)
        near = np.zeros(len(codes), bool)
        for hits in search(queries, np.flatnonzero(codes == TRAIN)):
            np.maximum.at(nearest, hits.queries, hits.permille)
            near[hits.targets[is_near(hits.permille, threshold)]] = True
        # If a later search finds a pair that an earlier search missed, the pair counts for `before` as well.
        np.maximum(before, nearest, out=before)
        if not near.any():
            return before, nearest, tuple(moved)
        codes[near] = NEAR
        moved.append(int(near.sum()))
