"""Columns: what many chunks gave, put together one column at a time, each in the type it needs."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from stabcli.spellings import as_number

WRAPPERS = ("data", "metrics", "values", "scalars", "logs")
"""Objects in which some loggers put all the metrics of a row; their names say nothing."""

_NUMBER = (
    r"^\s*(?i:[+-]?(\d[\d,_]*\.?\d*|\.\d+)(e[+-]?\d+)?\s*%?|[+-]?(nan|inf|infinity)(\(\w+\))?)\s*$"
)
_PLAIN = _NUMBER.replace(r"\d[\d,_]*\.?\d*", r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?")
"""The same with commas only before groups of three digits."""
_MISSING = r"^\s*(?i:null|none|n/a|na|\?\?\?)?\s*$"


class Columns:
    """Columns that grow chunk by chunk, any of which may lack in any chunk."""

    def __init__(self) -> None:
        self.height = 0
        self._pieces: dict[str, list[tuple[int, pl.Series]]] = {}

    def add(self, columns: Mapping[str, pl.Series], height: int) -> None:
        """Append ``height`` rows."""
        for name, series in columns.items():
            if series.null_count() < height:
                self._pieces.setdefault(name, []).append((self.height, series))
        self.height += height

    def frame(self, nested: set[str], notes: list[str]) -> pl.DataFrame:
        """Return all rows, releasing the pieces of each column as soon as it is whole.

        Args:
            nested: Names at the top that held objects; those of ``WRAPPERS`` are taken off.
            notes: Gets a line for every column in which numbers and text stand mixed.
        """
        made: dict[str, pl.Series] = {}
        for name in list(self._pieces):
            series = _joined(self._pieces.pop(name), self.height)
            made[name] = settled(series.alias(name), notes) if series.dtype == pl.String else series
        for name in list(made):
            wrapper, _, inner = name.partition("/")
            if wrapper in WRAPPERS and wrapper in nested and inner and inner not in made:
                made[inner] = made.pop(name)
        return pl.DataFrame(made)


def _joined(pieces: list[tuple[int, pl.Series]], height: int) -> pl.Series:
    """Lay pieces one after another, null where a chunk had none."""
    types = {s.dtype for _, s in pieces}
    if len(types) == 1:
        target = types.pop()
    else:
        target = pl.String() if pl.String() in types else pl.Float64()
    if target.is_integer():
        target = pl.Int64() if target == pl.Int64 else pl.Float64()
    parts: list[pl.Series] = []
    at = 0
    for start, piece in pieces:
        truth = piece.dtype == pl.Boolean and target == pl.String
        series = piece.cast(pl.Float64) if truth else piece
        if start > at:
            parts.append(pl.Series([None], dtype=target).new_from_index(0, start - at))
        parts.append(series.cast(target).alias(""))
        at = start + series.len()
    if height > at:
        parts.append(pl.Series([None], dtype=target).new_from_index(0, height - at))
    return pl.concat(parts, rechunk=False)


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
