import gzip
import hashlib

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from release_server import archive

from proteinlm.data.sources import files as sources
from proteinlm.data.sources.compression import zstd
from proteinlm.data.sources.files import SourceFile, open_sources
from proteinlm.errors import InputError

FASTA = b"".join(b">P%05d\nACDEFGHIKL\nMNPQRSTVWY\n" % i for i in range(200))


def read(path):
    return b"".join(SourceFile(path).text())


def put(tmp_path, data, name="file"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


ENTRY = b"""ID   A1_HUMAN                Reviewed;           3 AA.
AC   P12345;
SQ   SEQUENCE   3 AA;  344 MW;  0000000000000000 CRC64;
     MKV
//
"""


def test_compression_is_told_by_content_not_by_name(tmp_path):
    for name in ("a.fasta", "a.gz", "a.zst"):
        for data in (FASTA, gzip.compress(FASTA, mtime=0), zstd.compress(FASTA)):
            assert read(put(tmp_path, data, name)) == FASTA


def test_members_one_after_another_are_one_file(tmp_path):
    half = len(FASTA) // 2 + 3
    data = gzip.compress(FASTA[:half], mtime=0) + gzip.compress(b"", mtime=0) + gzip.compress(FASTA[half:], mtime=0)
    assert read(put(tmp_path, data)) == FASTA
    assert read(put(tmp_path, data + bytes(512))) == FASTA


@pytest.mark.parametrize("bytes_at_a_time", [1, 7, 1 << 20])
def test_reading_in_small_pieces_changes_nothing(tmp_path, monkeypatch, bytes_at_a_time):
    monkeypatch.setattr(sources, "_READ_BYTES", bytes_at_a_time)
    path = put(tmp_path, gzip.compress(FASTA[:1000], mtime=0) + gzip.compress(FASTA[1000:2000], mtime=0))
    assert read(path) == FASTA[:2000]


@pytest.mark.parametrize("missing", [1, 5, 8, 9, 100])
def test_a_truncated_gzip_file_is_an_error(tmp_path, missing):
    path = put(tmp_path, gzip.compress(FASTA, mtime=0)[:-missing])
    with pytest.raises(InputError, match=rf"{path.name} is cut short.*bytes of text"):
        read(path)


@pytest.mark.parametrize("length", [2, 9, 15])
def test_a_second_member_that_has_hardly_begun_is_an_error(tmp_path, length):
    path = put(tmp_path, gzip.compress(FASTA, mtime=0) + gzip.compress(FASTA, mtime=0)[:length])
    with pytest.raises(InputError, match="is cut short"):
        read(path)


def test_a_damaged_gzip_file_is_an_error(tmp_path):
    data = bytearray(gzip.compress(FASTA, mtime=0))
    data[-6] ^= 1
    with pytest.raises(InputError, match="is damaged"):
        read(put(tmp_path, bytes(data)))
    with pytest.raises(InputError, match="is damaged"):
        read(put(tmp_path, gzip.compress(FASTA, mtime=0) + b"and then something else"))


@given(st.binary(min_size=1, max_size=30), st.integers(0, 10_000))
@settings(deadline=None, max_examples=40)
def test_a_changed_gzip_file_gives_the_text_or_an_error(tmp_path_factory, junk, place):
    whole = gzip.compress(FASTA, mtime=0)
    place %= len(whole)
    path = put(tmp_path_factory.mktemp("gz"), whole[:place] + junk + whole[place + len(junk) :])
    try:
        text = read(path)
    except InputError:
        return
    # Bytes of the header (time, system) may differ without harm; a file without the magic bytes is plain text.
    assert text == FASTA or not path.read_bytes().startswith(b"\x1f\x8b")


def test_a_read_error_is_an_error_that_says_how_far(tmp_path, monkeypatch):
    class Broken:
        def __init__(self, *_):
            self.calls = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self, size):
            self.calls += 1
            if self.calls > 1:
                raise OSError(5, "Input/output error")
            return FASTA[:1000]

    path = put(tmp_path, FASTA)
    monkeypatch.setattr("builtins.open", Broken)
    with pytest.raises(InputError, match="beyond byte 1,000"):
        read(path)


def test_checksum_and_size_are_those_of_the_file(tmp_path):
    data = gzip.compress(FASTA, mtime=0)
    source = SourceFile(put(tmp_path, data))
    assert b"".join(source.text()) == FASTA
    assert (source.size, source.read) == (len(data), len(data))
    assert source.md5 == hashlib.md5(data).hexdigest()


@given(st.text("a\r\n", max_size=30), st.integers(1, 5))
def test_line_ends_as_python_reads_them(tmp_path_factory, text, piece):
    path = put(tmp_path_factory.mktemp("lines"), text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_READ_BYTES", piece)
        got = b"".join(SourceFile(path).lines())
    with open(path, newline=None) as handle:
        assert got.decode() == handle.read()


@pytest.mark.parametrize("size", [1, 40, 1000, 1 << 20])
def test_blocks_are_whole_records_and_all_of_them(tmp_path, monkeypatch, size):
    monkeypatch.setattr(sources, "_READ_BYTES", 50)
    blocks = list(SourceFile(put(tmp_path, FASTA)).blocks(size))
    assert b"".join(block.data for block in blocks) == FASTA
    assert all(block.data.startswith(b">") for block in blocks)
    assert [block.last for block in blocks] == [False] * (len(blocks) - 1) + [True]
    assert len(blocks) > 1 or size > len(FASTA)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n \r\n", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"P12345\nACD\n", "line 1 starts neither"),
        (b"\n\nsome text\n>P12345\nACD\n", "line 3 starts neither.*some text"),
        (b"<!DOCTYPE html>\n<p>Too many requests", "line 1 is XML or HTML.*download"),
        (b'\n{"error": 1}', "line 2 is JSON"),
        (b"\x28\xb5\x2f\xfd....", "is damaged: its zstd data"),
        (zstd.compress(FASTA)[:-4], "is cut short: its zstd data"),
        (archive({"a.fasta": FASTA}), r"is a tar archive: name the file in it, such as tar://.*::.*given.txt"),
        (b"BZh91AY", "bzip2"),
        (b"PK\x03\x04...", "zip"),
        (b"\x00\x01\x02\xff binary", "starts neither"),
        (FASTA + ENTRY, r"begins as FASTA and continues as a UniProtKB flat file \('ID   A1_HUMAN.* two files"),
        (ENTRY + FASTA, r"begins as a UniProtKB flat file and continues as FASTA \('>"),
    ],
)
def test_what_is_no_file_of_proteins_is_refused(tmp_path, data, message):
    with pytest.raises(InputError, match=message) as error:
        list(SourceFile(put(tmp_path, data, "given.txt")).blocks())
    assert "given.txt" in str(error.value)


def test_folders_and_missing_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        SourceFile(tmp_path)
    with pytest.raises(InputError, match=r"absent\.fasta cannot be read"):
        SourceFile(tmp_path / "absent.fasta")


def test_a_record_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "RECORD_BYTES", 1000)
    monkeypatch.setattr(sources, "_READ_BYTES", 500)
    with pytest.raises(InputError, match="not a file of proteins"):
        list(SourceFile(put(tmp_path, b">genome\n" + b"ACGT" * 1000)).blocks(100))


def test_a_byte_order_mark_is_skipped(tmp_path):
    (block,) = SourceFile(put(tmp_path, b"\xef\xbb\xbf>P12345\nACD\n")).blocks()
    assert block.data.startswith(b">P12345")


def test_a_file_in_an_archive_is_read_where_it_is(tmp_path):
    members = {
        "README": b"x" * 5000,
        "uniprot_sprot.fasta.gz": gzip.compress(FASTA, mtime=0),
        "z.zst": b"z" * 3_000_000,
    }
    data = archive(members)
    for packed in (data, gzip.decompress(data), zstd.compress(gzip.decompress(data))):
        source = SourceFile(f"tar://uniprot_sprot.fasta.gz::{put(tmp_path, packed, 'archive')}")
        assert b"".join(block.data for block in source.blocks(1000)) == FASTA
        # Checksum, size and progress are the whole archive's: that is what a publisher's list speaks of.
        assert (source.size, source.read, source.md5) == (len(packed), len(packed), hashlib.md5(packed).hexdigest())
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]
    for broken in (b"", FASTA * 20, data[:300]):
        with pytest.raises(InputError, match="uniprot_sprot.*(damaged|cut short)"):
            read(f"tar://uniprot_sprot.fasta.gz::{put(tmp_path, broken, 'archive')}")


def test_remote_files_are_read_as_local_ones(tmp_path):
    system = fsspec.filesystem("memory")
    system.store.clear()
    data = gzip.compress(FASTA, mtime=0)
    system.pipe({"/up/a.gz": data, "/up/b.zst": zstd.compress(FASTA), "/up/cut.gz": data[:-3]})
    for source in open_sources(["memory://up/[ab].*"]):
        assert b"".join(block.data for block in source.blocks(1000)) == FASTA
        assert source.read == source.size
    with pytest.raises(InputError, match="memory://up/cut.gz is cut short"):
        read("memory://up/cut.gz")
    system.store.clear()


@pytest.mark.parametrize("size", [1, 50, 1 << 20])
@pytest.mark.parametrize(
    "content",
    [
        FASTA + ENTRY * 3,
        FASTA[:-1] + ENTRY,
        FASTA + b"\xef\xbb\xbf" + ENTRY,
        ENTRY * 3 + b"\n" + FASTA,
        ENTRY[:-4] + FASTA,
        ENTRY + b"\xef\xbb\xbf" + FASTA,
        ENTRY + b"; a comment\n" + FASTA,
    ],
)
def test_two_formats_in_one_file_are_refused_wherever_blocks_end(tmp_path, monkeypatch, content, size):
    monkeypatch.setattr(sources, "_READ_BYTES", 7)
    with pytest.raises(InputError, match="continues as"):
        list(SourceFile(put(tmp_path, content, "given.txt")).blocks(size))


def test_two_large_parts_of_two_formats_are_told_apart_too(tmp_path, monkeypatch):
    """What is no end of a record to the first format is looked at before it is called too long."""
    monkeypatch.setattr(sources, "RECORD_BYTES", 2000)
    path = put(tmp_path, b">P1\nMKV\n" + ENTRY * 100, "given.txt")
    with pytest.raises(InputError, match="continues as a UniProtKB flat file"):
        list(SourceFile(path).blocks(50))


def test_what_only_looks_like_the_other_format_is_none(tmp_path):
    header = b">P1 ID   A_B   Reviewed; 3 AA.\nMKV\n>P2 x\nMKL\n"
    assert b"".join(block.data for block in SourceFile(put(tmp_path, header, "a")).blocks(5)) == header
    comment = ENTRY.replace(b"SQ ", b"CC   a > b, ID   x Reviewed;\nSQ ", 1)
    assert b"".join(block.data for block in SourceFile(put(tmp_path, comment, "b")).blocks(5)) == comment


def test_many_files_are_sorted_whatever_the_order(tmp_path):
    names = [str(put(tmp_path, FASTA, name)) for name in ("b.fasta", "a x.fasta", "c ü.fasta")]
    for given_names in (names, names[::-1], [f"{tmp_path}/*.fasta"]):
        assert [source.path for source in open_sources(given_names)] == sorted(names)


def test_one_file_under_two_names_is_refused(tmp_path):
    path = put(tmp_path, FASTA, "a.fasta")
    (tmp_path / "b.fasta").symlink_to(path)
    for names in ([path, path], [path, f"{tmp_path}/./a.fasta"], [path, f"{tmp_path}/a*"], [path, f"file://{path}"]):
        with pytest.raises(InputError, match=r"a\.fasta is named twice"):
            open_sources(names)
    with pytest.raises(InputError, match=r"b\.fasta and .*a\.fasta are the same file"):
        open_sources([f"{tmp_path}/*"])
    packed = put(tmp_path, archive({"x": FASTA, "y": FASTA}), "c.tar")
    assert len(open_sources([f"tar://x::{packed}", f"tar://y::{packed}"])) == 2
    with pytest.raises(InputError, match="tar://x::.* is named twice"):
        open_sources([f"tar://x::{packed}"] * 2)
    with pytest.raises(InputError, match="name at least one file"):
        open_sources([])
