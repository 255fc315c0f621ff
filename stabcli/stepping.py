"""Stepping: whole steps out of what a log counts with, fractions and epochs included."""

from __future__ import annotations

import polars as pl

FRACTIONAL = 0.05
"""Share of the steps that must lie between whole numbers for all to be fractions of something."""
STUCK = 32
"""Rows from which a step that never moves counts nothing: an evaluation shares one, not so many."""
_EXACT = 1e-6


def whole_steps(values: pl.Series, notes: list[str]) -> pl.Series:
    """Return steps as Int64.

    Values such as 0.02, 0.04, … are not rounded, which would make one step of many: they are
    numbered in order instead, equal ones alike, and a note says so. One that is not finite is no
    step.

    Args:
        values: What the log counts with, Float64.
        notes: Receives what had to be decided.
    """
    usable = values.set(~_finite(values), None)
    broken = values.count() - usable.count()
    if broken:
        notes.append(f"{broken:,} steps are not finite numbers: their rows were left out")
    between = int(_between(usable).sum())
    if between and between >= FRACTIONAL * usable.count():
        notes.append(
            f"the steps are fractions, {_span(usable)}: numbered in order, from 1,"
            " so that none share a step"
        )
        return usable.rank("dense").cast(pl.Int64)
    return usable.round(0).cast(pl.Int64)


def steps_of_epochs(epochs: pl.Series, name: str, notes: list[str]) -> pl.Series | None:
    """Return steps for a log in which nothing counts them but epochs; None where those tell nothing.

    Whole epochs are the steps themselves where most rows have one of their own. Fractions are
    numbered in order. Where an epoch has many rows, the rows are counted.

    Args:
        epochs: The epoch of each row, Float64, null where not logged.
        name: What the log calls it.
        notes: Receives what was decided.
    """
    usable = epochs.set(~_finite(epochs), None)
    different = usable.drop_nulls().n_unique()
    if 2 * usable.count() < len(usable) or different < 2:
        return None
    how = "--map step=NAME takes another column"
    if 2 * different < usable.count():
        notes.append(
            f"nothing counts steps, and {name!r} has {different:,} values in {len(usable):,} rows:"
            f" the rows were counted as steps; {how}"
        )
        counted = pl.int_range(1, len(usable) + 1, dtype=pl.Int64, eager=True)
        return counted.set(usable.is_null(), None)
    if not _between(usable).any():
        notes.append(f"nothing counts steps: {name!r} was taken as the step; {how}")
        return usable.round(0).cast(pl.Int64)
    notes.append(
        f"nothing counts steps: the values of {name!r}, {_span(usable)}, were numbered in order"
        f" as steps 1 to {different:,}; {how}"
    )
    return usable.rank("dense").cast(pl.Int64)


def moving_steps(steps: pl.Series, notes: list[str]) -> pl.Series:
    """Return the steps; where all rows of a log name one and the same, the number of each row.

    Loops that forget to count log everything at one step: taken at their word they have one row.

    Args:
        steps: Int64, null where a row has none.
        notes: Receives what was decided.
    """
    if steps.count() < STUCK or steps.min() != steps.max():
        return steps
    notes.append(
        f"all {steps.count():,} rows say that they are step {steps.drop_nulls()[0]:,}:"
        " they were counted instead, from 1, as they come; --map step=NAME takes another column"
    )
    return steps.is_not_null().cum_sum().cast(pl.Int64).set(steps.is_null(), None)


def _finite(values: pl.Series) -> pl.Series:
    return (values.is_finite() & (values.abs() < 2**62)).fill_null(value=False)


def _between(values: pl.Series) -> pl.Series:
    """Say which values lie between whole numbers."""
    apart = (values - values.round(0)).abs()
    return (apart > _EXACT * values.abs().clip(lower_bound=1.0)).fill_null(value=False)


def _span(values: pl.Series) -> str:
    ends = values.drop_nulls().sort().to_list()
    return f"{ends[0]:g} to {ends[-1]:g}"
