"""Sisters: lines that look just like others, but of which less could be read, or nothing.

A damaged name, unit, separator or line end hides a value, and leaves nothing in its line that is
no number. What tells of it are the other lines: one that differs from them in a few characters
beside its numbers holds what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from stabcli.assembly import WALL
from stabcli.units import plural

_NUMBER = re.compile(
    r"[-+]?(?:\d[\d.,_]*|\.\d+)(?:[eE][-+]?\d+)?|(?i:(?<![a-z])(?:-?nan|[-+]?inf|n/a|none|null)(?![a-z]))"
)
_BLANKS = re.compile(r"[ \t]+")
_ODD = 5
"""Characters, beside numbers, up to which two lines are the same but for damage."""
_PUT_IN = 24
"""Characters up to which a line is another with something put in: what is left of a colour."""
_RARE = 3
"""Lines that lack the same up to which it is damage; what more lack is just not always logged."""
_KEPT = 4
"""Lines kept of all that gave the same columns, to hold others against."""
_KINDS = 256
"""Sets of columns that are told apart; a log with more has no lines that are like others."""
_WAITING = 4096
"""Unread lines that wait until they are looked at."""
_LOOKED = 50_000
"""Unread lines of one log that begin or end like others and are looked at."""
_LONGEST = 1 << 12
"""Bytes of a line that is looked at."""
_ENDS = 2
"""Letters that a line begins or ends with by which it is worth a look."""
_NEAR_END = 32
"""Bytes before the end of a line in which the last are looked for."""
_SHORT = 12
"""Bytes of a line that may be the begin of one that was broken in two."""
_LETTER = re.compile(r"[A-Za-z]")
_LINE_END = re.compile(b"$")


@dataclass(slots=True)
class _Alike:
    """Lines that gave the same columns."""

    count: int = 0
    kept: list[tuple[int, str, str]] = field(default_factory=list)
    """Number and text of the first few, and the line below each."""


@dataclass(slots=True)
class Sisters:
    """What was read of each line, as far as it differs from one to another."""

    _read: dict[tuple[str, ...], _Alike] = field(default_factory=dict)
    _longest: int = 0
    """Bytes of the longest line that is kept."""
    _shortest: int = _LONGEST
    _over: int = 0
    """Bytes above which a line may be two."""
    _waiting: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    """Lines of which nothing was read."""
    _long: dict[int, bytes] = field(default_factory=dict)
    """Lines of which one row was read and that are longer than others, by their numbers."""
    _looked: int = 0
    _left: int = 0
    """Lines worth a look that were not looked at any more."""
    _left_from: int = 0
    """Number of the first of them."""
    _begins: re.Pattern[bytes] | None = None
    """How a line begins that is worth a look; None as long as none was read."""
    _ends: re.Pattern[bytes] = _LINE_END
    """How one ends."""
    _first: np.ndarray = field(default_factory=lambda: np.zeros(256, bool))
    """Bytes that one begins with."""
    _last: np.ndarray = field(default_factory=lambda: np.zeros(256, bool))
    """Bytes that one ends with."""

    def read(
        self, columns: tuple[str, ...], number: int, data: bytes, begin: int, end: int
    ) -> None:
        """Take in what was read of a line.

        Args:
            columns: Its kind, and the columns that it gave.
            number: Its number.
            data: Lines of the log, of which it is one.
            begin: Where it begins.
            end: Where it ends.
        """
        alike = self._read.get(columns)
        if alike is not None and alike.count >= _KEPT and end - begin <= self._over:
            alike.count += 1
            return
        line = data[begin:end]
        one = len(set(columns)) == len(columns)
        if one and self._over < len(line) <= _LONGEST and len(self._long) < _WAITING:
            self._long[number] = line
        if alike is None:
            if len(self._read) >= _KINDS:
                return
            alike = self._read[columns] = _Alike()
        alike.count += 1
        if len(alike.kept) < _KEPT and len(line) <= _LONGEST:
            alike.kept.append((number, _text(line), _text(_below(data, end))))
            self._longest = max(self._longest, len(line))
            self._shortest = min(self._shortest, len(line))
            self._over = self._longest + self._shortest // 2
            texts = [text for a in self._read.values() for _, text, _ in a.kept]
            for table, byte in ((self._first, line[:1]), (self._last, line[-1:])):
                table[[*(b"0123456789" if byte.isdigit() else byte)]] = True
            self._begins = _either(map(_head, texts), rb"[^A-Za-z]*(?:%s)")
            self._ends = _either(map(_tail, texts), rb"(?:%s)[^A-Za-z]*$")

    def count(self, columns: tuple[str, ...], lines: int) -> None:
        """Take in that lines like one that was read gave the same columns."""
        if columns in self._read:
            self._read[columns].count += lines

    def maybe(self, data: bytes, begins: np.ndarray, ends: np.ndarray) -> list[bool]:
        """Say of lines, by their first and last bytes alone, whether they may be like read ones."""
        if self._begins is None:
            return [True] * len(begins)
        array = np.frombuffer(data, np.uint8)
        first = self._first[array[np.minimum(begins, len(array) - 1)]]
        found: list[bool] = (first | self._last[array[np.maximum(ends - 1, 0)]]).tolist()
        return found

    def unread(self, number: int, data: bytes, begin: int, end: int) -> list[tuple[int, str]]:
        """Take in a line of which nothing was read; return those found to be like read ones."""
        if end - begin > 2 * (self._longest or _LONGEST) + _PUT_IN:
            return []
        if self._begins is not None and not (
            end - begin < _SHORT
            or self._begins.match(data, begin, end)
            or self._ends.search(data, max(begin, end - _NEAR_END), end)
        ):
            return []
        if self._looked >= _LOOKED:
            self._left += 1
            self._left_from = self._left_from or number
            return []
        self._waiting.append((number, data[begin:end], _below(data, end)))
        return self.damaged() if len(self._waiting) >= _WAITING else []

    def damaged(self) -> list[tuple[int, str]]:
        """Return number and text of the lines that wait and are like those that were read."""
        kept = (a.kept for a in self._read.values() if a.count > 1)
        shapes = {_shape(text) for lines in kept for _, text, _ in lines}
        waiting = [(n, _text(line), _text(below)) for n, line, below in self._waiting]
        found = [
            (number, text)
            for number, text, below in waiting
            if (one := _shape(text)) in shapes or _is_two(one, shapes) or _like(text, below, shapes)
        ]
        long = {n: _text(line) for n, line in self._long.items()}
        found += [(n, text) for n, text in long.items() if _is_two(_shape(text), shapes)]
        self._looked += len(self._waiting)
        self._waiting.clear()
        self._long.clear()
        return sorted(found)

    @property
    def unseen(self) -> str | None:
        """What was not looked at any more, in a sentence; None where all was."""
        if not self._left:
            return None
        return (
            f"{plural(self._left, 'unread line')} from line {self._left_from:,} on that begin or"
            " end like those read were not held against them: damage in them stays unseen"
        )

    def missing(self) -> Iterator[tuple[int, str]]:
        """Yield line and column of what lines lack that those like them hold."""
        for columns, alike in self._read.items():
            if alike.count > _RARE:
                continue
            for other, usual in self._read.items():
                lacks = _names(other) - _names(columns)
                if not lacks or usual.count <= alike.count or other[0] != columns[0]:
                    continue
                shapes = {_shape(text) for _, text, _ in usual.kept}
                for number, text, below in alike.kept:
                    if _like(text, below, shapes):
                        for name in sorted(lacks):
                            yield number, name


def _names(columns: Iterable[str]) -> set[str]:
    """Return the columns that hold something measured, and the time."""
    return {"time" if c == WALL else c for c in columns if c == WALL or not c.startswith("@")}


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _head(text: str) -> str:
    """Return the first letters of a line."""
    return "".join(_LETTER.findall(text)[:_ENDS])


def _tail(text: str) -> str:
    """Return the last letters of a line."""
    return "".join(_LETTER.findall(text)[-_ENDS:])


def _either(words: Iterable[str], where: bytes) -> re.Pattern[bytes]:
    """Return what finds one of some words where ``%s`` stands."""
    return re.compile(where % b"|".join(sorted({re.escape(word.encode()) for word in words})))


def _below(data: bytes, end: int) -> bytes:
    """Return the line below one that ends at a place, as far as it stands in a chunk."""
    stop = data.find(b"\n", end + 1, end + _LONGEST)
    return data[end + 1 : stop if stop >= 0 else end + _LONGEST]


def _shape(text: str) -> str:
    """Return a line without its numbers and the blanks that pad them."""
    return _BLANKS.sub(" ", _NUMBER.sub("#", text)).strip(" ")


def _like(text: str, below: str, shapes: set[str]) -> bool:
    """Say whether a line, or it and the one below, is one of these but for a few characters."""
    one, two = _shape(text), _shape(f"{text}\n{below}")
    return any(_near(one, s, _PUT_IN) or _near(two, s, _ODD) for s in shapes)


def _is_two(one: str, shapes: set[str]) -> bool:
    """Say whether a text is two lines with a few characters between them."""
    ends = [shape for shape in shapes if one.endswith(shape)]
    return any(
        one.startswith(shape) and 0 <= len(one) - len(shape) - len(end) <= _ODD
        for shape in shapes
        for end in ends
    )


def _near(one: str, two: str, most: int) -> bool:
    """Say whether a line is another but for one short stretch, or for one that was put in.

    Args:
        one: The line.
        two: The other.
        most: Characters up to which something may have been put in.
    """
    if not -_ODD <= len(one) - len(two) <= most or one == two:
        return False
    short = min(len(one), len(two))
    ahead = _common(one, two, short)
    same = ahead + _common(one[::-1], two[::-1], short - ahead)
    return len(two) - same <= (_ODD if len(one) - same <= _ODD else 1)


def _common(one: str, two: str, most: int) -> int:
    """Return how many characters, up to ``most``, two texts begin with in common."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
