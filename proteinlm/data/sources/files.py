"""Files of sequences as blocks of whole records: decompressed, line ends made equal, cut between records."""

import hashlib
import os
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, NamedTuple

from proteinlm.data.sources.compression import decompressed
from proteinlm.data.sources.locations import Location, expand, member_of
from proteinlm.errors import InputError

BLOCK_BYTES = 4 << 20
# The longest known protein has 45,000 residues, its flat entry is far below this: what is longer is no
# protein file.
RECORD_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
# How the other format begins in the middle of one.
_FLAT_IN_FASTA = re.compile(rb"\n(?!>)[^\n]*ID   \S+ +(?:Reviewed|Unreviewed|STANDARD|PRELIMINARY);")

Format = Literal["fasta", "flat"]


class TextBlock(NamedTuple):
    """Whole records of one file, lines ending in a single newline.

    Attributes:
        format: "fasta" or "flat" (UniProtKB).
        data: the text.
        last: whether the file ends here; only then may an entry lack its //.
    """

    format: Format
    data: bytes
    last: bool


class SourceFile:
    """One file, read once from its beginning to its end.

    `path` is a local path, a URL that fsspec opens (gs://, s3://), or tar://MEMBER::ARCHIVE for a file in a tar archive
    that is read without being unpacked (plain, .gz or .zst, of either kind of path).

    Attributes:
        path: the name, as messages and provenance show it.
        size: bytes where it is stored; of an archive, all of it.
        read: bytes of it that were read so far (compressed, if it is), for progress.
        md5: of those bytes, in hexadecimal; MD5 because it is what UniProt's RELEASE.metalink lists. Once the text
            has been read to its end, it is that of the whole file or archive.

    Raises:
        InputError: it is not there or is a folder.
    """

    def __init__(self, path: str | os.PathLike):
        self._location = Location(path)
        self.path = self._location.name
        self.size = self._location.size
        self.read = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    @property
    def identity(self) -> Hashable:
        """Equal for the same file under two names."""
        return self._location.identity

    @property
    def stamp(self) -> list:
        """Size and version, for JSON; another one when the file has changed, as far as its file system tells."""
        return self._location.stamp

    @property
    def text_size(self) -> int:
        """About how many bytes of text the file holds: packed sequences are four to five times as long."""
        return self.size * (5 if self.path.endswith((".gz", ".zst")) else 1)

    @property
    def md5(self) -> str:
        """MD5 of the bytes that were read, in hexadecimal."""
        return self._md5.hexdigest()

    def text(self) -> Iterator[bytes]:
        """Yield the content, decompressed if it is gzip or zstd (by its first bytes, not by its name).

        Raises:
            InputError: it is compressed otherwise, cut short, damaged or cannot be read; the message says
                how far it was good.
        """
        raw = self._raw()
        text = decompressed(raw, self.path, self._where)
        if self._location.member is not None:
            text = decompressed(member_of(text, self._location.member, self.path), self.path, self._where)
        yield from text
        # What follows the member still counts for the archive's checksum.
        for _ in raw:
            pass

    def lines(self) -> Iterator[bytes]:
        """Yield `text` with line ends of Windows and old Macs made a single newline."""
        held = b""
        for chunk in self.text():
            chunk = held + chunk
            held = b""
            if b"\r" in chunk:
                if chunk.endswith(b"\r"):
                    # The newline of this pair may be the next chunk's first byte.
                    chunk, held = chunk[:-1], b"\r"
                chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            yield chunk
        if held:
            yield b"\n"

    def blocks(self, size: int = BLOCK_BYTES) -> Iterator[TextBlock]:
        """Yield blocks of about `size` bytes (a longer record is a longer block).

        Raises:
            InputError: the file is empty, neither FASTA nor flat, both of them, or one record is over 64 MiB; or as
                `text`.
        """
        chunks = self.lines()
        text, kind = self._start(chunks)
        mark, number = (b"\n>", 1) if kind == "fasta" else (b"\n//", 1)
        held, length = [text], len(text)
        for chunk in chunks:
            held.append(chunk)
            length += len(chunk)
            if length < size:
                continue
            text = b"".join(held)
            cut = _last_cut(text, mark, kind)
            if cut:
                yield self._block(kind, text[:cut], False, number)
                number += 1
                text = text[cut:]
            elif len(text) > RECORD_BYTES:
                self._block(kind, text, False, number)
                raise InputError(
                    f"{self.path} has a record of more than {RECORD_BYTES >> 20} MiB after block {number} "
                    f"({text[:40]!r}...): this is no file of proteins."
                )
            held, length = [text], len(text)
        yield self._block(kind, b"".join(held), True, number)

    def _block(self, kind: Format, data: bytes, last: bool, number: int) -> TextBlock:
        # To look for one letter that is rare costs nothing beside parsing; longer texts and patterns would.
        if kind == "fasta" and b";" in data and b"ID   " in data and (found := _FLAT_IN_FASTA.search(data)):
            one, other, place = "FASTA", "a UniProtKB flat file", found.start()
        elif kind == "flat" and (place := _header(data)) >= 0:
            one, other = "a UniProtKB flat file", "FASTA"
        else:
            return TextBlock(kind, data, last)
        line = data[place:].strip().split(b"\n", 1)[0][:60]
        raise InputError(
            f"{self.path} begins as {one} and goes on as {other} "
            f"({line.decode('ascii', 'backslashreplace')!r} in block {number}): two files were put together; "
            "name them as two."
        )

    def _raw(self) -> Iterator[bytes]:
        try:
            with self._location.open() as handle:
                while chunk := handle.read(_READ_BYTES):
                    self.read += len(chunk)
                    self._md5.update(chunk)
                    yield chunk
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be read beyond {self._where()} ({error.strerror or error}): "
                "copy or download it again."
            ) from error

    def _where(self) -> str:
        return f"byte {self.read:,} of {self.size:,}"

    def _start(self, chunks: Iterator[bytes]) -> tuple[bytes, Format]:
        """Skip blank lines and tell the format from the first line that is not."""
        skipped = 0
        text = b""
        for chunk in chunks:
            text += chunk
            text = text.removeprefix(_BOM) if not skipped else text
            body = text.lstrip()
            skipped += text.count(b"\n", 0, len(text) - len(body))
            text = body
            if len(text) >= 5:
                break
        if not text:
            raise InputError(f"{self.path} is empty: it holds no sequence.")
        if text.startswith(b">"):
            return text, "fasta"
        if text.startswith(b"ID   "):
            return text, "flat"
        if text[257:262] == b"ustar":
            raise InputError(
                f"{self.path} is a tar archive: name the file in it, as tar://uniprot_sprot.dat.gz::{self.path}."
            )
        line = text.split(b"\n", 1)[0][:60].decode("ascii", "backslashreplace")
        if text[:1] in (b"<", b"{"):
            kind = "XML or HTML (a web page, perhaps an error message)" if text[:1] == b"<" else "JSON"
            raise InputError(
                f"{self.path} line {skipped + 1} is {kind}, not FASTA or a UniProtKB flat file: download the "
                f"file again in one of these formats ({line!r})."
            )
        raise InputError(
            f"{self.path} line {skipped + 1} starts neither with '>' (FASTA) nor with 'ID   ' (UniProtKB "
            f"flat file): {line!r}; remove what stands before the first record."
        )


def _header(data: bytes) -> int:
    """Return where a line begins with '>', be it after a byte order mark; -1 if none does."""
    place = data.find(b">")
    # From one to the next: there are few, and nothing that is longer than a letter is found as fast.
    while place > 0 and data[place - 1] not in b"\n" + _BOM[-1:]:
        place = data.find(b">", place + 1)
    return place


def _last_cut(text: bytes, mark: bytes, kind: Format) -> int:
    """Return where the last whole record of `text` ends, 0 if there is none."""
    place = text.rfind(mark)
    if place < 0:
        return 0
    if kind == "fasta":
        return place + 1
    # A line that begins with // is whole only when its end was read as well.
    while place >= 0:
        end = text.find(b"\n", place + 1)
        if end >= 0:
            return end + 1
        place = text.rfind(mark, 0, place)
    return 0


def open_sources(sources: Sequence[str | os.PathLike]) -> list[SourceFile]:
    """Return the files that names and patterns mean (see `SourceFile` and `locations.expand`), sorted by name.

    Raises:
        InputError: none is named, one is not there, or two names are one file.
    """
    if not sources:
        raise InputError("name at least one file of sequences.")
    files = sorted(map(SourceFile, expand(sources)), key=lambda file: file.path)
    seen: dict[Hashable, SourceFile] = {}
    for file in files:
        other = seen.setdefault(file.identity, file)
        if other is not file:
            same = "is named twice" if other.path == file.path else f"and {other.path} are the same file"
            raise InputError(f"{file.path} {same}: its proteins would count as copies of themselves; name it once.")
    return files
