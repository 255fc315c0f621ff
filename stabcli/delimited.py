"""Delimited lines: what Polars reads of them, and when all of them are certain to be rows."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl

Kinds = dict[str, type[pl.Float64 | pl.String]]
"""Columns, and whether they are read as numbers or as text."""

_BLOCK = 1 << 18  # bytes compared at once: what the cache holds


def read(source: Path | io.BytesIO, skip: int, kinds: Kinds, separator: str) -> pl.DataFrame | None:
    """Let Polars read the lines after the first ``skip``; None where it refuses."""
    try:
        return pl.read_csv(
            source,
            has_header=False,
            skip_lines=skip,
            schema=kinds,
            separator=separator,
            encoding="utf8-lossy",
            glob=False,
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


def regular(
    path: Path, body: np.ndarray, skip: int, kinds: Kinds, separator: str
) -> pl.DataFrame | None:
    """Read a file all of whose lines are rows; None where that is not certain.

    Polars refuses a line of more fields than there are columns. So where there are as many
    separators as if each line had a field for every column, none can have fewer.

    Args:
        path: The file.
        body: Its bytes below the header.
        skip: Lines above them.
        kinds: Its columns.
        separator: What parts the fields.
    """
    rows = _count(body, "\n")
    if body[-1] != ord("\n") or _count(body, '"'):
        return None
    if _count(body, separator) != rows * (len(kinds) - 1):
        return None
    frame = read(path, skip, kinds, separator)
    return frame if frame is not None and frame.height == rows else None


def _count(data: np.ndarray, character: str) -> int:
    blocks = range(0, len(data), _BLOCK)
    return sum(int(np.count_nonzero(data[i : i + _BLOCK] == ord(character))) for i in blocks)
