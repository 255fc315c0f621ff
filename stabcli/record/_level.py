"""The level of a series as it grows, and what leaps out of it."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import Final

NORMAL: Final = 1.4826
"""Standard deviations in one median absolute deviation of a normal sample."""

SEEN = 32
"""Values to have seen before anything counts as a spike; a non-finite value counts at once."""


class Level:
    """The median and spread of the last values of a series, kept sorted as it grows."""

    def __init__(self, window: int, sigmas: float, floor: float) -> None:
        self._window, self._sigmas, self._floor = window, sigmas, floor
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def judge(self, value: float) -> str | None:
        """Say what is usual where ``value`` is not, then count it in; None where it is usual."""
        if not math.isfinite(value):
            return ""
        usual = None
        count = len(self._sorted)
        if count >= SEEN and value > self._sorted[count * 9 // 10]:  # most steps end here
            middle = self._sorted[count // 2]
            deviations = sorted(abs(v - middle) for v in self._sorted)
            spread = max(NORMAL * deviations[count // 2], self._floor * abs(middle))
            if value > middle + self._sigmas * spread:
                usual = f", usually {middle:.6g}"
        self._values.append(value)
        insort(self._sorted, value)
        if len(self._values) > self._window:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        return usual
