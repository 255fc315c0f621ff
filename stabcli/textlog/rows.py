"""Rows: what stood in the lines of a log, gathered chunk by chunk into columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stabcli.assembly import LINE, WALL
from stabcli.ndjson.columns import Columns
from stabcli.textlog.layout import TOTAL, Found

RANK = "@rank"
"""Column of the process that printed a row."""
KIND = "@kind"
"""Column of the kind of line that a row comes from: its number in the grammar."""
BAR = "@bar"
"""Column of the step that the progress bar before a row showed."""
OF = "@bar_total"
"""Column of the steps that the progress bar was to show in the end."""
RESERVED = (LINE, WALL, RANK, KIND, BAR, OF, TOTAL)


@dataclass(slots=True)
class Rows:
    """Rows read one by one since the last chunk, and the columns of all before."""

    columns: Columns = field(default_factory=Columns)
    waiting: list[dict[str, float]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """Columns that have held a number."""

    def add(self, row: dict[str, float]) -> None:
        """Take in one row."""
        self.waiting.append(row)
        self.seen.update(row)

    def close_chunk(self, found: Found | None, first: int, kind: int) -> None:
        """Append the rows of a chunk: those read at once, then those read one by one.

        The order of lines is made good in the end, by their numbers.
        """
        if found is not None and len(found.at):
            height = len(found.at)
            made = dict(found.columns)
            made[LINE] = pl.Series(LINE, found.at + first, dtype=pl.Int64).cast(pl.Float64)
            made[KIND] = pl.Series([float(kind)]).new_from_index(0, height)
            self.columns.add(made, height)
            self.seen.update(made)
        if self.waiting:
            names = dict.fromkeys(name for row in self.waiting for name in row)
            self.columns.add(
                {
                    name: pl.Series(name, [row.get(name) for row in self.waiting], pl.Float64)
                    for name in names
                },
                len(self.waiting),
            )
            self.waiting.clear()

    def frame(self) -> pl.DataFrame:
        """Return all rows in the order of their lines."""
        table = self.columns.frame(set(), [])
        if not table.height:
            return table
        table = table.with_columns(pl.col(LINE).cast(pl.Int64))
        if not table[LINE].is_sorted():
            table = table.sort(LINE, maintain_order=True)
        return table


def filled_steps(frame: pl.DataFrame, backwards: set[int]) -> pl.DataFrame:
    """Give the rows without a step that of the row before, or for ``backwards`` the next."""
    if "step" not in frame.columns or not frame["step"].null_count():
        return frame
    known = pl.col("step")
    ahead = (
        pl.col(KIND).is_in([float(kind) for kind in backwards])
        if backwards
        else pl.lit(value=False)
    )
    after = known.fill_null(strategy="backward")
    before = known.fill_null(strategy="forward")
    chosen = pl.when(ahead).then(pl.coalesce(after, before)).otherwise(pl.coalesce(before, after))
    return frame.with_columns(step=pl.coalesce(known, chosen))


def restarts(lines: pl.Series, starts: list[int]) -> np.ndarray:
    """Return for every row how many starts the log tells of before it."""
    return np.searchsorted(np.array(starts, dtype=np.int64), lines.to_numpy(), side="left")
