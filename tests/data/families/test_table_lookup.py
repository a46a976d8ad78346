import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteinlm.data.families import table_join, table_lookup
from proteinlm.data.families.table_join import join_tables
from proteinlm.data.families.table_lookup import DR_LINES, FamilyTables
from proteinlm.data.sources.crc64 import crc64
from proteinlm.data.sources.uniprot import Record, read_records
from proteinlm.errors import InputError


def write(path, text):
    path.write_text(text)
    return path


def opened(tmp_path, *texts):
    paths = [write(tmp_path / f"{i}.tsv", text) for i, text in enumerate(texts)]
    join_tables(paths, tmp_path / "joined")
    return FamilyTables(tmp_path / "joined")


def record(accession, sequence=b"MKV", families=()):
    return Record(accession, sequence, tuple(families), False, None)


def families(tables, *accessions):
    return [text.decode() for text in tables.add([record(name) for name in accessions]).families]


def regions(*rows):
    lines = [f"{name}\t1\t{crc:016X}\tmd5\t{family}\t1\t9\n" for name, crc, family in rows]
    return "uniprot_acc\tseq_version\tcrc64\tmd5\tpfamA_acc\tseq_start\tseq_end\n" + "".join(lines)


def checksum(sequence):
    return int(crc64([sequence])[0])


def test_rows_are_found_and_others_are_not(tmp_path):
    tables = opened(tmp_path, "P12345\tPF00002;PF00001\nA0A0\tPF00003\nQ1\t\n")
    assert families(tables, "A0A0", "P12345", "Q1", "P1234", "P123456", "") == [
        "PF00003", "PF00001;PF00002", "", "", "", "",
    ]  # fmt: skip
    assert (tables.num_rows, tables.files[0].rows, tables.files[0].malformed) == (3, 3, 0)
    assert families(tables) == []


def test_rows_of_one_accession_are_united_over_files_and_with_its_own(tmp_path):
    tables = opened(tmp_path, "P1\tPF00002\nP1\tPF00001\nP2\tPF00009\n", "P1\tPF00001.12;PF00003\nP3\t\n")
    records = [record("P1", families=["PF00004"]), record("P2"), record("P3"), record("P4", families=["PF00005"])]
    joined = tables.add(records)
    assert joined.families == [b"PF00001;PF00002;PF00003;PF00004", b"PF00009", b"", b"PF00005"]
    # P3 was searched and has none: the second table gave no family for it.
    paths = [file.path for file in tables.files]
    assert joined.sources == {DR_LINES: 2, paths[0]: 2, paths[1]: 1}
    assert [file.bytes for file in tables.files] == [33, 26]


def test_an_isoform_takes_its_proteins_row_unless_it_has_its_own(tmp_path):
    tables = opened(tmp_path, "P1\tPF00001\nP2\tPF00002\nP2-3\tPF00003\nX-Y\tPF00004\n")
    assert families(tables, "P1-2", "P2-3", "P2-4", "P3-1", "X-Y", "X") == [
        "PF00001", "PF00003", "PF00002", "", "PF00004", "",
    ]  # fmt: skip
    assert tables.unused() == (0, ())


class TestChecksums:
    def test_another_version_of_the_sequence_is_not_used_and_told(self, tmp_path):
        good = checksum(b"MKV")
        tables = opened(tmp_path, regions(("P1", good, "PF00001"), ("P2", 5, "PF00002"), ("P3", 7, "PF00003")))
        joined = tables.add([record("P1"), record("P2"), record("P4")])
        assert joined.families == [b"PF00001", b"", b""]
        assert joined.mismatches == [("P2", 5, good, 1)]
        assert joined.sources == {DR_LINES: 0, tables.files[0].path: 1}
        # An accession that is known in another version is not unknown.
        assert tables.unused() == (1, ("P3",))

    def test_tables_with_and_without_checksums(self, tmp_path):
        own = checksum(b"MKV")
        tables = opened(tmp_path, regions(("P1", 5, "PF00001"), ("P2", own, "PF00003")), "P1\tPF00002\nP2\tPF00002\n")
        joined = tables.add([record("P1"), record("P2")])
        assert joined.families == [b"PF00002", b"PF00002;PF00003"]
        assert joined.mismatches == [("P1", 5, own, 0)]

    def test_two_versions_in_one_table(self, tmp_path):
        rows = [("P1", checksum(s), f"PF0000{i}") for i, s in enumerate((b"MKV", b"MKVA"))]
        tables = opened(tmp_path, regions(*rows, ("P2", 1, "PF00007"), ("P2", 2, "PF00008")))
        joined = tables.add([record("P1", b"MKVA"), record("P1"), record("P1", b"A"), record("P2")])
        assert joined.families == [b"PF00001", b"PF00000", b"", b""]
        assert [one.accession for one in joined.mismatches] == ["P1", "P2"]
        assert tables.unused() == (0, ())

    def test_unknown_accessions_with_several_checksums_count_once(self, tmp_path):
        tables = opened(tmp_path, regions(("P2", 1, "PF00007"), ("P2", 2, "PF00008"), ("P3", 2, "PF00008")))
        assert tables.unused()[0] == 2
        assert set(tables.unused()[1]) == {"P2", "P3"}

    def test_an_isoform_is_another_sequence_by_nature(self, tmp_path):
        tables = opened(tmp_path, regions(("P1", checksum(b"MKVA"), "PF00001")))
        joined = tables.add([record("P1-2")])
        assert (joined.families, joined.mismatches) == ([b"PF00001"], [])

    def test_checksums_of_real_entries(self, shared_data, tmp_path):
        """The SQ lines of real entries are what a table would hold; `Record` no longer has them."""
        text = gzip.decompress((shared_data / "flatfile" / "entries.dat.gz").read_bytes()).decode()
        crcs = {}
        for entry in text.split("\n//"):
            lines = entry.splitlines()
            names = [line[5:].split(";")[0] for line in lines if line.startswith("AC ")]
            found = [line.split()[-2] for line in lines if line.startswith("SQ ")]
            if names and found and len(found[0]) == 16:
                crcs[names[0]] = int(found[0], 16)
        tables = opened(tmp_path, regions(*((name, crc, "PF00042") for name, crc in crcs.items())))
        records = [r._replace(families=()) for r in read_records(shared_data / "flatfile" / "entries.dat.gz")]
        joined = tables.add([r for r in records if r.accession in crcs])
        assert len(joined.families) > 200
        assert set(joined.families) == {b"PF00042"}


def test_malformed_rows_are_counted_and_the_first_are_kept(tmp_path):
    bad = ["P1", "P1\tPF1", "P1\tPF00001\textra", "\tPF00001", "two words\tPF00001", "P1\tPF00001,PF00002", "P1\tGO:1"]
    tables = opened(tmp_path, "P9\tPF00009\n" + "\n".join(bad) + "\n")
    file = tables.files[0]
    assert (file.rows, file.malformed) == (8, 7)
    assert [(row.line, row.text) for row in file.shown] == list(enumerate(bad[:5], 2))
    assert families(tables, "P1", "P9") == ["", "PF00009"]


def test_gzip_and_truncated_gzip(tmp_path):
    data = gzip.compress(b"P1\tPF00001\n" * 100, mtime=0)
    (tmp_path / "x.gz").write_bytes(data)
    join_tables([tmp_path / "x.gz"], tmp_path / "joined")
    assert families(FamilyTables(tmp_path / "joined"), "P1") == ["PF00001"]
    (tmp_path / "x.gz").write_bytes(data[:-4])
    with pytest.raises(InputError, match="cut short"):
        join_tables([tmp_path / "x.gz"], tmp_path / "joined")


names = st.from_regex(r"[A-Z0-9]{1,8}(-[0-9])?", fullmatch=True) | st.text("AB", min_size=30, max_size=40)


@pytest.mark.parametrize("resident", [1 << 26, 1], ids=["held", "given back"])
@given(st.dictionaries(names, st.sets(st.integers(0, 5), min_size=1), min_size=1))
@settings(deadline=None, max_examples=50)
def test_as_a_dictionary(tmp_path_factory, resident, expected):
    folder = tmp_path_factory.mktemp("pfam")
    texts = {name: ";".join(f"PF{i:05d}" for i in sorted(ids)) for name, ids in expected.items()}
    path = write(folder / "x", "".join(f"{name}\t{ids}\n" for name, ids in texts.items()))
    join_tables([path], folder / "joined", partition_bytes=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_lookup, "RESIDENT_BYTES", resident)
        tables = FamilyTables(folder / "joined")
    assert families(tables, *texts, *reversed(texts)) == [*texts.values(), *reversed(texts.values())]
    assert tables.unused() == (0, ())


def test_accessions_of_one_hash(tmp_path, monkeypatch):
    """Names that a bad hash does not tell apart are told apart all the same."""

    def bad(keys):
        return np.fromiter((len(key) for key in keys), np.uint32, len(keys))

    monkeypatch.setattr(table_join, "hashes_of", bad)
    monkeypatch.setattr(table_lookup, "hashes_of", bad)
    tables = opened(tmp_path, "".join(f"P{i}\tPF{i:05d}\n" for i in range(1, 50)))
    assert families(tables, "P7", "P10", "P49", "P50", "P0", "P1", "P") == [
        "PF00007", "PF00010", "PF00049", "", "", "PF00001", "",
    ]  # fmt: skip


def test_two_processes_mark_the_same_rows(tmp_path):
    one = opened(tmp_path, "P1\tPF00001\nP2\tPF00002\nP3\tPF00003\n")
    other = FamilyTables(tmp_path / "joined")
    families(one, "P1")
    families(other, "P2")
    assert one.unused() == other.unused() == (1, ("P3",))
