"""UniProt releases: finding their files, downloading them, and checking them.

Folders below the base URL (https://ftp.uniprot.org/pub/databases/uniprot and its mirrors ftp.ebi.ac.uk and
ftp.expasy.org), as described by UniProt's help pages and by other programs. They were not visited when this module was
written; names, sizes and checksums are read from the list of each release:

    current_release/knowledgebase/complete/     RELEASE.metalink, uniprot_{sprot,trembl}.{dat,fasta}.gz
    previous_releases/release-YYYY_MM/knowledgebase/
                                                RELEASE.metalink, uniprot_{sprot,trembl}-onlyYYYY_MM.tar.gz
    previous_major_releases/release-YYYY_MM/knowledgebase/
                                                the same

UniProt keeps all releases of two years, and the first release of each earlier year (help/synchronization: YYYY_01). The
tar archive of an earlier release contains uniprot_{section}.dat.gz, .fasta.gz and .xml.gz. There is no smaller file, so
that the download for FASTA is as large as for the flat file. The needed member is read from the archive as a stream.

RELEASE.metalink (Metalink 3.0) lists the size and MD5 of each file. MD5 detects damage but not an attack: use https.
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
    """One file of a release, as described in the list of the release.

    Attributes:
        release: YYYY_MM.
        section: sprot (Swiss-Prot) or trembl.
        name: name of the file.
        url: URL of the file.
        metalink: URL of the list.
        size: size in bytes.
        md5: MD5 in hexadecimal.
        member: the needed member if the file is a tar archive, else None.
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
        """Return the name for `files.SourceFile` of the file after its download to `path`."""
        return f"tar://{self.member}::{path}" if self.member else str(path)


def find_release(
    release: str, sections: Sequence[Section], form: ReleaseFormat = "dat", base_url: str = RELEASE_URL
) -> list[ReleaseFile]:
    """Find the files of a release in its list. Only the list is downloaded.

    Args:
        release: YYYY_MM or "current".
        sections: parts of UniProtKB.
        form: "dat" (flat file, with families) or "fasta".
        base_url: http(s):// or file:// URL of the folder that contains current_release.

    Raises:
        InputError: the release is missing, its list cannot be used, or an argument is wrong.
    """
    if release != "current" and not _NUMBER.fullmatch(release):
        raise InputError(f"the release {release!r} is neither YYYY_MM, such as 2019_01, nor current.")
    if not sections:
        raise InputError("give the section of the release: --section sprot, trembl or both.")
    if urllib.parse.urlsplit(base_url).scheme not in ("http", "https", "file"):
        raise InputError(f"--release-url {base_url} must start with https://, http:// or file://.")
    names = [f"uniprot_{section}.{form}.gz" for section in dict.fromkeys(sections)]
    tried = []
    for folder in _folders(release):
        url = f"{base_url.rstrip('/')}/{folder}"
        content = _read(f"{url}/{METALINK}")
        tried.append(url)
        if content is None:
            continue
        metalink = _Metalink(content, f"{url}/{METALINK}")
        if folder == _CURRENT:
            if release in ("current", metalink.release):
                return [metalink.file(name, url, None) for name in names]
            tried[-1] += f" (release {metalink.release})"
        else:
            return [metalink.file(_archive(name, release), url, name, release) for name in names]
    raise InputError(
        f"the release {release} is at none of {', '.join(tried)}: UniProt keeps the releases of two years, and the "
        "first release of each earlier year (YYYY_01)."
    )


def fetch_release(files: Sequence[ReleaseFile], folder: Path, console: Console | None = None) -> list[str]:
    """Download files of a release into FOLDER/YYYY_MM and return their names for `files.SourceFile`.

    Files that exist in FOLDER/YYYY_MM are checked and not downloaded again. Files of a file:// URL are checked and not
    copied.

    Raises:
        InputError: as `download`.
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
    """Return the entry about the release for provenance.json."""
    return {
        "release": files[0].release,
        "sections": [file.section for file in files],
        "format": form,
        "files": [
            {"url": f.url, "metalink": f.metalink, "bytes": f.size, "md5": f.md5, "member": f.member} for f in files
        ],
    }


def from_arguments(arguments: Any) -> tuple[list[str], dict[str, Any] | None]:
    """Download the release given on the command line; return the names of its files and its entry in provenance.json.

    Args:
        arguments: object with release (None without a release), section, format, downloads, release_url, output.

    Raises:
        InputError: an option is wrong; or as `find_release` and `fetch_release`.
    """
    if arguments.release is None:
        if arguments.section or arguments.downloads:
            raise InputError(
                "--section and --downloads need --release, such as --release 2019_01 or --release current."
            )
        return [], None
    output = Path(arguments.output)
    folder = arguments.downloads or output.absolute().with_name("uniprot_downloads")
    real = Path(os.path.realpath(folder))
    if not {real, *real.parents}.isdisjoint((Path(os.path.realpath(output)), partial_folder(output))):
        raise InputError(
            f"the downloads ({folder}) would be in the folder of the dataset: give another folder with --downloads."
        )
    if not folder.is_dir() and os.path.lexists(folder):
        raise InputError(
            f"{folder} is not a folder and cannot hold the downloads: give another folder with --downloads."
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
    """The list of files of a release."""

    def __init__(self, content: bytes, url: str):
        self.url = url
        try:
            self._root = ET.fromstring(content)
        except ET.ParseError as error:
            raise InputError(f"{url} is not a Metalink file ({error}): check --release-url.") from error
        version = self._root.find("{*}version")
        self.release = (version.text or "").strip() if version is not None else ""
        # The release becomes the name of a folder.
        if not _NUMBER.fullmatch(self.release):
            raise InputError(f"{url} does not name a release (version {self.release!r}): check --release-url.")

    def file(self, name: str, folder_url: str, member: str | None, release: str | None = None) -> ReleaseFile:
        """Return the entry of one file. If `release` is given, the list must be of this release."""
        if release not in (None, self.release):
            raise InputError(f"{self.url} is the list of release {self.release}, not of {release}: try another mirror.")
        entries = [entry for entry in self._root.iterfind(".//{*}file") if entry.get("name") == name]
        size = entries[0].findtext("{*}size", "").strip() if entries else ""
        hashes = [child for entry in entries for child in entry.iterfind(".//{*}hash") if child.get("type") == "md5"]
        md5 = (hashes[0].text or "").strip().lower() if hashes else ""
        if not size.isdecimal() or not re.fullmatch(r"[0-9a-f]{32}", md5):
            raise InputError(
                f"{self.url} does not list {name} with size and MD5: download the file and give it as a source."
            )
        section = name.removeprefix("uniprot_").split(".")[0].split("-")[0]
        return ReleaseFile(self.release, section, name, f"{folder_url}/{name}", self.url, int(size), md5, member)
