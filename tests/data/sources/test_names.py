from hypothesis import given
from hypothesis import strategies as st

from proteinlm.data.sources.names import all_printed, printed


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
