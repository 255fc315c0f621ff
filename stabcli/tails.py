"""Tails: the level that a series reached at the end of a run, or at a given point of it.

One logged loss is a loss of one batch. What a run reached is a median over many, and whoever
compares two of them has to know how surely each is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from stabcli.run import Run
from stabcli.series import slope, spread
from stabcli.units import Step

SHARE = 20
"""A tail is one in so many of the logged rows, but at least ``FEWEST`` and at most ``MOST``."""
FEWEST, MOST = 16, 500
BLOCKS = 10
"""Stretches whose medians show how far neighbours move together."""
POINTS = 100
"""Stretches whose medians show the trend."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, in normal noise: sqrt(pi / 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Where a series stood, and how surely that is known."""

    value: float
    """Median of the rows; NaN where the series was not finite there."""
    error: float
    """Standard error of the median; 0 where it cannot be told."""
    rows: int
    """Logged rows it rests on."""
    first: Step
    """Step of the first of them."""
    last: Step
    """Step of the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A metric over the rows that no later attempt took back: n of them, by step."""

    rows: np.ndarray
    """Row numbers in the frame, int64 of shape (n,)."""
    steps: np.ndarray
    """Steps, int64 of shape (n,)."""
    values: np.ndarray
    """Values, float64 of shape (n,); NaN and infinities are what the trainer had."""


def kept(run: Run, metric: str) -> Kept | None:
    """Return the rows of a metric that are part of the final run; None where there are none."""
    if not run.has(metric):
        return None
    rows = np.flatnonzero(run.logged(metric) & ~run.frame["discarded"].to_numpy())
    if not len(rows):
        return None
    steps = run.frame["step"].to_numpy()[rows]
    order = np.argsort(steps, kind="stable")
    rows = rows[order]
    return Kept(rows=rows, steps=steps[order], values=run.array(metric)[rows])


def gone(run: Run, series: Kept) -> str | None:
    """Say where a series was logged last, if the run went on for ``FEWEST`` such rows and more.

    Then the newest values say nothing of the end of the run.
    """
    interval = float(np.median(np.diff(series.steps))) if len(series.steps) > 1 else 1.0
    last = int(run.frame.filter(~pl.col("discarded"))["step"].max())  # type: ignore[arg-type]
    ended = int(series.steps[-1])
    if last - ended < FEWEST * max(1.0, interval):
        return None
    return f"logged last at step {ended:,}, and the log goes on to step {last:,}"


def tail(series: Kept) -> Level:
    """Return the level at the end of a series."""
    n = len(series.rows)
    return level(series, slice(max(0, n - min(MOST, max(FEWEST, n // SHARE))), n))


def level(series: Kept, part: slice) -> Level:
    """Return the level of a stretch of a series.

    It is not finite where its last value is not, or more than half of it: a run that ends in NaN
    has reached nothing.
    """
    steps, values = series.steps[part], series.values[part]
    first, last, rows = int(steps[0]), int(steps[-1]), len(values)
    finite = np.isfinite(values)
    if not finite[-1] or finite.mean() <= 0.5:
        return Level(value=math.nan, error=0.0, rows=rows, first=first, last=last)
    good = values[finite]
    error = _error(steps[finite].astype(float), good)
    return Level(value=float(np.median(good)), error=error, rows=rows, first=first, last=last)


def _error(x: np.ndarray, values: np.ndarray) -> float:
    """Return the standard error of a median, whose rows may move together.

    From the spread of the rows without their trend, as if they were independent, and from the
    spread of the medians of ``BLOCKS`` stretches, which is larger where they are not.
    """
    n = len(values)
    if n < 4:
        return 0.0
    parts = np.array_split(np.arange(n), min(n, POINTS))
    trend = slope(
        np.array([x[p].mean() for p in parts]), np.array([np.median(values[p]) for p in parts])
    )
    rest = values - (trend * (x - x[0]) if math.isfinite(trend) else 0.0)
    alone = MEDIAN_ERROR * spread(rest) / math.sqrt(n)
    if n < 4 * BLOCKS:
        return alone
    medians = np.array([np.median(block) for block in np.array_split(rest, BLOCKS)])
    return max(alone, spread(medians) / math.sqrt(BLOCKS))
