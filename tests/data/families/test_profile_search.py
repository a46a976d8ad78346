"""Profiles are made here by pyhmmer from single sequences; Pfam's own are used where the shared data are."""

import gzip
import sys

import numpy as np
import pytest
from profiles import profile, written

from proteinlm.data.families import profile_search
from proteinlm.data.families.profile_search import (
    Piece,
    Searched,
    add_found,
    choose,
    pieces,
    read_profiles,
    search,
    search_buckets,
)
from proteinlm.data.families.table_join import run_here
from proteinlm.data.ingest.ingest import SAMPLE
from proteinlm.data.sources.digests import digest
from proteinlm.data.sources.spill import bucket_folder, columns, spill
from proteinlm.data.sources.uniprot import Record, read_records
from proteinlm.errors import InputError

pyhmmer = pytest.importorskip("pyhmmer", reason="needs pyhmmer: pip install -e '.[pfam]'")
KUNITZ = "PF00014"


@pytest.fixture(scope="session")
def sample():
    return list(read_records(SAMPLE / "proteins.fasta.gz"))


def unzipped(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


@pytest.fixture(scope="session")
def kunitz(sample, tmp_path_factory):
    """A file with one profile, of bovine trypsin inhibitor's 58 residues."""
    bpti = next(record for record in sample if record.accession == "P00974")
    path = tmp_path_factory.mktemp("hmm") / "mine.hmm"
    path.write_bytes(written(profile(bpti.sequence[35:93].decode())))
    return path


def unpacked(path, work):
    read_profiles([str(path)], work)
    return sorted((work / "profiles").iterdir())


def record(accession, sequence, families=()):
    return Record(accession, sequence, tuple(families), False, None)


def spilled(work, records):
    bucket_folder(work, 0).mkdir(parents=True)
    made, sequences = columns(records, [";".join(r.families).encode() for r in records])
    spill(made, sequences, work, 1, "writer")


def run(work, everything=False):
    """All steps in this process, as a pool of workers would do them."""
    return search_buckets(work, 1, everything, run_here)


def test_as_hmmsearch_and_as_pfam_have_it(sample, tmp_path):
    """Every protein that a ribosomal S3's profile finds has the family in the sample's table (Pfam's own profile)."""
    table = dict(line.split("\t") for line in unzipped(SAMPLE / "pfam.tsv.gz"))
    family = "PF00203"
    members = [r for r in sample if family in table.get(r.accession, "")]
    chosen = members + sample[:300]
    path = tmp_path / "s3.hmm"
    path.write_bytes(written(profile(members[0].sequence.decode(), "S3", family)))
    found = search(unpacked(path, tmp_path), [r.sequence for r in chosen])
    names = {r.accession for r, families in zip(chosen, found, strict=True) if families == family.encode()}
    assert set(found) == {b"", family.encode()}
    assert len(members) / 2 < len(names) < len(chosen)
    assert all(family in table[name] for name in names)

    amino = pyhmmer.easel.Alphabet.amino()
    block = pyhmmer.easel.DigitalSequenceBlock(
        amino,
        [pyhmmer.easel.TextSequence(name=r.accession.encode(), sequence=r.sequence.decode()).digitize(amino)
         for r in chosen],
    )  # fmt: skip
    with pyhmmer.plan7.HMMFile(path) as profiles:
        hits = next(iter(pyhmmer.hmmsearch(profiles, block, cpus=1, bit_cutoffs="gathering")))
    expected = {hit.name for hit in hits if hit.included}
    assert names == {name.decode() if isinstance(name, bytes) else name for name in expected}


def test_the_cutoffs_decide_on_the_whole_sequence_and_on_a_domain(sample, tmp_path):
    bpti = next(r for r in sample if r.accession == "P00974").sequence
    for number, (gathering, expected) in enumerate(
        [((30, 30), KUNITZ.encode()), ((1000, 1), b""), ((1, 1000), b""), ((1, 1), KUNITZ.encode())]
    ):
        path = tmp_path / f"{number}.hmm"
        path.write_bytes(written(profile(bpti.decode(), gathering=tuple(map(float, gathering)))))
        assert search(unpacked(path, tmp_path / str(number)), [bpti]) == [expected]


def test_what_is_found_depends_on_the_sequence_alone(sample, kunitz, tmp_path, monkeypatch):
    files = unpacked(kunitz, tmp_path)
    # Near the cutoffs as well: some of these have the family only just.
    sequences = [r.sequence for r in sample[::40]] + [r.sequence for r in sample if b"GPCKA" in r.sequence]
    whole = search(files, sequences)
    assert KUNITZ.encode() in whole
    assert search(files, sequences[::-1]) == whole[::-1]
    assert [search(files, [one])[0] for one in sequences] == whole
    monkeypatch.setattr(profile_search, "_CACHED_BYTES", 0)
    assert search(files, sequences) == whole
    assert search(files, []) == []


def test_several_profiles_and_letters_that_are_no_residues(sample, tmp_path):
    one, other = sample[0].sequence, sample[1].sequence
    path = tmp_path / "two.hmm"
    made = written(profile(one.decode(), "A", "PF00002.1"), profile(other.decode(), "B", "PF00001.1"))
    path.write_bytes(made)
    assert search(unpacked(path, tmp_path), [one + b"XBZUO" + other, other, b"X", b"BZXOU" * 9]) == [
        b"PF00001;PF00002", b"PF00001", b"", b"",
    ]  # fmt: skip
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(made))
    read = read_profiles([str(packed), str(path)], tmp_path / "both")
    assert [(file.profiles, file.bytes) for file in read] == [(2, packed.stat().st_size), (2, len(made))]


def test_each_distinct_sequence_without_a_family_is_searched_once(sample, kunitz, tmp_path, monkeypatch):
    bpti = next(r for r in sample if r.accession == "P00974").sequence
    asked = []
    monkeypatch.setattr(
        profile_search, "search", lambda files, sequences: asked.extend(sequences) or [b""] * len(sequences)
    )
    records = [record("A", bpti), record("B", bpti), record("C", b"MKV"), record("D", b"MKV", ["PF00009"])]
    spilled(tmp_path, records)
    read_profiles([str(kunitz)], tmp_path)
    assert run(tmp_path) == Searched(1, 0, 0)
    assert asked == [bpti]


def test_what_was_found_is_added_and_not_searched_again(sample, kunitz, tmp_path, monkeypatch):
    bpti = next(r for r in sample if r.accession == "P00974").sequence
    records = [record("A", bpti, ["PF00009"]), record("B", b"MKV"), *(r._replace(families=()) for r in sample[:40])]
    spilled(tmp_path, records)
    read_profiles([str(kunitz)], tmp_path)
    monkeypatch.setattr(profile_search, "PIECE_RESIDUES", 2000)
    first = run(tmp_path, everything=True)
    assert (first.searched, first.too_long) == (len({r.sequence for r in records}), 0)
    digests = np.frombuffer(b"".join(map(digest, (bpti, b"MKV"))), np.uint8).reshape(-1, 16)
    families = [b"PF00009", b""]
    add_found(tmp_path, 0, digests, families)
    assert families == [b"PF00009;PF00014", b""]
    # After a kill, all that is there is taken as it is.
    monkeypatch.setattr(profile_search, "search", None)
    assert run(tmp_path, everything=True) == first


def test_a_bucket_without_a_search_stays_as_it_is(tmp_path):
    families = [b"PF00009"]
    add_found(tmp_path, 0, np.zeros((1, 16), np.uint8), families)
    assert families == [b"PF00009"]


def test_an_empty_bucket_and_one_whose_sequences_are_too_long(kunitz, tmp_path, monkeypatch):
    bucket_folder(tmp_path, 0).mkdir(parents=True)
    read_profiles([str(kunitz)], tmp_path)
    assert run(tmp_path) == Searched(0, 0, 0)
    monkeypatch.setattr(profile_search, "LONGEST", 50)
    spilled(tmp_path / "other", [record("A", b"M" * 51), record("B", b"M" * 50)])
    assert choose(0, tmp_path / "other", False) == (0, 1, 50, 1)


def test_hmmers_limit(kunitz, tmp_path):
    files = unpacked(kunitz, tmp_path)
    assert search(files, [b"M" * profile_search.LONGEST]) == [b""]
    with pytest.raises(ValueError, match="length"):
        search(files, [b"M" * (profile_search.LONGEST + 1)])


def test_pieces_are_equal_and_hold_everything():
    chosen = profile_search.Chosen(3, 10, 3 * profile_search.PIECE_RESIDUES - 1, 0)
    assert list(pieces(chosen)) == [Piece(3, 0, 3), Piece(3, 3, 6), Piece(3, 6, 10)]
    assert list(pieces(profile_search.Chosen(3, 0, 0, 0))) == []
    assert list(pieces(profile_search.Chosen(3, 1, 5 * profile_search.PIECE_RESIDUES, 0))) == [Piece(3, 0, 1)]


class TestRefusals:
    def check(self, tmp_path, content, message):
        path = tmp_path / "x.hmm"
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_profiles([str(path)], tmp_path)

    def test_profiles_that_cannot_be_used(self, tmp_path):
        good, sequence = profile("MKVLAAGG"), "MKVLAAGGW"
        self.check(tmp_path, written(good, profile(sequence, "Z", gathering=None)), "profile Z has no gathering cut")
        self.check(tmp_path, written(good, profile(sequence, "Z", "RF00001")), "profile Z has no Pfam id")
        self.check(tmp_path, written(good, profile(sequence, "Z", None)), "profile Z has no Pfam id")

    def test_files_that_hold_none(self, tmp_path):
        self.check(tmp_path, b"", r"x\.hmm")
        self.check(tmp_path, b">P1\nMKV\n", r"x\.hmm is not a file of HMMER profiles")
        whole = written(profile("MKVLAAGG"))
        self.check(tmp_path, whole[: len(whole) // 2], r"x\.hmm is not a file of HMMER profiles, or is damaged")
        self.check(tmp_path, gzip.compress(whole)[:-9], "cut short")

    def test_profiles_of_dna(self, tmp_path):
        dna = pyhmmer.easel.Alphabet.dna()
        query = pyhmmer.easel.TextSequence(name=b"Z", sequence="ACGTACGTAACC").digitize(dna)
        made, _, _ = pyhmmer.plan7.Builder(dna).build(query, pyhmmer.plan7.Background(dna))
        self.check(tmp_path, written(made), "profile Z is not a profile of proteins")

    def test_without_pyhmmer(self, kunitz, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pyhmmer", None)
        with pytest.raises(InputError, match=r"pip install 'proteinlm\[pfam\]'"):
            read_profiles([str(kunitz)], tmp_path)


def test_pfams_own_profiles_on_the_held_out_proteins(shared_data, tmp_path):
    """Labels of these three families were made by hmmsearch with the same profiles."""
    path = shared_data / "hmm" / "heldout3_pfam35.hmm"
    names = {"PF03938", "PF04153", "PF18369"}
    labels = {}
    for line in unzipped(shared_data / "swissprot" / "pfam35.tsv.gz"):
        accession, families = line.split("\t")
        if not names.isdisjoint(families.split(";")):
            labels[accession] = ";".join(sorted(names & set(families.split(";")))).encode()
    records = list(read_records(shared_data / "swissprot" / "heldout_swissprot.fasta"))
    found = search(unpacked(path, tmp_path), [r.sequence for r in records])
    assert found == [labels.get(r.accession, b"") for r in records]
    assert sum(map(bool, found)) == 40
