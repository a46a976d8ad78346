"""UniProt's releases: where their files are, what they must be, and getting them.

The layout below the base URL (https://ftp.uniprot.org/pub/databases/uniprot and its mirrors ftp.ebi.ac.uk and
ftp.expasy.org), as UniProt's help pages and the scripts of others that use it describe it (it could not be visited when
this was written; a release's own list has the last word on names, sizes and checksums):

    current_release/knowledgebase/complete/     RELEASE.metalink, uniprot_{sprot,trembl}.{dat,fasta}.gz
    previous_releases/release-YYYY_MM/knowledgebase/
                                                RELEASE.metalink, uniprot_{sprot,trembl}-onlyYYYY_MM.tar.gz
    previous_major_releases/release-YYYY_MM/knowledgebase/
                                                the same

UniProt keeps the releases of two years, and of older ones the first of each year (help/synchronization: YYYY_01). A
tar archive of an earlier release holds uniprot_{section}.dat.gz, .fasta.gz and .xml.gz; there is no smaller file, so
that FASTA costs as much to download. The wanted member is read as a stream out of the archive, which stays as it is.

RELEASE.metalink (Metalink 3.0) lists each file's size and MD5. MD5 finds damage, not malice: use https.
"""

import os
import re
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from proteinlm.data.sources.download import check, download, read_list
from proteinlm.errors import InputError
from proteinlm.output.folders import partial_folder

RELEASE_URL = "https://ftp.uniprot.org/pub/databases/uniprot"
METALINK = "RELEASE.metalink"
_NUMBER = re.compile(r"\d{4}_\d{2}")
_CURRENT = "current_release/knowledgebase/complete"

Section = Literal["sprot", "trembl"]
ReleaseFormat = Literal["dat", "fasta"]


class ReleaseFile(NamedTuple):
    """One file of a release, as its list describes it.

    Attributes:
        release: YYYY_MM.
        section: sprot (Swiss-Prot) or trembl.
        name: the file's name.
        url: where it is.
        metalink: URL of the list that says so.
        size: bytes.
        md5: in hexadecimal.
        member: the file in it that is wanted, if it is a tar archive.
    """

    release: str
    section: str
    name: str
    url: str
    metalink: str
    size: int
    md5: str
    member: str | None

    def source(self, path: Path) -> str:
        """Return what `sources.SourceFile` is to read when the file is at `path`."""
        return f"tar://{self.member}::{path}" if self.member else str(path)


def find_release(
    release: str, sections: Sequence[Section], form: ReleaseFormat = "dat", base_url: str = RELEASE_URL
) -> list[ReleaseFile]:
    """Look a release up: nothing but its list is read.

    Args:
        release: YYYY_MM or "current".
        sections: which parts of UniProtKB.
        form: "dat" (the flat file, with families) or "fasta".
        base_url: http(s):// or file:// of the folder that holds current_release.

    Raises:
        InputError: the release is not there, its list cannot be used, or an argument is wrong.
    """
    if release != "current" and not _NUMBER.fullmatch(release):
        raise InputError(f"the release {release!r} is neither YYYY_MM, as 2019_01, nor current.")
    if not sections:
        raise InputError("name what is wanted of the release: --section sprot, trembl or both.")
    if urllib.parse.urlsplit(base_url).scheme not in ("http", "https", "file"):
        raise InputError(f"--release-url {base_url} starts with none of https://, http://, file://.")
    wanted = [f"uniprot_{section}.{form}.gz" for section in dict.fromkeys(sections)]
    tried = []
    for folder in _folders(release):
        place = f"{base_url.rstrip('/')}/{folder}"
        content = _read(f"{place}/{METALINK}")
        tried.append(place)
        if content is None:
            continue
        listed = _Metalink(content, f"{place}/{METALINK}")
        if folder == _CURRENT:
            if release in ("current", listed.release):
                return [listed.file(name, place, None) for name in wanted]
            tried[-1] += f" (that is {listed.release})"
        else:
            return [listed.file(_archive(name, release), place, name, release) for name in wanted]
    raise InputError(
        f"the release {release} is at none of {', '.join(tried)}: UniProt keeps those of two years and the first one "
        "of each year (YYYY_01)."
    )


def fetch_release(files: Sequence[ReleaseFile], folder: Path, console: Console | None = None) -> list[str]:
    """Bring files of a release into FOLDER/YYYY_MM and return what `sources.SourceFile` is to read.

    What is there already is checked, not asked for again; files of a file:// URL are checked and read where they are.

    Raises:
        InputError: see `download`.
    """
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    sources = []
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        for file in files:
            bar = progress.add_task(file.name, total=file.size)
            path = _local(file.url)
            if path is not None:
                check(path, file.size, file.md5, lambda done, bar=bar: progress.update(bar, completed=done))
            else:
                path = folder / file.release / file.name
                download(
                    file.url, path, file.size, file.md5, lambda done, bar=bar: progress.update(bar, completed=done)
                )
            sources.append(file.source(path))
    return sources


def provenance(files: Sequence[ReleaseFile], form: ReleaseFormat) -> dict[str, Any]:
    """Return what a dataset's provenance says of the release that it was made of."""
    return {
        "release": files[0].release,
        "sections": [file.section for file in files],
        "format": form,
        "files": [
            {"url": f.url, "metalink": f.metalink, "bytes": f.size, "md5": f.md5, "member": f.member} for f in files
        ],
    }


def from_arguments(arguments: Any) -> tuple[list[str], dict[str, Any] | None]:
    """Bring the release that the command line asks for; return its sources and what the provenance says of it.

    Args:
        arguments: release (None for none), section, format, downloads, release_url, output.
    """
    if arguments.release is None:
        if arguments.section or arguments.downloads:
            raise InputError("--section and --downloads belong to --release: name the release, as 2019_01 or current.")
        return [], None
    output = Path(arguments.output)
    folder = arguments.downloads or output.absolute().with_name("uniprot_downloads")
    real = Path(os.path.realpath(folder))
    if not {real, *real.parents}.isdisjoint((Path(os.path.realpath(output)), partial_folder(output))):
        raise InputError(
            f"the downloads ({folder}) would be in the dataset's folder: name another one with --downloads."
        )
    if not folder.is_dir() and os.path.lexists(folder):
        raise InputError(
            f"the downloads ({folder}) need a folder, and this is none: name another one with --downloads."
        )
    files = find_release(arguments.release, arguments.section, arguments.format, arguments.release_url)
    return fetch_release(files, folder), provenance(files, arguments.format)


def _folders(release: str) -> Iterator[str]:
    if release != "current":
        for kept in ("previous_releases", "previous_major_releases"):
            yield f"{kept}/release-{release}/knowledgebase"
    yield _CURRENT


def _archive(name: str, release: str) -> str:
    return f"{name.split('.', 1)[0]}-only{release}.tar.gz"


def _local(url: str) -> Path | None:
    parts = urllib.parse.urlsplit(url)
    return Path(urllib.parse.unquote(parts.path)) if parts.scheme == "file" else None


def _read(url: str) -> bytes | None:
    path = _local(url)
    if path is None:
        return read_list(url)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error


class _Metalink:
    """A release's list of files."""

    def __init__(self, content: bytes, url: str):
        self.url = url
        try:
            self._root = ET.fromstring(content)
        except ET.ParseError as error:
            raise InputError(f"{url} is no Metalink file ({error}): check --release-url.") from error
        version = self._root.find("{*}version")
        self.release = (version.text or "").strip() if version is not None else ""
        # It becomes the name of a folder.
        if not _NUMBER.fullmatch(self.release):
            raise InputError(f"{url} names no release (version {self.release!r}): check --release-url.")

    def file(self, name: str, place: str, member: str | None, release: str | None = None) -> ReleaseFile:
        """Return what the list says of one file; `release` is the number that it must have."""
        if release not in (None, self.release):
            raise InputError(f"{self.url} is the list of release {self.release}, not of {release}: try another mirror.")
        found = [entry for entry in self._root.iterfind(".//{*}file") if entry.get("name") == name]
        size = found[0].findtext("{*}size", "").strip() if found else ""
        hashes = [entry for one in found for entry in one.iterfind(".//{*}hash") if entry.get("type") == "md5"]
        md5 = (hashes[0].text or "").strip().lower() if hashes else ""
        if not size.isdecimal() or not re.fullmatch(r"[0-9a-f]{32}", md5):
            raise InputError(
                f"{self.url} does not list {name} with size and MD5: download it by hand and name it as a source."
            )
        section = name.removeprefix("uniprot_").split(".")[0].split("-")[0]
        return ReleaseFile(self.release, section, name, f"{place}/{name}", self.url, int(size), md5, member)
