"""Levels: where a series settles, when it leaves that level, and what recurs by the clock.

Plain arrays in, plain arrays out. Everything works on medians of windows, so that single rows
never decide; and every fall is measured against how much such medians wander in the run itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

SIGMA_PER_MAD = 1.4826
"""Standard deviations in one median absolute deviation of a normal sample."""
_MEDIAN_ERROR = 1.2533
"""Standard error of a median in units of that of a mean, for a normal sample."""
_CHUNK = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A stretch over which a series of n values stays below the level it had before."""

    first: int
    """Index of its first value."""
    last: int
    """Index of its last value, inclusive."""
    level: float
    """Median before it."""
    depth: float
    """How far the median of the stretch lies below that, in the unit of the series."""


def trailing(x: np.ndarray, window: int, least: int | None = None) -> np.ndarray:
    """Return for each value the median of it and those before it, ``window`` in all.

    NaN where there are fewer than ``least`` (``window`` by default).
    """
    least = min(window, least or window)
    medians = pl.Series(x, dtype=pl.Float64).rolling_median(window, min_samples=least)
    return medians.fill_null(float("nan")).to_numpy()


def leading(x: np.ndarray, window: int, least: int | None = None) -> np.ndarray:
    """Return for each value the median of it and those after it; see ``trailing``."""
    return trailing(x[::-1], window, least)[::-1]


def centred(x: np.ndarray, window: int) -> np.ndarray:
    """Return for each value the median of the values around it, fewer of them at the ends."""
    window = max(1, min(window, len(x)) // 2 * 2 + 1)
    half = window // 2
    # Polars takes three to five times as long for centred windows as for trailing ones.
    return np.concatenate(
        [
            trailing(x, window, 1)[half:],
            trailing(x[-window:][::-1], window, 1)[half : 2 * half][::-1],
        ]
    )[-len(x) :]


def noise(x: np.ndarray) -> float:
    """Return the standard deviation of values about their own trend, whatever the trend.

    From second differences, in which a straight line vanishes and noise has six times its
    variance. 0 with fewer than three values.
    """
    if len(x) < 3:
        return 0.0
    return SIGMA_PER_MAD * float(np.median(np.abs(np.diff(x, 2)))) / float(np.sqrt(6.0))


def turn(x: np.ndarray, middle: float, most: float) -> int:
    """Return the index from which values are rather above ``middle`` than below.

    Of all places it is the one that leaves the most below before it and above after it: the
    likeliest change point between two levels half-way to which ``middle`` lies. No value counts
    for more than ``most``.
    """
    away = np.clip(x - middle, -most, most)
    return int(np.argmin(np.concatenate([[0.0], np.cumsum(away)])))


def median_error(sigma: float, *counts: int) -> float:
    """Return the standard error of the difference of medians of ``counts`` values each."""
    return float(_MEDIAN_ERROR * sigma * np.sqrt(sum(1.0 / max(1, n) for n in counts)))


def lasting(mask: np.ndarray, least: int, *, gap: int = 0) -> list[tuple[int, int]]:
    """Return first and last index of every run of at least ``least`` True.

    Runs at most ``gap`` apart are one.
    """
    at = np.flatnonzero(mask)
    if not len(at):
        return []
    cuts = np.flatnonzero(np.diff(at) > gap + 1)
    firsts = at[np.concatenate([[0], cuts + 1])]
    lasts = at[np.concatenate([cuts, [len(at) - 1]])]
    keep = lasts - firsts + 1 >= least
    return list(zip(firsts[keep].tolist(), lasts[keep].tolist(), strict=True))


def falls(
    x: np.ndarray,
    *,
    history: np.ndarray,
    depth: float,
    rows: int,
    sigmas: float = 6.0,
    before: int = 200,
    best: bool = False,
) -> list[Fall]:
    """Find where a series of n finite values falls to a lower level and stays there.

    Args:
        x: The series, larger being better; log values make ``depth`` a relative change.
        history: Values that came before it.
        depth: Least fall of the median.
        rows: Least number of values that it lasts.
        sigmas: Least fall in units of the wander of such medians in this very series, measured
            by its rises, which a lasting fall does not have.
        before: Values whose median is the level before.
        best: Compare with the best such level so far, so that a slow slide counts as well.

    Returns:
        The falls in order; none overlap.
    """
    joined = np.concatenate([history, x])
    start, n = len(history), len(joined)
    least = before if best else rows
    if n < 2 * rows or not _may_fall(joined, depth, rows, before, least):
        return []
    ahead = leading(joined, rows)
    level = np.full(n, np.nan)
    level[1:] = trailing(joined, before, least)[:-1]
    if best:
        level = np.fmax.accumulate(level)
    fall = level - ahead
    with np.errstate(invalid="ignore"):
        if not (fall >= depth).any():
            return []
    known = fall[np.isfinite(fall)]
    rises = -known[known <= 0]
    wander = SIGMA_PER_MAD * float(np.median(rises)) if len(rises) >= rows else 0.0
    limit = max(depth, sigmas * max(wander, median_error(noise(joined), rows, before)))
    with np.errstate(invalid="ignore"):
        candidates = np.flatnonzero(fall >= limit)
    if not len(candidates):
        return []
    smooth = centred(joined, max(3, rows // 2))
    found: list[Fall] = []
    i = start
    while (k := int(np.searchsorted(candidates, i))) < len(candidates):
        onset = int(candidates[k])
        reference = float(level[onset])
        after = float(np.median(joined[onset + rows // 2 : onset + rows + rows // 2]))
        half = (reference - after) / 2
        onset += turn(-joined[onset : onset + rows], half - reference, half)
        stop = _first_at_least(smooth, onset + rows, reference - limit / 2)
        while stop > onset + 1 and joined[stop - 1] > reference - limit / 2:
            stop -= 1
        size = reference - float(np.median(joined[onset:stop]))
        if stop - onset >= rows and size >= depth:
            found.append(
                Fall(first=onset - start, last=stop - 1 - start, level=reference, depth=size)
            )
        i = max(stop, onset + 1)
    return found


def _may_fall(x: np.ndarray, depth: float, rows: int, before: int, least: int) -> bool:
    """Say whether a median of ``rows`` values may lie ``depth`` below one of ``before`` before it.

    Proves for most runs that none does, by counting and in a fraction of the time that medians
    take: one cannot lie above a value that fewer than half of its window exceed.
    """
    if len(x) <= before:
        return True
    tenth = len(x) // 10
    top = float(np.partition(x, len(x) - 1 - tenth)[len(x) - 1 - tenth])
    if 2 * _most(x > top, before) >= before:
        return True
    first = trailing(x[:before], before, least)  # windows that are not full yet
    top = max(top, float(np.nanmax(first, initial=-np.inf)))
    return 2 * _most(x <= top - depth, rows) >= rows


def _most(mask: np.ndarray, window: int) -> int:
    """Return the most True in any ``window`` values in a row."""
    total = np.concatenate([[0], np.cumsum(mask, dtype=np.int32)])
    return int((total[window:] - total[:-window]).max())


def _first_at_least(x: np.ndarray, start: int, level: float) -> int:
    """Return the first index from ``start`` on at which ``x`` is at least ``level``, else its length."""
    for at in range(start, len(x), _CHUNK):
        reached = x[at : at + _CHUNK] >= level
        if reached.any():
            return at + int(np.argmax(reached))
    return len(x)


def on_a_grid(at: np.ndarray, span: int) -> np.ndarray:
    """Say which of some sorted row numbers recur at a fixed distance, as evaluations do.

    Args:
        at: Row numbers of short dips, shape (k,).
        span: Rows in all.

    Returns:
        Bool of shape (k,). A distance counts when at least four of the numbers keep to it within
        one row and fill half of the grid between them, or three fill all of it, over a third of
        the rows where they are fewer than six; or two are its first multiples. Up to four grids
        are looked for: evaluations and checkpoints each have their own.
    """
    explained = np.zeros(len(at), bool)
    for _ in range(4):
        left = at[~explained]
        if len(left) < 2:
            break
        found = _grid(left, span)
        if found is None:
            break
        period, offset = found
        explained |= _on(at, period, offset)
    return explained


def _on(at: np.ndarray, period: int, offset: int) -> np.ndarray:
    slack = 1 if period >= 10 else 0
    away = (at - offset) % period
    return np.asarray(np.minimum(away, period - away) <= slack)


def _grid(at: np.ndarray, span: int) -> tuple[int, int] | None:
    """Return distance and offset of the fullest grid among ``at``, or None."""
    gaps = np.concatenate([np.diff(at), at[2:] - at[:-2]])
    sizes, counts = np.unique(gaps[gaps >= 3], return_counts=True)
    best: tuple[int, int, int] | None = None
    for period in sizes[np.argsort(-counts, kind="stable")][:8].tolist():
        offsets, common = np.unique(at % period, return_counts=True)
        offset = int(offsets[np.argmax(common)])
        members = at[_on(at, period, offset)]
        reach = int(members[-1] - members[0])
        places = reach // period + 1
        filled = 2 * len(members) >= places if len(members) > 3 else len(members) == places
        wide = 3 * reach >= span or len(members) >= 6
        regular = len(members) >= 3 and filled and wide
        pair = len(members) == 2 and abs(int(members[0]) - period) <= 1 and 4 * period >= span >= 20
        if (regular or pair) and (best is None or len(members) > best[0]):
            best = (len(members), period, offset)
    return None if best is None else best[1:]


def balanced_aux_loss(
    early: float, coefficient: float | None, top_k: float | None
) -> tuple[float, bool]:
    """Return the load-balancing loss of balanced routing, and whether something vouches for it.

    Args:
        early: Its median at the start of the run.
        coefficient: Weight of the loss, where known.
        top_k: Experts per token, where known.

    E sum(f P) is 1 under balanced routing in Megatron-LM, OLMo-core and the Switch Transformer,
    and ``top_k`` in transformers; some log it before and some after multiplying by the
    coefficient. The start of the run decides between them; where it is near none, it is itself
    the best guess.
    """
    scales = [1.0, coefficient] if coefficient else [1.0]
    experts = [1.0, top_k] if top_k else [1.0]
    nearest = min((s * e for s in scales for e in experts), key=lambda v: abs(np.log(early / v)))
    limit = 4.0 if coefficient else 1.3
    known = 0.8 <= early / nearest <= limit
    return (nearest, True) if known else (early, False)
