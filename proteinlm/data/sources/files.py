"""Input files as blocks of whole records: decompressed, with uniform line ends, cut between records."""

import hashlib
import os
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, NamedTuple

from proteinlm.data.sources.compression import decompressed
from proteinlm.data.sources.locations import Location, expand, member_of
from proteinlm.errors import InputError

BLOCK_BYTES = 4 << 20
# The entry of the longest known protein (45,000 residues) is far smaller. A file with a larger record is not a file of
# proteins.
RECORD_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
# The first line of a flat entry in the middle of a FASTA file.
_FLAT_IN_FASTA = re.compile(rb"\n(?!>)[^\n]*ID   \S+ +(?:Reviewed|Unreviewed|STANDARD|PRELIMINARY);")

Format = Literal["fasta", "flat"]


class TextBlock(NamedTuple):
    r"""Whole records of one file. Each line ends with `\n`.

    Attributes:
        format: "fasta" or "flat" (UniProtKB flat file).
        data: the text of the records.
        last: whether this is the last block of the file; only there the // of the last entry may be missing.
    """

    format: Format
    data: bytes
    last: bool


class SourceFile:
    """One input file, which can be read once from beginning to end.

    `path` is a local path, a URL for fsspec (gs://, s3://), or tar://MEMBER::ARCHIVE for a member of a tar archive. The
    archive (local or remote; plain, .gz or .zst) is read as a stream and is not unpacked.

    Attributes:
        path: name of the file in messages and in provenance.json.
        size: size in bytes where the file is stored; of an archive, the whole archive.
        read: number of these bytes read so far, for progress.
        md5: MD5 of the bytes read so far, in hexadecimal; UniProt's RELEASE.metalink lists the same checksum. After the
            text has been read to its end, it is the MD5 of the whole file or archive.

    Raises:
        InputError: the file is missing or is a folder.
    """

    def __init__(self, path: str | os.PathLike):
        self._location = Location(path)
        self.path = self._location.name
        self.size = self._location.size
        self.read = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    @property
    def identity(self) -> Hashable:
        """A value that is equal for two names of the same file."""
        return self._location.identity

    @property
    def stamp(self) -> list:
        """Size and version for JSON; differs after the file has changed, as far as the file system shows."""
        return self._location.stamp

    @property
    def text_size(self) -> int:
        """Approximate size of the decompressed text in bytes: five times the size of a compressed file."""
        return self.size * (5 if self.path.endswith((".gz", ".zst")) else 1)

    @property
    def md5(self) -> str:
        """MD5 of the bytes read so far, in hexadecimal."""
        return self._md5.hexdigest()

    def text(self) -> Iterator[bytes]:
        """Yield the content, decompressed if its first bytes are those of gzip or zstd.

        Raises:
            InputError: the file has another compression, is cut short or damaged, or cannot be read. The message says
                how many bytes could be read.
        """
        raw = self._raw()
        text = decompressed(raw, self.path, self._where)
        if self._location.member is not None:
            text = decompressed(member_of(text, self._location.member, self.path), self.path, self._where)
        yield from text
        # The bytes after the member are read for the MD5 of the archive.
        for _ in raw:
            pass

    def lines(self) -> Iterator[bytes]:
        r"""Yield `text` with each line end of Windows and old Macs replaced by `\n`."""
        held = b""
        for chunk in self.text():
            chunk = held + chunk
            held = b""
            if b"\r" in chunk:
                if chunk.endswith(b"\r"):
                    # The next chunk may begin with the newline of this pair.
                    chunk, held = chunk[:-1], b"\r"
                chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            yield chunk
        if held:
            yield b"\n"

    def blocks(self, size: int = BLOCK_BYTES) -> Iterator[TextBlock]:
        """Yield blocks of about `size` bytes. A block is larger if one record is.

        Raises:
            InputError: the file is empty, is neither FASTA nor a flat file, changes its format, or has a record of
                more than 64 MiB; or as `text`.
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
                    f"({text[:40]!r}...): it is not a file of proteins."
                )
            held, length = [text], len(text)
        yield self._block(kind, b"".join(held), True, number)

    def _block(self, kind: Format, data: bytes, last: bool, number: int) -> TextBlock:
        # The search for a single rare letter is much faster than parsing; the search for a long pattern is not.
        if kind == "fasta" and b";" in data and b"ID   " in data and (match := _FLAT_IN_FASTA.search(data)):
            first, second, start = "FASTA", "a UniProtKB flat file", match.start()
        elif kind == "flat" and (start := _fasta_header(data)) >= 0:
            first, second = "a UniProtKB flat file", "FASTA"
        else:
            return TextBlock(kind, data, last)
        line = data[start:].strip().split(b"\n", 1)[0][:60]
        raise InputError(
            f"{self.path} begins as {first} and continues as {second} "
            f"({line.decode('ascii', 'backslashreplace')!r} in block {number}): two files were concatenated; "
            "give them as two files."
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
        """Skip blank lines and detect the format from the first line that is not blank; return the text so far."""
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
            raise InputError(f"{self.path} is empty: it has no sequence.")
        if text.startswith(b">"):
            return text, "fasta"
        if text.startswith(b"ID   "):
            return text, "flat"
        if text[257:262] == b"ustar":
            raise InputError(
                f"{self.path} is a tar archive: name the file in it, such as tar://uniprot_sprot.dat.gz::{self.path}."
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
            f"flat file): {line!r}; remove the text before the first record."
        )


def _fasta_header(data: bytes) -> int:
    """Return the index of a '>' at the beginning of a line, or after a byte order mark; -1 if there is none."""
    index = data.find(b">")
    # There are few '>' in a flat file, and the search for a single letter is the fastest one.
    while index > 0 and data[index - 1] not in b"\n" + _BOM[-1:]:
        index = data.find(b">", index + 1)
    return index


def _last_cut(text: bytes, mark: bytes, kind: Format) -> int:
    """Return the index at which the last whole record of `text` ends; 0 if there is no whole record."""
    index = text.rfind(mark)
    if index < 0:
        return 0
    if kind == "fasta":
        return index + 1
    # The line // is complete only if its line end has been read as well.
    while index >= 0:
        end = text.find(b"\n", index + 1)
        if end >= 0:
            return end + 1
        index = text.rfind(mark, 0, index)
    return 0


def open_sources(sources: Sequence[str | os.PathLike]) -> list[SourceFile]:
    """Return the files of names and patterns (see `SourceFile` and `locations.expand`), sorted by name.

    Raises:
        InputError: there is no name, a file is missing, or two names mean the same file.
    """
    if not sources:
        raise InputError("name at least one file of sequences.")
    files = sorted(map(SourceFile, expand(sources)), key=lambda file: file.path)
    seen: dict[Hashable, SourceFile] = {}
    for file in files:
        other = seen.setdefault(file.identity, file)
        if other is not file:
            same = "is named twice" if other.path == file.path else f"and {other.path} are the same file"
            raise InputError(f"{file.path} {same}: each protein would count as two copies; name the file once.")
    return files
