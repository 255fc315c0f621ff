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


def split(data: bytes, lines: int, separator: str, width: int) -> pl.DataFrame | None:
    """Split lines into fields of text, named ``0`` to ``width``.

    What a line has beyond that many fields is not looked at, so that it is the last of the
    columns that tells whether there is more than ``width``.

    Args:
        data: Whole lines.
        lines: How many.
        separator: What stands between two fields; quotes do not matter.
        width: How many fields are expected in a line.

    Returns:
        A row for each line, null where it has no such field, or None where Polars refuses.
    """
    try:
        # Polars takes the number of columns from the first line: it gets one with enough
        table = pl.read_csv(
            (separator * width).encode() + b"\n" + data,
            separator=separator,
            has_header=False,
            quote_char=None,
            schema={f"{i}": pl.String for i in range(width + 1)},
            truncate_ragged_lines=True,
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    return table[1:] if table.height == lines + 1 else None


def regular(path: Path, start: int, skip: int, kinds: Kinds, separator: str) -> pl.DataFrame | None:
    """Read a file all of whose lines are rows; None where that is not certain.

    Polars refuses a line of more fields than there are columns. So where there are as many
    separators as if each line had a field for every column, none can have fewer.

    Args:
        path: The file.
        start: Byte at which the lines below the header begin.
        skip: Lines above them.
        kinds: Its columns.
        separator: What parts the fields.
    """
    counts = _counts(path, start, f"\n{separator}")
    if counts is None or counts[1] != counts[0] * (len(kinds) - 1):
        return None
    frame = read(path, skip, kinds, separator)
    return frame if frame is not None and frame.height == counts[0] else None


def _counts(path: Path, start: int, characters: str) -> list[int] | None:
    """Count characters from a byte of a file on, without keeping any of it; None if it quotes."""
    counts = [0] * len(characters)
    block, same = bytearray(_BLOCK), np.empty(_BLOCK, bool)
    array = np.frombuffer(block, np.uint8)
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while length := file.readinto(block):
            if block.find(b'"', 0, length) >= 0:
                return None
            for i, character in enumerate(characters):
                found = np.equal(array[:length], ord(character), out=same[:length])
                counts[i] += int(np.count_nonzero(found))
    return counts
