import csv
import gzip
import importlib
import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.families import table_formats
from proteinlm.data.families.table_formats import TwoColumns, format_of, parse_rows, register_table_format, table_blocks
from proteinlm.data.ingest.ingest import IngestConfig, ingest
from proteinlm.data.sources.files import SourceFile
from proteinlm.errors import InputError

HEADER = "uniprot_acc\tseq_version\tcrc64\tmd5\tpfamA_acc\tseq_start\tseq_end\n"
# As in Pfam 35 and InterPro 90.
REGIONS = HEADER + "".join(
    f"A0A009{name}\t1\t{crc}\t7f1a2c4be9b5d0ec3a2f9e1f0a6cbd11\t{family}\t{start}\t{start + 80}\n"
    for name, crc, family, start in (
        ("DWI3", "49DCA93C7C4B4F04", "PF00005", 10), ("DWI3", "49DCA93C7C4B4F04", "PF00005", 110),
        ("DWI3", "49DCA93C7C4B4F04", "PF12848", 210), ("DWK5", "0BADC0DE00000001", "PF01547", 44),
    )
)  # fmt: skip
INTERPRO = (
    "A0A000\tIPR003593\tAAA+ ATPase domain\tSM00382\t30\t200\n"
    "A0A000\tIPR004839\tAminotransferase, class I/classII\tPF00155\t41\t381\n"
    "A0A000\tIPR015421\tPyridoxal phosphate-dependent transferase, major domain\tG3DSA:3.40.640.10\t48\t288\n"
    "A0A001\tIPR003439\tABC transporter-like, ATP-binding domain\tPF00005\t360\t507\n"
)


def read(path, size=1 << 20):
    rows, bad, number, kinds = [], [], 0, set()
    for before, block in table_blocks(SourceFile(path), size):
        parsed = parse_rows(block)
        rows += parsed.rows
        bad += [(before + line, text) for line, text in parsed.malformed]
        number += parsed.number
        kinds.add(block.format.name)
    return rows, bad, number, kinds


def write(path, text):
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["protein2ipr.dat.gz", "x"])
def test_regions_are_known_by_their_header_whatever_the_file_is_called(tmp_path, name):
    rows, bad, number, kinds = read(write(tmp_path / name, REGIONS))
    # The two regions of PF00005 in one protein are one row.
    assert rows == [
        (b"A0A009DWI3", b"PF00005", b"49DCA93C7C4B4F04"), (b"A0A009DWI3", b"PF12848", b"49DCA93C7C4B4F04"),
        (b"A0A009DWK5", b"PF01547", b"0BADC0DE00000001"),
    ]  # fmt: skip
    assert (bad, number, kinds) == ([], 4, {"Pfam-A.regions"})


def test_regions_in_other_columns_and_without_a_header(tmp_path):
    other = "pfamseq_acc\tpfamA_acc\tseq_start\tcrc64\nP1\tPF00001.7\t5\tabcdefabcdefabcd\n"
    assert read(write(tmp_path / "other", other))[0] == [(b"P1", b"PF00001", b"ABCDEFABCDEFABCD")]
    whole, part = (read(write(tmp_path / name, REGIONS[start:])) for name, start in (("a", 0), ("b", len(HEADER))))
    assert whole == part


def test_of_protein2ipr_only_pfams_signatures_are_taken(tmp_path):
    rows, bad, number, kinds = read(write(tmp_path / "regions.tsv", INTERPRO))
    assert rows == [(b"A0A000", b"PF00155", b""), (b"A0A001", b"PF00005", b"")]
    assert (bad, number, kinds) == ([], 4, {"protein2ipr"})


@pytest.mark.parametrize("header", ["accession\tpfam\n", "Entry\tPfam\n", "\nprotein\tfamilies\n", " \n\n", ""])
def test_a_header_of_two_columns_is_optional_and_no_row(tmp_path, header):
    path = write(tmp_path / "x", header + "P12345\tPF00001;\r\n\r\nP2\tPF2\n")
    line = 3 + header.count("\n")
    assert read(path) == ([(b"P12345", b"PF00001", b"")], [(line, "P2\tPF2")], 2, {"two columns"})


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("P9\tPF00009\n", ["P1", "P1\tPF1", "P1\tPF00001\textra", "\tPF00001", "two words\tPF00001", "P1\tPF1,PF2"]),
        (REGIONS, ["A1\t1\t49DCA93C7C4B4F0\tmd5\tPF00005\t1\t2", "A1\t1\t49DCA93C7C4B4F04\tmd5\tPF5\t1\t2",
                   "A1\t1\t0000000000000000\tmd5\tPF00005\t1\t2", "A1\t1\t49DCA93C7C4B4F04\tmd5\tPF00005\t1", "A1"]),
        (INTERPRO, ["A1\tIPR003593\tname\tPF155\t3\t4", "A1\tIPR003593\tname\tPF00155\t3",
                    "A1\tIPR3\tname\tPF00155\t3\t4",
                    "A 1\tIPR003593\tname\tPF00155\t3\t4"]),
    ],
    ids=["two columns", "regions", "protein2ipr"],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_malformed_rows_are_told_with_their_lines(tmp_path, text, bad, size):
    good = read(write(tmp_path / "good", text))
    found = read(write(tmp_path / "x", text + "\n" + "\n".join(bad)), size)
    start = text.count("\n") + 2
    assert found == (good[0], list(enumerate(bad, start)), good[2] + len(bad), good[3])


def test_versions_spaces_and_a_byte_order_mark(tmp_path):
    rows = read(write(tmp_path / "x", "\ufeffP1 \t PF00002.3 ; PF00001;\nP2\t\n"))[0]
    assert rows == [(b"P1", b"PF00002;PF00001", b""), (b"P2", b"", b"")]


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [1, 7, 1000])
@given(
    st.lists(
        st.tuples(st.from_regex(r"[A-Z0-9]{1,8}", fullmatch=True), st.lists(st.integers(0, 99999), max_size=3)),
        max_size=20,
    )
)
def test_as_the_csv_module_reads_it(tmp_path_factory, size, rows):
    path = tmp_path_factory.mktemp("formats") / "x"
    text = "".join(f"{name}\t{';'.join(f'PF{i:05d}' for i in ids)}\n" for name, ids in rows)
    found = read(write(path, text), size)[0]
    expected = [tuple(row) for row in csv.reader(io.StringIO(text), delimiter="\t")]
    # Equal rows that follow each other are one, within a block.
    assert {(name.decode(), families.decode()) for name, families, _ in found} == set(expected)


@given(st.binary(max_size=200))
def test_any_bytes_give_rows_and_malformed_ones_or_a_sentence(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("formats") / "x", data)
    try:
        rows, bad, number, _ = read(path)
    except InputError:
        return
    assert len(rows) + len(bad) <= number
    assert all(line > 0 for line, _ in bad)


def test_the_format_does_not_hang_on_the_first_line():
    assert format_of([b"junk", b"A0A0\tIPR003593\tname\tPF00155\t3\t4"]).name == "protein2ipr"
    assert format_of([b"junk"]).name == format_of([]).name == "two columns"


FORMAT_FROM_OUTSIDE = """
import re
from dataclasses import dataclass

from proteinlm.data.families.table_formats import TableFormat, register_table_format


@register_table_format
@dataclass(frozen=True)
class Brackets(TableFormat):
    name = "brackets"
    example = "rows ACCESSION [PF00001]"

    @classmethod
    def recognise(cls, lines):
        return cls() if lines[0].endswith(b"]") else None

    def parse(self, text):
        return [(name, family, b"") for name, family in re.findall(rb"^(\\S+) \\[(PF\\d{5})\\]$", text, re.MULTILINE)]
"""


@pytest.fixture
def _brackets(tmp_path, monkeypatch):
    """A format that is registered by a module outside the package, as long as the test runs."""
    monkeypatch.setattr(table_formats, "_FORMATS", dict(table_formats._FORMATS))
    (tmp_path / "bracket_tables.py").write_text(FORMAT_FROM_OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "bracket_tables", raising=False)
    importlib.import_module("bracket_tables")
    yield
    sys.modules.pop("bracket_tables", None)


@pytest.mark.usefixtures("_brackets")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_format_from_outside_the_package(tmp_path, workers):
    (tmp_path / "in.fasta").write_text(">P1\nMKVL\n>P2\nMSTA\n>P3\nMAAA\n")
    (tmp_path / "families").write_text("P1 [PF00001]\nP2 (PF00002)\nP3 [PF00003]\n")
    config = IngestConfig(families=(tmp_path / "families",), workers=workers)
    ingest([tmp_path / "in.fasta"], tmp_path / "out", config)
    rows = ProteinDataset.open(tmp_path / "out").manifest().to_pandas().set_index("accession").families
    assert {name: list(families) for name, families in rows.items()} == {"P1": ["PF00001"], "P2": [], "P3": ["PF00003"]}
    (table,) = json.loads((tmp_path / "out" / "provenance.json").read_text())["family_tables"]
    assert (table["format"], table["rows"], table["malformed"]) == ("brackets", 3, 1)


@pytest.mark.usefixtures("_brackets")
def test_messages_list_a_format_from_outside(tmp_path):
    (tmp_path / "in.fasta").write_text(">P1\nMKVL\n")
    (tmp_path / "families").write_text("nothing\n")
    with pytest.raises(InputError, match=r"protein2ipr\.dat\.gz or rows ACCESSION \[PF00001\]\.$"):
        ingest([tmp_path / "in.fasta"], tmp_path / "out", IngestConfig(families=(tmp_path / "families",), workers=1))


def test_two_formats_of_one_name_are_refused():
    assert register_table_format(TwoColumns) is TwoColumns
    with pytest.raises(ValueError, match="the table format 'two columns' is registered already, by TwoColumns"):
        register_table_format(type("Other", (TwoColumns,), {}))
