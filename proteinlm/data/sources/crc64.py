"""CRC-64 checksums of many sequences at once, as in UniProt's SQ lines.

The CRC is that of ISO 3309: x^64 + x^4 + x^3 + x + 1, reflected, initial value 0. Such a CRC is linear over GF(2), so
that NumPy computes it for all sequences of a block in three steps: cut each sequence into pieces of 64 bytes; compute
the CRC of each piece by one table for each byte position; shift each CRC to the position of its piece by further
tables, and combine the pieces with XOR. Zero bytes in front of a sequence do not change its CRC, so that the first
piece is padded with zeros.
"""

import functools
from collections.abc import Sequence

import numpy as np

_POLYNOMIAL = np.uint64(0xD800000000000000)
# Bytes in a piece. The 64 tables of a piece (128 KiB) stay in the second-level cache.
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
    """Return tables [64, 256]: for each position in a piece, the CRC of a byte and the zeros after it."""
    tables = [_BYTE_TABLE]
    for _ in range(_PIECE - 1):
        tables.append(_append_zero(tables[-1]))
    return np.stack(tables[::-1])


@functools.cache
def _move_tables(power: int) -> np.ndarray:
    """Return tables [8, 256]: for each byte of a CRC, the CRC after 2**power further pieces of zeros."""
    if power:
        half = _move_tables(power - 1)
        return _move(half, half.reshape(-1)).reshape(8, 256)
    crc = np.arange(256, dtype=np.uint64)[None, :] << (np.uint64(8) * np.arange(8, dtype=np.uint64))[:, None]
    for _ in range(_PIECE):
        crc = _append_zero(crc)
    return crc


def _move(tables: np.ndarray, crc: np.ndarray) -> np.ndarray:
    """Apply tables [8, 256] of `_move_tables` to CRCs [n]."""
    parts = np.ascontiguousarray(crc.astype("<u8")).view(np.uint8).reshape(-1, 8)
    moved = tables[0][parts[:, 0]]
    for index in range(1, 8):
        moved ^= tables[index][parts[:, index]]
    return moved


def crc64(sequences: Sequence[bytes]) -> np.ndarray:
    """Return the CRC-64 of each sequence, uint64 [n]; 0 for an empty sequence.

    UniProt writes this number as 16 hexadecimal digits: that of IHATEMATH is E3DCADD69B01ADD1.
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
    # The number of pieces that follow each piece in its sequence: the distance by which its CRC is shifted.
    behind = np.repeat(ends, pieces) - 1 - np.arange(len(matrix))
    for power in range(int(behind.max()).bit_length()):
        chosen = np.flatnonzero((behind >> power) & 1)
        crc[chosen] = _move(_move_tables(power), crc[chosen])
    return np.bitwise_xor.reduceat(crc, ends - pieces)
