"""Files of sequences as blocks of whole records: decompressed, line ends made equal, cut between records."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from isal import igzip_lib, isal_zlib

from proteinlm.errors import InputError

BLOCK_BYTES = 4 << 20
# The longest known protein has 45,000 residues, its flat entry is far below this: what is longer is no
# protein file.
RECORD_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_OTHER_COMPRESSIONS = {
    b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip",
}  # fmt: skip
_BOM = b"\xef\xbb\xbf"

Format = Literal["fasta", "flat"]


class Block(NamedTuple):
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

    Attributes:
        path: as it was given.
        size: bytes on disk.
        read: bytes of it that were read so far (compressed, if it is), for progress.
        md5: of those bytes, in hexadecimal; MD5 because it is what UniProt's RELEASE.metalink lists.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"{self.path} is a folder: name the files in it.")
        try:
            self.size = self.path.stat().st_size
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror}): check the name.") from error
        self.read = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    @property
    def md5(self) -> str:
        """MD5 of the bytes that were read, in hexadecimal."""
        return self._md5.hexdigest()

    def text(self) -> Iterator[bytes]:
        """Yield the content, decompressed if it is gzip (by its first bytes, not by its name).

        Raises:
            InputError: it is compressed otherwise, cut short, damaged or cannot be read; the message says
                how far it was good.
        """
        raw = self._raw()
        head = b""
        # A pipe may give fewer bytes than the longest magic number.
        while len(head) < 6 and (more := next(raw, b"")):
            head += more
        for magic, name in _OTHER_COMPRESSIONS.items():
            if head.startswith(magic):
                raise InputError(f"{self.path} is compressed with {name}: unpack it first (plain and .gz are read).")
        chunks = _chain(head, raw)
        return self._unzipped(chunks) if head.startswith(_GZIP) else chunks

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

    def blocks(self, size: int = BLOCK_BYTES) -> Iterator[Block]:
        """Yield blocks of about `size` bytes (a longer record is a longer block).

        Raises:
            InputError: the file is empty, neither FASTA nor flat, or one record is over 64 MiB; or as `text`.
        """
        chunks = self.lines()
        text, kind = self._start(chunks)
        mark, records = (b"\n>", 1) if kind == "fasta" else (b"\n//", 1)
        for chunk in chunks:
            text += chunk
            if len(text) < size:
                continue
            cut = _last_cut(text, mark, kind)
            if cut:
                yield Block(kind, text[:cut], False)
                records += 1
                text = text[cut:]
            elif len(text) > RECORD_BYTES:
                raise InputError(
                    f"{self.path} has a record of more than {RECORD_BYTES >> 20} MiB after block {records} "
                    f"({text[:40]!r}...): this is no file of proteins."
                )
        yield Block(kind, text, True)

    def _raw(self) -> Iterator[bytes]:
        try:
            with open(self.path, "rb") as handle:
                while chunk := handle.read(_READ_BYTES):
                    self.read += len(chunk)
                    self._md5.update(chunk)
                    yield chunk
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be read beyond byte {self.read:,} of {self.size:,} ({error.strerror}): "
                "copy or download it again."
            ) from error

    def _unzipped(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Decompress members one after another; zero bytes after the last one are padding, as for gzip."""
        member = None
        members = given = 0
        try:
            for chunk in chunks:
                data = chunk
                while member is not None or data:
                    if member is None:
                        data = data.lstrip(b"\0") if members else data
                        if not data:
                            break
                        member = isal_zlib.decompressobj(wbits=31)
                        members += 1
                    out = member.decompress(data, _READ_BYTES)
                    given += len(out)
                    if out:
                        yield out
                    if member.eof:
                        data, member = member.unused_data, None
                        continue
                    data = member.unconsumed_tail
                    # A full answer may mean that there is more to come without more input.
                    if not data and len(out) < _READ_BYTES:
                        break
        except igzip_lib.IsalError as error:  # pyright: ignore[reportGeneralTypeIssues]
            raise InputError(
                f"{self.path} is damaged: its gzip data cannot be read after {given:,} bytes of text, near "
                f"byte {self.read:,} of {self.size:,} ({error}); download it again."
            ) from error
        if member is not None:
            raise InputError(
                f"{self.path} is cut short: its gzip data stops in the middle after {given:,} bytes of text "
                f"({self.size:,} bytes on disk); download it again."
            )

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


def _chain(head: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest


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
