"""Layouts: lines that all look alike are read many at once, where the result can be proved the same.

A layout is learnt from one line that was read the slow way: which of its fields holds what, and
the text that stands around each number. A line that differs from it in anything but the digits
is left to the slow way, which is the arbiter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from stabcli.assembly import WALL
from stabcli.delimited import split
from stabcli.textlog.numbers import NO_GROUP, is_missing, number, split_unit

TOTAL = "@total"
"""Column of the last step planned."""


_FEW = 100  # lines looked at before all are


@dataclass(frozen=True, slots=True)
class _Field:
    """A field that says ``name: value``."""

    at: int
    prefix: str
    column: str | None
    """None for a value that is no number."""
    unit: str
    factor: float
    commas: bool
    sample: str
    """The field as it stood in the line that the layout is learnt from."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch of the head that differs from line to line."""

    start: int
    stop: int
    column: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What the slow way found in a line."""

    line: str
    """As it stands in the log."""
    spans: Mapping[str, tuple[int, int]]
    """Where the groups of the pattern stand, and the time under ``@wall_time``."""
    pairs: Mapping[int, tuple[str, str | None, str]]
    """Number of a field -> the text before its value, its column, and the value as spelt."""


@dataclass(frozen=True, slots=True)
class Found:
    """Lines of a chunk that were read at once."""

    at: np.ndarray
    """Which lines, counted from 0."""
    columns: dict[str, pl.Series]
    """A value for each line of the chunk, of which only those of these lines mean anything."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the lines of a log look."""

    separator: str
    width: int
    """Fields of a line."""
    head: int
    """Number of the field that holds the step."""
    text: str
    """That field."""
    spans: tuple[_Span, ...]
    fields: tuple[_Field, ...]
    empty: tuple[tuple[int, str], ...]
    """Fields that hold nothing, with the blanks in them."""

    def read(self, data: bytes, lines: int) -> Found | None:
        """Read the lines of a chunk that look like this; None where none can be told apart.

        Args:
            data: Whole lines.
            lines: How many.
        """
        if "\r" in self.separator or not lines:
            return None
        table = split(data, lines, self.separator, self.width)
        if table is None:
            return None
        head, beyond = pl.col(str(self.head)), pl.col(str(self.width))
        values, fits = self._head()
        fits += [head.str.len_bytes() == len(self.text), beyond.is_null()]
        for field in self.fields:
            _field_of(table[str(field.at)], field, values, fits)
        for i, blank in self.empty:
            text = pl.col(str(i))
            fits.append(text == blank if blank else text.is_null() | (text == ""))
        made = table.select(*values.values(), pl.all_horizontal(fits).alias("@fits"))
        read = [pl.col("@fits").fill_null(value=False)]
        read += [pl.col(column).is_not_null() for column in values if made[column].null_count()]
        good = made.select(pl.all_horizontal(read)).to_series()
        at = np.flatnonzero(good.to_numpy())
        return Found(at, gathered(made, [n for n in values if not n.startswith("@_")]))

    def _head(self) -> tuple[dict[str, pl.Expr], list[pl.Expr]]:
        """Read the spans of the head, all as wide as in the line that the layout is learnt from."""
        text = pl.col(str(self.head))
        values: dict[str, pl.Expr] = {}
        fits: list[pl.Expr] = []
        end = len(self.text)
        at = 0
        for i, span in enumerate((*self.spans, _Span(end, end, None))):
            if span.column == TOTAL:  # hardly ever changes: a literal like what stands around it
                total = float(self.text[span.start : span.stop])
                values[TOTAL] = pl.repeat(total, pl.len(), dtype=pl.Float64).alias(TOTAL)
                continue
            between = self.text[at : span.start]
            if between and at == 0:
                fits.append(text.str.starts_with(between))
            elif between and span.start == end:
                fits.append(text.str.ends_with(between))
            elif between:
                fits.append(text.str.slice(at, len(between)) == between)
            at = span.stop
            if span.start == span.stop:
                continue
            part = text.str.slice(span.start, span.stop - span.start)
            name = span.column or f"@_{i}"
            if span.column == WALL:
                values[name] = times(part, self.text[span.start : span.stop]).alias(name)
            elif span.column == "step":
                digits = part.str.strip_chars_start(" ").cast(pl.UInt64, strict=False)
                values[name] = digits.cast(pl.Float64).alias(name)
                signed = part if "+" in self.text else text
                fits.append(~signed.str.contains("+", literal=True))
            else:
                values[name] = part.str.strip_chars_start(" ").cast(pl.Float64, strict=False)
                values[name] = values[name].alias(name)
                fits.append(part.str.contains(r"^ *\d[\d.]*$"))
        return values, fits


def times(text: pl.Expr, sample: str) -> pl.Expr:
    """Return microseconds since 1970 of times that are spelt like a sample, without a zone."""
    fraction = sample[19:20] in {",", "."}
    form = f"%Y{sample[4]}%m{sample[7]}%d{sample[10]}" + "%H:%M:%S" + ("%.f" if fraction else "")
    if sample[19:20] == ",":
        text = text.str.replace(",", ".", literal=True)
    # nearly every time is another: a cache of them would cost five times as much as it saves
    times = text.str.to_datetime(form, time_unit="us", strict=False, cache=False)
    return times.dt.epoch("us")


def gathered(made: pl.DataFrame, names: Iterable[str]) -> dict[str, pl.Series]:
    """Return columns by name, times in seconds."""
    columns = {name: made[name] for name in names}
    if WALL in columns:
        # divided by NumPy: Polars multiplies with the inverse, which may be off by one bit
        columns[WALL] = pl.Series(columns[WALL].to_numpy() / 1e6)
    return columns


def _field_of(
    series: pl.Series, field: _Field, values: dict[str, pl.Expr], fits: list[pl.Expr]
) -> None:
    """Add what is to be read of one field, and what has to be so for it to be true."""
    text = pl.col(str(field.at))
    if field.column is None:
        fits += [text.str.starts_with(field.prefix), ~text.str.contains("\r", literal=True)]
        return
    ends = (series.head(_FEW), series)  # most that vary do so at once
    if all((part == field.sample).all() for part in ends):  # nulls are other lines: passed by
        value = _value(field.sample, field)
        fits.append(text.is_not_null())
        values[field.column] = pl.repeat(value, pl.len(), dtype=pl.Float64).alias(field.column)
        return
    fits.append(text.str.starts_with(field.prefix))  # cheaper than to strip it, which looks too
    spelt = text.str.slice(len(field.prefix)).str.strip_chars(" ")
    if field.unit:
        fits.append(spelt.str.ends_with(field.unit))
        spelt = spelt.str.strip_suffix(field.unit).str.strip_chars(" ")
    if field.commas:
        fits.append(~spelt.str.contains(NO_GROUP))
        spelt = spelt.str.replace_all(",", "", literal=True)
    number = spelt.cast(pl.Float64, strict=False)
    values[field.column] = (number * field.factor).alias(field.column)
    if field.factor == 1.0:
        values[field.column] = number.alias(field.column)


def _value(text: str, field: _Field) -> float | None:
    if not text.startswith(field.prefix):
        return None
    return number(text[len(field.prefix) :].strip())


def learn(learnt: Learnt, separator: str) -> Layout | None:
    """Make a layout of a line; None where lines like it have to be read one by one."""
    texts = learnt.line.split(separator)
    if not learnt.line.isascii():
        return None
    starts = np.cumsum([0, *(len(t) + 1 for t in texts[:-1])])
    places = {bisected(starts, a) for a, b in learnt.spans.values() if b > a}
    if len(places) != 1:
        return None
    head = places.pop()
    base = int(starts[head])
    spans = _widened(learnt.spans, texts[head], base)
    if spans is None:
        return None
    fields: list[_Field] = []
    empty: list[tuple[int, str]] = []
    for i, text in enumerate(texts):
        if i == head:
            continue
        if not text.strip():
            empty.append((i, text))
            continue
        if i not in learnt.pairs:
            return None
        field = _field(i, text, *learnt.pairs[i])
        if field is None:
            return None
        fields.append(field)
    return Layout(separator, len(texts), head, texts[head], spans, tuple(fields), tuple(empty))


def bisected(starts: np.ndarray, at: int) -> int:
    """Return in which field a place of the line lies."""
    return int(np.searchsorted(starts, at, side="right")) - 1


def _widened(
    groups: Mapping[str, tuple[int, int]], text: str, base: int
) -> tuple[_Span, ...] | None:
    """Return the spans of the head in order; numbers take in the blanks that they are padded with."""
    spans: list[_Span] = []
    for name, (start, stop) in sorted(groups.items(), key=lambda item: item[1]):
        begin, end = start - base, stop - base
        if begin == end or begin < 0:
            continue
        if name != WALL:
            while begin and text[begin - 1] == " ":
                begin -= 1
            begin = min(begin + 1, start - base) if begin and text[begin] == " " else begin
        if end > len(text) or (spans and spans[-1].stop > begin):
            return None
        column = {"step": "step", "total": TOTAL}.get(name, None if name.startswith("_") else name)
        spans.append(_Span(begin, end, column))
    return tuple(spans)


def _field(at: int, sample: str, prefix: str, column: str | None, spelt: str) -> _Field | None:
    prefix = prefix.rstrip(" ")
    if not prefix.strip() or is_missing(spelt):
        return None
    if column is None or number(spelt) is None:
        return _Field(at, prefix, None, "", 1.0, commas=False, sample=sample)
    parts = split_unit(spelt)
    if parts is None or re.fullmatch(r"[\s\d.]*", prefix):
        return None
    value, unit, factor = parts
    return _Field(at, prefix, column, unit, factor, "," in value or "_" in value, sample)
