import gzip
import io
import re
import warnings

import pytest
from Bio import SeqIO, SwissProt
from hypothesis import given, settings
from hypothesis import strategies as st

from proteinlm import alphabet
from proteinlm.data.sources.crc64 import crc64
from proteinlm.data.sources.files import SourceFile, TextBlock
from proteinlm.data.sources.uniprot import (
    CHECKSUM,
    LENGTH,
    LETTER,
    NO_ID,
    NO_NAME,
    NO_SEQUENCE,
    NO_SQ,
    UNFINISHED,
    Record,
    parse,
    read_records,
)
from proteinlm.errors import InputError


def fasta(text, last=True):
    return parse(TextBlock("fasta", text.encode(), last))


def flat(text, last=True):
    return parse(TextBlock("flat", text.encode(), last))


def entry(accession="P12345", sequence="MKVL", *, extra="", status="Reviewed", checksum=None, length=None, end="//\n"):
    crc = checksum if checksum is not None else f"{int(crc64([sequence.encode()])[0]):016X}"
    lines = "\n".join(
        "     " + " ".join(sequence[i : i + 60][j : j + 10] for j in range(0, 60, 10))
        for i in range(0, len(sequence), 60)
    )
    return (
        f"ID   TEST_HUMAN              {status};         {len(sequence)} AA.\nAC   {accession};\n"
        f"OX   NCBI_TaxID=9606 {{ECO:0000313}};\n{extra}"
        f"SQ   SEQUENCE   {len(sequence) if length is None else length} AA;  52657 MW;  {crc} CRC64;\n{lines}\n{end}"
    )


def reasons(parsed):
    return [(reject.number, reject.accession, reject.reason) for reject in parsed.rejects]


class TestFasta:
    @pytest.mark.parametrize(
        ("header", "accession", "reviewed", "taxon"),
        [
            ("tr|W0FSK4|W0FSK4_9FLAV Genome polyprotein (Fragment) OS=Zika OX=64320 PE=4 SV=1", "W0FSK4", False, 64320),
            ("sp|P00974|BPT1_BOVIN Pancreatic trypsin inhibitor OS=Bos taurus OX=9913 GN=PTI", "P00974", True, 9913),
            ("sp|P12345-2|AATM_RABIT Isoform 2 of X OS=Y OX=9986", "P12345-2", True, 9986),
            ("UniRef50_P12345 Cluster: Aspartate n=3 Tax=Leporidae TaxID=9979 RepID=AATM_RABIT", "P12345", False, 9979),
            ("UniRef100_UPI000012345A Unknown", "UPI000012345A", False, None),
            ("B0RED7", "B0RED7", False, None),
            ("  spaced name", "spaced", False, None),
            ("gi|129295|sp|P01013|OVAX_CHICK", "gi|129295|sp|P01013|OVAX_CHICK", False, None),
            ("x OX=99999999999", "x", False, None),
        ],
    )
    def test_names(self, header, accession, reviewed, taxon):
        assert fasta(f">{header}\nMKV\n").records == [Record(accession, b"MKV", (), reviewed, taxon)]

    def test_letters_become_canonical(self):
        parsed = fasta(">a\nmk v\n\nJU*\n>b\n\tMK\n")
        assert [record.sequence for record in parsed.records] == [b"MKVXU", b"MK"]

    def test_wrong_records_are_rejected_with_number_and_reason(self):
        text = ">a\nMKV\n>b\n>c\n*\n>\nMKV\n>d\nMK1V\n>e\nMKV>sp|P1|X\nMKV\n>f\nMKV"
        parsed = fasta(text)
        assert [record.accession for record in parsed.records] == ["a", "f"]
        assert reasons(parsed) == [
            (2, "b", NO_SEQUENCE), (3, "c", NO_SEQUENCE), (4, "", NO_NAME), (5, "d", LETTER), (6, "e", LETTER),
        ]  # fmt: skip
        assert "'1' at residue 3" in parsed.rejects[3].detail
        assert "line break is missing" in parsed.rejects[4].detail
        assert parsed.number == 7

    @given(
        st.lists(
            st.tuples(st.from_regex(r"[A-Z0-9_.-]{1,10}", fullmatch=True), st.text(alphabet.RESIDUES, min_size=1)),
            min_size=1,
            max_size=8,
        ),
        st.integers(1, 80),
        st.sampled_from(["\n", "\r\n", "\n\n"]),
        st.booleans(),
    )
    @settings(deadline=None)
    def test_as_biopython_reads_it(self, tmp_path_factory, proteins, width, newline, final):
        lines = []
        for name, sequence in proteins:
            lines += [f">{name} OS=x", *(sequence[i : i + width] for i in range(0, len(sequence), width))]
        path = tmp_path_factory.mktemp("fasta") / "x.fasta"
        path.write_bytes((newline.join(lines) + newline * final).encode())
        expected = [(r.id, str(r.seq)) for r in SeqIO.parse(io.StringIO(path.read_text()), "fasta")]
        assert [(r.accession, r.sequence.decode()) for r in read_records(path)] == expected

    def test_the_sample_as_biopython_reads_it(self, shared_data):
        path = shared_data / "sample" / "proteins.fasta.gz"
        with gzip.open(path, "rt") as handle:
            expected = [(r.id, str(r.seq)) for r in SeqIO.parse(handle, "fasta")]
        assert [(r.accession, r.sequence.decode()) for r in read_records(path)] == expected


class TestFlat:
    def test_one_entry(self):
        extra = (
            "DR   EMBL; X64451; CAA45782.1; -; mRNA. [P12345-2]\nDR   Pfam; PF04420; CHD5; 1.\n"
            "DR   PFAM; PF00190; Cupin_1; PARTIAL.\nDR   Pfam; PF00190; Cupin_1; 2.\nDR   PfamB; PF99999; x; 1.\n"
            "CC   -!- The line DR   Pfam; PF11111; x; 1.\n"
        )
        parsed = flat(entry(extra=extra))
        assert parsed.records == [Record("P12345", b"MKVL", ("PF00190", "PF04420"), True, 9606)]
        assert parsed.rejects == []

    def test_the_first_accession_of_the_first_line(self):
        text = entry("P12345; Q3E711").replace("OX ", "AC   Q99999; Q88888;\nOX ", 1)
        assert flat(text).records[0].accession == "P12345"

    @pytest.mark.parametrize("checksum", ["0123456789ABCDE", "?123456789ABCDEF", ""])
    def test_a_checksum_that_cannot_be_read_is_not_the_same_as_none(self, checksum):
        assert reasons(flat(entry(checksum=checksum))) == [(1, "P12345", NO_SQ)]

    @pytest.mark.parametrize(
        ("status", "reviewed"), [("Reviewed", True), ("Unreviewed", False), ("STANDARD", True), ("PRELIMINARY", False)]
    )
    def test_status(self, status, reviewed):
        assert flat(entry(status=status)).records[0].reviewed is reviewed

    def test_unknown_line_codes_and_blank_lines_are_passed_over(self):
        extra = "ZZ   something new\n\n**   SQ   SEQUENCE 1 AA;\nX\n"
        assert [r.sequence for r in flat(entry(extra=extra) + "\n\n" + entry("Q1", extra=extra)).records] == [
            b"MKVL"
        ] * 2

    def test_fields_do_not_spill_into_the_next_entry(self):
        bare = "ID   A  Reviewed; 4 AA.\nSQ   SEQUENCE   4 AA;  1 MW;  0 CRC64;\n     MKVL\n//\n"
        parsed = flat(bare + entry("Q1", extra="DR   Pfam; PF00001; x; 1.\n"))
        assert reasons(parsed) == [(1, "", NO_NAME)]
        assert parsed.records[0].families == ("PF00001",)
        no_sq = "ID   A  Reviewed; 4 AA.\nAC   Q0;\n//\n"
        parsed = flat(no_sq + entry("Q1"))
        assert reasons(parsed) == [(1, "Q0", NO_SQ)]
        assert [r.accession for r in parsed.records] == ["Q1"]

    def test_length_and_checksum_are_compared_with_the_sq_line(self):
        parsed = flat(entry("A1", length=5) + entry("A2", checksum="0" * 16) + entry("A3", "MKVLL" * 50))
        assert reasons(parsed) == [(1, "A1", LENGTH), (2, "A2", CHECKSUM)]
        assert [r.accession for r in parsed.records] == ["A3"]

    def test_an_accession_that_meets_another_entrys_sequence_is_rejected(self):
        # A stretch of the file is lost: from one entry's SQ line to the next one's.
        first, second = entry("A1", "MKVL"), entry("A2", "WYWWY")
        assert reasons(flat(first[: first.index("SQ")] + second[second.index("SQ") :])) == [(1, "A1", LENGTH)]

    def test_an_old_entry_without_checksum_is_taken(self):
        text = re.sub(r"  \w{16} CRC64;", "", entry())
        assert flat(text).records[0].sequence == b"MKVL"

    def test_a_missing_end_is_forgiven_when_length_and_checksum_prove_the_sequence(self):
        assert len(flat(entry(end="")).records) == 1
        assert [r.accession for r in flat(entry("A1", end="") + entry("A2")).records] == ["A1", "A2"]

    def test_a_missing_end_is_a_reject_when_anything_may_be_missing(self):
        whole = entry(sequence="MKVL" * 40, end="")
        for text in (whole[:-30], whole[: whole.index("SQ")], re.sub(r"  \w{16} CRC64;", "", whole)):
            parsed = flat(text)
            assert [reject.reason for reject in parsed.rejects] == [UNFINISHED]
            assert parsed.records == []

    def test_text_outside_entries_is_a_reject(self):
        parsed = flat(entry("A1") + "AC   Q1;\nSQ   SEQUENCE 1 AA;\n     M\n//\n" + entry("A2") + "left over\n")
        assert reasons(parsed) == [(2, "", NO_ID), (4, "", NO_ID)]
        assert [r.accession for r in parsed.records] == ["A1", "A2"]

    def test_letters_outside_the_alphabet_are_a_reject(self):
        assert reasons(flat(entry("A1", "MK1L"))) == [(1, "A1", LETTER)]

    @pytest.mark.parametrize("newline", ["\n", "\r\n"])
    @pytest.mark.parametrize("size", [1, 300, 1 << 20])
    def test_blocks_and_line_ends_change_nothing(self, tmp_path, newline, size):
        path = tmp_path / "x.dat"
        path.write_bytes("".join(entry(f"A{i}", "MKVL" * (i + 1)) for i in range(20)).replace("\n", newline).encode())
        records = [r for block in SourceFile(path).blocks(size) for r in parse(block).records]
        assert [(r.accession, len(r.sequence)) for r in records] == [(f"A{i}", 4 * i + 4) for i in range(20)]

    def test_real_entries_as_biopython_reads_them(self, shared_data):
        path = shared_data / "flatfile" / "entries.dat.gz"
        with gzip.open(path, "rt") as handle, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = [
                (
                    r.accessions[0],
                    r.sequence,
                    tuple(sorted({x[1] for x in r.cross_references if x[0].lower() == "pfam"})),
                    int(r.taxonomy_id[0]) if r.taxonomy_id else None,
                )
                for r in SwissProt.parse(handle)
            ]
        got = [(r.accession, r.sequence.decode(), r.families, r.taxon) for r in read_records(path)]
        assert len(got) == 260
        assert got == expected


@given(st.text("IDACSQR/PFam;> \n\t0123\x00é", max_size=300), st.sampled_from(["fasta", "flat"]))
@settings(deadline=None, max_examples=300)
def test_any_text_gives_records_or_rejects(text, kind):
    parsed = parse(TextBlock(kind, ((">" if kind == "fasta" else "ID   ") + text).encode(), True))
    assert len(parsed.records) + len(parsed.rejects) == parsed.number
    for record in parsed.records:
        assert alphabet.canonical(record.sequence) == record.sequence
        assert record.accession
        assert not any(c.isspace() for c in record.accession)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_damaged_flat_entry_never_gives_a_wrong_sequence(data):
    proteins = {f"A{i}": s for i, s in enumerate(["MKVL" * 30, "ACDEFGH" * 9, "WYW"])}
    text = "".join(entry(a, s) for a, s in proteins.items())
    place = data.draw(st.integers(0, len(text) - 1))
    junk = data.draw(st.sampled_from(["", "\n", "//\n", "A", "ID   x\n", " "]))
    length = data.draw(st.integers(0, 200))
    damaged = text[:place] + junk + text[place + length :]
    for record in flat(damaged).records:
        # The checksum speaks for the sequence, so accessions may be damaged but pairs are never mixed up.
        if record.accession in proteins:
            assert record.sequence.decode() == proteins[record.accession]


def test_a_file_without_a_usable_record_is_refused(tmp_path):
    path = tmp_path / "x.fasta"
    path.write_text(">a\n>b\nM1\n")
    with pytest.raises(InputError, match=r"has no usable record; the first one: no sequence"):
        list(read_records(path))
