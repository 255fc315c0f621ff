"""Points: what of a long series is drawn. A smallest or a largest value is never left out.

The series is cut into buckets of equal width in steps, and of each bucket the first, the
smallest, the largest and the last value stay: on a screen with a column of dots a bucket that
draws the same line as all rows would. Beside incidents every row stays while there is room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stabcli.series import stretches

MOST_STRETCHES = 300
"""Stretches of non-finite values drawn one by one; more are drawn a bucket at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A stretch of rows of one attempt whose values are not finite."""

    first: int
    """Index of its first row."""
    last: int
    """Index of its last row."""
    count: int
    """Rows that are not finite; fewer than the stretch has where several were drawn as one."""
    what: str
    """``NaN``, ``Inf``, ``-Inf``, or several of them."""


def thinned(
    steps: np.ndarray,
    attempts: np.ndarray,
    values: np.ndarray,
    *,
    most: int,
    near: np.ndarray | None = None,
) -> np.ndarray:
    """Return the indices of the rows to draw, sorted: at most ``most``, all where there are fewer.

    Args:
        steps: Steps of shape (n,), rising within an attempt.
        attempts: Attempt of each row, shape (n,), rising.
        values: Finite values, shape (n,).
        most: Most rows to return; at least 8.
        near: Indices of rows to keep beside the buckets' own, the most important first; the
            first quarter of ``most`` of them is kept.
    """
    n = len(values)
    if n <= most:
        return np.arange(n)
    close = np.empty(0, np.int64) if near is None else np.asarray(near[: most // 4], dtype=np.int64)
    starts = _starts(steps, attempts, (most - len(close)) // 4)
    stops = np.append(starts[1:], n)
    kept = [
        starts,
        stops - 1,
        _first_equal(values, np.minimum.reduceat(values, starts), starts, stops),
        _first_equal(values, np.maximum.reduceat(values, starts), starts, stops),
        close,
    ]
    return np.unique(np.concatenate(kept))


def _starts(steps: np.ndarray, attempts: np.ndarray, most: int) -> np.ndarray:
    """Return the first index of each bucket, at most ``most`` of them.

    A bucket holds rows of one attempt, except where there are more attempts than buckets.
    """
    n = len(steps)
    low = int(steps.min())
    width = float(int(steps.max()) - low + 1)
    new_attempt = np.diff(attempts) != 0
    columns = most
    while columns >= 1:
        column = ((steps - low) / width * columns).astype(np.int64)
        starts = np.concatenate([[0], np.flatnonzero((np.diff(column) != 0) | new_attempt) + 1])
        if len(starts) <= most:
            return starts
        columns //= 2
    return np.unique(np.arange(most) * n // most)


def _first_equal(
    values: np.ndarray, wanted: np.ndarray, starts: np.ndarray, stops: np.ndarray
) -> np.ndarray:
    """Return the first index in each bucket at which the value is the bucket's ``wanted``."""
    sizes = stops - starts
    at = np.flatnonzero(values == np.repeat(wanted, sizes))
    bucket = np.repeat(np.arange(len(starts)), sizes)[at]
    return at[np.unique(bucket, return_index=True)[1]]


def beside(
    steps: np.ndarray, attempts: np.ndarray, spans: Sequence[tuple[int, int, int]], margin: int
) -> np.ndarray:
    """Return the indices of the rows in and around spans, those of the first span first.

    Args:
        steps: Steps of shape (n,), rising within an attempt.
        attempts: Attempt of each row, shape (n,), rising.
        spans: Attempt, first and last step of each.
        margin: Rows to add on either side.
    """
    found: list[np.ndarray] = []
    for attempt, first, last in spans:
        start, stop = np.searchsorted(attempts, [attempt, attempt + 1])
        inside = steps[start:stop]
        low = start + int(np.searchsorted(inside, first)) - margin
        high = start + int(np.searchsorted(inside, last, side="right")) + margin
        found.append(np.arange(max(start, low), min(stop, high)))
    rows = np.concatenate(found) if found else np.empty(0, np.int64)
    return rows[np.sort(np.unique(rows, return_index=True)[1])]


def broken(steps: np.ndarray, attempts: np.ndarray, values: np.ndarray) -> list[Broken]:
    """Return the stretches of values that are not finite, every one of them counted.

    Args:
        steps: Steps of shape (n,).
        attempts: Attempt of each row, shape (n,), rising.
        values: What was logged, shape (n,).
    """
    bad = ~np.isfinite(values)
    if not bad.any():
        return []
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(attempts) != 0) + 1, [len(values)]])
    found = [
        (int(start) + a, int(start) + b)
        for start, stop in pairwise(cuts)
        for a, b in stretches(bad[start:stop])
    ]
    if len(found) > MOST_STRETCHES:
        starts = _starts(steps, attempts, MOST_STRETCHES)
        bucket = np.searchsorted(starts, [a for a, _ in found], side="right")
        new = np.concatenate([[0], np.flatnonzero(np.diff(bucket)) + 1])
        ends = np.append(new[1:], len(found)) - 1
        found = [(found[a][0], found[b][1]) for a, b in zip(new, ends, strict=True)]
    return [
        Broken(
            first=a,
            last=b,
            count=int(bad[a : b + 1].sum()),
            what=_kinds(values[a : b + 1][bad[a : b + 1]]),
        )
        for a, b in found
    ]


def _kinds(values: np.ndarray) -> str:
    """Name the non-finite values that occur."""
    kinds = (
        ("NaN", np.isnan(values)),
        ("Inf", np.isposinf(values)),
        ("-Inf", np.isneginf(values)),
    )
    return ", ".join(name for name, rows in kinds if rows.any())
