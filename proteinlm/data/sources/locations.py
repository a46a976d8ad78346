"""Where sources are: files here, gs:// and s3:// through fsspec, members of tar archives, patterns of names."""

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
# What file systems say of a file's version: gcsfs, s3fs, http, memory and others.
_VERSIONS = ("generation", "md5Hash", "ETag", "etag", "LastModified", "mtime", "created")
_REMOTE_BLOCK = 8 << 20
_PIECE = 1 << 20
_SHOWN = 8


class Location:
    """One file that can be read from its beginning.

    Attributes:
        name: as given, without what means nothing (./, //, file://).
        size: bytes where it is stored.
        member: the file in the tar archive that is meant, None if `name` is no `tar://MEMBER::ARCHIVE`.
        identity: equal for the same file under two names, as far as its file system tells.
        stamp: for JSON; another one when the file has changed, as far as its file system tells.
    """

    def __init__(self, name: str | os.PathLike):
        name = os.fspath(name)
        if not is_unicode(name):
            # The dataset's provenance names its sources, in UTF-8.
            raise InputError(f"{name!r} is no name in UTF-8: rename the file, or make a link with another name to it.")
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
        """Open the file, the whole archive if it is a member's.

        Raises:
            OSError: it cannot be opened or, later, read.
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
            raise InputError(f"{name} is a folder: name the files in it ({name.rstrip('/')}/*.gz takes them all).")
        if info.get("size") is None:
            raise InputError(f"{name}: its server does not tell how long it is; download it first.")
        size = int(info["size"])
        return path, size, self._system.unstrip_protocol(path), [size, *(str(info[k]) for k in _VERSIONS if k in info)]


def is_remote(name: str | os.PathLike) -> bool:
    """Tell whether a name is a URL that fsspec must open: gs://, s3://, memory:// ..., but not file://."""
    found = _SCHEME.match(os.fspath(name))
    return bool(found) and found[1].lower() not in ("file", "local", "tar")


def expand(names: Sequence[str | os.PathLike]) -> list[str]:
    """Return the names with every pattern (*, ?, [...], ** for any depth) replaced by the files it matches, sorted.

    A local file whose name happens to be a pattern is meant literally; in http:// URLs a ? is no pattern.

    Raises:
        InputError: a pattern matches no file.
    """
    found: list[str] = []
    for name in [os.fspath(name) for name in names]:
        if name.startswith("tar://") or name.lower().startswith(("http://", "https://")) or not _PATTERN.search(name):
            found.append(name)
        elif is_remote(name):
            system, path = _system_of(name)
            try:
                matches = system.glob(path, detail=True)
            except Exception as error:
                raise _unreadable(name, error) from error
            matches = [match for match in matches if "**" not in name or matches[match]["type"] != "directory"]
            found += _some(sorted(map(system.unstrip_protocol, matches)), name)
        elif os.path.lexists(_local(name)):
            found.append(name)
        else:
            matches = glob.glob(_local(name), recursive=True)
            # ** matches the folders on its way as well; any other pattern that meets a folder is a mistake to tell.
            matches = [match for match in matches if not os.path.isdir(match)] if "**" in name else matches
            found += _some(sorted(matches), name)
    return found


def _some(matches: list[str], pattern: str) -> list[str]:
    if not matches:
        raise InputError(f"{pattern} matches no file: check the pattern and the folder.")
    return matches


def _local(name: str) -> str:
    found = _SCHEME.match(name)
    if not found or found[1].lower() not in ("file", "local"):
        return name
    return name[found.end() :] or "/"


def _find_local(name: str) -> tuple[int, Hashable, list]:
    try:
        found = os.stat(name)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot be read ({reason}): check the name.") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{name} is a folder: name the files in it ('{name}/*.gz' takes all that end so).")
    return found.st_size, (found.st_dev, found.st_ino), [found.st_size, found.st_mtime_ns]


def _system_of(name: str) -> tuple[Any, str]:
    # Imported here: most runs read local files.
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
    # Each cloud's library has exceptions of its own; all of them mean the same here.
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    return InputError(f"{name} cannot be read ({reason}): check the name and that you may read it.")


class _Remote(io.RawIOBase):
    """A remote file, read in order; whatever goes wrong is an OSError."""

    def __init__(self, system: Any, path: str):
        self._file = self._told(lambda: system.open(path, "rb", block_size=_REMOTE_BLOCK))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._told(lambda: self._file.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()

    @staticmethod
    def _told(act: Any) -> Any:
        try:
            return act()
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


class _Pieces:
    """An iterator of bytes as a file for tarfile, which asks until it has what it needs."""

    def __init__(self, pieces: Iterable[bytes]):
        self._pieces = iter(pieces)

    def read(self, _size: int = -1) -> bytes:
        return next(self._pieces, b"")


def member_of(archive: Iterator[bytes], member: str, name: str) -> Iterator[bytes]:
    """Yield the content of one file of a tar archive, read as a stream; nothing is written anywhere.

    Args:
        archive: the archive's bytes, unpacked.
        member: its name there, with its folders or without; the first one of that name is taken.
        name: what messages call the file.

    Raises:
        InputError: it is not there, not a file, or the archive is damaged or cut short.
    """
    seen = []
    try:
        with tarfile.open(fileobj=_Pieces(archive), mode="r|", bufsize=_PIECE) as entries:  # pyright: ignore[reportArgumentType, reportCallIssue]
            for entry in entries:
                seen.append(entry.name)
                if member.removeprefix("./") not in (entry.name.removeprefix("./"), os.path.basename(entry.name)):
                    continue
                content = entries.extractfile(entry) if entry.isreg() else None
                if content is None:
                    raise InputError(f"{name}: {entry.name} is a folder or a link, no file.")
                while piece := content.read(_PIECE):
                    yield piece
                return
    except tarfile.TarError as error:
        raise InputError(f"{name}: the archive is damaged or cut short ({error}); download it again.") from error
    listed = ", ".join(seen[:_SHOWN]) + (", ..." if len(seen) > _SHOWN else "")
    raise InputError(f"{name}: the archive holds no {member}, but {listed or 'nothing'}.")
