"""CRC-32C with numpy alone: of many short records at once, or of a long one.

Everything rests on the checksum being linear over bits: what a byte adds to it depends only on
the byte and on how many bytes follow, so that records that differ in a few bytes need only
those looked up.

Source: RFC 3720, appendix B.4 (polynomial and test values); the masking is that of TFRecord.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Checksums = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

_POLYNOMIAL = np.uint32(0x82F63B78)
_MASK_DELTA = np.uint32(0xA282EAD8)
_ONES = np.uint32(0xFFFFFFFF)

_PIECE = 64
"""Bytes of the pieces that a long record is cut into."""
_LONG = 256
"""Bytes from which a record is cut into pieces, unless there are as many records of its size."""
_BLOCK = 1 << 18
"""Bytes worked on at once: what fits the cache."""


def _byte_table() -> Checksums:
    table: Checksums = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * _POLYNOMIAL
    return table


_BYTE = _byte_table()
"""Register after one byte, by its lowest eight bits."""


def _advance_byte(register: Checksums) -> Checksums:
    """Return the register after one more byte of zero."""
    after: Checksums = _BYTE[register & np.uint32(255)] ^ (register >> np.uint32(8))
    return after


_WORD = _advance_byte(_advance_byte(np.arange(65536, dtype=np.uint32)))
"""Register after two bytes, by its lowest sixteen bits."""


def unmask(stored: Checksums) -> Checksums:
    """Return checksums as they were before TFRecord masked them."""
    rotated = stored - _MASK_DELTA
    return (rotated >> np.uint32(17)) | (rotated << np.uint32(15))


def mask(checksums: Checksums) -> Checksums:
    """Return checksums as TFRecord stores them."""
    return ((checksums >> np.uint32(15)) | (checksums << np.uint32(17))) + _MASK_DELTA


def of_rows(rows: Bytes) -> Checksums:
    """Compute the checksum of every row of ``rows`` (n, length)."""
    count, length = rows.shape
    if length > _LONG and count < _LONG:
        return _of_long_rows(rows)
    return _registers(rows, _ONES) ^ _ONES


def _registers(rows: Bytes, initial: np.uint32) -> Checksums:
    """Return the register after each row, having been ``initial`` before it."""
    count, length = rows.shape
    out = np.empty(count, np.uint32)
    block = max(64, _BLOCK // max(1, length))
    even = length - length % 2
    for at in range(0, count, block):
        part = rows[at : at + block]
        words = np.ascontiguousarray(part[:, :even]).view("<u2")
        register = np.full(len(part), initial, np.uint32)
        for column in range(even // 2):
            low = (register ^ words[:, column]) & np.uint32(0xFFFF)
            register = _WORD[low] ^ (register >> np.uint32(16))
        if length % 2:
            register = _advance_byte(register ^ part[:, -1])
        out[at : at + block] = register
    return out


def _of_long_rows(rows: Bytes) -> Checksums:
    """Compute the checksums of a few long rows: piece by piece, then joined two by two."""
    count, length = rows.shape
    pieces = -(-length // _PIECE)
    padded = np.zeros((count, pieces * _PIECE), np.uint8)  # zeros in front change nothing
    start = pieces * _PIECE - length
    padded[:, start:] = rows
    padded[:, start : start + 4] ^= np.uint8(255)  # the same as a register of ones to begin with
    parts = _registers(padded.reshape(-1, _PIECE), np.uint32(0)).reshape(count, pieces)
    doubling = 0
    while parts.shape[1] > 1:
        if parts.shape[1] % 2:
            parts = np.concatenate([np.zeros((count, 1), np.uint32), parts], axis=1)
        tables = _past_pieces(doubling)
        parts = _through(tables, parts[:, 0::2]) ^ parts[:, 1::2]
        doubling += 1
    return parts[:, 0] ^ _ONES


def _through(tables: Checksums, register: Checksums) -> Checksums:
    out: Checksums = tables[0][register & np.uint32(255)]
    for byte in (1, 2, 3):
        out = out ^ tables[byte][(register >> np.uint32(8 * byte)) & np.uint32(255)]
    return out


@cache
def _past_pieces(doubling: int) -> Checksums:
    """Return tables (4, 256) of a register's bytes after ``2 ** doubling`` pieces of zeros."""
    if doubling:
        half = _past_pieces(doubling - 1)
        return _through(half, half)
    tables = np.stack([np.arange(256, dtype=np.uint32) << np.uint32(8 * b) for b in range(4)])
    for _ in range(_PIECE):
        tables = _advance_byte(tables)
    return tables


_weights: list[Checksums] = [_BYTE]


def _weight(following: int) -> Checksums:
    """Return what a byte with ``following`` bytes after it adds to a checksum, by its value."""
    while len(_weights) <= following:
        _weights.append(_advance_byte(_weights[-1]))
    return _weights[following]


def of_changes(changes: Bytes, width: int, following: int) -> Checksums:
    """Compute how the checksums change when some bytes of each record change.

    Args:
        changes: Bytes XORed with what they were, (n, at least ``width``).
        width: How many of them count.
        following: Bytes of the record after the last of those.

    Returns:
        What to XOR to each checksum, (n,).
    """
    out = np.zeros(len(changes), np.uint32)
    last = changes[:, width - 1]
    if width > 1 and changes.shape[1] % 2:
        changes = np.ascontiguousarray(changes[:, : width - width % 2])
    pairs = changes.view("<u2") if width > 1 else changes
    for pair in range(width // 2):
        words = pairs[:, pair]
        if words.any():
            after = following + width - 2 - 2 * pair
            low, high = _weight(after + 1), _weight(after)
            out ^= (high[:, None] ^ low[None, :]).ravel().take(words)
    if width % 2:
        out ^= _weight(following).take(last)
    return out
