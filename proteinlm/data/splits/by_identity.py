"""Splits by distance: no sequence of train is nearer than a threshold to one of valid, test or ood.

1. Distinct sequences alone take part: copies are one record before, by digest. MMseqs2 calls sequences the same that
   differ in X and U, and does not cluster every fragment, so copies are not left to it.
2. ood is decided by held-out families, as without this.
3. MMseqs2 clusters them; a whole cluster goes to train, valid or test, by a digest of its smallest digest against the
   fractions.
4. All of valid, test and ood is searched against all of train with MMseqs2, and what is within the threshold leaves
   train: it is `near`, and in no split. The search is repeated against what is left until it finds nothing, so that
   the last search is the proof, as far as it finds. No limit on hits loses any (see `Mmseqs.search`).

Identity is that of MMseqs2's local alignment: identical columns over all columns, gaps included (--seq-id-mode 0). An
alignment counts if it covers 80 % of one of its two sequences (--cov-mode 1 or 2, -c 0.8: fragments count), whatever
its E-value is, which would depend on the size of train. Sequences below 30 residues cannot be searched for well
enough; since nobody can say how near they are, they are `near` too, those with a held-out family included.

How much a search overlooks was measured. 226 sequences of the packaged sample against all of it, beside a finer search
(words of 5 residues instead of 6): none of 15,626 pairs at 0.5 and above, 4 of 18,219 at 0.4, 53 of 20,055 at 0.3. 586
x 2,220 pairs of Swiss-Prot's sequences, 400 of them of 12 to 30 residues, all aligned without a prefilter: at 0.5 it
overlooked 19, each with one of 14 to 22 residues.

Two sequences of 100 residues and more that are half identical score far more than 15 on some diagonal, which is all
that MMseqs2 asks before it aligns; at 0.4 and above it is asked for more. That spares nine of ten alignments, and of
the pairs of 400 sequences of Swiss-Prot with 433,405 others it lost none: of 34,667 at 0.5 with a score of 50, of
58,726 at 0.4 with a score of 35. Shorter ones keep 15.

All of it depends on the sequences and their families alone: rows are in the order of the digests.
"""

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proteinlm.data.sources.digests import digest
from proteinlm.data.sources.spill import numbers
from proteinlm.data.splits.assignments import assign
from proteinlm.data.splits.mmseqs import COVERAGE, SHORTEST, UNGAPPED, Hits, Mmseqs
from proteinlm.data.splits.rules import NEAR, OOD, SPLITS, TRAIN, SplitsConfig, split_codes

NONE = -1
"""Permille of a sequence without any alignment that counts."""
IDENTITY_RULE = (
    "Identity is that of MMseqs2's local alignment: identical columns over all columns, gaps included "
    f"(--seq-id-mode 0). An alignment counts if it covers {100 * COVERAGE:g} % of one of its two sequences "
    f"(--cov-mode 1 or 2, -c {COVERAGE}), whatever its E-value is."
)
_CUT_OFF = 1
_LONG = 100
_UNGAPPED_LONG = {0.5: 50, 0.4: 35}
# Pairs; below, the index that MMseqs2 makes for each search costs more than alignments that are spared.
_FEW = 10_000_000
_ROW = np.dtype([("digest", "u1", (16,)), ("length", "<u4"), ("ood", "?")])


class IdentitySplits(NamedTuple):
    """Splits by distance of n distinct sequences, in the order of their digests, and how they came about.

    Attributes:
        threshold: a fraction.
        digests: uint8 [n, 16].
        codes: int8 [n], indices into `LISTED`.
        before, after: int16 [n], for each sequence of valid, test and ood the identity (in permille, cut off, so up
            to one too low) to the nearest one of train before and after near ones were moved out; -1 where there is
            none, and elsewhere.
        num_clusters: clusters of MMseqs2, those of one sequence included.
        num_short: sequences that are near since they are too short to be searched for.
        moved: sequences that each search has moved out of train; the last, which moved none, is not listed.
        version: of MMseqs2.
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
    """Return the folder of sequences for MMseqs2."""
    return work / "identity"


def write_sequences(
    work: Path, bucket: int, digests: np.ndarray, lengths: np.ndarray, ood: np.ndarray, sequences: Iterable[bytes]
) -> None:
    """Write the distinct sequences of one bucket for MMseqs2, named by digest.

    Args:
        work: scratch folder; that of `identity_folder` exists.
        bucket: number of the bucket.
        digests: uint8 [n, 16], ascending.
        lengths: residues, [n].
        ood: bool [n], whether a family is held out.
        sequences: n.
    """
    folder = identity_folder(work)
    rows = np.empty(len(digests), _ROW)
    rows["digest"], rows["length"], rows["ood"] = digests, lengths, ood
    rows.tofile(folder / f"{bucket:05d}.rows")
    with open(folder / f"{bucket:05d}.fasta", "wb") as handle:
        for value, sequence in zip(digests, sequences, strict=True):
            handle.write(b">%s\n%s\n" % (value.tobytes().hex().encode(), sequence))


def decide(
    work: Path,
    num_buckets: int,
    config: SplitsConfig,
    threads: int,
    tell: Callable[[str], None] = lambda text: None,
) -> IdentitySplits:
    """Decide the split of all sequences that were written, and leave it for each bucket to look up.

    Memory: about 60 bytes a sequence here, and what MMseqs2 takes.

    Args:
        work: scratch folder with every bucket's sequences (`write_sequences`); they are removed.
        num_buckets: of the records.
        config: with an identity.
        threads: of MMseqs2; the result does not depend on them.
        tell: is given what is being done, for a person to read.

    Raises:
        InputError: MMseqs2 is not there or failed.
    """
    threshold = config.identity
    assert threshold is not None
    folder = identity_folder(work)
    parts = [np.fromfile(folder / f"{bucket:05d}.rows", _ROW) for bucket in range(num_buckets)]
    edges = np.cumsum([0, *map(len, parts)])
    rows = np.concatenate(parts)
    del parts
    mmseqs = Mmseqs(folder / "mmseqs", threads, int(rows["length"].max()))
    # An empty file is an error to MMseqs2.
    filled = np.flatnonzero(np.diff(edges)).tolist()
    database = mmseqs.database(folder, [f"{bucket:05d}.fasta" for bucket in filled])
    tell("clustering")
    clusters = mmseqs.clusters(database, len(rows), threshold)
    codes, num_clusters = cluster_splits(clusters, rows["digest"], rows["ood"], config)
    short = rows["length"] < SHORTEST
    codes[short] = NEAR

    def search(queries: np.ndarray, targets: np.ndarray) -> Iterator[Hits]:
        for left, right, ungapped in _parts(queries, targets, rows["length"], threshold):
            yield from mmseqs.search(database, left, right, ungapped)

    before, after, moved = _move_near(search, codes, threshold, tell)
    shutil.rmtree(folder)
    for start, stop in itertools.pairwise(edges.tolist()):
        assign(work, num_buckets, rows["digest"][start:stop], codes[start:stop])
    return IdentitySplits(
        threshold, rows["digest"], codes, before, after, num_clusters, int(short.sum()), moved, mmseqs.version
    )


def cluster_splits(
    clusters: np.ndarray, digests: np.ndarray, ood: np.ndarray, config: SplitsConfig
) -> tuple[np.ndarray, int]:
    """Return the split of sequences whose clusters go whole to one side, int8 [n], and the number of clusters.

    The digest of a cluster's smallest digest decides: the smallest digest itself would send large clusters to test,
    since the smallest of many numbers is small.

    Args:
        clusters: int64 [n], for each sequence the row of one of its cluster, the same for all of them.
        digests: uint8 [n, 16], ascending and distinct.
        ood: bool [n]; these are ood whatever their cluster is, but its smallest digest may be theirs.
        config: fractions.
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
    """Return whether identities are within the threshold, bool [n].

    MMseqs2 cuts identities off after three digits and computes them in float32; what may have been within the
    threshold counts as within it.

    Args:
        permille: int16 [n].
        threshold: a fraction.
    """
    # 1000 * 0.57 is below 570.
    return permille >= int(round(1000 * threshold, 6)) - _CUT_OFF


def _parts(
    queries: np.ndarray, targets: np.ndarray, lengths: np.ndarray, threshold: float, few: int = _FEW
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield queries and targets whose pairs are all pairs, and the score that pairs must have to be aligned."""
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
    tell: Callable[[str], None],
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Make near ones NEAR in `codes`; return the identities before and after, and how many each search moved."""
    queries, moved = np.flatnonzero((codes < len(SPLITS)) & (codes != TRAIN)), []
    before = np.full(len(codes), NONE, np.int16)
    while True:
        tell(f"search {len(moved) + 1}")
        nearest = np.full(len(codes), NONE, np.int16)
        near = np.zeros(len(codes), bool)
        for hits in search(queries, np.flatnonzero(codes == TRAIN)):
            np.maximum.at(nearest, hits.queries, hits.permille)
            near[hits.targets[is_near(hits.permille, threshold)]] = True
        # Should a later search find what an earlier one has overlooked, it was there before.
        np.maximum(before, nearest, out=before)
        if not near.any():
            return before, nearest, tuple(moved)
        codes[near] = NEAR
        moved.append(int(near.sum()))
