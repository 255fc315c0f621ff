"""Shifts: where a series leaves one level for another, within a few rows or slowly, and stays there.

Levels are trimeans of windows, which single rows do not move and which are surer than medians.
A shift is measured against the noise of the rows before it and against how much such levels
wander in the run itself, whatever the cause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.levels import SIGMA_PER_MAD, centred, noise, trailing, turn

STRIDE = 8
"""Rows from one window to the next: fine enough for windows of 32, and eight times less work."""
TRIMEAN_ERROR = 1.10
"""Standard error of a trimean in units of that of a mean, for a normal sample."""
NOISE_ROWS = 128
"""Rows before a shift in which the noise is measured."""
WANDER_SIGMAS = 0.8
"""Weight of the wander against that of the noise: it holds the noise already."""
SLIDE_BLOCKS = 5
"""Blocks on either side of a slide to whose levels a straight line is fitted."""
SLIDE_GAPS = (2, 3, 5)
"""Blocks that a slide may take."""
SLIDE_ERRORS, SLIDE_WANDER = 6.0, 5.0
"""Standard errors, and deviations of the same figure over the run, that a slide must measure."""
STRAIGHT = 0.5
"""Share of a slide by which no block on either side may miss its line: else it is a staircase."""
SURE = 0.7
"""Share of a shift of trimeans that the medians must show, so that a short spike is none."""
DIP_PART = 10
"""A dip is at most one such part of the rows before its end."""
DIP_BEGINS = 8
"""Rows within which a dip begins."""
DIP_LEVEL = 16
"""Rows that tell the level before a dip, and as many that tell whether it was steady."""
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
    # The quartiles as numpy.quantile has them; sorting short rows is several times faster.
    places = np.array([0.25, 0.5, 0.75]) * (window - 1)
    low, high = np.floor(places).astype(int), np.ceil(places).astype(int)
    for at in range(0, len(windows), _CHUNK):
        ordered = np.sort(windows[at : at + _CHUNK], axis=1)
        part = ordered[:, low] + (places - low) * (ordered[:, high] - ordered[:, low])
        levels[at : at + _CHUNK] = part @ np.array([0.25, 0.5, 0.25])
        medians[at : at + _CHUNK] = part[:, 1]
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
    limit = np.maximum(least, sigmas * _error(x, starts, rise, rows, (least, sigmas)))
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


def slides(x: np.ndarray, at: np.ndarray, *, rows: int, least: float) -> list[Shift]:
    """Find where a falling series of n values goes on as before, but from a higher level.

    A rise as slow as the fall is a stretch of level loss: nothing in it lies above what was before.
    It shows as the distance between two parallel lines, one fitted to what comes before and one to
    what comes after. Being told from both sides, the end of a fall is none.

    Args:
        x: The series.
        at: Where each value stands, rising, in a unit in which the fall is about straight.
        rows: Rows of a block, of which five on either side are looked at.
        least: Least distance of the lines.

    Returns:
        The slides in order; none overlap.
    """
    level, place = trimeans(x, rows, rows)[0], trimeans(at, rows, rows)[0]
    white = TRIMEAN_ERROR * noise(x) / np.sqrt(rows)
    k = SLIDE_BLOCKS
    candidates: list[tuple[float, int, int, float, float]] = []
    for gap in SLIDE_GAPS:
        if len(level) < 2 * k + gap:
            continue
        y, t = (sliding_window_view(v, 2 * k + gap) for v in (level, place))
        sides = [(y[:, part], t[:, part]) for part in (slice(0, k), slice(k + gap, None))]
        means = [(a.mean(axis=1, keepdims=True), b.mean(axis=1, keepdims=True)) for a, b in sides]
        away = [(a - m, b - n) for (a, b), (m, n) in zip(sides, means, strict=True)]
        square = sum((b * b).sum(axis=1) for _, b in away)
        slope = sum((a * b).sum(axis=1) for a, b in away) / square
        apart = (means[1][1] - means[0][1])[:, 0]
        size = (means[1][0] - means[0][0])[:, 0] - slope * apart
        rest = np.concatenate([a - slope[:, None] * b for a, b in away], axis=1)
        spread = np.sqrt((rest * rest).sum(axis=1) / (2 * k - 3))
        # How blocks miss such lines all over the run: of one place seven differences tell little.
        usual = float(np.median(spread))
        error = np.maximum(spread, max(white, usual)) * np.sqrt(2 / k + apart**2 / square)
        # The same distance where nothing slid: a series that wanders has it everywhere.
        wander = SIGMA_PER_MAD * float(np.median(np.abs(size - np.median(size))))
        limit = np.maximum(np.maximum(least, SLIDE_ERRORS * error), SLIDE_WANDER * wander)
        straight = np.abs(rest).max(axis=1) <= STRAIGHT * size
        for i in np.flatnonzero((size >= limit) & straight & (slope < 0)):
            first, last = (int(i) + k) * rows, (int(i) + k + gap) * rows - 1
            after = float(means[1][0][i, 0])
            candidates.append((-float(size[i] / limit[i]), first, last, after - size[i], after))
    found: list[Shift] = []
    for sureness, first, last, before, after in sorted(candidates):
        if not any(s.first <= last and first <= s.last for s in found):
            found.append(Shift(first=first, last=last, before=before, after=after, score=-sureness))
    return sorted(found, key=lambda s: s.first)


def after_a_dip(x: np.ndarray, first: int, low: float, top: float) -> bool:
    """Say whether a climb only brings back the level from which the loss had fallen in a moment.

    Masked or repeated data, and a mask that is wrong, make a loss that is too good for a while:
    what comes after it is no fault, unless it goes on to rise beyond where it was.

    Args:
        x: The series.
        first: Index at which it climbs.
        low: Its level before that.
        top: How far it climbs above that.
    """
    start = max(0, first - first // DIP_PART - DIP_BEGINS)
    high = np.flatnonzero(centred(x[start:first], DIP_BEGINS) > low + top / 2)
    begun = start + int(high[-1]) + 1 if len(high) else 0
    if begun < 2 * DIP_LEVEL or first - begun < DIP_BEGINS:
        return False
    before, earlier = x[begun - DIP_LEVEL : begun], x[begun - 2 * DIP_LEVEL : begun - DIP_LEVEL]
    level = float(np.median(before[: DIP_LEVEL - DIP_BEGINS // 2]))
    fall = level - float(np.median(x[begun : begun + DIP_BEGINS]))
    steady = abs(float(np.median(earlier)) - level) < fall / 4
    return steady and fall >= 0.7 * (level - low) and low + top <= level + fall / 4


def _error(
    x: np.ndarray, starts: np.ndarray, rise: np.ndarray, rows: int, asked: tuple[float, float]
) -> np.ndarray:
    """Return the standard error of each rise: by the noise before it, and by the run's wander.

    Noise costs a rolling median, and is looked at only near rises that are large enough without,
    by ``asked``: the least rise, and the least in standard errors.
    """
    bend = np.abs(np.diff(x, 2))
    if not len(bend):
        return np.full(len(starts), np.inf)
    wander = float(np.median(np.abs(rise - centred(rise, 10 * rows // STRIDE + 1))))
    error = np.full(len(starts), WANDER_SIGMAS * SIGMA_PER_MAD * wander)
    least, sigmas = asked
    large = np.flatnonzero(rise >= np.maximum(least, sigmas * error))
    # The newest bends that hold no row of the windows themselves.
    newest = np.clip(starts[large] - 3, 0, len(bend) - 1)
    known = np.full(len(large), np.nan)
    for at in range(0, len(bend), _CHUNK):
        inside = slice(*np.searchsorted(newest, (at, at + _CHUNK)))
        if inside.start < inside.stop:
            begin = max(0, at - NOISE_ROWS + 1)
            local = trailing(bend[begin : at + _CHUNK], NOISE_ROWS, min(16, len(bend)))
            known[inside] = local[newest[inside] - begin]
    local_noise = SIGMA_PER_MAD / np.sqrt(6.0) * np.nan_to_num(known, nan=float(np.median(bend)))
    error[large] = np.maximum(error[large], TRIMEAN_ERROR * local_noise * np.sqrt(2.0 / rows))
    return error


def _turn(x: np.ndarray, about: int, reach: int, middle: float) -> int:
    """Return the index near ``about`` from which ``x`` is rather above ``middle`` than below."""
    start, stop = max(0, about - reach), min(len(x), about + reach)
    return start + turn(x[start:stop], middle, abs(middle) + 1.0)
