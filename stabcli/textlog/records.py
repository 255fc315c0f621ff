"""Records: logged steps that take several lines, a head that holds the step and a line a value."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from stabcli.textlog.rows import KIND

MARK = "@record"
"""Column that a head gives to its row, since a row without a value is none."""


def joined(frame: pl.DataFrame, heads: Collection[int], notes: list[str]) -> pl.DataFrame:
    """Make one row of a head and the lines below it.

    Lines below no head are left out, and so is what comes a second time below the same one: the
    head between them is broken, and nobody knows whose values these are.

    Args:
        frame: Rows in the order of the log.
        heads: Kinds of lines that begin a record.
        notes: What is left out is told here.
    """
    is_head = pl.col(KIND).is_in([float(kind) for kind in heads])
    frame = frame.with_columns(is_head.cum_sum().alias("@block"))
    values = [c for c in frame.columns if not c.startswith("@") and c != "step"]
    if not values:  # heads and nothing below them
        return frame.clear()
    again = [pl.col(c).is_not_null() & (pl.col(c).is_not_null().cum_sum() > 1) for c in values]
    lost = pl.any_horizontal(again).cum_max().over("@block") | (pl.col("@block") == 0)
    frame = frame.with_columns(lost.alias("@lost"))
    count = int(frame["@lost"].sum())
    if count:
        notes.append(f"{count:,} values stand below no head that says their step: left out")
    kept = frame.filter(~pl.col("@lost"))
    first = [pl.col(c).drop_nulls().first() for c in frame.columns if c not in ("@block", "@lost")]
    rows = kept.group_by("@block", maintain_order=True).agg(first)
    return rows.drop("@block", MARK, strict=False)
