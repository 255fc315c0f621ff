"""Columns: what many chunks gave, put together one column at a time, each in the type it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import polars as pl

from stabcli.assembly import LINE
from stabcli.ndjson.spilling import Spill
from stabcli.spellings import as_number

WRAPPERS = ("data", "metrics", "values", "scalars", "logs")
"""Objects in which some loggers put all the metrics of a row; their names say nothing."""

HELD = 11 << 24
"""Bytes of columns, 8 a value, that are held in memory before what is full of numbers leaves it."""

Needed = Callable[[list[str]], Collection[str]]
"""Names of columns -> those of which a reader may use text."""

_MORE = 1 << 24  # bytes after which more leaves it, once some has
_SPARSE = 0.75  # share of nulls from which on only the others are held
_BLOCK = 1 << 17  # nulls that are shared

_NUMBER = (
    r"^\s*(?i:[+-]?(\d[\d,_]*\.?\d*|\.\d+)(e[+-]?\d+)?\s*%?|[+-]?(nan|inf|infinity)(\(\w+\))?)\s*$"
)
_PLAIN = _NUMBER.replace(r"\d[\d,_]*\.?\d*", r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?")
"""The same with commas only before groups of three digits."""
_MISSING = r"^\s*(?i:null|none|n/a|na|\?\?\?)?\s*$"


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows."""

    columns: dict[str, pl.Series]
    """Name -> a value for each of them."""
    lines: np.ndarray
    """Line of each."""
    at: np.ndarray | None = None
    """Where in the columns they stand, if other rows stand between them."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a chunk, or several on end, gave of a column."""

    start: int
    """Its first row."""
    height: int
    """Rows it covers."""
    values: pl.Series
    """One for each of them, or for each of ``rows``."""
    rows: np.ndarray | None = None
    """Rows that hold a value, counted from ``start``, where most do not."""

    @property
    def is_full(self) -> bool:
        """Say whether it has a number in every row."""
        numbers = self.values.dtype in (pl.Int64, pl.Float64)
        return numbers and self.rows is None and not self.values.null_count()

    def thinned(self) -> _Piece:
        """Return it without its nulls where it is mostly those."""
        if self.rows is not None or self.values.null_count() < _SPARSE * self.height:
            return self
        rows = self.values.is_not_null().arg_true().to_numpy()
        values = self.values.drop_nulls().to_list()  # a copy: a view keeps all of the chunk's text
        return replace(self, values=pl.Series(values, dtype=self.values.dtype), rows=rows)


class Columns:
    """Columns that grow chunk by chunk, any of which may lack in any chunk."""

    def __init__(self) -> None:
        self.height = 0
        self._pieces: dict[str, list[_Piece]] = {}
        self._room = HELD
        self._spill: Spill | None = Spill()
        self._released: dict[str, int] = {}
        """Column -> how many of its pieces are not held in memory, or cannot but be."""

    def add(self, columns: Mapping[str, pl.Series], height: int) -> None:
        """Append ``height`` rows."""
        for name, series in columns.items():
            if series.null_count() < height:
                self._pieces.setdefault(name, []).append(_Piece(self.height, height, series))
        self.height += height
        self._room -= 8 * height * len(columns)
        if self._room < 0 and self._spill is not None:
            self._release(self._spill)
            self._room = _MORE

    def add_block(self, block: Block) -> None:
        """Append some rows with their lines."""
        line = pl.Series(LINE, block.lines, dtype=pl.Int64)
        self.add({**block.columns, LINE: line}, len(block.lines))

    def _release(self, spill: Spill) -> None:
        """Move what has come since the last time out of memory, and keep no nulls of the rest."""
        full: list[tuple[list[_Piece], int, list[_Piece]]] = []
        for name, pieces in self._pieces.items():
            done = self._released.get(name, 0)
            fresh, pieces[done:] = pieces[done:], []
            for run in _runs(fresh):
                if run[0].is_full:
                    full.append((pieces, len(pieces), run))
                    pieces.append(run[0])
                else:
                    pieces += [piece.thinned() for piece in run]
            self._released[name] = len(pieces)
        try:
            moved = spill.moved([[p.values for p in run] for _, _, run in full])
        except OSError:  # no room on the disk: there may be some in memory
            self._spill = None
            moved = [pl.concat([p.values for p in run]) for _, _, run in full]
        for (pieces, at, run), values in zip(full, moved, strict=True):
            pieces[at] = _Piece(run[0].start, len(values), values)

    def frame(
        self, nested: set[str], notes: list[str], needed: Needed | None = None
    ) -> pl.DataFrame:
        """Return all rows, releasing the pieces of each column as soon as it is whole.

        Args:
            nested: Names at the top that held objects; those of ``WRAPPERS`` are taken off.
            notes: Gets a line for every column in which numbers and text stand mixed.
            needed: Says which columns of text may be of use. Of others, those with text in a few
                rows are left out of a table that is too long to be held in memory.
        """
        made: dict[str, pl.Series] = {}
        names = list(self._pieces)
        used = needed(names) if needed and self._released else names
        last = Spill() if self._spill and self._released else None
        for name in names:
            pieces = self._pieces.pop(name)
            if name not in used and self._is_stray_text(pieces):
                notes.append(f"text in a few rows of {name!r} was left out of a log so long")
                continue
            series = _joined(pieces, self.height).alias(name)
            del pieces
            if series.dtype == pl.String:
                series = settled(series, notes)
            made[name] = _on_end(series, last) if self._released else series
        for name in list(made):
            wrapper, _, inner = name.partition("/")
            if wrapper in WRAPPERS and wrapper in nested and inner and inner not in made:
                made[inner] = made.pop(name)
        return pl.DataFrame(made)

    def _is_stray_text(self, pieces: list[_Piece]) -> bool:
        """Say whether a column stays text, and has none in most of the rows."""
        if _type(pieces) != pl.String:
            return False
        values = pl.concat([_cast(p, pl.String()) for p in pieces]).drop_nulls()
        few = len(values) < (1 - _SPARSE) * self.height
        return few and settled(values, []).dtype == pl.String


def merged(blocks: Sequence[Block]) -> Block:
    """Return the rows of all blocks in the order of their lines."""
    lines = np.concatenate([block.lines for block in blocks])
    pieces: dict[str, list[_Piece]] = {}
    places: list[np.ndarray] = []
    start = 0
    for block in blocks:
        height = max((len(series) for series in block.columns.values()), default=len(block.lines))
        for name, series in block.columns.items():
            pieces.setdefault(name, []).append(_Piece(start, height, series))
        places.append(start + (np.arange(height) if block.at is None else block.at))
        start += height
    if len(blocks) == 1 and len(lines) == start:
        return blocks[0]
    order = np.argsort(lines, kind="stable")
    taken = pl.Series(np.concatenate(places)[order], dtype=pl.UInt32)
    joined = {name: _joined(parts, start).rechunk() for name, parts in pieces.items()}
    ordered = pl.DataFrame(joined)[taken]  # all at once: a call for each column takes longer
    return Block({s.name: s for s in ordered.get_columns()}, lines[order])


def _on_end(series: pl.Series, spill: Spill | None) -> pl.Series:
    """Return a column in one piece, out of memory if may be.

    Of a table whose columns are in unlike pieces, Polars copies all before it looks at any.
    """
    numbers = series.dtype in (pl.Int64, pl.Float64) and not series.null_count()
    if not numbers or spill is None:
        return series.rechunk()
    try:
        return spill.moved([series.get_chunks()])[0].alias(series.name)
    except OSError:
        return series.rechunk()


def _runs(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Divide pieces into those that follow on one another, full and of one type."""
    run: list[_Piece] = []
    for piece in pieces:
        last = run[-1] if run else None
        if last and not (
            last.is_full
            and piece.is_full
            and last.values.dtype == piece.values.dtype
            and last.start + last.height == piece.start
        ):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def _joined(pieces: list[_Piece], height: int) -> pl.Series:
    """Lay pieces one after another, null where a chunk had none."""
    target = _type(pieces)
    parts: list[pl.Series] = []
    at = 0
    for piece in pieces:
        values = _cast(piece, target)
        if piece.rows is not None:
            empty = pl.concat(_nulls(piece.height, target))
            values = empty.scatter(piece.rows, values)
        parts += [*_nulls(piece.start - at, target), values]
        at = piece.start + piece.height
    return pl.concat([*parts, *_nulls(height - at, target)], rechunk=False)


def _type(pieces: list[_Piece]) -> pl.DataType:
    types = {p.values.dtype for p in pieces}
    if len(types) == 1:
        target = types.pop()
    else:
        target = pl.String() if pl.String() in types else pl.Float64()
    if target.is_integer():
        target = pl.Int64() if target == pl.Int64 else pl.Float64()
    return target


def _cast(piece: _Piece, target: pl.DataType) -> pl.Series:
    truth = piece.values.dtype == pl.Boolean and target == pl.String
    values = piece.values.cast(pl.Float64) if truth else piece.values
    return values.cast(target).alias("")


def _nulls(count: int, dtype: pl.DataType) -> list[pl.Series]:
    """Return nulls in blocks that all share their memory."""
    return [_block(dtype).slice(0, min(_BLOCK, count - at)) for at in range(0, count, _BLOCK)]


@cache
def _block(dtype: pl.DataType) -> pl.Series:
    return pl.Series([None], dtype=dtype).new_from_index(0, _BLOCK)


def settled(series: pl.Series, notes: list[str]) -> pl.Series:
    """Return text that is mostly numbers as numbers, and say how much of it is not."""
    text = series.drop_nulls()
    values = as_number(text, notes)
    for pattern in (_NUMBER, _PLAIN) if values is None else ():
        numeric = text.str.contains(pattern)
        strange = text.filter(~numeric & ~text.str.contains(_MISSING))
        if numeric.sum() <= len(strange):
            return series
        values = as_number(text.set(~numeric, None), notes)
        if values is not None:
            notes.append(
                f"column {series.name!r} holds text in {len(strange):,} of its rows, such as"
                f" {str(strange[0])[:40]!r}: left out there"
            )
            break
    if values is None:
        return series
    if len(values) == len(series):
        return values
    empty = pl.Series(series.name, [None], pl.Float64).new_from_index(0, len(series))
    return empty.scatter(series.is_not_null().arg_true(), values)
