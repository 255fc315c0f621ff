"""Shifts: where a series leaves one level for another within a few rows, and stays there.

Levels are trimeans of windows, which single rows do not move and which are surer than medians.
A shift is measured against the noise of the rows before it and against how much such levels
wander in the run itself, whatever the cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.levels import SIGMA_PER_MAD, centred

STRIDE = 8
"""Rows from one window to the next: fine enough for windows of 32, and eight times less work."""
TRIMEAN_ERROR = 1.10
"""Standard error of a trimean in units of that of a mean, for a normal sample."""
NOISE_ROWS = 128
"""Rows before a shift in which the noise is measured."""
WANDER_SIGMAS = 0.8
"""Weight of the wander against that of the noise: it holds the noise already."""
SURE = 0.7
"""Share of a shift of trimeans that the medians must show, so that a short spike is none."""
_CHUNK = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A stretch over which a series of n values lies above the level it had before."""

    first: int
    """Index of its first value."""
    last: int
    """Index of its last value, inclusive: the last of the series where it never came back."""
    before: float
    """Level before, in the unit of the series."""
    after: float
    """Level after."""
    score: float
    """Size in units of the least that counts here."""


def trimeans(x: np.ndarray, window: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return trimean and median of every ``stride``-th window of ``x`` (n,), in order."""
    if len(x) < window:
        return np.empty(0), np.empty(0)
    windows = sliding_window_view(x, window)[::stride]
    levels, medians = np.empty(len(windows)), np.empty(len(windows))
    for at in range(0, len(windows), _CHUNK):
        part = np.quantile(windows[at : at + _CHUNK], (0.25, 0.5, 0.75), axis=1)
        levels[at : at + _CHUNK] = 0.25 * part[0] + 0.5 * part[1] + 0.25 * part[2]
        medians[at : at + _CHUNK] = part[1]
    return levels, medians


def rises(x: np.ndarray, *, rows: int, least: float, sigmas: float) -> list[Shift]:
    """Find where a series of n finite values rises to a level and stays there for ``rows`` values.

    Args:
        x: The series; log values make ``least`` a relative change.
        rows: Values whose level is compared with that of as many before them.
        least: Least rise.
        sigmas: Least rise in standard errors.

    Returns:
        The rises in order; none overlap.
    """
    level, median = trimeans(x, rows, STRIDE)
    back = rows // STRIDE
    if len(level) <= back:
        return []
    rise = level[back:] - level[:-back]
    sure = median[back:] - median[:-back] >= SURE * rise
    starts = STRIDE * np.arange(back, len(level))
    limit = np.maximum(least, sigmas * _error(x, starts, rise, rows))
    over = np.flatnonzero((rise >= limit) & sure)
    found: list[Shift] = []
    behind = 0
    while (k := int(np.searchsorted(over, behind))) < len(over):
        at = int(over[k])
        # The steepest place within reach is where the two windows meet the shift.
        near = np.arange(at, min(len(rise), at + back + 1))
        near = near[np.isin(near, over)]
        at = int(near[np.argmax(rise[near])])
        before, after = float(level[at]), float(level[at + back])
        middle = (before + after) / 2
        first = _turn(x, int(starts[at]), rows // 2, middle)
        low = np.flatnonzero(level[at + back + 1 :] <= middle)
        if len(low):
            # That window is half below: it ends where the series turns inside it.
            end = STRIDE * (at + back + 1 + int(low[0])) + rows // 2
            last = max(first, _turn(-x, min(end, len(x) - 1), rows // 2, -middle) - 1)
            behind = at + 1 + int(low[0])
        else:
            last, behind = len(x) - 1, len(rise)
        score = float(rise[at] / limit[at])
        found.append(Shift(first=first, last=last, before=before, after=after, score=score))
    return found


def _error(x: np.ndarray, starts: np.ndarray, rise: np.ndarray, rows: int) -> np.ndarray:
    """Return the standard error of each rise: by the noise before it, and by the run's wander."""
    bend = np.abs(np.diff(x, 2))
    if not len(bend):
        return np.full(len(starts), np.inf)
    local = pl.Series(bend).rolling_median(NOISE_ROWS, min_samples=min(16, len(bend)))
    # The newest bend that holds no row of the window itself.
    known = local.to_numpy()[np.clip(starts - 3, 0, len(bend) - 1)]
    noise = SIGMA_PER_MAD / np.sqrt(6.0) * np.nan_to_num(known, nan=float(np.median(bend)))
    wander = float(np.median(np.abs(rise - centred(rise, 10 * rows // STRIDE + 1))))
    by_noise = TRIMEAN_ERROR * noise * np.sqrt(2.0 / rows)
    return np.asarray(np.maximum(by_noise, WANDER_SIGMAS * SIGMA_PER_MAD * wander))


def _turn(x: np.ndarray, about: int, reach: int, middle: float) -> int:
    """Return the index near ``about`` from which ``x`` is rather above ``middle`` than below.

    Of all places it is the one that leaves the most below before it and above after it: the
    likeliest change point between two levels half-way to which ``middle`` lies.
    """
    start, stop = max(0, about - reach), min(len(x), about + reach)
    away = np.clip(x[start:stop] - middle, -abs(middle) - 1.0, abs(middle) + 1.0)
    total = np.concatenate([[0.0], np.cumsum(away)])
    return start + int(np.argmin(total))
