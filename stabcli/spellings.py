"""Spellings: columns of text that spell numbers, in all the ways that trainers print them."""

from __future__ import annotations

from typing import Literal

import polars as pl

_THOUSANDS = r"^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?(e[+-]?\d+)?%?$"
"""Commas before groups of exactly three digits."""
_DECIMAL = r"^[+-]?\d+,\d+(e[+-]?\d+)?%?$"
"""One comma, and no point."""
_ONE_GROUP = r"^[+-]?\d{1,3},\d{3}%?$"
_MISSING = ("", "null", "none", "n/a", "na", "???")


def as_number(series: pl.Series, notes: list[str] | None = None) -> pl.Series | None:
    """Return a column as Float64, or None where it is text.

    Text counts as a number where every value that is not empty is one, in any of the spellings
    that trainers print: ``nan``, ``-nan``, ``inf``, ``Infinity``, ``1,234``, ``6,0093``, ``12%``.
    Lists of one number each are that number.

    Args:
        series: The column.
        notes: Is told what commas were taken for, where that is not plain.
    """
    if series.dtype == pl.Boolean or series.dtype.is_numeric():
        return series.cast(pl.Float64)
    if series.dtype == pl.Null:
        return None
    if isinstance(series.dtype, pl.List):
        one = bool((series.list.len() <= 1).all()) and series.dtype.inner.is_numeric()
        return as_number(series.list.first()) if one else None
    if series.dtype.is_temporal() and series.dtype in (pl.Datetime, pl.Date):
        return series.dt.epoch("us").cast(pl.Float64) / 1e6
    if series.dtype != pl.String:
        return None
    text = series.str.strip_chars().str.to_lowercase()
    text = text.set(text.is_in(_MISSING), None)
    what = _commas(text)
    if what == "neither":
        return None
    plain = text.str.replace_all(",", "." if what == "point" else "", literal=True)
    plain = plain.str.strip_suffix("%").str.replace_all("_", "", literal=True)
    plain = plain.str.replace(r"^[+-]?nan(\(\w+\))?$", "NaN").str.replace(r"^\+", "")
    plain = plain.str.replace(r"^(-?)inf(inity)?$", "${1}inf")
    values = plain.cast(pl.Float64, strict=False)
    if values.null_count() > text.null_count() or values.count() == 0:
        return None
    if notes is not None and what in ("point", "group"):
        at = text.str.contains(",", literal=True).arg_true()[0]
        taken = "decimal points" if what == "point" else "signs between thousands"
        notes.append(
            f"commas in {series.name!r} are taken as {taken}: {series[at]!r} is {values[at]:.15g}"
        )
    return values


def _commas(text: pl.Series) -> Literal["", "point", "thousands", "group", "neither"]:
    """Say what the commas of a column are; ``group`` may be either, and is taken for thousands.

    A comma before anything but groups of three digits is a decimal point, if all of them can be
    and no value has a point of its own.
    """
    spelt = text.filter(text.str.contains(",", literal=True))
    if not len(spelt):
        return ""
    points = bool(text.str.contains(".", literal=True).any())
    if spelt.str.contains(_THOUSANDS).all():
        return "group" if not points and spelt.str.contains(_ONE_GROUP).all() else "thousands"
    return "point" if not points and spelt.str.contains(_DECIMAL).all() else "neither"
