"""Tables: delimited text with a header line, as columns of numbers and text.

A row counts only where it has as many fields as the header: what a crash tore or glued together
has not, and half a number must never pass for a number.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from stabcli import delimited
from stabcli.assembly import LINE
from stabcli.metrics import resolve
from stabcli.sources import HEAD_BYTES
from stabcli.spellings import as_number

SEPARATORS = (",", ";", "\t")

_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 24
_SAMPLE = 1 << 14
"""Bytes looked at in the head, the middle and the tail to tell numbers from text."""
_JOINED = 64
"""Most lines that one quoted field may span."""
_NUMBER = r"(?i)^[+-]?((\d[\d,_]*\.?\d*|\.\d+)(e[+-]?\d+)?%?|nan(\(\w+\))?|inf(inity)?)$"
_IS_NUMBER = re.compile(_NUMBER)
_IS_FLOAT = re.compile(r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)$")
_DECIMAL_COMMA = r"(?i)^[+-]?\d+,\d+(e[+-]?\d+)?$"
_THOUSANDS = r"^[+-]?[1-9]\d{0,2}(,\d{3})+$"
_MISSING = ("", "null", "none", "n/a", "na", "???")

Bad = list[tuple[int, str]]
"""Line number and reason of every line or cell that could not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The line that names the columns."""

    names: list[str]
    """As many as a row has fields; a name may come twice or be empty."""
    separator: str
    """What parts the fields."""
    raw: bytes
    """The line itself, without its line feed: the same line again is no row."""
    start: int
    """Byte at which the rows begin."""
    line: int
    """Its line number, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of a file."""

    frame: pl.DataFrame
    """Its columns as Float64 or, where they are no numbers, String; and ``@line``."""
    notes: list[str]
    """What had to be decided."""
    bad: Bad
    """What could not be used, in the order of the file."""


def split(line: str, separator: str) -> list[str]:
    """Return the fields of one row, without their quotes; none where it is no text of a table."""
    try:
        return next(csv.reader(io.StringIO(line), delimiter=separator), [])
    except csv.Error:
        return []


def is_number(cell: str) -> bool:
    """Say whether a cell is a number in any of the spellings that trainers print."""
    return _IS_NUMBER.match(cell.strip()) is not None


def find_header(head: bytes) -> Header | None:
    """Return the header that the first bytes of a file begin with; None where it is no table.

    Empty lines and lines of comment may stand above it.
    """
    start = len(_BOM) if head.startswith(_BOM) else 0
    lines = head[start:].split(b"\n")
    if len(head) >= HEAD_BYTES:
        lines.pop()  # the head ends within this line
    text = [line.decode("utf-8", "replace").rstrip("\r") for line in lines]
    for number, line in enumerate(text):
        start += len(lines[number]) + 1
        if not line.strip():
            continue
        below = [t for t in text[number + 1 : number + 40] if t.strip() and t != line]
        if found := _header_of(line, below[:20]):
            return Header(
                names=found[0],
                separator=found[1],
                raw=lines[number],
                start=min(start, len(head)),
                line=number + 1,
            )
        if not line.startswith("#"):
            return None
    return None


def _header_of(line: str, rows: list[str]) -> tuple[list[str], str] | None:
    """Return names and separator where ``line`` names the columns of ``rows``."""
    if line.lstrip("# ").startswith(("{", "[", "<")):
        return None
    best: tuple[int, int, list[str], str] | None = None
    for separator in SEPARATORS:
        names = [n.strip().lstrip("@") for n in split(line.removeprefix("#"), separator)]
        if len(names) < 2 or any(is_number(n) for n in names):
            continue
        cells = [split(row, separator) for row in rows]
        equal = [row for row in cells if len(row) == len(names)]
        if "step" in resolve(names):
            fits = bool(equal) or len(cells) <= 1
        else:
            fits = 2 * len(equal) > len(cells) and any(is_number(c) for r in equal for c in r)
        if fits and (best is None or (len(equal), len(names)) > best[:2]):
            best = (len(equal), len(names), names, separator)
    return (best[2], best[3]) if best else None


def read_table(path: Path, header: Header, rename: Callable[[list[str]], list[str]]) -> Table:
    """Read the rows below a header.

    Args:
        path: The file that ``header`` was found in.
        header: Its header.
        rename: Makes unique column names of those in the header.
    """
    notes: list[str] = []
    bad: Bad = []
    data = np.memmap(path, np.uint8, "r")
    if header.start >= len(data):
        return Table(frame=pl.DataFrame(), notes=notes, bad=bad)
    names = rename(header.names)
    kinds = _kinds(data[header.start :], header, names)
    if pl.String not in kinds.values() and data[: header.start].tobytes().isascii():
        frame = None
        if data[-1] == ord("\n"):
            sep = header.separator
            frame = delimited.regular(path, header.start, header.line, kinds, sep)
        if frame is not None:
            number = pl.int_range(header.line + 1, header.line + 1 + frame.height, dtype=pl.Int64)
            return Table(frame=frame.with_columns(number.alias(LINE)), notes=notes, bad=bad)
    lines = _Lines(data, header)
    frame = None if lines.spanning else _parsed(path, data, lines, header, kinds)
    if frame is None:
        frame = _line_by_line(data, lines, header, names, bad)
    else:
        lines.report(header, bad)
    if lines.repeated:
        notes.append(f"lines that only repeat the header were left out: {lines.repeated:,}")
    if frame.height:
        _check_end(frame, data, lines, header, names, notes)
        frame = _numbers(frame, header.separator, notes, bad)
    return Table(frame=frame, notes=notes, bad=sorted(bad))


class _Lines:
    """Where the lines of a file begin and end, and which of them are rows."""

    def __init__(self, data: np.ndarray, header: Header) -> None:
        self.stop, self.fields, odd = _scan(data, header.start, ord(header.separator))
        self.start = np.append(header.start, self.stop[:-1] + 1)
        length = self.stop - self.start
        blank = (length == 0) | ((length == 1) & (data[self.start] == ord("\r")))
        again = _repeats(data, self.start, length, header.raw)
        self.unended = bool(data[-1] != ord("\n"))
        """Whether the last line has no line feed."""
        self.spanning = bool(odd[:-1].any() or (odd[-1] and not self.unended))
        """Whether a quoted field may go on in the next line."""
        self.number = header.line + 1 + np.arange(len(self.stop))
        self.rows = np.flatnonzero((self.fields == len(header.names)) & ~odd & ~blank & ~again)
        self.empty = blank | again
        self.repeated = int(again.sum())

    def text(self, data: np.ndarray, i: int) -> str:
        raw: bytes = data[self.start[i] : self.stop[i]].tobytes()
        return raw.decode("utf-8", "replace").rstrip("\r")

    def report(self, header: Header, bad: Bad) -> None:
        """Tell of the lines that are no rows."""
        unused = ~self.empty
        unused[self.rows] = False
        for i in np.flatnonzero(unused).tolist():
            bad.append((int(self.number[i]), self.reason(i, int(self.fields[i]), header)))

    def reason(self, i: int, fields: int, header: Header) -> str:
        if self.unended and i == len(self.stop) - 1:
            return "the last line is cut short"
        return f"not a row: {fields} fields where the header has {len(header.names)}"


def _scan(
    data: np.ndarray, start: int, separator: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where each line ends, its fields, and whether its quotes are odd in number."""
    ends: list[np.ndarray] = []
    marks: list[np.ndarray] = []
    quotes: list[np.ndarray] = []
    num_marks = num_quotes = 0
    for at in range(start, len(data), _BLOCK):
        block = np.asarray(data[at : at + _BLOCK])
        feed = np.flatnonzero(block == ord("\n"))
        quote = np.flatnonzero(block == ord('"'))
        mark = np.flatnonzero(block == separator)
        if num_quotes or len(quote):
            mark = mark[(num_quotes + np.searchsorted(quote, mark)) % 2 == 0]
        ends.append(feed + at)
        marks.append(num_marks + np.searchsorted(mark, feed))
        quotes.append(num_quotes + np.searchsorted(quote, feed))
        num_marks += len(mark)
        num_quotes += len(quote)
    if data[-1] != ord("\n"):
        ends.append(np.array([len(data)]))
        marks.append(np.array([num_marks]))
        quotes.append(np.array([num_quotes]))
    fields = np.diff(np.concatenate(marks), prepend=0) + 1
    odd = np.diff(np.concatenate(quotes), prepend=0) % 2 == 1
    return np.concatenate(ends), fields, odd


def _repeats(data: np.ndarray, start: np.ndarray, length: np.ndarray, raw: bytes) -> np.ndarray:
    """Say of every line whether it is the header line over again."""
    found = np.flatnonzero(length == len(raw))
    for at, byte in enumerate(raw):
        found = found[data[start[found] + at] == byte]
        if not len(found):
            break
    again = np.zeros(len(start), bool)
    again[found] = True
    return again


def _parsed(
    path: Path, data: np.ndarray, lines: _Lines, header: Header, kinds: delimited.Kinds
) -> pl.DataFrame | None:
    """Let polars read the rows; None where it sees other rows than we do."""
    rows = lines.rows
    if not len(rows):
        return pl.DataFrame()
    source: Path | io.BytesIO = path
    skip = header.line
    if len(rows) < len(lines.stop) or not data[: header.start].tobytes().isascii():
        jumps = np.flatnonzero(np.diff(rows) > 1)
        firsts, lasts = rows[[0, *(jumps + 1)]], rows[[*jumps, -1]]
        source, skip = io.BytesIO(), 0
        for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True):
            source.write(data[lines.start[a] : lines.stop[b] + 1].tobytes())
    text: delimited.Kinds = dict.fromkeys(kinds, pl.String)
    for schema in (kinds, text):
        if isinstance(source, io.BytesIO):
            source.seek(0)
        frame = delimited.read(source, skip, schema, header.separator)
        if frame is None:
            continue
        if frame.height != len(rows):
            return None
        return frame.with_columns(pl.Series(LINE, lines.number[rows], dtype=pl.Int64))
    return None


def _kinds(data: np.ndarray, header: Header, names: list[str]) -> delimited.Kinds:
    """Tell columns of numbers from text by rows of the head, the middle and the tail."""
    text: set[int] = set()
    top = max(0, len(data) - _SAMPLE)
    for at in sorted({0, top // 2, top}):
        lines = data[at : at + _SAMPLE].tobytes().decode("utf-8", "replace").split("\n")
        for line in lines[1:-1] or lines:
            row = split(line, header.separator)
            if len(row) == len(names) and [c.strip() for c in row] != header.names:
                text.update(i for i, c in enumerate(row) if c and not _IS_FLOAT.match(c.strip()))
    return {n: pl.String if i in text else pl.Float64 for i, n in enumerate(names)}


def _line_by_line(
    data: np.ndarray, lines: _Lines, header: Header, names: list[str], bad: Bad
) -> pl.DataFrame:
    """Read a file whose quoted fields span lines, or in which a quote was lost."""
    columns: list[list[str]] = [[] for _ in names]
    numbers: list[int] = []
    for i, row in _rows(data, lines, header, bad):
        numbers.append(int(lines.number[i]))
        for column, cell in zip(columns, row, strict=True):
            column.append(cell)
    frame = pl.DataFrame(dict(zip(names, columns, strict=True)), dict.fromkeys(names, pl.String))
    return frame.with_columns(pl.Series(LINE, numbers, dtype=pl.Int64))


def _rows(
    data: np.ndarray, lines: _Lines, header: Header, bad: Bad
) -> Iterator[tuple[int, list[str]]]:
    i, last = 0, len(lines.stop) - 1
    while i <= last:
        if lines.empty[i]:
            i += 1
            continue
        text, end = lines.text(data, i), i
        while text.count('"') % 2 and end < min(last, i + _JOINED):
            end += 1
            text += "\n" + lines.text(data, end)
        row = split(text, header.separator)
        if len(row) != len(header.names) or text.count('"') % 2:
            bad.append((int(lines.number[i]), lines.reason(i, len(row), header)))
            i += 1  # the lines after a lost quote are rows of their own
            continue
        yield i, row
        i = end + 1


_TORN_NUMBER = re.compile(r"^[-+]?[\d.]*(?:[-+.]|e[-+]?\d?)$", re.IGNORECASE)
"""A number that breaks off at its sign, point or exponent (an exponent has two digits or more)."""


def _check_end(
    frame: pl.DataFrame,
    data: np.ndarray,
    lines: _Lines,
    header: Header,
    names: list[str],
    notes: list[str],
) -> None:
    """Leave out the last value where it may be half a number.

    Without a line feed behind it a number may go on. It is believed where quotes end it, where
    it is not finite, and where it has as many characters as its column has anywhere near.
    """
    last = len(lines.stop) - 1
    if not lines.unended or frame[LINE][-1] != lines.number[last]:
        return
    text = lines.text(data, last)
    cell = "".join(split(text, header.separator)[-1:]).strip()
    if not cell or text.endswith('"') or "n" in cell.lower():
        return
    torn = _TORN_NUMBER.search(cell) is not None
    if not torn and not is_number(cell):
        return
    near = (split(lines.text(data, i), header.separator) for i in lines.rows[-200:-1].tolist())
    lengths = [len(row[-1].strip()) for row in near if row and row[-1].strip()]
    if torn or (lengths and len(cell) < min(lengths)):
        column = frame[names[-1]].to_list()
        column[-1] = None
        frame.replace_column(len(names) - 1, pl.Series(names[-1], column, frame[names[-1]].dtype))
        notes.append(f"the last line breaks off: its last value, {cell}, may be half a number")


def _numbers(frame: pl.DataFrame, separator: str, notes: list[str], bad: Bad) -> pl.DataFrame:
    """Turn text into numbers where all but a few cells of a column are numbers."""
    made: list[pl.Series] = []
    texts = [s for s in frame.get_columns() if s.dtype == pl.String]
    commas = separator != "," and any(_has_decimal_commas(s) for s in texts)
    if commas:
        notes.append("commas in numbers are taken as decimal points")
    for series in frame.get_columns():
        if series.dtype != pl.String:
            made.append(series)
            continue
        text = series.str.strip_chars()
        if commas and text.str.contains(_DECIMAL_COMMA).any():
            text = text.str.replace(",", ".", literal=True)
        if text.str.contains("(?i)^(true|false)$").all():
            text = text.str.to_lowercase().replace({"true": "1", "false": "0"})
        wrong = (~text.str.contains(_NUMBER) & ~text.str.to_lowercase().is_in(_MISSING)).fill_null(
            value=False
        )
        count, good = int(wrong.sum()), int(text.str.contains(_NUMBER).sum())
        if count and count < good and count <= max(1, good // 10):
            for i in np.flatnonzero(wrong.to_numpy()).tolist():
                cell = str(text[i])[:40]
                bad.append((int(frame[LINE][i]), f"{series.name}: {cell!r} is not a number"))
            text = text.set(wrong, None)
        elif count and good:
            cell = str(text.filter(wrong)[0])[:40]
            notes.append(
                f"column {series.name!r} holds {good:,} numbers and {count:,} texts, such as"
                f" {cell!r}: it is left out as text"
            )
        values = as_number(text, notes)
        made.append(series if values is None else values)
    return pl.DataFrame(made)


def _has_decimal_commas(series: pl.Series) -> bool:
    """Say whether commas part whole numbers from fractions, and not thousands."""
    text = series.str.strip_chars()
    return bool(
        not text.str.contains(r"\.").any()
        and (text.str.contains(_DECIMAL_COMMA) & ~text.str.contains(_THOUSANDS)).any()
    )
