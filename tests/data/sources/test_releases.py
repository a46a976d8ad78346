import gzip
import json

import pytest
from release_server import archive, md5, metalink, serving

from proteinlm.cli import ingest_options
from proteinlm.cli.main import main
from proteinlm.data.dataset.dataset import ProteinDataset
from proteinlm.data.sources import download, releases
from proteinlm.data.sources.files import SourceFile
from proteinlm.data.sources.releases import fetch_release, find_release, provenance
from proteinlm.data.sources.uniprot import read_records
from proteinlm.errors import InputError

CURRENT = "/current_release/knowledgebase/complete"


def fasta(letter, number=30):
    records = "".join(f">sp|{letter}{i:05d}|X_Y x OX=9\nMKVL{'ACDEFGHIKL'[: i % 10]}{letter}\n" for i in range(number))
    return gzip.compress(records.encode(), mtime=0)


def previous(kept, release):
    return f"/{kept}/release-{release}/knowledgebase"


@pytest.fixture
def server(monkeypatch):
    """2026_03 is current, 2026_01 among the last two years', 2019_01 among the older ones."""
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.0)
    current = {f"uniprot_{s}.fasta.gz": fasta(letter) for s, letter in (("sprot", "A"), ("trembl", "C"))}
    files = {f"{CURRENT}/{name}": content for name, content in current.items()}
    files[f"{CURRENT}/RELEASE.metalink"] = metalink("2026_03", current | {"docs/uniprot_sprot.fasta.gz": b"x"})
    for kept, release, letter in (("previous_releases", "2026_01", "D"), ("previous_major_releases", "2019_01", "E")):
        members = {"../../README": b"no", "uniprot_sprot.dat.gz": b"none", "uniprot_sprot.fasta.gz": fasta(letter)}
        packed = {f"uniprot_sprot-only{release}.tar.gz": archive(members)}
        place = previous(kept, release)
        files |= {f"{place}/{name}": content for name, content in packed.items()}
        files[f"{place}/RELEASE.metalink"] = metalink(release, packed)
    with serving(files) as server:
        yield server


@pytest.mark.parametrize(
    ("release", "number", "place", "name"),
    [
        ("current", "2026_03", CURRENT, "uniprot_sprot.fasta.gz"),
        ("2026_03", "2026_03", CURRENT, "uniprot_sprot.fasta.gz"),
        ("2026_01", "2026_01", previous("previous_releases", "2026_01"), "uniprot_sprot-only2026_01.tar.gz"),
        ("2019_01", "2019_01", previous("previous_major_releases", "2019_01"), "uniprot_sprot-only2019_01.tar.gz"),
    ],
)
def test_a_release_is_found_where_uniprot_keeps_it(server, tmp_path, release, number, place, name):
    (file,) = find_release(release, ["sprot"], "fasta", server.url + "/")
    assert (file.release, file.section, file.name, file.url) == (number, "sprot", name, f"{server.url}{place}/{name}")
    assert (file.size, file.md5) == (len(server.files[f"{place}/{name}"]), md5(server.files[f"{place}/{name}"]))
    (source,) = fetch_release([file], tmp_path / "kept")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [
        f"kept/{number}/{name}"
    ]
    assert len(list(read_records(source))) == 30


def test_both_sections_in_the_order_that_was_asked_for(server):
    files = find_release("current", ["trembl", "sprot", "trembl"], "fasta", server.url)
    assert [file.section for file in files] == ["trembl", "sprot"]
    assert provenance(files, "fasta")["sections"] == ["trembl", "sprot"]


@pytest.mark.parametrize(
    ("release", "sections", "url", "message"),
    [
        ("2019-01", ["sprot"], None, "neither YYYY_MM"),
        ("../2019_01", ["sprot"], None, "neither YYYY_MM"),
        ("current", [], None, "--section"),
        ("current", ["sprot"], "ftp://x", "must start with"),
        ("2018_05", ["sprot"], None, r"2018_05 is at none of .*release 2026_03.*first release of each earlier year"),
        ("2019_01", ["trembl"], None, r"does not list uniprot_trembl-only2019_01\.tar\.gz"),
    ],
)
def test_what_cannot_be_had_is_told(server, release, sections, url, message):
    with pytest.raises(InputError, match=message):
        find_release(release, sections, "dat", url or server.url)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", "is not a Metalink file"),
        (b"", "is not a Metalink file"),
        (b"<metalink><version>../../x</version></metalink>", "does not name a release"),
        (b"<metalink/>", "does not name a release"),
        (metalink("2019_02", {}), "is the list of release 2019_02, not of 2019_01"),
        (metalink("2019_01", {}), "does not list"),
        (metalink("2019_01", {"uniprot_sprot-only2019_01.tar.gz": b""}).replace(b'"md5"', b'"sha1"'), "does not list"),
    ],
)
def test_a_list_that_cannot_be_used_is_told(server, content, message):
    server.files[previous("previous_major_releases", "2019_01") + "/RELEASE.metalink"] = content
    with pytest.raises(InputError, match=message):
        find_release("2019_01", ["sprot"], "dat", server.url)


def test_metalink_4_is_read_as_well(server):
    # RFC 5854 has another namespace and no <verification>.
    content = server.files[f"{CURRENT}/RELEASE.metalink"]
    content = content.replace(b"http://www.metalinker.org/", b"urn:ietf:params:xml:ns:metalink")
    server.files[f"{CURRENT}/RELEASE.metalink"] = content.replace(b"<verification>", b"").replace(
        b"</verification>", b""
    )
    assert find_release("current", ["sprot"], "fasta", server.url)[0].size


def test_a_mirror_on_disk_is_read_where_it_is(server, tmp_path):
    for name, content in server.files.items():
        path = tmp_path / f"my mirror{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    url = (tmp_path / "my mirror").as_uri()
    files = find_release("current", ["sprot"], "fasta", url)
    (source,) = fetch_release(files, tmp_path / "kept")
    assert source == str(tmp_path / f"my mirror{CURRENT}/uniprot_sprot.fasta.gz")
    assert not (tmp_path / "kept").exists()
    (tmp_path / f"my mirror{CURRENT}/uniprot_sprot.fasta.gz").write_bytes(b"x" * files[0].size)
    with pytest.raises(InputError, match="has the MD5"):
        fetch_release(files, tmp_path / "kept")


def test_the_command_downloads_and_the_provenance_says_from_where(server, tmp_path, capsys):
    archived = previous("previous_major_releases", "2019_01") + "/uniprot_sprot-only2019_01.tar.gz"
    server.drops = [None, 200]
    arguments = ["--release", "2019_01", "--section", "sprot", "--format", "fasta", "--release-url", server.url]
    splits = ["--valid", "0.2", "--test", "0.2", "--held-out", "none", "--workers", "1"]
    output = tmp_path / "out"
    assert main(["ingest", *arguments, *splits, "--output", str(output)]) == 0, capsys.readouterr().err
    assert (archived, 200) in server.asked
    said = json.loads((output / "provenance.json").read_text())
    content = server.files[archived]
    url = server.url + archived
    assert said["release"] == {
        "release": "2019_01",
        "sections": ["sprot"],
        "format": "fasta",
        "files": [
            {
                "url": url,
                "metalink": url.rsplit("/", 1)[0] + "/RELEASE.metalink",
                "bytes": len(content),
                "md5": md5(content),
                "member": "uniprot_sprot.fasta.gz",
            }
        ],
    }
    # What was ingested is what was checked: the same file, read to its end.
    assert [(source["bytes"], source["md5"]) for source in said["sources"]] == [(len(content), md5(content))]
    assert sum(ProteinDataset.open(output).counts.values()) == 10
    asked = len(server.asked)
    assert main(["ingest", *arguments, *splits, "--output", str(tmp_path / "again")]) == 0
    assert not [path for path, _ in server.asked[asked:] if path == archived]


def test_nothing_is_downloaded_for_an_output_that_is_occupied(server, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    arguments = ["--release", "current", "--section", "sprot", "--release-url", server.url]
    assert main(["ingest", *arguments, "--output", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert server.asked == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "out", "--downloads", "out/x"], "would be in the folder of the dataset"),
        (["--output", "uniprot_downloads"], "would be in the folder of the dataset"),
        (["--output", "out", "--downloads", "file"], "file is not a folder"),
        (["--output", "out", "--families", "absent.tsv"], "absent.tsv cannot be read"),
        (["absent.fasta", "--output", "out"], "absent.fasta cannot be read"),
        (["--output", "out", "--splits", "absent"], "there is no manifest absent"),
        (["--output", "out", "--split-identity", "50"], "50.0; it must be above 0 and at most 1"),
        (["--output", "out", "--workers", "-1"], "workers is -1"),
        (["--output", "out", "--name", "n" * 101], "at most 100"),
    ],
)
def test_nothing_is_downloaded_before_the_rest_is_right(server, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    release = ["--release", "current", "--section", "sprot", "--release-url", server.url]
    assert main(["ingest", *arguments, *release]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert server.asked == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("arguments", [["--section", "sprot"], ["--downloads", "x"]])
def test_options_of_a_release_need_one(arguments, tmp_path, capsys):
    assert main(["ingest", "sample", *arguments, "--output", str(tmp_path / "out")]) == 2
    assert "need --release" in capsys.readouterr().err


def test_the_help_names_the_address_that_is_used():
    assert ingest_options.ReleaseOptions().release_url == releases.RELEASE_URL


def test_members_of_an_archive_are_never_written_by_their_names(server, tmp_path):
    files = find_release("2019_01", ["sprot"], "fasta", server.url)
    (source,) = fetch_release(files, tmp_path / "a" / "b")
    assert source.startswith("tar://uniprot_sprot.fasta.gz::")
    assert b"".join(SourceFile(source).text()) == gzip.decompress(fasta("E"))
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["uniprot_sprot-only2019_01.tar.gz"]
