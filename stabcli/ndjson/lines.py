"""Lines: one by one, with Python's own JSON parser, keeping every object that is whole.

Slow and sure. It says what a line means; ``stabcli.ndjson.quick`` may only ever agree with it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

Value = float | int | str | None

CUT_SHORT = "cut short: the file ends inside it"
"""What is wrong with a last line without a line end."""

_DECODER = json.JSONDecoder()
_ATTEMPTS = 8  # places at which one damaged line is searched for a whole object
_SEARCHED = 1 << 20  # bytes of a damaged line that is searched at all

_BARE = re.compile(
    r"(?<=[:\[,])(\s*)([+-]?)(nan|inf|infinity)(?:\([a-z0-9]*\))?(?=\s*[,}\]])", re.IGNORECASE
)
"""What C, C++ and hand-made writers print for a number that is none; JSON has no word for it."""


@dataclass(slots=True)
class Lists:
    """Names that hold lists, in the order they were met."""

    single: dict[str, None] = field(default_factory=dict)
    """Those of one number, which is taken."""
    others: dict[str, None] = field(default_factory=dict)
    """Those of more, of none or of text, which are left out."""

    def add(self, other: Lists) -> None:
        """Take in what was met elsewhere."""
        self.single |= other.single
        self.others |= other.others

    def notes(self) -> list[str]:
        """Tell of both."""
        told = (
            (self.single, "lists of one number were read as that number: "),
            (self.others, "lists are no single value, left out: "),
        )
        return [what + _few(names) for names, what in told if names]


def _few(names: Mapping[str, None], shown: int = 5) -> str:
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(map(repr, list(names)[:shown])) + more


@dataclass(slots=True)
class Rows:
    """Rows gathered one by one."""

    values: list[dict[str, Value]] = field(default_factory=list)
    """Of each row name -> value; nested names joined by ``/``. None is an explicit null."""
    lines: list[int] = field(default_factory=list)
    """Line of each row."""
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Lines that hold no object, or more than whole objects, and what is wrong with them."""
    nested: set[str] = field(default_factory=set)
    """Names at the top that hold an object."""
    lists: Lists = field(default_factory=Lists)
    """Names that hold lists."""

    def add_lines(self, data: bytes, numbers: Sequence[int], *, cut: bool) -> None:
        """Take in lines with these numbers; ``cut`` says that the file ends inside the last."""
        found = data.split(b"\n")
        if not cut:
            found.pop()
        for number, raw in zip(numbers, found, strict=True):
            line = raw.strip(b" \t\r")
            if not line:
                continue
            objects, wrong = parse_line(line)
            for each in objects:
                self.add(each, number)
            if wrong and cut and number == numbers[-1]:
                wrong = CUT_SHORT
            if wrong:
                self.bad.append((number, wrong))

    def add(self, row: Mapping[str, Any], line: int) -> None:
        """Take in one object."""
        self.values.append(flatten(row, self.lists))
        self.lines.append(line)
        self.nested.update(_text(k) for k, v in row.items() if isinstance(v, dict))

    def columns(self) -> dict[str, pl.Series]:
        """Return the rows as columns: whole numbers, numbers or text."""
        names = dict.fromkeys(name for row in self.values for name in row)
        return {n: _column(n, [row.get(n) for row in self.values]) for n in names}


def parse_line(line: bytes) -> tuple[list[dict[str, Any]], str | None]:
    """Return the whole objects on a line, and what else is wrong with it.

    A crash can leave NUL bytes or half an object before the next one on the same line, and
    launchers put a rank or a time in front: the objects are read all the same.
    """
    text = line.decode("utf-8", "replace").strip("\0 \t\r")
    if not text:
        return [], "nothing but NUL bytes"
    try:
        value = json.loads(text)
    except RecursionError:
        return [], "nested too deeply"
    except ValueError as error:
        return _repaired(text, str(error))
    if isinstance(value, dict):
        return [value], None
    return [], f"no JSON object but {_KINDS.get(type(value), 'a number')}"


_KINDS: Mapping[type, str] = {
    list: "a list",
    str: "a text",
    type(None): "null",
    bool: "a truth value",
}


def _repaired(text: str, why: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the whole objects on a line that is not one, and the reason if parts were lost."""
    if len(text) > _SEARCHED or "{" not in text:
        return [], _reason(text, why)
    spelt = _BARE.sub(_spelling, text)
    found: list[dict[str, Any]] = []
    start = spelt.find("{")
    damaged = '"' in spelt[:start]  # the end of an object whose beginning is missing
    if damaged:
        start = _next_start(spelt, start)
    at = start
    for _ in range(_ATTEMPTS):
        if start < 0:
            break
        try:
            value, at = _DECODER.raw_decode(spelt, start)
        except (ValueError, RecursionError):
            damaged = True
            start = _next_start(spelt, start + 1)
        else:
            found.append(value)
            start = spelt.find("{", at)
            damaged = damaged or bool(spelt[at : start if start >= 0 else None].strip())
    return found, (_reason(text, why) if damaged or start >= 0 or not found else None)


def _next_start(text: str, at: int) -> int:
    """Return where the next object can begin that is no value of the broken one around it."""
    while (at := text.find('{"', at)) >= 0:
        if text[:at].rstrip()[-1:] not in (":", ",", "["):
            return at
        at += 1
    return -1


def _spelling(match: re.Match[str]) -> str:
    space, sign, word = match.groups()
    if word.lower() == "nan":
        return f"{space}NaN"
    return f"{space}{'-' if sign == '-' else ''}Infinity"


def _reason(text: str, why: str) -> str:
    if not text.startswith(("{", "[")):
        return "text, no JSON object"
    return f"broken JSON: {why.partition(': line ')[0]}" + (
        f" at column {match[1]}" if (match := re.search(r"column (\d+)", why)) else ""
    )


def flatten(row: Mapping[str, Any], lists: Lists | None = None) -> dict[str, Value]:
    """Return numbers, text and nulls of an object by name, nested names joined by ``/``.

    A list of one number is that number. Where ``lists`` is given, it takes the names of all lists.
    """
    flat: dict[str, Value] = {}
    stack = [("", row)]
    while stack:
        prefix, level = stack.pop()
        for key, value in level.items():
            name = prefix + _text(key)
            if isinstance(value, dict):
                stack.append((f"{name}/", value))
            elif isinstance(value, str):
                flat[name] = _text(value)
            elif not isinstance(value, list):
                flat[name] = value
            else:
                single = len(value) == 1 and type(value[0]) in (int, float)
                if single:
                    flat[name] = value[0]
                if lists is not None:
                    (lists.single if single else lists.others)[name] = None
    return flat


def _text(text: str) -> str:
    """Return text that can be encoded: JSON can spell half of a surrogate pair."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _column(name: str, values: list[Value]) -> pl.Series:
    kinds = {type(v) for v in values if v is not None}
    if not kinds:
        return pl.Series(name, values, pl.Null)
    if kinds == {bool}:
        return pl.Series(name, values, pl.Boolean)
    if kinds == {int} and all(-(2**63) <= v < 2**63 for v in values if isinstance(v, int)):
        return pl.Series(name, values, pl.Int64)
    if str in kinds:
        spelt = [v if v is None or isinstance(v, str) else repr(_float(v)) for v in values]
        return pl.Series(name, spelt, pl.String)
    numbers = [None if v is None or isinstance(v, str) else _float(v) for v in values]
    return pl.Series(name, numbers, pl.Float64)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf if value > 0 else -math.inf
