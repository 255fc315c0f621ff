"""Rows: what stood in the lines of a log, gathered chunk by chunk into columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stabcli.assembly import LINE, WALL
from stabcli.ndjson.columns import Block, Columns, merged
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

    def close_chunk(self, found: Found | None, first: int) -> None:
        """Append the rows of a chunk, those read at once and those read one by one, in order."""
        blocks: list[Block] = []
        if found is not None and len(found.at):
            blocks.append(Block(found.columns, found.at + first, found.at))
            self.seen.update(found.columns)
        if self.waiting:
            lines = np.array([int(row.pop(LINE)) for row in self.waiting])
            names = dict.fromkeys(name for row in self.waiting for name in row)
            columns = {n: pl.Series(n, [r.get(n) for r in self.waiting], pl.Float64) for n in names}
            blocks.append(Block(columns, lines))
            self.waiting.clear()
        if blocks:
            self.columns.add_block(merged(blocks))

    def frame(self) -> pl.DataFrame:
        """Return all rows in the order of their lines."""
        return self.columns.frame(set(), [])


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
