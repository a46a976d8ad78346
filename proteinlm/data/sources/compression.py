"""gzip and zstd, told by their first bytes: any number of members one after another, each whole or an error."""

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

# Text that is unpacked at a time: what bounds the memory that a few bytes of zeros, packed, can ask for.
_TEXT_BYTES = 1 << 20
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}


class _Kind(NamedTuple):
    """One compression; `start` gives a decompressor with the interface of the standard library's bz2."""

    name: str
    start: Callable[[], Any]
    padded: bool


# tar and tape writers fill the last block of a gzip file with zeros, as gzip(1) expects.
_GZIP = _Kind("gzip", lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), True)
_ZSTD = _Kind("zstd", zstd.ZstdDecompressor, False)
_ERRORS = (igzip_lib.IsalError, zstd.ZstdError)  # pyright: ignore[reportAttributeAccessIssue]


def decompressed(chunks: Iterator[bytes], name: str, where: Callable[[], str]) -> Iterator[bytes]:
    """Return the text of gzip or zstd data, and what is neither as it is.

    Args:
        chunks: the bytes, in pieces of any size.
        name: what messages call the file.
        where: tells for messages how far the file has been read, as "byte 10 of 20".

    Raises:
        InputError: at once if the data is compressed otherwise; while reading if it is cut short or damaged.
            The message says how far it was good.
    """
    head = b""
    # A pipe may give fewer bytes than the longest magic number.
    while len(head) < 6 and (more := next(chunks, b"")):
        head += more
    for magic, other in _OTHERS.items():
        if head.startswith(magic):
            raise InputError(f"{name} is compressed with {other}: unpack it first (plain, .gz and .zst are read).")
    chunks = itertools.chain((head,) if head else (), chunks)
    if head.startswith(b"\x1f\x8b"):
        return _members(chunks, _GZIP, name, where)
    # The second: a skippable frame, with which pzstd begins.
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[:1] and head[0] >> 4 == 5 and head[1:4] == b"\x2a\x4d\x18"):
        return _members(chunks, _ZSTD, name, where)
    return chunks


def _members(chunks: Iterator[bytes], kind: _Kind, name: str, where: Callable[[], str]) -> Iterator[bytes]:
    member = None
    members = given = 0
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
                given += len(out)
                if out:
                    yield out
                if member.eof:
                    data, member = member.unused_data, None
                elif member.needs_input:
                    break
    except _ERRORS as error:  # pyright: ignore[reportGeneralTypeIssues]
        if "requires too much memory" in str(error):
            raise InputError(
                f"{name} was packed by zstd --long with a window of over 128 MiB: unpack it first (zstd -d --long=31)."
            ) from error
        raise InputError(
            f"{name} is damaged: its {kind.name} data cannot be read after {given:,} bytes of text, near {where()} "
            f"({error}); download it again."
        ) from error
    if member is not None:
        raise InputError(
            f"{name} is cut short: its {kind.name} data stops in the middle after {given:,} bytes of text, at "
            f"{where()}; download it again."
        )
