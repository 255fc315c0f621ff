"""Footers: whether the sizes that a parquet file claims can be true, before memory is set aside for them.

A parquet file says at its end, and before each page, how much there is to read. Damaged, it may
say anything, and who believes it asks for more memory than there is: Polars then ends the process.

Source: github.com/apache/parquet-format (parquet.thrift), and Thrift's compact protocol, in which
both are written.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MAGIC = b"PAR1"
_DEEPEST = 32
"""Levels of structures in structures; the format needs eight."""
_FREE = 1 << 24
"""Values that a column may hold however small its file is."""
_RATIO = 1 << 12
"""Values for one byte of the file, beyond which nothing packs so well that it is a log."""
_WIDEST = 1 << 20
"""Bytes of one value of fixed length."""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_BEYOND = "a field longer than what holds it"

Fields = dict[int, Any]


class DamagedError(ValueError):
    """What cannot be true of a parquet file."""


def check(path: Path) -> None:
    """Look through the footer of a file and the headers of its pages.

    Raises:
        DamagedError: They claim what cannot be.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        try:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:
            raise DamagedError("the file is empty") from None
    size = len(view)
    if size < 12 or view[:4] != _MAGIC or view[-4:] != _MAGIC:
        raise DamagedError("cut short: no footer at its end")
    length = int.from_bytes(view[-8:-4], "little")
    start = size - 8 - length
    if start < 4:
        raise DamagedError("a footer longer than the file")
    about, _ = _Reader(view, size - 8).struct(start)
    _check_footer(about, view, start)


def _check_footer(about: Fields, view: memoryview, start: int) -> None:
    for element in _structs(about, 2):
        if not 0 <= _number(element, 2) <= _WIDEST or not 0 <= _number(element, 5) <= len(view):
            raise DamagedError("a column of impossible width")
    most = max(_FREE, _RATIO * len(view))
    rows = 0
    for group in _structs(about, 4):
        rows += _number(group, 3)
        for chunk in _structs(group, 1):
            _check_chunk(_struct(chunk, 3), view, start, most)
    if not 0 <= _number(about, 3) == rows <= most:
        raise DamagedError(f"{_number(about, 3):,} rows claimed, {rows:,} in its parts")


def _check_chunk(chunk: Fields, view: memoryview, stop: int, most: int) -> None:
    """Check the pages of one column in one group of rows."""
    values = _number(chunk, 5)
    if not 0 <= values <= most:
        raise DamagedError(f"{values:,} values claimed in one column")
    first = _number(chunk, 9)
    at = _number(chunk, 11)
    at = at if 4 <= at < first else first
    reader = _Reader(view, stop)
    seen = 0
    while seen < values:
        if not 4 <= at < stop:
            raise DamagedError("a page outside of the file")
        header, behind = reader.struct(at)
        packed = _number(header, 3)
        if packed < 0 or _number(header, 2) < 0 or behind + packed > stop:
            raise DamagedError("a page longer than the file")
        data = _struct(header, 5) or _struct(header, 8)
        count = _number(data or _struct(header, 7), 1)
        levels = _number(data, 5) + _number(data, 6) if _struct(header, 8) else 0
        if not 0 <= count <= max(values, _number(header, 2)) or not 0 <= levels <= packed:
            raise DamagedError(f"{count:,} values claimed in one page")
        seen += count if data else 0
        at = behind + packed
    if seen > values:
        raise DamagedError(f"{seen:,} values in pages where {values:,} are claimed")


def _structs(fields: Fields, number: int) -> Iterator[Fields]:
    held = fields.get(number)
    for item in held if isinstance(held, list) else []:
        if isinstance(item, dict):
            yield item


def _struct(fields: Fields, number: int) -> Fields:
    held = fields.get(number)
    return held if isinstance(held, dict) else {}


def _number(fields: Fields, number: int) -> int:
    held = fields.get(number, 0)
    return held if isinstance(held, int) else 0


class _Reader:
    """Thrift's compact protocol, as far as a structure of numbers needs it."""

    def __init__(self, view: memoryview, stop: int) -> None:
        self._view = view
        self._stop = stop

    def struct(self, at: int, depth: int = 0) -> tuple[Fields, int]:
        """Return the fields of a structure by number, and where it ends.

        Raises:
            DamagedError: There is none.
        """
        if depth > _DEEPEST:
            raise DamagedError("structures without end")
        found: Fields = {}
        number = 0
        while True:
            kind, at = self._byte(at)
            if not kind:
                return found, at
            if kind >> 4:
                number += kind >> 4
            else:
                number, at = self._whole(at)
            kind &= 15
            if kind in (_TRUE, _FALSE):
                found[number] = kind == _TRUE
            else:
                found[number], at = self._value(kind, at, depth)

    def _value(self, kind: int, at: int, depth: int) -> tuple[Any, int]:
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte(at)
        if _BYTE < kind < _DOUBLE:
            return self._whole(at)
        if kind == _DOUBLE:
            return None, self._within(at + 8)
        if kind == _BINARY:
            size, at = self._varint(at)
            return None, self._within(at + size)
        if kind in (_LIST, _SET):
            return self._list(at, depth)
        if kind == _STRUCT:
            return self.struct(at, depth + 1)
        if kind == _MAP:
            return self._map(at, depth)
        raise DamagedError("a field of no known kind")

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        if depth > _DEEPEST:
            raise DamagedError("lists without end")
        head, at = self._byte(at)
        size = head >> 4
        if size == 15:
            size, at = self._varint(at)
        if size > self._stop - at:
            raise DamagedError("a list longer than the file")
        items: list[Any] = []
        for _ in range(size):
            item, at = self._value(head & 15, at, depth + 1)
            items.append(item)
        return items, at

    def _map(self, at: int, depth: int) -> tuple[None, int]:
        size, at = self._varint(at)
        if not size:
            return None, at
        if size > self._stop - at or depth > _DEEPEST:
            raise DamagedError("a map longer than the file")
        kinds, at = self._byte(at)
        for _ in range(size):
            _, at = self._value(kinds >> 4, at, depth + 1)
            _, at = self._value(kinds & 15, at, depth + 1)
        return None, at

    def _byte(self, at: int) -> tuple[int, int]:
        if at >= self._stop:
            raise DamagedError(_BEYOND)
        return self._view[at], at + 1

    def _varint(self, at: int) -> tuple[int, int]:
        value, at = self._byte(at)
        if value < 128:  # as most are
            return value, at
        value &= 127
        for shift in range(7, 70, 7):
            byte, at = self._byte(at)
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
        raise DamagedError("a number without an end")

    def _whole(self, at: int) -> tuple[int, int]:
        value, at = self._varint(at)
        return (value >> 1) ^ -(value & 1), at

    def _within(self, at: int) -> int:
        if at > self._stop:
            raise DamagedError(_BEYOND)
        return at
