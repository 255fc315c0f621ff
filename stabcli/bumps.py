"""Bumps: short excursions of a series, and which of them are usual in a run.

Batches of some runs are so uneven that single rows stand out all the time. One more of them is
no news; telling of each would be crying wolf.
"""

from __future__ import annotations

import numpy as np

from stabcli.series import stretches

FEWEST = 10
"""Bumps without which no share of them says anything."""
AS_FREQUENT = 0.6
"""Share of a bump's log height that another must reach to be of the same kind of batch."""
AS_HIGH = 0.85
"""Share of a bump's log height that another must reach to be as high."""
GAP = 1
"""Rows at the level that do not yet end a bump."""


class Bumps:
    """The stretches of one attempt in which a series stands out, and how high each is."""

    def __init__(
        self, standing_out: np.ndarray, raised: np.ndarray, ratio: np.ndarray, *, short: int
    ) -> None:
        """Find the bumps.

        Args:
            standing_out: Rows that stand out, bool of shape (n,).
            raised: Rows above their level by less, which tell how wide a bump is; bool (n,).
            ratio: Each row's ratio to its level, float of shape (n,).
            short: Rows up to which a bump is short.
        """
        spans = [
            (a, b)
            for a, b in stretches(raised | standing_out, gap=GAP)
            if standing_out[a : b + 1].any()
        ]
        self._first = np.array([a for a, _ in spans], dtype=np.int64)
        self._last = np.array([b for _, b in spans], dtype=np.int64)
        self._rows = len(ratio)
        tops = np.array([float(ratio[a : b + 1].max()) for a, b in spans])
        self._height = np.log(np.maximum(tops, 1.0))
        self._short = self._last - self._first + 1 <= short

    def only_short(self, first: int, last: int) -> bool:
        """Say whether all bumps that touch rows ``first`` to ``last`` are short."""
        inside = (self._first <= last) & (self._last >= first)
        return bool(self._short[inside].all())

    def share(self, first: int, last: int, ratio: float, within: int) -> float:
        """Return the share of the rows near these that are short bumps about half as high or more.

        0 where there are too few bumps to tell.
        """
        start, stop = max(0, first - within), min(self._rows, last + within + 1)
        near = (self._first >= start) & (self._first < stop) & self._short
        high = self._height >= AS_FREQUENT * np.log(ratio)
        count = int((near & high).sum())
        return count / max(1, stop - start) if count >= FEWEST else 0.0

    def others(self, first: int, last: int, ratio: float, within: int) -> int:
        """Count the short bumps outside these rows, near them, and about as high as ``ratio``."""
        near = (self._first >= first - within) & (self._first <= last + within)
        outside = (self._last < first) | (self._first > last)
        high = self._height >= AS_HIGH * np.log(ratio)
        return int((near & outside & high & self._short).sum())
