import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteinlm.data.sources.accessions import all_printed, printed, protein_of


@given(st.binary(max_size=20))
def test_a_name_is_one_printable_word_of_ascii(name):
    text = printed(name)
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert printed(text.encode()) == text
    assert (text.encode() == name) == (all_printed(name) and not set(name) & set(b" \t\n"))


def test_what_is_not_printed_is_written_as_its_byte():
    assert printed(b"P12345-2") == "P12345-2"
    assert printed("Né\x1b[31m".encode()) == r"N\xc3\xa9\x1b[31m"


@pytest.mark.parametrize(
    ("accession", "protein"),
    [
        ("P12345-2", "P12345"),
        ("P12345", None),
        ("X-1-12", "X-1"),
        ("X-Y", None),
        ("-2", None),
        ("X-", None),
        ("", None),
    ],
)
def test_the_protein_of_an_isoform(accession, protein):
    assert protein_of(accession.encode()) == (protein and protein.encode())


@given(st.from_regex(r"[A-Z0-9-]{0,8}", fullmatch=True))
def test_isoforms_end_with_a_dash_and_a_number(name):
    match = re.fullmatch(r"(.+)-\d+", name)
    assert protein_of(name.encode()) == (match[1].encode() if match else None)
