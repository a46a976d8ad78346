"""Decompression of gzip and zstd, recognised by the first bytes. A truncated or damaged member is an error."""

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from isal import igzip_lib

from proteinlm.errors import InputError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Text that is decompressed at a time. It limits memory: a few compressed bytes can expand to gigabytes of zeros.
_TEXT_BYTES = 1 << 20
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}


class _Compression(NamedTuple):
    """A compression format.

    Attributes:
        name: name for messages.
        start: returns a decompressor with the interface of bz2.BZ2Decompressor in the standard library.
        padded: whether zeros may follow a member.
    """

    name: str
    start: Callable[[], Any]
    padded: bool


# Programs that write tar files or tapes fill the last block of a gzip file with zeros; gzip(1) accepts them.
_GZIP = _Compression("gzip", lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), True)
_ZSTD = _Compression("zstd", zstd.ZstdDecompressor, False)
_ERRORS = (igzip_lib.IsalError, zstd.ZstdError)  # pyright: ignore[reportAttributeAccessIssue]


def decompressed(chunks: Iterator[bytes], name: str, where: Callable[[], str]) -> Iterator[bytes]:
    """Decompress gzip or zstd data; return other data unchanged.

    Args:
        chunks: the bytes, in pieces of any size.
        name: name of the file, for messages.
        where: returns the position in the file, for messages, such as "byte 10 of 20".

    Raises:
        InputError: at once if the data has another compression; while reading if it is truncated or damaged. The
            message says how many bytes could be read.
    """
    head = b""
    # A pipe may give fewer bytes than the longest magic number.
    while len(head) < 6 and (more := next(chunks, b"")):
        head += more
    for magic, other in _OTHERS.items():
        if head.startswith(magic):
            raise InputError(
                f"{name} is compressed with {other}: decompress it first (plain, .gz and .zst files can be read)."
            )
    chunks = itertools.chain((head,) if head else (), chunks)
    if head.startswith(b"\x1f\x8b"):
        return _members(chunks, _GZIP, name, where)
    # The second pattern is a skippable frame, which pzstd writes first.
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[:1] and head[0] >> 4 == 5 and head[1:4] == b"\x2a\x4d\x18"):
        return _members(chunks, _ZSTD, name, where)
    return chunks


def _members(chunks: Iterator[bytes], kind: _Compression, name: str, where: Callable[[], str]) -> Iterator[bytes]:
    member = None
    members = length = 0
    try:
        for chunk in chunks:
            data = chunk
            while member is not None or data:
                if member is None:
                    data = data.lstrip(b"\0") if members and kind.padded else data
                    if not data:
                        break
                    member = kind.start()
                    members += 1
                out = member.decompress(data, _TEXT_BYTES)
                data = b""
                length += len(out)
                if out:
                    yield out
                if member.eof:
                    data, member = member.unused_data, None
                elif member.needs_input:
                    break
    except _ERRORS as error:  # pyright: ignore[reportGeneralTypeIssues]
        if "requires too much memory" in str(error):
            raise InputError(
                f"{name} was compressed by zstd --long with a window of over 128 MiB: decompress it first "
                "(zstd -d --long=31)."
            ) from error
        raise InputError(
            f"{name} is damaged: its {kind.name} data cannot be read after {length:,} bytes of text, near {where()} "
            f"({error}); download it again."
        ) from error
    if member is not None:
        raise InputError(
            f"{name} is cut short: its {kind.name} data ends in the middle after {length:,} bytes of text, at "
            f"{where()}; download it again."
        )
