import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteinlm.data.pfam import PAPER_HELD_OUT_FAMILIES, FamilyTable, check_families, read_held_out
from proteinlm.errors import InputError


def table(tmp_path, text, name="pfam.tsv"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return FamilyTable.read([path])


def families(table, *accessions):
    rows = table.rows([name.encode() for name in accessions]).tolist()
    return [None if row < 0 else table.families(row).decode() for row in rows]


def test_rows_are_found_and_others_are_not(tmp_path):
    read = table(tmp_path, "P12345\tPF00002;PF00001\nA0A0\tPF00003\nQ1\t\n")
    assert families(read, "A0A0", "P12345", "Q1", "P1234", "P123456", "") == [
        "PF00003",
        "PF00001;PF00002",
        "",
        None,
        None,
        None,
    ]
    assert (read.num_rows, read.num_malformed) == (3, 0)


@pytest.mark.parametrize("header", ["accession\tpfam\n", "Entry\tPfam\n", "\nprotein\tfamilies\n", ""])
def test_a_header_is_optional_and_no_row(tmp_path, header):
    read = table(tmp_path, header + "P12345\tPF00001;\r\n\r\n")
    assert families(read, "P12345") == ["PF00001"]
    assert (read.num_rows, read.num_malformed) == (1, 0)


def test_rows_of_one_accession_are_united_over_files(tmp_path):
    for name, text in (("a", "P1\tPF00002\nP1\tPF00001\nP2\tPF00009\n"), ("b", "P1\tPF00001.12;PF00003\n")):
        (tmp_path / name).write_text(text)
    forward, backward = (
        FamilyTable.read(paths) for paths in ([tmp_path / "a", tmp_path / "b"], [tmp_path / "b", tmp_path / "a"])
    )
    assert families(forward, "P1", "P2") == families(backward, "P1", "P2") == ["PF00001;PF00002;PF00003", "PF00009"]
    assert [file[1] for file in forward.files] == [33, 22]


def test_malformed_rows_are_counted_and_the_first_are_kept(tmp_path):
    bad = ["P1", "P1\tPF1", "P1\tPF00001\textra", "\tPF00001", "two words\tPF00001", "P1\tPF00001,PF00002", "P1\tGO:1"]
    read = table(tmp_path, "P9\tPF00009\n" + "\n".join(bad) + "\n")
    assert (read.num_rows, read.num_malformed) == (8, 7)
    assert [(row.line, row.text) for row in read.malformed] == list(enumerate(bad[:5], 2))
    assert families(read, "P1", "P9") == [None, "PF00009"]


@pytest.mark.parametrize("text", ["", "\n\n", "<html>\n<body>\n", "P12345 PF00001\n", "accession\tpfam\n"])
def test_what_is_no_table_is_refused(tmp_path, text):
    with pytest.raises(InputError, match=r"pfam\.tsv"):
        table(tmp_path, text)


def test_gzip_and_truncated_gzip(tmp_path):
    data = gzip.compress(b"P1\tPF00001\n" * 100, mtime=0)
    (tmp_path / "x.gz").write_bytes(data)
    assert families(FamilyTable.read([tmp_path / "x.gz"]), "P1") == ["PF00001"]
    (tmp_path / "x.gz").write_bytes(data[:-4])
    with pytest.raises(InputError, match="cut short"):
        FamilyTable.read([tmp_path / "x.gz"])


def test_an_isoform_takes_its_proteins_row_unless_it_has_its_own(tmp_path):
    read = table(tmp_path, "P1\tPF00001\nP2\tPF00002\nP2-3\tPF00003\nX-Y\tPF00004\n")
    assert families(read, "P1-2", "P2-3", "P2-4", "P3-1", "X-Y", "X") == [
        "PF00001",
        "PF00003",
        "PF00002",
        None,
        "PF00004",
        None,
    ]


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z0-9]{1,8}(-\d)?", fullmatch=True), st.sets(st.integers(0, 5), min_size=1), min_size=1
    )
)
def test_as_a_dictionary_and_after_saving(tmp_path_factory, expected):
    folder = tmp_path_factory.mktemp("pfam")
    texts = {name: ";".join(f"PF{i:05d}" for i in sorted(ids)) for name, ids in expected.items()}
    read = table(folder, "".join(f"{name}\t{ids}\n" for name, ids in texts.items()))
    read.save(folder)
    loaded = FamilyTable.load(folder)
    for each in (read, loaded):
        assert families(each, *texts) == list(texts.values())
    assert isinstance(loaded.accessions, np.memmap) or len(texts) < 40


def test_the_papers_families_are_twenty():
    assert len(set(PAPER_HELD_OUT_FAMILIES)) == 20
    assert check_families(PAPER_HELD_OUT_FAMILIES, "x") == PAPER_HELD_OUT_FAMILIES


def test_a_held_out_list(tmp_path):
    path = tmp_path / "list"
    path.write_text("# mine\nPF00002 # a comment\n\n PF00001.3\nPF00002\n")
    assert read_held_out(path) == ("PF00002", "PF00001")
    path.write_text("PF00002\nPF2\n")
    with pytest.raises(InputError, match=r"list line 2: 'PF2' is no Pfam id"):
        read_held_out(path)
    path.write_text("# nothing\n")
    with pytest.raises(InputError, match="holds no Pfam id"):
        read_held_out(path)
