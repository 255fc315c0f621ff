"""Published: what detectors of other systems have in common, as their systems do it.

Plain arrays in, plain arrays out. Windows hold what those systems put into them: outliers that
were found, and NaN. ``faithful`` false leaves non-finite values out of the windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True, slots=True)
class Judged:
    """What a detector says of n values."""

    fired: np.ndarray
    """Whether it fired, bool of shape (n,)."""
    limit: np.ndarray
    """What each value was held against, float64 of shape (n,); NaN where nothing was."""


Detector = Callable[[np.ndarray], Judged]


def window(
    x: np.ndarray, width: int, least: int, *, sample: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of the ``width`` values before each of ``x``.

    NaN below ``least`` values, and where one of them is not finite, as a running sum has it.
    ``sample`` divides by n - 1 in place of n.
    """
    fine = np.isfinite(x)
    filled = pl.Series(np.where(fine, x, 0.0), dtype=pl.Float64).shift(1)
    least = min(max(1, least), width)
    mean = filled.rolling_mean(width, min_samples=least).fill_null(np.nan).to_numpy().copy()
    ddof = 1 if sample else 0
    rolled = filled.rolling_std(width, min_samples=max(least, 2), ddof=ddof)
    sigma = rolled.fill_null(np.nan).to_numpy().copy()
    broken = pl.Series(~fine, dtype=pl.Float64).shift(1).fill_null(0.0)
    spoilt = broken.rolling_max(width, min_samples=1).to_numpy() > 0
    mean[spoilt] = np.nan
    sigma[spoilt] = np.nan
    return mean, sigma


def above_deviations(
    x: np.ndarray, *, width: int, least: int, sigmas: float, floor: float, sample: bool = False
) -> Judged:
    """Fire above mean and ``sigmas`` deviations, where the deviation is above ``floor``."""
    mean, sigma = window(x, width, least, sample=sample)
    with np.errstate(invalid="ignore", over="ignore"):
        limit = mean + sigmas * sigma
        fired = (sigma > floor) & (x > limit)
    return Judged(fired, limit)


def not_within_deviations(
    x: np.ndarray, *, width: int, least: int, sigmas: float, floor: float, sample: bool
) -> Judged:
    """Fire unless a value is at most mean and ``sigmas`` deviations: NaN never is.

    So does every value whose window holds a NaN: a single one stops all updates for a window.
    """
    mean, sigma = window(x, width, least, sample=sample)
    known = np.arange(len(x)) >= least
    with np.errstate(invalid="ignore", over="ignore"):
        limit = mean + sigmas * np.maximum(sigma, floor)
        fired = known & ~(x <= limit)
    return Judged(fired, limit)


def runs_above(x: np.ndarray, limit: float, patience: int) -> Judged:
    """Fire at the ``patience``-th value in a row above a limit, and at those that follow."""
    with np.errstate(invalid="ignore"):
        high = x > limit
    return Judged(in_a_row(high) >= patience, np.full(len(x), limit))


def in_a_row(mask: np.ndarray) -> np.ndarray:
    """Return for each place how many True end there without a gap."""
    at = np.arange(len(mask))
    last = np.maximum.accumulate(np.where(mask, -1, at))
    return np.where(mask, at - last, 0)


def finite_only(detector: Detector) -> Detector:
    """Return a detector that never sees a value that is not finite, and fires at each of those."""

    def judge(x: np.ndarray) -> Judged:
        fine = np.isfinite(x)
        fired, limit = ~fine, np.full(len(x), np.nan)
        inner = detector(x[fine])
        fired[fine], limit[fine] = inner.fired, inner.limit
        return Judged(fired, limit)

    return judge


def above_average(
    x: np.ndarray,
    *,
    keep: float,
    ratio: float,
    warm: int,
    learns: str = "quiet",
    nonfinite: bool = True,
) -> Judged:
    """Fire above ``ratio`` times an exponential average that keeps ``keep`` of itself each value.

    Args:
        x: Values.
        keep: Share of the average that stays, 0.99 say.
        ratio: Multiple of it.
        warm: Values that only make the average.
        learns: What goes into it afterwards: ``quiet`` values that did not fire, or all of them
            ``clipped`` to the limit.
        nonfinite: Whether a value that is not finite fires.
    """
    fired = np.zeros(len(x), bool)
    limit = np.full(len(x), np.nan)
    average = float("nan")
    for i, seen in enumerate(x.tolist()):
        value = seen
        if not np.isfinite(value):
            fired[i] = nonfinite
            continue
        if i >= warm and np.isfinite(average):
            limit[i] = ratio * average
            fired[i] = value > limit[i]
            if fired[i]:
                if learns == "quiet":
                    continue
                value = float(limit[i])
        average = value if np.isnan(average) else keep * average + (1 - keep) * value
    return Judged(fired, limit)


def cumulative_sum(
    x: np.ndarray, *, width: int, warm: int, slack: float, decision: float
) -> Judged:
    """Fire where Page's sum of deviations beyond ``slack`` passes ``decision``, up or down.

    Median and deviation are those of the ``width`` values before; the sums begin anew then.
    """
    series = pl.Series(x, dtype=pl.Float64).fill_nan(None).shift(1)
    middle = series.rolling_median(width, min_samples=warm).fill_null(np.nan).to_numpy()
    away = pl.Series(np.abs(x - middle)).fill_nan(None).shift(1)
    spread = 1.4826 * away.rolling_median(width, min_samples=1).fill_null(np.nan).to_numpy()
    fired = np.zeros(len(x), bool)
    up = down = 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = ((x - middle) / np.maximum(spread, 1e-12)).tolist()
    for i, z in enumerate(scores):
        if not np.isfinite(z):
            continue
        up, down = max(0.0, up + z - slack), min(0.0, down + z + slack)
        if up >= decision or down <= -decision:
            fired[i] = True
            up = down = 0.0
    return Judged(fired, middle)


def all_so_far(x: np.ndarray, *, warm: int, sigmas: float) -> Judged:
    """Fire where a value is ``sigmas`` deviations from the mean of all before it, either way.

    One NaN makes mean and deviation NaN for good.
    """
    n = np.arange(len(x))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        centre = x[np.isfinite(x)][:1].sum()  # sums about the first value keep their digits
        moved = x - centre
        first = np.concatenate([[0.0], np.cumsum(moved)[:-1]])
        second = np.concatenate([[0.0], np.cumsum(moved * moved)[:-1]])
        mean = first / n
        sigma = np.sqrt(np.maximum(0.0, (second - n * mean * mean) / (n - 1)))
        fired = (n >= warm) & (np.abs(moved - mean) > sigmas * np.maximum(sigma, 1e-12))
    return Judged(fired, mean + centre + sigmas * sigma)


def clipped_by_z(x: np.ndarray, *, keep: float, warm: int, z: float) -> Judged:
    """Fire where a value is ``z`` deviations above an exponential mean that is fed clipped values."""
    fired = np.zeros(len(x), bool)
    limit = np.full(len(x), np.nan)
    if len(x) <= warm:
        return Judged(fired, limit)
    mean, variance = float(np.mean(x[:warm])), float(np.var(x[:warm]))
    for i, seen in enumerate(x[warm:].tolist(), start=warm):
        value = seen
        sigma = variance**0.5
        limit[i] = mean + z * sigma
        score = (value - mean) / (sigma + 1e-6)
        if score > z:
            fired[i] = True
            value = mean + z * sigma / (score / z)
        mean = keep * mean + (1 - keep) * value
        variance = keep * variance + (1 - keep) * (value - mean) ** 2
    return Judged(fired, limit)
