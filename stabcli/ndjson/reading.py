"""Reading: a file of JSON objects becomes a table, chunk by chunk, each in the quickest safe way."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from stabcli.assembly import LINE
from stabcli.errors import LogError
from stabcli.metrics import resolve
from stabcli.ndjson.chunks import CHUNK, LONGEST_LINE, Chunk, chunks, count, pieces, positions
from stabcli.ndjson.columns import Block, Columns, Needed, merged
from stabcli.ndjson.lines import CUT_SHORT, Lists, Rows
from stabcli.ndjson.quick import Quick
from stabcli.run import BadLines

BAD_SHOWN = 5
"""Bad lines kept with number and reason; the rest are only counted."""
LARGEST_ARRAY = 1 << 30
"""Bytes of a JSON array that is read: unlike lines it has to be in memory as a whole."""

_FEW = 64  # torn lines up to which a chunk is read without them
_FANOUT = 16  # pieces that a chunk is cut into which cannot be read quickly, nor without those
_SMALLEST = 1 << 14  # bytes below which it is read line by line instead
_LONGEST_NAME = 256  # bytes looked back over for the name of a null
_NEWLINE = ord("\n")
_BETWEEN = re.compile(r"[\s,]*")
_ALWAYS = 10  # rows with a number before a first null for the null to be a NaN
_FIRM = 3  # numbers in a row before a first null for the null to be worth a note


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Objects as rows."""

    frame: pl.DataFrame
    """Numbers and text by name, nested names joined by ``/``, and ``@line``."""
    notes: tuple[str, ...]
    """What had to be decided."""
    bad: BadLines
    """Lines that held no object."""


def read_lines(
    path: Path,
    *,
    needed: Needed | None = None,
    size: int = CHUNK,
    longest: int = LONGEST_LINE,
) -> Table:
    """Read a file of one JSON object a line; broken lines are left out and counted.

    Args:
        path: The file; UTF-8 or, with a byte order mark, UTF-16.
        needed: Which columns of text to keep of a log that is too long to be held in memory.
        size: Bytes read at once.
        longest: Bytes of the longest line that is read.
    """
    reading = _Reading()
    for chunk in chunks(path, size=size, longest=longest):
        if chunk.data:
            reading.add(chunk)
        else:
            reading.add_bad(chunk.first, f"longer than {longest >> 20} MB")
    return reading.table(needed)


@dataclass(slots=True)
class _Reading:
    """What has been read so far."""

    quick: Quick = field(default_factory=Quick)
    columns: Columns = field(default_factory=Columns)
    bad: int = 0
    first_bad: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    nested: set[str] = field(default_factory=set)
    lists: Lists = field(default_factory=Lists)
    nulls: dict[str, list[int]] = field(default_factory=dict)
    """Name -> line of its first explicit null, and how many there are."""

    def add(self, chunk: Chunk) -> None:
        """Take in some lines."""
        if not self.quick.schema:
            self._learn(chunk.data)
        numbers = np.arange(chunk.first, chunk.first + chunk.lines)
        for block in self._blocks(chunk.data, numbers, cut=chunk.cut):
            self.columns.add_block(block)

    def _blocks(self, data: bytes, numbers: np.ndarray, *, cut: bool) -> Iterator[Block]:
        """Read lines, many at once where that is safe."""
        parsed = self.quick.parse(data)
        lines = _line_numbers(data, numbers, parsed.height) if parsed else None
        if parsed and lines is not None:
            self.nested |= parsed.nested
            self.lists.add(parsed.lists)
            if parsed.nulls:
                self._find_nulls(data, numbers)
            yield Block(parsed.columns, lines)
        elif len(data) <= _SMALLEST:
            yield self._one_by_one(data, numbers, cut=cut)
        elif block := self._without_torn(data, numbers, cut=cut):
            yield block
        else:
            yield from self._by_pieces(data, numbers, cut=cut)

    def _without_torn(self, data: bytes, numbers: np.ndarray, *, cut: bool) -> Block | None:
        """Read a few lines that are no whole objects by themselves; None where they are not few."""
        ends = positions(data, _NEWLINE) + 1
        if cut:
            ends = np.append(ends, len(data))
        torn = _torn(data, ends)
        if not 0 < np.count_nonzero(torn) <= _FEW:
            return None
        whole, broken = _lines(data, ends, ~torn), _lines(data, ends, torn)
        blocks = [
            *self._blocks(whole, numbers[~torn], cut=cut and not torn[-1]),
            self._one_by_one(broken, numbers[torn], cut=cut and bool(torn[-1])),
        ]
        return merged([block for block in blocks if len(block.lines)] or blocks[:1])

    def _by_pieces(self, data: bytes, numbers: np.ndarray, *, cut: bool) -> Iterator[Block]:
        at = 0
        for piece in pieces(data, max(_SMALLEST, len(data) // _FANOUT)):
            if len(piece) == len(data):
                yield self._one_by_one(data, numbers, cut=cut)
                return
            torn = not piece.endswith(b"\n")
            inside = count(piece, _NEWLINE) + torn
            yield from self._blocks(piece, numbers[at : at + inside], cut=cut and torn)
            at += inside

    def _learn(self, data: bytes) -> None:
        """See from the first lines which columns there are, before whole chunks are parsed."""
        head = next(pieces(data, _SMALLEST))
        if len(head) < len(data):
            self.quick.parse(head)

    def _one_by_one(self, data: bytes, numbers: np.ndarray, *, cut: bool) -> Block:
        rows = Rows()
        rows.add_lines(data, numbers.tolist(), cut=cut)
        return self._block(rows)

    def add_rows(self, rows: Rows) -> None:
        """Take in rows that were read one by one."""
        self.columns.add_block(self._block(rows))

    def _block(self, rows: Rows) -> Block:
        self.nested |= rows.nested
        self.lists.add(rows.lists)
        for number, row in zip(rows.lines, rows.values, strict=True):
            for name, value in row.items():
                if value is None:
                    self._add_null(name, number)
        for number, why in rows.bad:
            self.add_bad(number, why)
            if why == CUT_SHORT:
                self.notes.append(f"the last line, {number:,}, is cut short: left out")
        return Block(rows.columns(), np.array(rows.lines, np.int64))

    def _find_nulls(self, data: bytes, numbers: np.ndarray) -> None:
        ends = positions(data, _NEWLINE)
        at = -1
        while (at := data.find(b"null", at + 1)) >= 0:
            stop = data.rfind(b'"', max(0, at - 8), at)
            if stop < 0 or data[stop + 1 : at].strip() != b":":
                continue
            start = data.rfind(b'"', max(0, stop - _LONGEST_NAME), stop)
            name = data[start + 1 : stop].decode("utf-8", "replace")
            self._add_null(name, int(numbers[np.searchsorted(ends, at)]))

    def _add_null(self, name: str, line: int, times: int = 1) -> None:
        first = self.nulls.setdefault(name, [line, 0])
        self.nulls[name] = [min(line, first[0]), first[1] + times]

    def add_bad(self, line: int, why: str) -> None:
        """Count a line that cannot be used."""
        self.bad += 1
        # torn lines are read after those around them, so that a line may come before known ones
        self.first_bad = sorted([*self.first_bad, (line, why)])[:BAD_SHOWN]

    def table(self, needed: Needed | None = None) -> Table:
        """Return all that was read."""
        frame = self.columns.frame(self.nested, self.notes, needed)
        for name, (line, times) in self.nulls.items():
            frame = self._with_nulls(frame, name, line, times)
        self.notes += self.lists.notes()
        bad = BadLines(count=self.bad, first=tuple(self.first_bad))
        return Table(frame=frame, notes=tuple(self.notes), bad=bad)

    def _with_nulls(self, frame: pl.DataFrame, name: str, line: int, times: int) -> pl.DataFrame:
        """Read a null as the NaN it stands for, or tell that it may.

        Writers that have no NaN (orjson, JavaScript) put null. It is one for certain where the
        name stood in every row with a number in all rows before, and the rows with the null hold
        nothing that other rows do not: a row of its own for an evaluation is null on purpose. A
        loss that was NaN leaves no finite gradient norm.
        """
        named = [c for c in frame.columns if c == name or c.endswith(f"/{name}")]
        if not named and resolve([name]):  # kept, so that it can be told that it holds nothing
            return frame.with_columns(pl.lit(None, pl.Float64).alias(name))
        if len(named) != 1 or not frame[named[0]].dtype.is_numeric():
            return frame
        column = named[0]
        before = int(frame[LINE].search_sorted(line))
        told = f"{column!r} is null in {times:,} rows, first in line {line:,}, having been a number"
        if _norms_are_well(frame, column):
            self.notes.append(f"{told}: no NaN, for the gradient norm beside it is finite")
            return frame
        if frame[column].null_count() == times and _always(frame, column, before):
            self.notes.append(f"{told} in all rows before: read as NaN, which such loggers lack")
            return frame.with_columns(pl.col(column).cast(pl.Float64).fill_null(float("nan")))
        if frame[column].slice(0, before).count() >= _FIRM:
            self.notes.append(f"{told} in the rows before: some loggers write NaN as null")
        return frame


def _norms_are_well(frame: pl.DataFrame, column: str) -> bool:
    """Say whether a loss is null only in rows whose gradient norm, which it makes, is finite."""
    norm = resolve(frame.columns).get("grad_norm")
    if "loss" not in resolve([column]) or norm is None or not frame[norm].dtype.is_numeric():
        return False
    beside = frame[norm].filter(frame[column].is_null()).cast(pl.Float64)
    return bool(beside.is_finite().fill_null(value=False).all())


def _always(frame: pl.DataFrame, column: str, before: int) -> bool:
    """Say whether a column was a number in its first rows, and its nulls are in ordinary rows."""
    if before < _ALWAYS or frame[column].slice(0, before).null_count():
        return False
    here = frame.filter(pl.col(column).is_null())
    return all(
        here[c].null_count() == here.height or 2 * frame[c].null_count() < frame.height
        for c in frame.columns
    )


def _line_numbers(data: bytes, numbers: np.ndarray, rows: int) -> np.ndarray | None:
    """Return the numbers of the lines that are not blank; None where they are not ``rows``."""
    if len(numbers) == rows:
        return numbers
    filled = [bool(line.strip()) for line in data.split(b"\n")][: len(numbers)]
    numbers = numbers[np.flatnonzero(filled)]
    return numbers if len(numbers) == rows else None


def _torn(data: bytes, ends: np.ndarray) -> np.ndarray:
    """Say of each line whether it does not begin or not end as an object does."""
    array = np.frombuffer(data, np.uint8)
    first = array[np.append(0, ends[:-1])]
    last = np.where(array[ends - 1] == _NEWLINE, ends - 2, ends - 1)
    last = np.where(array[last] == ord("\r"), last - 1, last)
    torn: np.ndarray = (first != ord("{")) | (array[last] != ord("}"))
    return torn


def _lines(data: bytes, ends: np.ndarray, wanted: np.ndarray) -> bytes:
    """Return some of the lines."""
    change = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
    bounds = np.append(0, ends)[change].tolist()
    return b"".join(data[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True))


def read_array(path: Path) -> Table:
    """Read a file that is one JSON array of objects; ``@line`` counts its objects from 1.

    Raises:
        LogError: The file is too large to be held in memory.
    """
    if path.stat().st_size > LARGEST_ARRAY:
        raise LogError(
            f"{path}: a JSON array of more than {LARGEST_ARRAY >> 30} GB: write one object a"
            " line instead, e.g. with jq -c '.[]'"
        )
    text = decoded(path.read_bytes())
    reading = _Reading()
    rows = Rows()
    at = text.find("[") + 1
    number = 1
    while (match := _BETWEEN.match(text, at)) and (at := match.end()) < len(text):
        if text[at] == "]":
            break
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            rows.bad.append((number, "cut short, or broken"))
            reading.notes.append(
                f"the array breaks off in its object {number:,}: what came before was read"
            )
            break
        if isinstance(value, dict):
            rows.add(value, number)
        else:
            rows.bad.append((number, "not an object"))
        number += 1
    else:
        reading.notes.append("the array has no end: the file is cut short")
    reading.add_rows(rows)
    return reading.table()


def decoded(data: bytes) -> str:
    """Return bytes as text, whatever byte order mark they begin with."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")
