import gzip
import json
import os
import sys

import fsspec
import pytest
from release_server import archive

from proteinlm.data.sources.locations import Location, expand, is_remote, member_of
from proteinlm.errors import InputError

TEXT = b">a\nMKV\n"


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pipe({"/up/a.fasta": TEXT, "/up/b.fasta": TEXT * 2, "/up/deep/c.fasta": TEXT * 3, "/other": b""})
    yield system
    system.store.clear()


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(TEXT)


def test_a_local_file_by_path_and_by_url(tmp_path, monkeypatch):
    name = "with space, ü and #"
    make(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    places = [Location(n) for n in (name, f"./{name}", tmp_path / name, f"file://{tmp_path}/{name}")]
    assert {place.identity for place in places} == {places[0].identity}
    assert [place.name for place in places] == [name, name, *[str(tmp_path / name)] * 2]
    for place in places:
        assert place.size == len(TEXT)
        with place.open() as handle:
            assert handle.read() == TEXT


def test_another_version_has_another_stamp(tmp_path, memory):
    make(tmp_path, "a")
    first = Location(tmp_path / "a").stamp
    assert Location(f"tar://x::{tmp_path}/a").stamp == Location(tmp_path / "a").stamp == first
    os.utime(tmp_path / "a", ns=(5, 5))
    assert Location(tmp_path / "a").stamp == [len(TEXT), 5]
    remote = Location("memory://up/a.fasta").stamp
    assert remote == Location("memory://up/a.fasta").stamp
    memory.pipe({"/up/a.fasta": TEXT})
    assert Location("memory://up/a.fasta").stamp != remote
    assert json.loads(json.dumps(remote)) == remote


def test_a_link_is_the_file(tmp_path):
    make(tmp_path, "a")
    (tmp_path / "b").symlink_to("a")
    assert Location(tmp_path / "a").identity == Location(tmp_path / "b").identity


def test_a_remote_file(memory):
    place = Location("memory://up/b.fasta")
    assert (place.name, place.size) == ("memory://up/b.fasta", 2 * len(TEXT))
    assert place.identity == Location("memory:///up/b.fasta").identity != Location("memory://up/a.fasta").identity
    with place.open() as handle:
        assert handle.read(3) + handle.read() == TEXT * 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("memory://up", "memory://up is a folder: name the files"),
        ("memory://up/absent", "memory://up/absent cannot be read"),
        ("nosuch://x/y", "nosuch://x/y cannot be read.*nosuch"),
        ("absent", "absent cannot be read"),
        (".", "is a folder"),
        ("a\0b", "cannot be read"),
        ("tar://x", "write tar://MEMBER::ARCHIVE"),
        ("tar://::x", "write tar://MEMBER::ARCHIVE"),
        ("tar://x::absent.tar", "absent.tar cannot be read"),
    ],
)
def test_what_cannot_be_opened_is_told(memory, name, message):
    with pytest.raises(InputError, match=message):
        Location(name)


@pytest.mark.parametrize(("url", "package"), [("gs://bucket/x", "gcsfs"), ("s3://bucket/x", "s3fs")])
def test_a_cloud_whose_package_is_not_installed(monkeypatch, url, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{url} needs a package .*: pip install 'proteinlm\[cloud\]'"):
        Location(url)
    with pytest.raises(InputError, match=package):
        expand([f"{url}*"])


def test_trouble_of_a_remote_system_is_an_error_that_names_the_file(memory, monkeypatch):
    place = Location("memory://up/a.fasta")

    class TroubleError(Exception):
        pass

    class Broken:
        def read(self, size):
            raise TroubleError("token expired")

        def close(self):
            pass

    monkeypatch.setattr(type(memory), "open", lambda *_args, **_options: Broken())
    with place.open() as handle, pytest.raises(OSError, match="TroubleError: token expired"):
        handle.read()

    def fail(*_, **_options):
        raise TroubleError("no access")

    monkeypatch.setattr(type(memory), "info", fail)
    monkeypatch.setattr(type(memory), "glob", fail)
    for act in (lambda: Location("memory://up/a.fasta"), lambda: expand(["memory://up/*"])):
        with pytest.raises(InputError, match=r"memory://up/.* cannot be read \(TroubleError: no access\)"):
            act()


def test_patterns_are_the_files_they_match(tmp_path, monkeypatch):
    make(tmp_path, "up/b.fasta", "up/a.fasta", "up/a.gz", "up/deep/c.fasta", "up/é ü.fasta", "x[1].fasta", "x1.fasta")
    monkeypatch.chdir(tmp_path)
    assert expand(["up/*.fasta", "first"]) == ["up/a.fasta", "up/b.fasta", "up/é ü.fasta", "first"]
    assert expand(["up/?.fasta"]) == expand(["up/[ab].fasta"]) == ["up/a.fasta", "up/b.fasta"]
    assert expand(["up/**"]) == sorted(f"up/{n}" for n in ("a.fasta", "a.gz", "b.fasta", "deep/c.fasta", "é ü.fasta"))
    assert expand([f"file://{tmp_path}/up/*.gz"]) == [f"{tmp_path}/up/a.gz"]
    # A name that is there is meant.
    assert expand(["x[1].fasta"]) == ["x[1].fasta"]
    # A folder among the matches is for the caller to refuse.
    assert "up/deep" in expand(["up/*"])


def test_patterns_of_remote_files(memory):
    assert expand(["memory://up/*.fasta"]) == ["memory:///up/a.fasta", "memory:///up/b.fasta"]
    assert len(expand(["memory://up/**/*.fasta"])) == len(expand(["memory://up/**"])) == 3
    assert "memory:///up/deep" in expand(["memory://up/*"])


@pytest.mark.parametrize("pattern", ["none/*.fasta", "*", "memory://none/*"])
def test_a_pattern_that_matches_nothing_is_an_error(tmp_path, monkeypatch, memory, pattern):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        expand(["sample", pattern])
    assert str(error.value).startswith(f"{pattern} matches no file")


def test_urls_and_archives_are_no_patterns():
    names = ["https://x/get?format=fasta", "tar://a*::b", "HTTP://x/*"]
    assert expand(names) == names
    assert all(map(is_remote, ("https://x", "GS://x", "memory://x")))
    assert not any(map(is_remote, ("file:///x", "x", "tar://a::gs://x", "C:/x", "a/b://c")))


class TestMemberOf:
    PACKED = gzip.decompress(archive({"first": b"1" * 3000, "folder/second": b"2" * 3000, "./third": b"3"}))

    def read(self, member, data=PACKED, piece=1000):
        pieces = (data[i : i + piece] for i in range(0, len(data), piece))
        return b"".join(member_of(pieces, member, "name"))

    @pytest.mark.parametrize("piece", [1, 511, 1 << 20])
    def test_with_its_folders_or_without(self, piece):
        assert self.read("first", piece=piece) == b"1" * 3000
        assert self.read("folder/second", piece=piece) == self.read("second", piece=piece) == b"2" * 3000
        assert self.read("third", piece=piece) == self.read("./third", piece=piece) == b"3"

    def test_what_is_not_there(self):
        with pytest.raises(InputError, match=r"has no file secon; it has first, folder/second, \./third\."):
            self.read("secon")

    @pytest.mark.parametrize("length", [0, 100, 513, 3000, 3500])
    def test_cut_short(self, length):
        with pytest.raises(InputError, match=r"damaged or cut short|has no file second"):
            self.read("second", self.PACKED[:length])
        with pytest.raises(InputError, match="damaged or cut short"):
            self.read("first", self.PACKED[:length])

    def test_no_archive_and_no_file(self):
        with pytest.raises(InputError, match="damaged"):
            self.read("x", TEXT * 1000)
        link = bytearray(self.PACKED)
        link[156:157] = b"2"
        link[148:156] = b"%06o\0 " % (sum(link[:148]) + sum(link[156:512]) + 8 * 32)
        with pytest.raises(InputError, match="a folder or a link"):
            self.read("first", bytes(link))
