import numpy as np
from Bio.SeqUtils.CheckSum import crc64 as biopython
from hypothesis import given
from hypothesis import strategies as st

from proteinlm.data.sources.crc64 import crc64


def test_the_number_in_uniprots_documentation():
    assert f"{int(crc64([b'IHATEMATH'])[0]):016X}" == "E3DCADD69B01ADD1"


def test_nothing_has_none():
    assert crc64([]).shape == (0,)
    assert crc64([b""]).tolist() == [0]


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_bytes_as_biopython_has_them(sequences):
    expected = [int(biopython(s.decode("latin-1"))[4:], 16) if s else 0 for s in sequences]
    assert crc64(sequences).tolist() == expected


def test_around_the_length_of_a_piece_and_far_beyond():
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
    random = np.random.default_rng(0)
    sequences = [random.choice(letters, n).tobytes() for n in (1, 63, 64, 65, 127, 128, 129, 4097, 40_000)]
    assert crc64(sequences).tolist() == [int(biopython(s.decode())[4:], 16) for s in sequences]
