"""Locations of input files: local paths, URLs (gs://, s3://) by fsspec, members of tar archives, and glob patterns."""

import errno
import glob
import io
import os
import re
import stat
import tarfile
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from proteinlm.errors import InputError
from proteinlm.output.files import is_unicode

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[]")
# Keys under which fsspec's file systems (gcsfs, s3fs, http, memory and others) give the version of a file.
_VERSIONS = ("generation", "md5Hash", "ETag", "etag", "LastModified", "mtime", "created")
_REMOTE_BLOCK = 8 << 20
_PIECE = 1 << 20
_SHOWN = 8


class Location:
    """One input file, local or remote.

    Attributes:
        name: the name without redundant parts (./, //, file://).
        size: size in bytes where the file is stored, compressed if it is compressed; of an archive, the whole archive.
        member: the member of the tar archive if the name is `tar://MEMBER::ARCHIVE`, else None.
        identity: equal for two names of the same file, as far as the file system shows.
        stamp: size and version for JSON; differs after the file has changed, as far as the file system shows.

    Raises:
        InputError: the file cannot be read, is a folder, or its name is not UTF-8.
    """

    def __init__(self, name: str | os.PathLike):
        name = os.fspath(name)
        if not is_unicode(name):
            # provenance.json contains the names of the sources in UTF-8.
            raise InputError(
                f"the name {name!r} is not UTF-8: rename the file, or make a link to it with another name."
            )
        self.member: str | None = None
        if name.startswith("tar://"):
            self.member, _, name = name[6:].partition("::")
            if not self.member or not name:
                raise InputError(f"tar://{self.member} names no archive: write tar://MEMBER::ARCHIVE.")
        self._system: Any = None
        if is_remote(name):
            self._path, self.size, self.identity, self.stamp = self._find_remote(name)
        else:
            self._path = name = str(Path(_local(name)))
            self.size, self.identity, self.stamp = _find_local(name)
        self.name = name
        if self.member is not None:
            self.name, self.identity = f"tar://{self.member}::{name}", (self.identity, self.member)

    def open(self) -> IO[bytes]:
        """Open the file in binary mode; for a member of an archive, open the archive.

        Raises:
            OSError: the file cannot be opened or, later, read.
        """
        if self._system is None:
            return open(self._path, "rb")
        return io.BufferedReader(_Remote(self._system, self._path), _PIECE)  # pyright: ignore[reportReturnType]

    def _find_remote(self, name: str) -> tuple[str, int, Hashable, list]:
        self._system, path = _system_of(name)
        try:
            info = self._system.info(path)
        except Exception as error:
            raise _unreadable(name, error) from error
        if info["type"] == "directory":
            raise InputError(
                f"{name} is a folder: name the files in it ({name.rstrip('/')}/*.gz means all files that end in .gz)."
            )
        if info.get("size") is None:
            raise InputError(f"{name}: the server does not give the size of the file; download the file first.")
        size = int(info["size"])
        return path, size, self._system.unstrip_protocol(path), [size, *(str(info[k]) for k in _VERSIONS if k in info)]


def is_remote(name: str | os.PathLike) -> bool:
    """Return whether a name is a URL for fsspec (gs://, s3://, memory:// and others, but not file:// and tar://)."""
    scheme = _SCHEME.match(os.fspath(name))
    return bool(scheme) and scheme[1].lower() not in ("file", "local", "tar")


def expand(names: Sequence[str | os.PathLike]) -> list[str]:
    """Replace each pattern (*, ?, [...], ** for any depth) by the files that it matches, sorted; keep other names.

    A name is not a pattern if a local file has exactly this name, or if it is a http:// or https:// URL.

    Raises:
        InputError: a pattern matches no file.
    """
    expanded: list[str] = []
    for name in [os.fspath(name) for name in names]:
        if name.startswith("tar://") or name.lower().startswith(("http://", "https://")) or not _PATTERN.search(name):
            expanded.append(name)
        elif is_remote(name):
            system, path = _system_of(name)
            try:
                matches = system.glob(path, detail=True)
            except Exception as error:
                raise _unreadable(name, error) from error
            matches = [match for match in matches if "**" not in name or matches[match]["type"] != "directory"]
            expanded += _not_empty(sorted(map(system.unstrip_protocol, matches)), name)
        elif os.path.lexists(_local(name)):
            expanded.append(name)
        else:
            matches = glob.glob(_local(name), recursive=True)
            # ** also matches folders, which are skipped. A folder that another pattern matches is refused later.
            matches = [match for match in matches if not os.path.isdir(match)] if "**" in name else matches
            expanded += _not_empty(sorted(matches), name)
    return expanded


def _not_empty(matches: list[str], pattern: str) -> list[str]:
    if not matches:
        raise InputError(f"{pattern} matches no file: check the pattern and the folder.")
    return matches


def _local(name: str) -> str:
    scheme = _SCHEME.match(name)
    if not scheme or scheme[1].lower() not in ("file", "local"):
        return name
    return name[scheme.end() :] or "/"


def _find_local(name: str) -> tuple[int, Hashable, list]:
    try:
        status = os.stat(name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot be read ({reason}): check the name.") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{name} is a folder: name the files in it ('{name}/*.gz' means all files that end in .gz).")
    return status.st_size, (status.st_dev, status.st_ino), [status.st_size, status.st_mtime_ns]


def _system_of(name: str) -> tuple[Any, str]:
    # Imported here because most runs read only local files.
    import fsspec

    try:
        return fsspec.url_to_fs(name)
    except ImportError as error:
        raise InputError(
            f"{name} needs a package that is not installed: pip install 'proteinlm[cloud]' ({error})."
        ) from error
    except Exception as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> InputError:
    # Each cloud library has its own exceptions; all of them have the same meaning here.
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    return InputError(f"{name} cannot be read ({reason}): check the name and your permission to read it.")


class _Remote(io.RawIOBase):
    """A remote file, read in order. Every failure is raised as an OSError."""

    def __init__(self, system: Any, path: str):
        self._file = self._as_os_error(lambda: system.open(path, "rb", block_size=_REMOTE_BLOCK))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._as_os_error(lambda: self._file.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()

    @staticmethod
    def _as_os_error(action: Any) -> Any:
        try:
            return action()
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


class _Pieces:
    """A file object for tarfile that reads from an iterator of bytes; a read may return fewer bytes than requested."""

    def __init__(self, pieces: Iterable[bytes]):
        self._pieces = iter(pieces)

    def read(self, _size: int = -1) -> bytes:
        return next(self._pieces, b"")


def member_of(archive: Iterator[bytes], member: str, name: str) -> Iterator[bytes]:
    """Yield the content of one file of a tar archive. The archive is read as a stream; nothing is written to disk.

    Args:
        archive: the decompressed bytes of the archive.
        member: name of the file in the archive, with or without its folders; the first match is read.
        name: name of the archive for messages.

    Raises:
        InputError: the archive has no such file, or is damaged or cut short.
    """
    names = []
    try:
        with tarfile.open(fileobj=_Pieces(archive), mode="r|", bufsize=_PIECE) as entries:  # pyright: ignore[reportArgumentType, reportCallIssue]
            for entry in entries:
                names.append(entry.name)
                if member.removeprefix("./") not in (entry.name.removeprefix("./"), os.path.basename(entry.name)):
                    continue
                content = entries.extractfile(entry) if entry.isreg() else None
                if content is None:
                    raise InputError(f"{name}: {entry.name} is a folder or a link, not a file.")
                while piece := content.read(_PIECE):
                    yield piece
                return
    except tarfile.TarError as error:
        raise InputError(f"{name}: the archive is damaged or cut short ({error}); download it again.") from error
    listed = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    raise InputError(f"{name}: the archive has no file {member}; it has {listed or 'no file'}.")
