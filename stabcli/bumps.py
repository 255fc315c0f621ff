"""Bumps: short excursions of a series, and which of them are usual in a run.

Batches of some runs are so uneven that single rows stand out all the time. One more of them is
no news; telling of each would be crying wolf.
"""

from __future__ import annotations

import numpy as np

from stabcli.series import stretches

AS_HIGH = 0.85
"""Share of a bump's log height that another must reach to be as high."""


class Bumps:
    """The stretches of one attempt in which a series stands out, and how high each is."""

    def __init__(self, high: np.ndarray, ratio: np.ndarray, *, short: int) -> None:
        """Find the bumps.

        Args:
            high: Rows that stand out, bool of shape (n,).
            ratio: Each row's ratio to its level, float of shape (n,).
            short: Rows up to which a bump is short.
        """
        spans = stretches(high)
        self._first = np.array([a for a, _ in spans], dtype=np.int64)
        width = np.array([b - a + 1 for a, b in spans], dtype=np.int64)
        tops = np.array([float(ratio[a : b + 1].max()) for a, b in spans])
        self._height = np.log(np.maximum(tops, 1.0))
        self._short = width <= short

    def only_short(self, first: int, last: int) -> bool:
        """Say whether all bumps that begin in rows ``first`` to ``last`` are short."""
        inside = (self._first >= first) & (self._first <= last)
        return bool(self._short[inside].all())

    def others(self, first: int, last: int, ratio: float, within: int) -> int:
        """Count the short bumps outside these rows, near them, and about as high as ``ratio``."""
        near = (self._first >= first - within) & (self._first <= last + within)
        outside = (self._first < first) | (self._first > last)
        high = self._height >= AS_HIGH * np.log(ratio)
        return int((near & outside & high & self._short).sum())
