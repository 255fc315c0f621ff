"""Grids: tables that people and programs print into text, a line of names above lines of numbers.

Cells are parted by bars (markdown, rich, tabulate), by tabs (copied from a notebook) or by blanks
(fastai, skorch, Ultralytics). A table is one of training where a column counts steps or epochs and
another is a loss.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Literal

from stabcli.metrics import normalise
from stabcli.textlog.numbers import has_decimal_comma, is_missing, number

_BARS = re.compile(r"[|│┃║]")
_PARTS = {"bars": _BARS, "tabs": re.compile(r"\t"), "blanks": re.compile(r"[ \t]")}
_RULE = re.compile(r"[\s|+:=─━═┄┌┐└┘├┤┬┴┼╞╪╡┡╇┩╒╤╕╘╧╛╭╮╰╯╔╗╚╝╠╣╦╩╬┏┳┓┗┻┛┣┫╋┢┪╟╢╫╴╶╸╺│┃║-]+")
"""A line that is drawn, not written."""
_NAME = re.compile(r"[A-Za-z_][\w./()%\[\]-]{0,60}")
_TQDM = re.compile(r":\s+\d{1,3}%")
"""A bar behind a row, as Ultralytics draws it."""
_CLOCK = re.compile(r"(?:(\d{1,6}):)?(\d{1,6}):(\d\d)")
_OF = re.compile(r"(\d{1,9})/\d{1,9}")
_STEPS = ("step", "steps", "global_step", "iter", "iteration")
_EPOCHS = ("epoch", "epochs")
_NO_LOG = "no log"
"""What transformers puts in place of a loss that was not logged yet."""
_SAVED, _SAVED_NAME = "+", "cp"
"""What skorch puts into a column of its own where it saved, and no cell elsewhere."""
_WIDEST = 100
_LONGEST = 1 << 13
"""Characters of a line that is looked at."""

Style = Literal["bars", "tabs", "blanks"]


@dataclass(slots=True)
class Grid:
    """A table, as far as it was read."""

    style: Style
    names: tuple[str, ...]
    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """Line and numbers of each row."""
    texts: list[tuple[int, str, str]] = field(default_factory=list)
    """Line, column and cell of what is no number."""

    @property
    def counter(self) -> str:
        """The column that counts steps, or else epochs."""
        return next(n for words in (_STEPS, _EPOCHS) for n in self.names if normalise(n) in words)

    @property
    def is_training(self) -> bool:
        """Say whether rows count on, and no text stands before what counts them.

        A table of several models, each with its steps and its loss, is none.
        """
        counts = [row[self.counter] for _, row in self.rows]
        back = sum(a > b for a, b in itertools.pairwise(counts))
        both = {"step", "epoch"} <= {normalise(n) for n in self.names}
        before = {*self.names[: self.names.index(self.counter)]} & {c for _, c, _ in self.texts}
        counted = bool(counts) and 4 * back < len(counts) and (len({*counts}) > 1 or both)
        numbers = self.numbers
        return counted and before <= numbers and any("loss" in n.lower() for n in numbers)

    @property
    def numbers(self) -> set[str]:
        """The columns that hold a number."""
        return {name for _, row in self.rows for name in row}

    @property
    def wrong(self) -> list[tuple[int, str]]:
        """Lines of cells that are no numbers in columns that hold numbers, and what is wrong."""
        numbers = self.numbers
        return [
            (line, f"{name!r} is no number: {cell[:40]!r}")
            for line, name, cell in self.texts
            if name in numbers
        ]


@dataclass(slots=True)
class Search:
    """A search for tables through the lines of a text."""

    grids: list[Grid] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Line of what should be a row and is none, and why."""
    commas: dict[str, str] = field(default_factory=dict)
    """Columns with a comma for a decimal point, and the first cell that has one."""
    _other: bool = False
    """Whether the last names were those of a table that is none of training."""
    _near: bool = False
    """Whether the line before is one of a table."""

    def add(self, line: int, text: str, *, torn: bool = False) -> None:
        """Take in a line; the last number of a torn one may be half of one and is left out."""
        header = _header(text) if len(text) <= _LONGEST else None
        if header is not None:
            if not self.grids or (self.grids[-1].style, self.grids[-1].names) != header:
                self.grids.append(Grid(*header))
            self._other, self._near = False, True
        elif self.grids and len(text) <= _LONGEST and not _RULE.fullmatch(text):
            self._near = self._row(line, text, torn=torn)

    def _row(self, line: int, text: str, *, torn: bool) -> bool:
        """Read a line below the names of a table; return whether it is one of a table."""
        grid = self.grids[-1]
        cells = _cells(text, grid.style)
        count = _count(cells, grid) if len(cells) == len(grid.names) else None
        if count is not None and not self._other:
            self._keep(grid, line, cells[:-1] if torn and not _BARS.match(text[-1]) else cells)
            return True
        numbers = sum(number(cell) is not None for cell in cells)
        parted = grid.style != "blanks" and bool(_PARTS[grid.style].search(text))
        most = numbers > 1 and 2 * numbers >= len(cells)
        if count is not None or (self._near and (parted or most)):
            what = f"{len(cells)} cells below {len(grid.names)} names"
            what = "names of another table above it" if count is not None else what
            self.bad.append((line, f"no row of a table, {what}: {text.strip()[:60]!r}"))
            return True
        if len(cells) > 1 and all(_is_name(cell, grid.style) for cell in cells):
            self._other = True
        return False

    def _keep(self, grid: Grid, line: int, cells: list[str]) -> None:
        """Take in the numbers of a row; a row that is drawn again in its line replaces itself."""
        row: dict[str, float] = {}
        for name, cell in zip(grid.names, cells, strict=False):
            value = _value(cell) if name != grid.counter else _count(cells, grid)
            if value is not None:
                row[name] = value
                if "," in cell and has_decimal_comma(cell):
                    self.commas.setdefault(name, cell)
            elif not is_missing(cell) and cell.lower() != _NO_LOG:
                grid.texts.append((line, name, cell))
        if (
            grid.rows
            and grid.rows[-1][0] == line
            and grid.rows[-1][1][grid.counter] == row[grid.counter]
        ):
            grid.rows.pop()
        grid.rows.append((line, row))


def rows_in(lines: list[str]) -> int:
    """Count the rows of tables of training in some lines."""
    search = Search()
    for number_of_line, text in enumerate(lines):
        search.add(number_of_line, text)
    return sum(len(grid.rows) for grid in search.grids if grid.is_training)


def _header(text: str) -> tuple[Style, tuple[str, ...]] | None:
    """Return how the cells of a table of training are parted, and its names; None for no header."""
    if "oss" not in text and "OSS" not in text:
        return None
    style: Style = "bars" if _BARS.search(text) else "tabs" if "\t" in text.strip() else "blanks"
    names = _cells(text, style)
    if not 2 <= len(names) <= _WIDEST or len({*names}) < len(names) or not all(names):
        return None
    spelt = [normalise(name) for name in names]
    if not {*_STEPS, *_EPOCHS}.intersection(spelt) or not any("loss" in name for name in spelt):
        return None
    if any(number(name) is not None for name in names):
        return None
    if style == "blanks":
        first = spelt[0] in (*_STEPS, *_EPOCHS)
        if not first or len(names) < 3 or not all(map(_NAME.fullmatch, names)):
            return None
        names = [name for name in names if name != _SAVED_NAME]
    return style, tuple(names)


def _is_name(cell: str, style: Style) -> bool:
    """Say whether a cell can be the name of a column."""
    if style == "blanks":
        return _NAME.fullmatch(cell) is not None
    return bool(cell) and number(cell) is None and not is_missing(cell)


def _cells(text: str, style: Style) -> list[str]:
    """Return the cells of a line, without what makes them bold."""
    if style == "blanks":
        bar = _TQDM.search(text)
        return [cell for cell in (text[: bar.start()] if bar else text).split() if cell != _SAVED]
    if style == "tabs":
        cells = text.strip("\r\n ").split("\t")
    else:
        cells = _BARS.split(text.strip())
        cells = cells[not cells[0].strip() : len(cells) - (not cells[-1].strip())]
    return [cell.strip().strip("*`").strip() for cell in cells]


def _count(cells: list[str], grid: Grid) -> float | None:
    """Return the step or epoch of a row; None where it has none."""
    cell = cells[grid.names.index(grid.counter)]
    of = _OF.fullmatch(cell)
    value = number(of[1] if of else cell)
    return value if value is not None and 0 <= value < 2**53 else None


def _value(cell: str) -> float | None:
    """Return the number in a cell, a time on a clock in seconds; None where it is none."""
    clock = _CLOCK.fullmatch(cell)
    if clock is None:
        return number(cell)
    hours, minutes, seconds = (float(part or 0) for part in clock.groups())
    return (60 * hours + minutes) * 60 + seconds
