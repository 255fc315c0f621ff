"""Words: lines that differ in nothing but their numbers are read many at once, whatever they say.

For lines without fields (``stabcli.textlog.layout``). One line is read the slow way; then again
and again, each time with one of its numbers changed, which shows what becomes of that number.
After that such lines are split at their blanks, each word is compared with that of the line, and
its number is read. A few lines of every chunk are read the slow way as well: it is the arbiter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from stabcli.assembly import WALL
from stabcli.delimited import split
from stabcli.textlog.layout import Found, gathered, times
from stabcli.textlog.numbers import NO_GROUP, UNITS

Parse = Callable[[str], Mapping[str, float] | None]
"""The slow way: a line -> its one row; None where it holds none, or more, or what is no number."""

_MOST = 400  # words in a line
_CHECKED = 8  # lines of a chunk that are read the slow way as well
_APART = b"()[]|/"  # before each of these another word begins
_SPACES = re.compile(rb"  +")
_NUMBER = re.compile(
    r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
)
_SIGN = re.compile(r"(?:(?<=[:=,])|^)[-+]$")
_WHEN = re.compile(r"([\[(]?)(\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_SPELLINGS = (
    ("1.5", ".", 1.5),
    ("-3", "-", -3.0),
    ("2.5e-05", ".eE+-", 2.5e-05),
    ("nan", "naNA", math.nan),
    ("inf", "infINFtyTY", math.inf),
)
"""Ways to spell a number that the lines of a log may take or not, and the characters of each."""
_DIGITS = re.compile(r"[0-9]+")
_OTHER = str.maketrans("0123456789", "1234567891")


@dataclass(frozen=True, slots=True)
class _Word:
    """A word with a number that differs from line to line."""

    at: int
    before: str
    behind: str
    columns: tuple[tuple[str, float], ...]
    """Columns that the number goes into, each with its unit's factor; none if it says nothing."""
    alien: str
    """Pattern of what no number there may hold."""
    grouped: bool
    """Whether there are commas between its thousands."""


@dataclass(frozen=True, slots=True)
class _Clock:
    """The time of a line."""

    words: range
    """Numbers of the one or two words that hold it."""
    before: str
    """What stands before it in the first of them."""
    sample: str
    """It, as spelt in one line."""


@dataclass(frozen=True, slots=True)
class Words:
    """How the lines of a log look."""

    constant: tuple[tuple[int, str], ...]
    """Number of a word -> what it always is."""
    idle: tuple[tuple[int, str], ...]
    """Number of a word -> pattern of one with several numbers that say nothing."""
    varying: tuple[_Word, ...]
    clock: _Clock | None
    always: Mapping[str, float]
    """Columns that no number of the line goes into."""
    apart: bytes
    """Characters of the line before which another word begins."""
    parse: Parse

    def read(self, data: bytes, lines: int) -> Found | None:
        """Read the lines of a chunk that look like this; None where none does for certain.

        Args:
            data: Whole lines.
            lines: How many.
        """
        width = len(self.constant) + len(self.idle) + len(self.varying)
        width += len(self.clock.words) if self.clock else 0
        table = split(_spaced(data, self.apart), lines, " ", width) if lines else None
        if table is None:
            return None
        fits = [pl.col(str(width)).is_null()]
        for at, text in self.constant:
            word = pl.col(str(at))
            fits.append(word == text if text else word.is_null())
        fits += [pl.col(str(at)).str.contains(pattern) for at, pattern in self.idle]
        values: dict[str, pl.Expr] = {}
        for varying in self.varying:
            number = _number(varying, fits)
            if not varying.columns:
                fits.append(number.is_not_null())
            for column, factor in varying.columns:
                values[column] = number if factor == 1.0 else number * factor
        if self.clock is not None:
            clock = self.clock
            when = pl.concat_str([pl.col(str(at)) for at in clock.words], separator=" ")
            if clock.before:
                fits.append(when.str.starts_with(clock.before))
                when = when.str.slice(len(clock.before))
            fits.append(when.str.len_bytes() == len(clock.sample))
            values[WALL] = times(when, clock.sample)
        for column, value in self.always.items():
            values[column] = pl.repeat(value, pl.len(), dtype=pl.Float64)
        made = table.select(
            *(value.alias(column) for column, value in values.items()),
            pl.all_horizontal(fits).fill_null(value=False).alias("@fits"),
        )
        read = [pl.col("@fits"), *(pl.col(c).is_not_null() for c in values)]
        at_once = np.flatnonzero(made.select(pl.all_horizontal(read)).to_series().to_numpy())
        found = Found(at_once, gathered(made, values))
        return found if len(at_once) and self._is_right(data, found) else None

    def _is_right(self, data: bytes, found: Found) -> bool:
        """Say whether some of the lines are read the same in the slow way."""
        lines = data.split(b"\n")
        picked = np.linspace(0, len(found.at) - 1, _CHECKED).astype(int)
        for at in found.at[picked].tolist():
            row = self.parse(lines[at].decode("utf-8", "replace"))
            read = {column: series[at] for column, series in found.columns.items()}
            if row is None or not _same(row, read):
                return False
        return True


def _number(word: _Word, fits: list[pl.Expr]) -> pl.Expr:
    """Return the number of a word, adding what has to be so for it to be one."""
    text = pl.col(str(word.at))
    if word.before:
        fits.append(text.str.starts_with(word.before))
        text = text.str.slice(len(word.before))
    if word.behind:
        fits.append(text.str.ends_with(word.behind))
        text = text.str.strip_suffix(word.behind)
    fits.append(~text.str.contains(word.alien))
    if word.grouped:
        fits.append(~text.str.contains(NO_GROUP))
        text = text.str.replace_all(",", "", literal=True)
    return text.cast(pl.Float64, strict=False)


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Say whether rows are the same to the last digit."""
    return one.keys() == other.keys() and all(
        value == other[column] or (math.isnan(value) and math.isnan(other[column]))
        for column, value in one.items()
    )


def _spaced(data: bytes, apart: bytes) -> bytes:
    """Return lines with a blank before some characters, and one for many blanks."""
    for character in apart:
        data = data.replace(bytes([character]), b" " + bytes([character]))
    return _SPACES.sub(b" ", data) if b"  " in data else data


def learn(line: str, parse: Parse) -> Words | None:
    """Find out what becomes of the numbers of a line; None where lines like it are read singly.

    Args:
        line: One that was read.
        parse: How.
    """
    row = parse(line)
    apart = bytes(character for character in _APART if character in line.encode())
    words = _spaced(line.encode(), apart).decode().split(" ")
    if not row or not line.isascii() or len(words) > _MOST or "\r" in line:
        return None
    spans = [found.span() for found in _NUMBER.finditer(line)]
    constant: list[tuple[int, str]] = []
    idle: list[tuple[int, str]] = []
    varying: list[_Word] = []
    told: set[str] = set()
    clock = _clock(words, row)
    if clock is None and WALL in row:
        return None
    nth = 0  # of the numbers of the line, which stand in the words in the same order
    for at, word in enumerate(words):
        numbers = list(_NUMBER.finditer(word))
        nth += len(numbers)
        if clock is not None and at in clock.words:
            continue
        moves = [_moved(line, row, span, parse) for span in spans[nth - len(numbers) : nth]]
        if len(moves) > 1 and all(move == () for move in moves):
            idle.append((at, f"^{_DIGITS.sub('[0-9]+', re.escape(word))}$"))
            continue
        moved = moves[-1] if moves else None
        if moved is None:
            constant.append((at, word))
            continue
        last = numbers[-1]
        before = _SIGN.sub("", word[: last.start()])
        begin, end = spans[nth - 1]
        place = line[: begin - (last.start() - len(before))], line[end:]
        grouped = "," in last[0]
        alien = _alien(place, row, moved, parse, "," if grouped else "")
        varying.append(_Word(at, before, word[last.end() :], moved, alien, grouped))
        told.update(column for column, _ in moved)
    always = {c: v for c, v in row.items() if c not in told and c != WALL}
    if not told:
        return None
    return Words(tuple(constant), tuple(idle), tuple(varying), clock, always, apart, parse)


def _clock(words: list[str], row: Mapping[str, float]) -> _Clock | None:
    """Return where the time of a line stands, if it is read as its row says."""
    for at in range(len(words) if WALL in row else 0):
        for count in (1, 2):
            found = _WHEN.fullmatch(" ".join(words[at : at + count]))
            if found is None:
                continue
            sample = found[2]
            read = pl.DataFrame({"when": [sample]}).select(times(pl.col("when"), sample)).item()
            right = read is not None and read / 1e6 == row[WALL]
            return _Clock(range(at, at + count), found[1], sample) if right else None
    return None


def _moved(
    line: str, row: Mapping[str, float], span: tuple[int, int], parse: Parse
) -> tuple[tuple[str, float], ...] | None:
    """Return the columns that another number there changes, each with the factor.

    None where lines with another number there are none of this kind, or it is not plainly read.
    """
    spelt = line[slice(*span)]
    other = spelt.translate(_OTHER)
    changed = parse(line[: span[0]] + other + line[span[1] :])
    if changed is None or changed.keys() != row.keys():
        return None
    moved: list[tuple[str, float]] = []
    for column, value in row.items():
        if changed[column] == value or math.isnan(value):
            continue
        was, now = (abs(float(text.replace(",", ""))) for text in (spelt, other))
        factor = next(
            (
                f
                for f in (1.0, *UNITS.values())
                if was * f == abs(value) and now * f == abs(changed[column])
            ),
            None,
        )
        if factor is None:
            return None
        moved.append((column, factor))
    return tuple(moved)


def _alien(
    place: tuple[str, str],
    row: Mapping[str, float],
    moved: tuple[tuple[str, float], ...],
    parse: Parse,
    also: str,
) -> str:
    """Return a pattern of what no number may hold that stands between two parts of a line."""
    allowed = set(also)
    for spelt, characters, value in _SPELLINGS:
        changed = parse(spelt.join(place))
        expected = {**row, **{column: value * factor for column, factor in moved}}
        if changed is not None and _same(changed, expected):
            allowed.update(characters)
    return f"[^0-9{re.escape(''.join(sorted(allowed)))}]"
