"""Rarity: how often noise alone would raise a row so far, by the law of all rows around it.

Batches of some runs are so uneven that single rows stand out all the time. Whether one more of
them is news depends on the tail of the noise: a value six standard deviations up is one in a
billion rows of normal noise, and one in a thousand of noise with Student's t of five degrees.
"""

from __future__ import annotations

import math

import numpy as np

from stabcli.levels import SIGMA_PER_MAD, centred

LEVEL_ROWS = 33
"""Rows around each whose median is its level: a short bump does not move it."""
LONG_ROWS, LONG_SIGMAS = 9, 2.0
"""Rows whose median lies so far from the level where an excursion is no single row's."""
BLOCK = 128
"""Rows whose median distance from the level is taken first."""
BLOCKS = 9
"""Blocks around a row whose median is the unit: that of 64 rows is itself uncertain by a tenth."""
WITHIN = 768
"""Rows on either side whose law decides: enough for its tail, few enough to be of one kind."""
EXTREME = 20.0
"""Standard deviations from which a row is no noise, whatever other rows say: in a run of even
batches with a few bad ones among them those would make each other usual."""
_LEAST = 0.005
"""Standard deviation below which rounding is no longer told from noise."""
FEWEST = 64
"""Rows above their level without which no law is told."""
DEGREES = np.array([2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0, 50.0, 1000.0])
"""Degrees of freedom that are tried, from very heavy tails to normal ones."""
DOUBT = 1.0
"""Log likelihood that heavier tails than the likeliest may lose and still be believed."""
_EDGES = np.concatenate([np.linspace(0.0, 4.0, 81), np.geomspace(4.2, 100.0, 60)])
_SQUARES = ((_EDGES[1:] + _EDGES[:-1]) / 2) ** 2
_CONSTANTS = np.array(
    [math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df) for df in DEGREES]
)
_HIGHEST = 64
"""Rows, the highest of the run, among which the highest besides a bump is looked for."""


class Rarity:
    """How far each of n values lies above its level, and how often noise would do that."""

    def __init__(self, values: np.ndarray, *, floor: float) -> None:
        """Measure the values.

        Args:
            values: Values of shape (n,), positive ones.
            floor: Least standard deviation assumed, in log units.
        """
        with np.errstate(all="ignore"):
            log = np.log(values)
        log = np.where(np.isfinite(log), log, 0.0)
        self.above = log - centred(log, LEVEL_ROWS)
        """Log ratio to the level, shape (n,)."""
        unit = SIGMA_PER_MAD * _around(np.abs(self.above))
        self.plain = self.above / np.maximum(unit, _LEAST)
        """The same in the run's own standard deviations, however small."""
        self.sigmas = self.above / np.maximum(unit, floor)
        """The same in even units, those of the thousand rows around each."""
        highest = min(_HIGHEST, len(self.sigmas))
        top = np.argpartition(self.sigmas, len(self.sigmas) - highest)[::-1][:highest]
        self._top = top[np.argsort(-self.sigmas[top])]

    def chance(self, first: int, last: int) -> float:
        """Return how many rows so high as the highest of these noise would bring in the whole run.

        Infinite where there are too few rows to tell.

        Source: Student's t as the law of noise with heavy tails: Lange, Little and Taylor (1989),
        Robust Statistical Modeling Using the t Distribution; fitted by its EM algorithm to what
        lies above the level.
        """
        start, stop = max(0, first - WITHIN), last + 1 + WITHIN
        around = self.sigmas[start:stop]
        single = np.abs(centred(around, LONG_ROWS)) < LONG_SIGMAS
        single[max(0, first - 1 - start) : last + 2 - start] = False
        counts = _histogram(around[single])
        if counts.sum() < FEWEST:
            return math.inf
        return len(self.sigmas) * _tail(counts, float(self.sigmas[first : last + 1].max()))

    def besides(self, first: int, last: int) -> float:
        """Return the height, in even units, of the highest single row but these in the whole run.

        Rows of longer excursions, the fall of the first rows among them, are no single ones.
        """
        half = LONG_ROWS // 2
        for i in self._top.tolist():
            near = self.sigmas[max(0, i - half) : i + half + 1]
            if not first - 1 <= i <= last + 1 and abs(np.median(near)) < LONG_SIGMAS:
                return float(self.sigmas[i])
        return math.inf


def _around(x: np.ndarray) -> np.ndarray:
    """Return for each value about the median of the thousand around it, block by block."""
    whole = len(x) // BLOCK
    if whole < 2:
        return np.full(len(x), float(np.median(x)) if len(x) else 0.0)
    blocks = np.median(x[: whole * BLOCK].reshape(whole, BLOCK), axis=1)
    smooth = centred(blocks, BLOCKS)
    return np.asarray(smooth[np.minimum(np.arange(len(x)) // BLOCK, whole - 1)])


def _histogram(sigmas: np.ndarray) -> np.ndarray:
    above = np.minimum(sigmas[sigmas > 0], _EDGES[-1])
    return np.histogram(above, _EDGES)[0].astype(float)


def _tail(counts: np.ndarray, z: float) -> float:
    """Return the share of all rows that lie above ``z``, by the heaviest law that is believed."""
    n, df = counts.sum(), DEGREES[:, None]
    scale = np.ones_like(df)
    for _ in range(20):
        weight = (df + 1) / (df + _SQUARES / scale)
        scale = (weight * (_SQUARES * counts)).sum(axis=1, keepdims=True) / n
    fit = ((df + 1) / 2 * np.log1p(_SQUARES / scale / df) * counts).sum(axis=1)
    likelihood = n * (_CONSTANTS - 0.5 * np.log(scale[:, 0])) - fit
    believed = int(np.argmax(likelihood >= likelihood.max() - DOUBT))
    return _student(z / math.sqrt(scale[believed, 0]), float(DEGREES[believed]))


def _student(z: float, df: float) -> float:
    """Return the probability that a value of Student's t lies above ``z`` > 0."""
    # z = sqrt(df) tan(a) turns the density into a power of the cosine, over a finite range.
    grid = np.linspace(math.atan(z / math.sqrt(df)), math.pi / 2, 2001)
    density = np.cos(grid) ** (df - 1)
    whole = math.sqrt(math.pi) * math.exp(math.lgamma(df / 2) - math.lgamma((df + 1) / 2))
    return float(((density[1:] + density[:-1]) / 2).sum() * (grid[1] - grid[0]) / whole)
