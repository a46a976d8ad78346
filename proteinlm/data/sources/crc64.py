"""The CRC-64 of UniProt's SQ lines (ISO 3309: x^64 + x^4 + x^3 + x + 1, reflected, start 0), many at a time.

A CRC that starts at 0 is linear over GF(2). So a sequence is cut into pieces, every piece is looked up byte
by byte in tables that know how far each byte is from the piece's end, and the pieces are moved to their
places by further tables; all of it is NumPy over all sequences of a block. Zero bytes in front change
nothing, which is what lets pieces align.
"""

import functools
from collections.abc import Sequence

import numpy as np

_POLYNOMIAL = np.uint64(0xD800000000000000)
# Bytes a piece: its 64 tables (128 KiB) stay in the second level cache.
_PIECE = 64
_ZEROS = bytes(_PIECE)


def _one_byte() -> np.ndarray:
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        table = np.where(table & np.uint64(1), (table >> np.uint64(1)) ^ _POLYNOMIAL, table >> np.uint64(1))
    return table


_BYTE_TABLE = _one_byte()


def _append_zero(crc: np.ndarray) -> np.ndarray:
    return _BYTE_TABLE[(crc & np.uint64(0xFF)).astype(np.intp)] ^ (crc >> np.uint64(8))


@functools.cache
def _piece_tables() -> np.ndarray:
    """Tables [piece, 256]: the CRC of a byte followed by the rest of a piece of zeros."""
    tables = [_BYTE_TABLE]
    for _ in range(_PIECE - 1):
        tables.append(_append_zero(tables[-1]))
    return np.stack(tables[::-1])


@functools.cache
def _move_tables(power: int) -> np.ndarray:
    """Tables [8, 256]: what 2**power pieces of zeros after it make of each byte of a CRC."""
    if power:
        half = _move_tables(power - 1)
        return _move(half, half.reshape(-1)).reshape(8, 256)
    crc = np.arange(256, dtype=np.uint64)[None, :] << (np.uint64(8) * np.arange(8, dtype=np.uint64))[:, None]
    for _ in range(_PIECE):
        crc = _append_zero(crc)
    return crc


def _move(tables: np.ndarray, crc: np.ndarray) -> np.ndarray:
    """Apply move tables [8, 256] to CRCs [n]."""
    parts = np.ascontiguousarray(crc.astype("<u8")).view(np.uint8).reshape(-1, 8)
    moved = tables[0][parts[:, 0]]
    for index in range(1, 8):
        moved ^= tables[index][parts[:, index]]
    return moved


def crc64(sequences: Sequence[bytes]) -> np.ndarray:
    """Return the CRC-64 of each sequence, uint64 [n]; 0 for an empty one.

    UniProt writes the same number as 16 hexadecimal digits: IHATEMATH gives E3DCADD69B01ADD1.
    """
    if not sequences:
        return np.zeros(0, np.uint64)
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    pieces = np.maximum(-(-lengths // _PIECE), 1)
    parts = []
    for sequence, fill in zip(sequences, (pieces * _PIECE - lengths).tolist(), strict=True):
        parts.append(_ZEROS[:fill])
        parts.append(sequence)
    matrix = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, _PIECE)
    tables = _piece_tables()
    crc = tables[0][matrix[:, 0]]
    for column in range(1, _PIECE):
        crc ^= tables[column][matrix[:, column]]
    ends = np.cumsum(pieces)
    # How many pieces follow each one inside its own sequence: that far it must move.
    behind = np.repeat(ends, pieces) - 1 - np.arange(len(matrix))
    for power in range(int(behind.max()).bit_length()):
        chosen = np.flatnonzero((behind >> power) & 1)
        crc[chosen] = _move(_move_tables(power), crc[chosen])
    return np.bitwise_xor.reduceat(crc, ends - pieces)
