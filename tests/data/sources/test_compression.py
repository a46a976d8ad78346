import bz2
import gzip
import lzma
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteinlm.data.sources import compression
from proteinlm.data.sources.compression import decompressed, zstd
from proteinlm.errors import InputError

TEXT = b"".join(b">P%05d\nACDEFGHIKL\nMNPQRSTVWY\n" % i for i in range(500))
CHECKED = {zstd.CompressionParameter.checksum_flag: 1}
# What pzstd puts before each frame: a skippable one with the frame's size.
SKIPPED = b"\x50\x2a\x4d\x18\x04\0\0\0\x01\x02\x03\x04"
PACK = {"gzip": lambda text: gzip.compress(text, mtime=0), "zstd": lambda text: zstd.compress(text, options=CHECKED)}


def unpack(data, piece=1 << 20):
    pieces = (data[i : i + piece] for i in range(0, len(data), piece))
    return b"".join(decompressed(pieces, "given.txt", lambda: "byte 1 of 2"))


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize("text_bytes", [1, 100, 1 << 20])
def test_members_one_after_another_are_one_file(monkeypatch, kind, piece, text_bytes):
    monkeypatch.setattr(compression, "_TEXT_BYTES", text_bytes)
    text = TEXT[:2000]
    data = PACK[kind](text[:700]) + PACK[kind](b"") + PACK[kind](text[700:])
    assert unpack(data, piece) == text


def test_neither_is_given_as_it_is():
    for data in (b"", b">", TEXT, b"\x1f", b"\x28\xb5\x2f"):
        assert unpack(data, 1) == data


def test_zeros_after_the_last_gzip_member_are_padding():
    assert unpack(PACK["gzip"](TEXT) + bytes(512)) == TEXT
    with pytest.raises(InputError, match="is damaged"):
        unpack(PACK["zstd"](TEXT) + bytes(512))


def test_skippable_frames_are_skipped():
    assert unpack(SKIPPED + PACK["zstd"](TEXT[:100]) + SKIPPED + PACK["zstd"](TEXT[100:]) + SKIPPED) == TEXT


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("members", [0, 1])
def test_cut_short_at_every_place_is_an_error(kind, members):
    data = PACK[kind](TEXT[:300])
    for length in range(6, len(data)):
        with pytest.raises(InputError, match=rf"given.txt is cut short: its {kind} data .* at byte 1 of 2; download"):
            unpack(data * members + data[:length])


@pytest.mark.parametrize("kind", PACK)
def test_every_damaged_byte_is_an_error_or_harmless(kind):
    data = PACK[kind](TEXT[:300])
    wrong = 0
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        try:
            text = unpack(bytes(damaged))
        except InputError:
            wrong += 1
            continue
        # Time and system in a gzip header may differ; without its magic number a file is plain text.
        assert text == TEXT[:300] or (place < 4 and text == damaged)
    assert wrong > len(data) - 15


@given(st.binary(min_size=1, max_size=30), st.integers(0, 10_000), st.sampled_from(sorted(PACK)))
@settings(deadline=None, max_examples=60)
def test_changed_in_the_middle_gives_the_text_or_an_error(junk, place, kind):
    whole = PACK[kind](TEXT)
    place = 6 + place % (len(whole) - 6)
    try:
        text = unpack(whole[:place] + junk + whole[place + len(junk) :])
    except InputError:
        return
    assert text == TEXT


def test_other_compressions_are_named():
    for data, name in ((bz2.compress(TEXT), "bzip2"), (lzma.compress(TEXT), "xz"), (b"PK\x03\x04" + TEXT, "zip")):
        with pytest.raises(InputError, match=f"compressed with {name}: decompress it first"):
            unpack(data)


def test_what_unpacks_to_very_much_comes_in_small_pieces():
    for data in (zstd.compress(bytes(64 << 20)), gzip.compress(bytes(64 << 20))):
        assert len(data) < 100_000
        sizes = [len(piece) for piece in decompressed(iter([data]), "x", str)]
        assert sum(sizes) == 64 << 20
        assert max(sizes) <= 1 << 20


def test_a_window_larger_than_memory_should_give_is_refused():
    # A frame header that asks for 2 GiB.
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + b"\x01\x00\x00"
    with pytest.raises(InputError, match="zstd --long.*decompress it first"):
        unpack(header)


def test_what_the_zstd_program_writes(tmp_path):
    (tmp_path / "x").write_bytes(TEXT)
    try:
        subprocess.run(["zstd", "-q", "-19", tmp_path / "x"], check=True)
    except FileNotFoundError:
        pytest.skip("needs the program zstd: apt-get install zstd")
    assert unpack((tmp_path / "x.zst").read_bytes()) == TEXT
