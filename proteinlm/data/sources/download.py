"""Download of large files over HTTP, resumed after a dropped connection or a killed process.

The bytes received so far are in NAME.part. NAME.part is renamed to NAME when its size and MD5 equal those of the
publisher's list.
"""

import contextlib
import fcntl
import hashlib
import http.client
import logging
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from proteinlm.errors import InputError
from proteinlm.output.version import __version__

# Consecutive attempts without new bytes. The pause between them, in seconds, doubles from FIRST_PAUSE to LONGEST_PAUSE.
TRIES = 8
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
# Seconds without a response after which a connection counts as dropped.
SILENCE = 60.0
# A dropped connection loses at most one piece.
_PIECE = 1 << 16
# HTTP codes of temporary failures: server busy, too many requests, gateway without server.
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
_LIST_BYTES = 16 << 20

Report = Callable[[int], None]
_LOG = logging.getLogger(__name__)


class _DroppedError(Exception):
    """The connection broke or the server was busy; `wait` is the pause in seconds that the server asked for."""

    def __init__(self, reason: object, wait: float = 0.0):
        super().__init__(str(reason))
        self.wait = wait


def download(url: str, path: Path, size: int, md5: str, report: Report = lambda done: None) -> None:
    """Download the file at `url` to `path`; if `path` exists, only check it.

    Args:
        url: URL that begins with http:// or https://.
        path: the file to write. PATH.part beside it holds the bytes received so far, and is kept between runs.
        size: expected size in bytes.
        md5: expected MD5 in hexadecimal.
        report: called repeatedly with the number of bytes present.

    Raises:
        InputError: the server does not have the file, fails too often, or sends another file; the disk has too little
            room; another process is downloading the file. PATH.part is kept if the download can be resumed.
    """
    if path.exists():
        check(path, size, md5, report)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part_path = path.with_name(path.name + ".part")
    with _exclusive(part_path) as handle:
        part = _Part(handle, report)
        room = shutil.disk_usage(path.parent).free
        if room < size - part.length:
            raise InputError(
                f"{path.parent} has room for {room:,} bytes and {url} needs {size - part.length:,} more: make room or "
                "name a folder on another disk with --downloads."
            )
        earlier = part.length
        if earlier > size:
            part.restart()
        _fill(url, part, size)
        if part.md5 != md5 and earlier:
            # The server may have replaced the file since an earlier run received its part.
            part.restart()
            _fill(url, part, size)
        if part.md5 != md5:
            received = part.md5
            part_path.unlink()
            raise InputError(
                f"{url} came with the MD5 {received}, the release's list says {md5}: it was removed; try again later "
                "or from another mirror (--release-url)."
            )
        os.fsync(handle.fileno())
        os.replace(part_path, path)


def check(path: Path, size: int, md5: str, report: Report = lambda done: None) -> None:
    """Check that a file on disk has the publisher's size and MD5.

    Raises:
        InputError: the file is missing or differs.
    """
    try:
        size_on_disk = path.stat().st_size
        digest = hashlib.md5(usedforsecurity=False)
        if size_on_disk == size:
            with open(path, "rb") as handle:
                while piece := handle.read(_PIECE):
                    digest.update(piece)
                    report(handle.tell())
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error
    if size_on_disk != size:
        raise InputError(
            f"{path} has {size_on_disk:,} bytes, the release's list says {size:,}: remove it and try again."
        )
    if digest.hexdigest() != md5:
        raise InputError(
            f"{path} has the MD5 {digest.hexdigest()}, the release's list says {md5}: remove it and try again."
        )


def read_list(url: str) -> bytes | None:
    """Download a small file and return its content; None if the server does not have the file.

    Raises:
        InputError: the server cannot be reached or refuses the request.
    """
    failures = 0
    while True:
        content = b""
        try:
            with _open(url, 0) as response:
                for piece in _pieces(response):
                    content += piece
                    if len(content) > _LIST_BYTES:
                        raise InputError(
                            f"{url} has more than {_LIST_BYTES >> 20} MiB: it is not the list of a release."
                        )
                declared = response.headers.get("Content-Length")
                if declared is not None and len(content) != int(declared):
                    raise _DroppedError("the connection was closed early")
                return content
        except _MissingError:
            return None
        except _DroppedError as error:
            failures += 1
            _pause(url, error, failures, len(content))


class _MissingError(Exception):
    """The server answered 404 or 410."""


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[IO[bytes]]:
    """Open PATH.part for one process at a time, and remove it at the end if it is empty."""
    with open(path, "a+b") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process is downloading {path}: wait until it ends.") from None
        try:
            yield handle
        finally:
            if path.exists() and not path.stat().st_size:
                path.unlink()


class _Part:
    """The received part of a file, and its MD5."""

    def __init__(self, handle: IO[bytes], report: Report):
        self._handle, self._report = handle, report
        self._digest = hashlib.md5(usedforsecurity=False)
        self.length = 0
        handle.seek(0)
        while piece := handle.read(_PIECE):
            self._count(piece)

    @property
    def md5(self) -> str:
        self._handle.flush()
        return self._digest.hexdigest()

    def append(self, piece: bytes) -> None:
        self._handle.write(piece)
        self._count(piece)

    def restart(self) -> None:
        self._handle.seek(0)
        self._handle.truncate()
        self._digest = hashlib.md5(usedforsecurity=False)
        self.length = 0

    def _count(self, piece: bytes) -> None:
        self._digest.update(piece)
        self.length += len(piece)
        self._report(self.length)


def _fill(url: str, part: _Part, size: int) -> None:
    """Request the missing bytes until the file is complete."""
    failures, furthest = 0, part.length
    while part.length < size:
        try:
            _request(url, part, size)
        except _MissingError:
            raise InputError(f"{url} does not exist (404): check the release and --release-url.") from None
        except _DroppedError as error:
            # A server that ignores Range and always breaks at the same byte sends nothing new.
            failures = 0 if part.length > furthest else failures + 1
            furthest = max(furthest, part.length)
            _pause(url, error, failures, part.length)


def _pause(url: str, error: _DroppedError, failures: int, done: int) -> None:
    if failures >= TRIES:
        raise InputError(
            f"{url} cannot be downloaded beyond byte {done:,} after {TRIES} attempts ({error}): check the connection; "
            "the same command resumes from there."
        ) from error
    pause = min(max(FIRST_PAUSE * 2 ** max(failures - 1, 0), error.wait), LONGEST_PAUSE)
    # Without a log handler, Python writes the warning to standard error, above the progress bar.
    _LOG.warning("%s: %s; trying again in %.0f s", url, error, pause)
    time.sleep(pause)


def _request(url: str, part: _Part, size: int) -> None:
    """Send one request for the bytes from part.length on."""
    with _open(url, part.length) as response:
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {part.length}-"):
                part.restart()
                raise _DroppedError("the server sent another range than the requested one")
        elif part.length:
            # The server does not support ranges and starts from the beginning.
            part.restart()
        declared = response.headers.get("Content-Length")
        if declared is not None and part.length + int(declared) != size:
            raise InputError(
                f"{url} has {part.length + int(declared):,} bytes, the release's list says {size:,}: the file on this "
                "server is cut short or of another release; try again later or from another mirror (--release-url)."
            )
        for piece in _pieces(response):
            if part.length + len(piece) > size:
                part.restart()
                raise InputError(f"{url} has more than the {size:,} bytes of the release's list: try another mirror.")
            part.append(piece)
        if part.length < size:
            raise _DroppedError("the connection was closed early")


@contextlib.contextmanager
def _open(url: str, start: int) -> Iterator[Any]:
    headers = {"User-Agent": f"proteinlm/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SILENCE)
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (404, 410):
                raise _MissingError from None
            if error.code in _TEMPORARY or error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise _DroppedError(error, _seconds(error.headers.get("Retry-After"))) from None
            raise InputError(f"{url} cannot be read (HTTP {error.code} {error.reason}).") from None
    except (OSError, http.client.HTTPException) as error:
        if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
            raise InputError(f"{url}: the server's certificate is not valid ({error}).") from error
        raise _DroppedError(getattr(error, "reason", error)) from error
    with response:
        yield response


def _seconds(text: str | None) -> float:
    return float(text) if text and text.isdecimal() else 0.0


def _pieces(response: Any) -> Iterator[bytes]:
    while True:
        try:
            piece = response.read(_PIECE)
        except (OSError, http.client.HTTPException) as error:
            raise _DroppedError(str(error) or type(error).__name__) from error
        if not piece:
            return
        yield piece
