import errno
import hashlib
import json
import math
import os
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tensorflow_datasets as tfds
from Bio.Align import PairwiseAligner, substitution_matrices
from hypothesis import given
from hypothesis import strategies as st

from proteinlm.cli.main import main
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.families.ids import PAPER_HELD_OUT_FAMILIES
from proteinlm.data.ingest import progress as marker
from proteinlm.data.ingest import steps
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.ingest.ingest import ingest
from proteinlm.data.sources.digests import digest
from proteinlm.data.sources.spill import bucket_codes, numbers
from proteinlm.data.splits import by_identity
from proteinlm.data.splits.assignments import look_up
from proteinlm.data.splits.by_identity import (
    NO_ALIGNMENT,
    cluster_splits,
    decide,
    identity_folder,
    is_near,
    write_sequences,
)
from proteinlm.data.splits.mmseqs import COVERAGE, Mmseqs
from proteinlm.data.splits.rules import LISTED, NEAR, OOD, TRAIN, SplitsConfig, split_of
from proteinlm.errors import InputError
from tests.conftest import sample_records

needs_mmseqs = pytest.mark.skipif(shutil.which("mmseqs") is None, reason="needs MMseqs2: apt-get install mmseqs2")
FRACTIONS = SplitsConfig(0.1, 0.2, identity=0.5)


def digests_of(number):
    return np.frombuffer(b"".join(sorted(digest(b"%d" % i) for i in range(number))), np.uint8).reshape(-1, 16)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=40), st.randoms())
def test_a_cluster_is_one_side_and_its_label_means_nothing(members, shuffle):
    """Against the rule written out; and whichever member stands for a cluster, the result is the same."""
    digests = digests_of(len(members))
    groups = {}
    for row, (group, _) in enumerate(members):
        groups.setdefault(group, []).append(row)
    labels = {group: shuffle.choice(rows) for group, rows in groups.items()}
    clusters = np.array([labels[group] for group, _ in members])
    codes, number = cluster_splits(clusters, digests, np.array([ood for _, ood in members]), FRACTIONS)
    assert number == len(groups)
    for rows in groups.values():
        smallest = min(digests[row].tobytes() for row in rows)
        wanted = split_of(hashlib.md5(smallest).digest(), (), FRACTIONS)
        assert [LISTED[codes[row]] for row in rows] == ["ood" if members[row][1] else wanted for row in rows]


def test_large_clusters_are_as_often_on_each_side_as_small_ones():
    digests = digests_of(40_000)
    clusters = np.random.default_rng(0).permutation(np.repeat(np.arange(2000), 20))
    first = {int(cluster): row for row, cluster in reversed(list(enumerate(clusters)))}
    codes, number = cluster_splits(
        np.array([first[int(c)] for c in clusters]), digests, np.zeros(40_000, bool), FRACTIONS
    )
    assert number == 2000
    for share, name in ((0.1, "valid"), (0.2, "test"), (0.7, "train")):
        found = (codes == LISTED.index(name)).mean()
        assert abs(found - share) < 4 * math.sqrt(share * (1 - share) / 2000)


@pytest.mark.parametrize("threshold", [0.01, 0.29, 0.5, 0.57, 2 / 3, 0.999, 1.0])
def test_what_may_have_been_within_the_threshold_is(threshold):
    """MMseqs2 cuts off what it states: an identity of exactly the threshold may be stated one thousandth lower."""
    for columns in range(1, 400):
        identical = math.ceil(round(threshold * columns, 9))
        stated = math.floor(float(np.float32(identical / columns)) * 1000)
        assert is_near(np.array([stated], np.int16), threshold)[0]
    assert not is_near(np.array([round(1000 * threshold) - 3, NO_ALIGNMENT], np.int16), threshold).any()


@given(st.lists(st.integers(30, 200), min_size=2, max_size=40), st.sampled_from([0.2, 0.4, 0.5, 0.9]), st.data())
def test_the_parts_of_a_search_are_all_pairs_once(lengths, threshold, data):
    lengths = np.array(lengths)
    few = data.draw(st.sampled_from([0, 100]))
    sides = np.array(data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))))
    queries, targets = np.flatnonzero(sides), np.flatnonzero(~sides)
    found = [
        ((query, target), ungapped)
        for left, right, ungapped in by_identity._searches(queries, targets, lengths, threshold, few)
        for query in left.tolist()
        for target in right.tolist()
    ]
    assert sorted(pair for pair, _ in found) == sorted((q, t) for q in queries.tolist() for t in targets.tolist())
    for pair, ungapped in found:
        strict = threshold >= 0.4 and len(queries) * len(targets) >= few
        assert (ungapped > 15) == (strict and min(lengths[list(pair)]) >= 100)


@cache
def real_set():
    """Distinct real proteins by digest, none long; halves of some, ends of others too short to search; who is ood."""
    some = [record for record in sample_records() if len(record[1]) < 250][::8]
    records = {letters.encode(): set(families.split(";")) for _, letters, families in some}
    some = sorted(records)[:60]
    for letters in some[:30]:
        half = letters[: len(letters) // 2]
        records.setdefault(half, set())
    for number, letters in enumerate(some[30:]):
        records.setdefault(letters[: 10 + number % 20], set())
    for letters in [letters for letters in some if not records[letters].isdisjoint(PAPER_HELD_OUT_FAMILIES)]:
        records.setdefault(letters[:29], records[letters])
    ordered = sorted(records, key=digest)
    return ordered, np.array([not records[letters].isdisjoint(PAPER_HELD_OUT_FAMILIES) for letters in ordered])


def decided(work, num_buckets=4, threads=1, identity=0.5, valid=0.05, test=0.1):
    """Splits of the real set; and what the buckets look up, in the order of the digests."""
    sequences, ood = real_set()
    digests = np.frombuffer(b"".join(map(digest, sequences)), np.uint8).reshape(-1, 16)
    buckets = bucket_codes(numbers(digests)[:, 0], num_buckets)
    identity_folder(work).mkdir(parents=True)
    for bucket in range(num_buckets):
        rows = np.flatnonzero(buckets == bucket)
        lengths = np.array([len(sequences[row]) for row in rows], np.uint32)
        write_sequences(work, bucket, digests[rows], lengths, ood[rows], [sequences[row] for row in rows])
    found = decide(work, num_buckets, SplitsConfig(valid, test, identity=identity), threads)
    looked_up = [look_up(work, bucket, digests[buckets == bucket]) for bucket in range(num_buckets)]
    assert np.array_equal(np.concatenate([part.codes for part in looked_up if part]), found.codes)
    assert not identity_folder(work).exists()
    return found


@pytest.fixture(scope="module")
def split_at_half(tmp_path_factory):
    return decided(tmp_path_factory.mktemp("half") / "work")


@needs_mmseqs
def test_every_sequence_is_in_one_list_and_every_list_is_filled(split_at_half):
    sequences, ood = real_set()
    counts = np.bincount(split_at_half.codes, minlength=len(LISTED))
    assert counts.sum() == len(sequences)
    assert counts.min() > 5
    short = np.array([len(letters) < 30 for letters in sequences])
    assert np.array_equal(split_at_half.codes == OOD, ood & ~short)
    assert (short & ood).any()
    assert (split_at_half.codes[short] == NEAR).all()
    assert split_at_half.num_short == short.sum() > 20
    assert counts[NEAR] == short.sum() + sum(split_at_half.moved)


@needs_mmseqs
def test_before_and_after_are_those_of_evaluated_sequences(split_at_half):
    evaluated = (split_at_half.codes != TRAIN) & (split_at_half.codes != NEAR)
    assert (split_at_half.before[~evaluated] == NO_ALIGNMENT).all()
    assert (split_at_half.after[~evaluated] == NO_ALIGNMENT).all()
    assert is_near(split_at_half.before, 0.5).sum() > 5
    assert not is_near(split_at_half.after, 0.5).any()
    assert (split_at_half.after <= split_at_half.before).all()


@needs_mmseqs
def test_buckets_and_threads_change_nothing(split_at_half, tmp_path):
    other = decided(tmp_path / "work", num_buckets=64, threads=2)
    for one, two in zip(split_at_half, other, strict=True):
        assert np.array_equal(one, two)


@needs_mmseqs
def test_no_sequence_of_train_is_near_an_evaluated_one_by_biopython(split_at_half):
    """Every pair, aligned by another program: what is within 0.5 over 80 % and no chance is not there.

    The other program may choose another of several best alignments, so a hair's breadth above 0.5 is allowed.
    """
    sequences, _ = real_set()
    aligner = PairwiseAligner(mode="local", open_gap_score=-11, extend_gap_score=-1)
    aligner.substitution_matrix = substitution_matrices.load("BLOSUM62")
    train = [sequences[row].decode() for row in np.flatnonzero(split_at_half.codes == TRAIN)]
    evaluated = (split_at_half.codes != TRAIN) & (split_at_half.codes != NEAR)
    residues = sum(map(len, train))
    found, compared = [], 0
    for row in np.flatnonzero(evaluated):
        query = sequences[row].decode()
        # Below this, by Karlin and Altschul for BLOSUM62 with gaps 11, 1, each query has one by chance.
        least = math.log(0.041 * len(query) * residues / 1) / 0.267
        for target in train:
            compared += 1
            if aligner.score(query, target) >= least:
                alignment = aligner.align(query, target)[0]
                (first, last), (t_first, t_last) = ((blocks[0][0], blocks[-1][1]) for blocks in alignment.aligned)
                covered = max((last - first) / len(query), (t_last - t_first) / len(target))
                identity = alignment.counts().identities / alignment.length
                if covered >= COVERAGE and identity >= 0.52:
                    found.append((identity, query, target))
    assert compared > 10_000
    assert found == []


@needs_mmseqs
@pytest.mark.parametrize("threshold", [0.4, 0.5])
def test_what_long_sequences_must_score_loses_no_pair(threshold, tmp_path):
    """Real proteins against real proteins, with the score that is asked for and with MMseqs2's own."""
    sequences = [letters for _, letters, _ in sample_records()[::3]]
    (tmp_path / "all.fasta").write_text("".join(f">x\n{letters}\n" for letters in sequences))
    program = Mmseqs(tmp_path / "work", 2, max(map(len, sequences)))
    made = program.database(tmp_path, ["all.fasta"])
    lengths = np.array([len(letters) for letters in sequences])
    rows = np.flatnonzero(lengths >= 30)
    queries, targets = rows[::20], np.setdiff1d(rows, rows[::20])

    def near(parts):
        return {
            pair
            for left, right, ungapped in parts
            for hits in program.search(made, left, right, ungapped)
            for pair, close in zip(
                zip(hits.queries, hits.targets, strict=True), is_near(hits.permille, threshold), strict=True
            )
            if close
        }

    wanted = near([(queries, targets, 15)])
    assert len(wanted) > 50
    assert near(by_identity._searches(queries, targets, lengths, threshold, 0)) == wanted


def small_set(folder):
    """Real proteins of few families, so that train and the other splits are near, in two files, and their families."""
    records = sample_records()
    chosen = {name: (letters, families) for name, letters, families in [*records[:2400:8], *records[-141::8]]}
    names = sorted(chosen)
    paths = [folder / "a.fasta", folder / "b.fasta"]
    for path, part in zip(paths, (names[::2], names[1::2]), strict=True):
        path.write_text("".join(f">{name}\n{chosen[name][0]}\n" for name in part))
    # Copies of proteins of the other file, and one that is too short to be searched.
    with open(paths[0], "a") as handle:
        handle.writelines(f">Z{name}\n{chosen[name][0]}\n" for name in names[1:40:2])
        handle.write(">SHORT\nMKVLA\n")
    (folder / "pfam.tsv").write_text("".join(f"{name}\t{families}\n" for name, (_, families) in chosen.items()))
    return paths, len({letters for letters, _ in chosen.values()}) + 1


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@needs_mmseqs
def test_a_dataset_by_identity_and_one_that_was_stopped(tmp_path, monkeypatch):
    """Other workers, order and buckets, and a full disk after the decision: the same bytes, and no second search."""
    sources, number = small_set(tmp_path)
    config = IngestConfig(
        SplitsConfig(0.05, 0.1, identity=0.4), (tmp_path / "pfam.tsv",), workers=1, shards=2, bucket_bytes=20_000
    )
    summary = ingest(sources, tmp_path / "one", config)
    dataset = ProteinDataset.open(tmp_path / "one")
    frame = dataset.manifest().to_pandas()
    assert len(frame) == number
    assert summary.near == (frame["split"] == "near").sum() > 1
    assert sum(dataset.counts.values()) + summary.near == number
    assert min(dataset.counts.values()) > 3
    assert frame["split"].tolist()[-summary.near :] == ["near"] * summary.near
    assert frame[frame["accession"] == "SHORT"]["split"].item() == "near"
    assert dataset.find("SHORT") is None
    builder = tfds.builder_from_directory(str(tmp_path / "one"))
    assert set(builder.info.splits) == {"train", "valid", "test", "ood"}
    stored = {bytes(row["digest"]).decode() for split in builder.info.splits for row in builder.as_data_source(split)}
    assert stored == {value.hex() for value in frame[frame["split"] != "near"]["digest"]}
    report = json.loads((tmp_path / "one" / "identity.json").read_text())
    assert report["sequences"] == {**dataset.counts, "near": summary.near}
    nearest = report["nearest_in_train"].values()
    before, after = (max(both[when]["largest"] or 0 for both in nearest) for when in ("before", "after"))
    assert after < 0.4 <= before
    assert dataset.provenance["splits"]["identity"]["threshold"] == 0.4
    assert dataset.how_split.startswith("test by clusters, below 40 % identity to train")
    assert dataset.provenance["sequences"]["near"] == summary.near

    monkeypatch.setattr(marker, "SAVE_SECONDS", 0)
    with monkeypatch.context() as stopped:

        def full(*_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        stopped.setattr(steps, "reduce_bucket", full)
        with pytest.raises(InputError, match="run the same command again"):
            ingest(sources, tmp_path / "other", config)
    monkeypatch.setattr(by_identity, "decide", None)
    again = ingest(sources[::-1], tmp_path / "other", replace(config, workers=2))
    assert again.resumed
    assert files(tmp_path / "other") == files(tmp_path / "one")

    monkeypatch.setenv("PATH", "")
    manifest = SplitsConfig(manifest=tmp_path / "one" / "manifest.parquet")
    ingest(sources, tmp_path / "rebuilt", replace(config, splits=manifest))
    original, rebuilt = files(tmp_path / "one"), files(tmp_path / "rebuilt")
    assert {name for name in original if original[name] != rebuilt.get(name)} == {
        "provenance.json", "datasheet.md", "datasheet.html",
        *(f"identity.{kind}" for kind in ("json", "md", "png", "pdf", "parquet")),
    }  # fmt: skip


def test_without_mmseqs_nothing_is_read(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.fasta").write_text(">P1\nMKV\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (
        main(["ingest", str(tmp_path / "a.fasta"), "--output", str(tmp_path / "out"), "--split-identity", "0.5"]) == 2
    )
    assert "no program mmseqs on PATH" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"a.fasta"}
