"""Lines: read one by one. Slow and sure; ``stabcli.textlog.layout`` may only ever agree with it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from stabcli.assembly import WALL
from stabcli.metrics import resolve
from stabcli.textlog.grammar import Grammar, Line
from stabcli.textlog.hygiene import Peeled, peel, seconds
from stabcli.textlog.layout import TOTAL, Learnt
from stabcli.textlog.numbers import has_decimal_comma, is_missing, number, split_unit
from stabcli.textlog.rows import KIND, RANK

_LARGEST_STEP = 2.0**53
_FIELD = re.compile(
    r"(?P<before>\s*(?P<name>[^:=|]*?[^:=|\s])\s*[:=]\s*)(?P<value>\S(?:.*\S)?)?\s*"
)
_BARE = re.compile(r"(?P<before>\s*(?P<name>[A-Za-z][^\d]*?)\s+)(?P<value>\S+)\s*")
"""A field without a colon: ``lr 6.0e-05``."""
_GARBLED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]")
"""What stands in no text."""


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that is no number."""

    column: str
    why: str
    damaged: bool
    """Whether it can be no text that is meant: its column measures, or it is no text at all."""


@dataclass(slots=True)
class Parser:
    """Reads the lines of one grammar."""

    grammar: Grammar
    wrong: list[BadValue] = field(default_factory=list)
    """Values of the last line that are no numbers."""
    commas: dict[str, str] = field(default_factory=dict)
    """Columns with a comma for a decimal point, and the first value that has one."""
    learnt: Learnt | None = None
    """Of the last line: what stands where in it, if it held one whole row."""
    _pairs: dict[int, tuple[str, str | None, str]] = field(default_factory=dict)

    def parse(self, text: str, *, torn: bool = False) -> list[dict[str, float]]:
        """Return the rows in a line, which are several where processes printed into one another.

        Args:
            text: The line.
            torn: The file ends inside the line: its last value may be cut and is left out.
        """
        self.wrong = []
        self.learnt = None
        for kind, line in enumerate(self.grammar.lines):
            if line.mark not in text:
                continue
            peeled = peel(text)
            if line.anchored:
                only = line.head.match(text, peeled.start)
                heads = [only] if only else []
            else:
                heads = list(line.head.finditer(text, peeled.start))
            if not heads:
                continue
            rows = []
            for i, head in enumerate(heads):
                start = peeled.start if i == 0 else head.start()
                end = heads[i + 1].start() if i + 1 < len(heads) else len(text)
                row = self._row(line, head, (start, end), torn=torn and end == len(text))
                if row is not None:
                    rows.append(_with_origin(row, kind, peeled, text))
            if len(rows) == len(heads) == 1 and not torn and line.separator is not None:
                self.learnt = self._learnt(line, head, peeled, text)
            if rows:
                return rows
        return []

    def _row(
        self, line: Line, head: re.Match[str], part: tuple[int, int], *, torn: bool
    ) -> dict[str, float] | None:
        """Return what stands in ``part`` of a line; None where that is no step or no value."""
        row: dict[str, float] = {}
        steps: dict[str, float] = {}
        for name, spelt in head.groupdict().items():
            if spelt is None or name.startswith("_"):
                continue
            value = number(spelt)
            if name in ("step", "total"):
                if value is not None and abs(value) < _LARGEST_STEP:
                    steps["step" if name == "step" else TOTAL] = value
                continue
            if not (torn and head.end(name) == part[1] and _may_be_cut(value)):
                self._take(row, line.names.get(name, name), spelt, value)
        for column, spelt, value in self._named(line, head, part, torn=torn):
            self._take(row, column, spelt, value)
        if not row or ("step" not in steps and line.step == "own"):
            return None
        return {**steps, **row}

    def _take(self, row: dict[str, float], column: str, spelt: str, value: float | None) -> None:
        if value is not None:
            row[column] = value
            if "," in spelt and column not in self.commas:
                parts = split_unit(spelt)
                if parts is not None and has_decimal_comma(parts[0]):
                    self.commas[column] = spelt
        elif not is_missing(spelt):
            why = f"{column!r} is no number: {spelt[:40]!r}"
            self.wrong.append(
                BadValue(column, why, bool(_GARBLED.search(spelt)) or _measures(column))
            )

    def _named(
        self, line: Line, head: re.Match[str], part: tuple[int, int], *, torn: bool
    ) -> Iterator[tuple[str, str, float | None]]:
        """Yield column, value as spelt, and value of every pair."""
        text = head.string
        self._pairs = {}
        if line.pairs is not None:
            for pair in line.pairs.finditer(text, head.end(), part[1]):
                spelt = pair["value"]
                value = number(spelt)
                if torn and pair.end("value") == part[1] and _may_be_cut(value):
                    continue
                column = _column(line, pair["name"])
                if column is not None:
                    yield column, spelt, value
        if line.separator is None:
            return
        at = text.rfind(line.separator, 0, part[0]) + 1
        before = text.count(line.separator, 0, at)
        for i, whole in enumerate(text[at : part[1]].split(line.separator), before):
            begin, end = at, at + len(whole)
            at = end + 1
            start, stop = max(begin, part[0]), min(end, part[1])
            if stop <= start or (head.start() < end and head.end() > begin):
                continue
            found = _FIELD.fullmatch(text, start, stop) or _BARE.fullmatch(text, start, stop)
            if found is None or found["value"] is None:
                continue
            spelt = found["value"]
            value = number(spelt)
            if torn and stop == len(text) and _may_be_cut(value):
                continue
            column = _column(line, found["name"])
            text_only = value is None and not is_missing(spelt)
            self._pairs[i] = text[begin : found.end("before")], None if text_only else column, spelt
            if column is not None:
                yield column, spelt, value

    def _learnt(self, line: Line, head: re.Match[str], peeled: Peeled, text: str) -> Learnt:
        spans = {
            name if name in ("step", "total") or name.startswith("_") else line.names.get(name, name)
            : head.span(name)
            for name in head.re.groupindex
            if head[name] is not None
        }  # fmt: skip
        if peeled.time is not None:
            spans[WALL] = peeled.time
        return Learnt(line=text, spans=spans, pairs=self._pairs)


def _with_origin(row: dict[str, float], kind: int, peeled: Peeled, text: str) -> dict[str, float]:
    row[KIND] = float(kind)
    if peeled.rank is not None:
        row[RANK] = float(peeled.rank)
    if peeled.time is not None:
        when = seconds(text[slice(*peeled.time)])
        if when is not None:
            row[WALL] = when
    return row


def _column(line: Line, name: str) -> str | None:
    """Return the column of a pair, None where it measures nothing."""
    name = name.strip()
    if name in line.without:
        return None
    return line.names.get(name, line.prefix + name)


@lru_cache(maxsize=1024)
def _measures(column: str) -> bool:
    return bool(resolve([column]).keys() - {"step", "epoch", "wall_time", "elapsed_seconds"})


def _may_be_cut(value: float | None) -> bool:
    """Say whether a number at the end of a torn line may go on; NaN cannot be half a number."""
    return value is None or math.isfinite(value)
