"""Parts: one table that holds several runs, or columns that stabcli itself wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from stabcli.assembly import FILE, LINE, Reading
from stabcli.attempts import PART
from stabcli.footers import DamagedError, check
from stabcli.spellings import as_number

RUN_COLUMNS = ("run", "run_name", "run_id")
"""Columns of text that say to which run a row belongs."""

_RESERVED = {"attempt": PART, "line": LINE, "file": FILE}
_DERIVED = ("discarded", "hidden")


def part_by_run(reading: Reading) -> Iterator[Reading]:
    """Yield a reading for each run of a table, in the order in which they begin."""
    reading = replace(reading, table=taken_back(reading.table))
    columns = [c for c in RUN_COLUMNS if c in reading.table.columns]
    for column in columns:
        named = reading.table[column]
        if named.dtype == pl.String and named.n_unique() > 1:
            for part in reading.table.partition_by(column, maintain_order=True):
                used = [c for c in part.columns if part[c].count() and c != column]
                name = f"{reading.name}: {part[column][0]}"
                yield replace(reading, name=name, table=part.select(used))
            return
    yield reading


def taken_back(table: pl.DataFrame) -> pl.DataFrame:
    """Give the columns of an exported run the meaning they had before."""
    if not {"attempt", "step", "discarded"} <= set(table.columns):
        return table
    back = {own: name for own, name in _RESERVED.items() if own in table.columns}
    kept = table.drop([c for c in (*_DERIVED, *back.values()) if c in table.columns])
    return kept.rename(back)


def flattened(table: pl.DataFrame, lists: list[str] | None = None) -> pl.DataFrame:
    """Return a table without nesting: fields by name joined with ``/``.

    Lists of one number are that number; others are left out, and named in ``lists``.
    """
    made: dict[str, pl.Series] = {}
    stack = [("", s) for s in reversed(table.get_columns())]
    while stack:
        prefix, series = stack.pop()
        name = prefix + series.name
        if isinstance(series.dtype, pl.Struct):
            stack += [(f"{name}/", f) for f in reversed(series.struct.unnest().get_columns())]
        elif not series.dtype.is_nested():
            made[name] = series
        elif (values := as_number(series)) is not None:
            made[name] = values
        elif lists is not None:
            lists.append(name)
    return pl.DataFrame(made)


@contextlib.contextmanager
def checked_parquet(path: Path) -> Iterator[None]:
    """Let a parquet file be read below only if its sizes can be true.

    What Polars panics over all the same, deep inside of a damaged file, is an error like others.

    Raises:
        ComputeError: The file is damaged.
    """
    try:
        check(path)
        yield
    except DamagedError as error:
        raise pl.exceptions.ComputeError(str(error)) from None
    except pl.exceptions.PanicException as error:
        why = str(error).partition("\n")[0]
        raise pl.exceptions.ComputeError(f"damaged inside: {why}") from None
