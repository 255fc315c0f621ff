"""Bumps: short excursions of a series, and which of them are usual in a run.

Batches of some runs are so uneven that single rows stand out all the time. One more of them is
no news; telling of each would be crying wolf.
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from stabcli.series import SIGMA_PER_MAD, stretches

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


class Tails:
    """How far the rows of one attempt stand out of all rows around them, in even units.

    The spread of 64 rows is itself uncertain by a tenth; that of a thousand is not, and tells a
    row that stands alone in a run of even batches from one of many in a run of uneven ones.
    """

    BLOCK = 128
    """Rows whose median is taken first."""
    BLOCKS = 9
    """Blocks around a row whose median is the unit."""
    WITHIN = 4000
    """Rows on either side with which a bump is compared."""

    def __init__(self, values: np.ndarray, base: np.ndarray) -> None:
        """Measure the rows.

        Args:
            values: Values of shape (n,).
            base: The level before each, shape (n,); NaN where there is none.
        """
        with np.errstate(all="ignore"):
            away = np.log(values / base)
        away = np.where(np.isfinite(away), away, 0.0)
        unit = self._around(np.abs(away))
        with np.errstate(all="ignore"):
            self.sigmas = away / (SIGMA_PER_MAD * unit)
        self.sigmas[~np.isfinite(self.sigmas)] = 0.0

    def _around(self, x: np.ndarray) -> np.ndarray:
        """Return for each value about the median of the thousand around it, block by block."""
        whole = len(x) // self.BLOCK
        if whole < 2:
            return np.full(len(x), float(np.median(x)) if len(x) else 0.0)
        blocks = np.median(x[: whole * self.BLOCK].reshape(whole, self.BLOCK), axis=1)
        smooth = pl.Series(blocks).rolling_median(self.BLOCKS, min_samples=1, center=True)
        return smooth.to_numpy()[np.minimum(np.arange(len(x)) // self.BLOCK, whole - 1)]

    def alone(self, first: int, last: int, share: float) -> bool:
        """Say whether no row around these reaches ``share`` of the height of the highest of them."""
        return self._reaching(first, last, share)[0] == 0

    def heavy(self, first: int, last: int) -> bool:
        """Say whether far more rows around come near its height than normal noise lets."""
        for share in (0.5, 0.7):
            count, of, limit = self._reaching(first, last, share)
            # The level itself is the median of 16 rows, which adds a tenth to the variance.
            expected = of * math.erfc(limit / math.sqrt(2.2)) / 2
            if count >= 3 + 4 * expected:
                return True
        return False

    def _reaching(self, first: int, last: int, share: float) -> tuple[int, int, float]:
        """Return how many rows around reach a share of the highest, of how many, and the share."""
        limit = share * float(self.sigmas[first : last + 1].max())
        before = self.sigmas[max(0, first - self.WITHIN) : max(0, first - 1)]
        after = self.sigmas[last + 2 : last + 1 + self.WITHIN]
        count = int((before >= limit).sum() + (after >= limit).sum())
        return count, len(before) + len(after), limit
