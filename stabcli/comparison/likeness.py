"""Likeness: whether two runs are the same bit by bit, within float noise, or only in shape.

Every verdict has its measure. Bit-equal: every metric of training and evaluation is the same
number in every row both logged. Float noise: no loss differs by more than one part in a million,
or one unit of the last digit logged. Same shape: the smoothed curves differ by no more than what
medians of rows as noisy as theirs differ by, on nearly all of the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stabcli.comparison.sides import Side
from stabcli.levels import centred, median_error, noise
from stabcli.metrics import METRICS
from stabcli.rarity import Rarity
from stabcli.tails import kept
from stabcli.units import Step

Verdict = Literal["bit-equal", "float-noise", "same-shape", "different", "unknown"]

ROUNDING = 1e-6
"""Relative difference of two fp32 sums of one set of numbers in another order: some times 2^-23."""
FEWEST = 20
"""Rows in common without which a shape cannot be told."""
SMOOTH = (5, 101)
"""Fewest and most rows of a smoothing window, otherwise one in ``SHARE`` of the rows."""
SHARE = 20
ERRORS = 3.0
"""Standard errors of the difference of two medians that are put down to noise."""
FLOOR = 0.002
"""Least relative difference of smoothed curves that counts, however quiet they are."""
NEARLY_ALL = 0.95
"""Share of the rows that must be within noise for two curves to have one shape."""
TOGETHER = 0.5
"""Rank correlation of row-to-row noise from which two runs saw the same batches."""
OUTLIER = (6.0, 8.0, 10.0, 15.0, 20.0)
"""Standard deviations of its own noise by which a row must stand out of each of two runs: the least
of which only a few do, for some data have batches that uneven."""
SETTLED = 32
"""First rows, whose loss falls too fast to have a level."""
OUTLIER_RISE = 0.05
"""Relative rise above its level that it must show besides."""
OUTLIERS = (3, 1000)
"""Outliers that are never too many, and rows for each one more."""
DIGITS = 9
"""Decimals up to which a log is taken to round."""
NOT_COMPARED = (
    "step", "epoch", "wall_time", "elapsed_seconds", "step_seconds", "tokens_per_second",
    "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu", "gpus",
)  # fmt: skip
"""Metrics that are of the machine, not of the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Where two runs differ for the first time."""

    step: Step
    metric: str
    values: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """How alike two runs are."""

    keys: tuple[str, str]
    """Letters of the two."""
    verdict: Verdict
    rows: int
    """Rows that both logged of the metric compared by."""
    compared: tuple[str, ...]
    """Metrics that both logged and that were compared."""
    parting: Parting | None
    """Where any of them differs for the first time; None where none does."""
    first: float | None
    """Relative difference at the first row where the curve differs."""
    largest: float | None
    """Largest relative difference of the curve, infinite where one alone is not finite."""
    largest_step: Step | None
    early: float | None
    """Median relative difference over the first tenth of the rows since the curves parted."""
    late: float | None
    """The same over the last tenth: how far the difference has grown."""
    within: float | None
    """Share of the rows where the smoothed curves differ by no more than noise."""
    apart: float | None
    """Median relative difference of the smoothed curves."""
    together: float | None
    """Rank correlation of the row-to-row noise of the two: near 1 where the batches are the same."""
    outliers: tuple[Step, ...] = ()
    """Steps whose rows stand out of both, where the batches are the same."""


def likeness(a: Side, b: Side) -> Likeness:
    """Compare two runs row by row, over the steps that both logged and no restart took back."""
    shared = [m for m in METRICS if m not in NOT_COMPARED and a.run.has(m) and b.run.has(m)]
    parting = _parting(a, b, shared)
    steps, x, y = _joined(a, b)
    rows = len(steps)
    if not rows:
        return _nothing(a, b, tuple(shared), parting)
    difference = _relative(x, y)
    parted = np.flatnonzero(difference > 0)
    peak = int(difference.argmax())
    within, apart, together = _shapes(x, y)
    return Likeness(
        keys=(a.key, b.key),
        verdict=_verdict(x, y, parting, difference, within),
        rows=rows,
        compared=tuple(shared),
        parting=parting,
        first=float(difference[parted[0]]) if len(parted) else None,
        largest=float(difference[peak]),
        largest_step=int(steps[peak]) if difference[peak] > 0 else None,
        early=_typical(difference[parted[0] :], last=False) if len(parted) else None,
        late=_typical(difference[parted[0] :], last=True) if len(parted) else None,
        within=within,
        apart=apart,
        together=together,
        outliers=_outliers(steps, x, y) if parting and (together or 0.0) >= TOGETHER else (),
    )


def _outliers(steps: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[Step, ...]:
    """Return the steps at which two curves (n,) both stand out of their own noise.

    Two runs with the same batches share what a batch does; that both leap at one step by
    chance, noise being their own, would take the product of two small chances.
    """
    good = np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)
    if good.sum() <= SETTLED:
        return ()
    steps, both = steps[good], [Rarity(v[good], floor=0.005) for v in (x, y)]
    high = np.minimum(both[0].sigmas, both[1].sigmas)
    risen = np.minimum(both[0].above, both[1].above) >= np.log1p(OUTLIER_RISE)
    risen[:SETTLED] = False
    few = max(OUTLIERS[0], len(steps) // OUTLIERS[1])
    counts = [np.flatnonzero(risen & (high >= bar)) for bar in OUTLIER]
    told = next((at for at in counts if len(at) <= few), counts[-1][:0])
    return tuple(steps[told].tolist())


def _nothing(a: Side, b: Side, shared: tuple[str, ...], parting: Parting | None) -> Likeness:
    return Likeness(
        keys=(a.key, b.key), verdict="unknown", rows=0, compared=shared, parting=parting,
        first=None, largest=None, largest_step=None, early=None, late=None, within=None,
        apart=None, together=None,
    )  # fmt: skip


def _verdict(
    x: np.ndarray,
    y: np.ndarray,
    parting: Parting | None,
    difference: np.ndarray,
    within: float | None,
) -> Verdict:
    if parting is None:
        return "bit-equal"
    if not np.isfinite(difference).all():
        return "different"
    finite = np.isfinite(x) & np.isfinite(y)
    size = np.maximum(np.abs(x[finite]), np.abs(y[finite]))
    unit = max(_unit(x[finite]), _unit(y[finite]))
    if (np.abs(x[finite] - y[finite]) <= np.maximum(ROUNDING * size, 1.001 * unit)).all():
        return "float-noise"
    if within is None:
        return "unknown"
    return "same-shape" if within >= NEARLY_ALL else "different"


def _joined(a: Side, b: Side) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the steps that both curves have, and their values there."""
    if a.curve is None or b.curve is None:
        return np.empty(0, np.int64), np.empty(0), np.empty(0)
    steps, i, j = np.intersect1d(a.curve.steps, b.curve.steps, return_indices=True)
    return steps, a.curve.values[i], b.curve.values[j]


def _relative(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return relative differences: 0 where both are equal or both NaN, else infinite where one is.

    Relative to the larger of the two in size.
    """
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.abs(x - y) / np.maximum(np.abs(x), np.abs(y))
    return np.where(same, 0.0, np.where(np.isfinite(found), found, np.inf))


def _parting(a: Side, b: Side, shared: list[str]) -> Parting | None:
    """Return where any shared metric differs for the first time."""
    found: list[tuple[Step, int, Parting]] = []
    for order, metric in enumerate(shared):
        mine, theirs = kept(a.run, metric), kept(b.run, metric)
        if mine is None or theirs is None:
            continue
        steps, i, j = np.intersect1d(mine.steps, theirs.steps, return_indices=True)
        x, y = mine.values[i], theirs.values[j]
        apart = np.flatnonzero(_relative(x, y) > 0)
        if len(apart):
            at = int(apart[0])
            values = (float(x[at]), float(y[at]))
            found.append(
                (int(steps[at]), order, Parting(step=int(steps[at]), metric=metric, values=values))
            )
    return min(found, key=lambda f: f[:2])[2] if found else None


def _unit(values: np.ndarray) -> float:
    """Return one unit of the last decimal that a log keeps; 0 where it keeps all of them."""
    for decimals in range(DIGITS):
        if np.allclose(values, np.round(values, decimals), rtol=1e-12, atol=1e-15):
            return float(10.0**-decimals)
    return 0.0


def _typical(difference: np.ndarray, *, last: bool) -> float | None:
    """Return the median of the first or last tenth of some differences."""
    n = max(1, len(difference) // 10)
    part = difference[-n:] if last else difference[:n]
    part = part[np.isfinite(part)]
    return float(np.median(part)) if len(part) else None


def _shapes(x: np.ndarray, y: np.ndarray) -> tuple[float | None, float | None, float | None]:
    """Return how much of two curves is alike, how far apart they are, and whether they shake alike."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) < FEWEST:
        return None, None, None
    window = int(np.clip(len(x) // SHARE, *SMOOTH)) // 2 * 2 + 1
    smooth = centred(x, window), centred(y, window)
    size = np.maximum(np.abs(smooth[0]), np.abs(smooth[1]))
    limit = ERRORS * median_error(max(noise(x), noise(y)), window, window)
    gap = np.abs(smooth[0] - smooth[1])
    within = float((gap <= np.maximum(limit, FLOOR * size)).mean())
    apart = float(np.median(gap / np.where(size > 0, size, 1.0)))
    return within, apart, _correlation(x - smooth[0], y - smooth[1])


def _correlation(x: np.ndarray, y: np.ndarray) -> float | None:
    """Return the rank correlation of two series; None where one never changes."""
    ranks = [np.argsort(np.argsort(v)).astype(float) for v in (x, y)]
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
