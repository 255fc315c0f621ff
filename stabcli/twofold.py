"""Twofold: metrics that stand at two levels all through a run, as batches of two kinds leave them.

Image batches between text batches, long between short, code between prose: each kind has a level
of its own, and to go from one to the other is neither a spike nor a divergence. Where both levels
are there from the first rows to the last, in no order, the rows of the upper one are scaled down
to the lower, and what still stands out then is news.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stabcli.run import Run
from stabcli.series import SIGMA_PER_MAD, Signal, signals, stretches

BLOCKS = (256, 128)
"""Rows of a block; the shorter ones where there are fewer than ``FEWEST`` of the longer."""
FEWEST = 4
"""Blocks without which nothing is said of a run."""
EARLY = 32
"""Rows of the parts of the first block."""
LOOKED_AT = 200
"""Blocks that are looked at; all rows are divided if it shows in these."""
LOW = 0.2
"""Quantile that lies at the lower level, by which blocks are rid of their trend."""
PREVAILS = 0.8
"""Share of the blocks in which both levels must show."""
LEAST_ROWS = 3
"""Rows of a block at the level of fewer rows."""
VALLEY = 2.0
"""Empty space between the levels, in robust standard deviations of the wider one."""
LEAST_VALLEY = 0.08
"""Least such space, as a log ratio."""
ALIKE = 0.25
"""How far the distance of the levels in most blocks may lie off that of the run, as a share."""
MIXED = 0.5
"""Stretches of rows at the upper level, as a share of those that chance would make."""
BY_CHANCE = 1e-4
"""Stretches as long as one that is still taken to be chance, in all of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twofold:
    """A signal of n values whose upper level was scaled down to the lower."""

    signal: Signal
    """It, with the scaled values."""
    upper: np.ndarray
    """Rows that stand at the upper level, bool of shape (n,)."""
    ratio: float
    """Of the upper level to the lower."""


def evened(signal: Signal) -> Signal:
    """Return a signal of finite values with one level, if it has two all through."""
    found = twofold(signal)
    return found.signal if found else signal


def as_the_loss(run: Run, signal: Signal) -> Signal:
    """Return another metric's finite values with those rows scaled whose loss is at its upper level.

    What the kinds of batches do to the metric may be too little to show in it alone.
    """
    losses = signals(run, "loss") if run.has("loss") else []
    for loss in (each.finite() for each in losses if each.attempt == signal.attempt):
        found = twofold(loss)
        if found is None:
            continue
        upper = np.isin(signal.rows, loss.rows[found.upper])
        levels = [np.median(signal.values[rows]) for rows in (upper, ~upper) if rows.any()]
        if len(levels) == 2 and min(levels) > 0:
            ratio = levels[0] / levels[1]
            return replace(signal, values=np.where(upper, signal.values / ratio, signal.values))
    return signal


def twofold(signal: Signal) -> Twofold | None:
    """Tell the two levels of a signal of finite values apart; None where it has no two."""
    values = signal.values
    n = len(values)
    width = next((w for w in BLOCKS if n >= w * FEWEST), 0)
    if not width:
        return None
    count = n // width
    blocks = values[: count * width].reshape(count, width)
    picked = blocks[np.linspace(0, count - 1, min(count, LOOKED_AT)).astype(int)]
    found = _levels(np.log(picked)) if (picked > 0).all() else None
    if found is None or not (values > 0).all():
        return None
    distance, share = found
    middle = (1 - share) / 2  # of the lower level
    low = np.log(np.quantile(blocks, middle, axis=1))
    centres = (np.arange(count) + 0.5) * width
    # a loss falls most in its first rows, and as fast before the first of their centres
    early = np.log(np.quantile(blocks[0].reshape(-1, EARLY), middle, axis=1))
    low = np.concatenate([[1.5 * early[0] - 0.5 * early[1]], early, low[1:]])
    at = np.concatenate([[0.0], (np.arange(len(early)) + 0.5) * EARLY, centres[1:]])
    limit = np.exp(np.interp(np.arange(n), at, low) + distance / 2)
    upper = values > limit
    longest = np.log(BY_CHANCE / n) / np.log(share)
    for first, last in stretches(upper):
        if last - first + 1 > longest:
            upper[first : last + 1] = False
    ratio = float(np.exp(distance))
    inherited = signal.inherited
    scaled = replace(
        signal,
        values=np.where(upper, values / ratio, values),
        inherited=np.where(inherited > limit[0], inherited / ratio, inherited),
    )
    return Twofold(signal=scaled, upper=upper, ratio=ratio)


def _levels(blocks: np.ndarray) -> tuple[float, float] | None:
    """Return the distance of two levels in blocks (k, w), and the share of rows at the upper."""
    k, width = blocks.shape
    early, late = np.quantile(blocks.reshape(k, 2, width // 2), LOW, axis=2).T
    blocks = blocks - (late - early)[:, None] * (np.arange(width) / (width / 2))
    ordered = np.sort(blocks, axis=1)
    gaps = np.diff(ordered, axis=1)[:, LEAST_ROWS - 1 : width - LEAST_ROWS]
    cut = np.argmax(gaps, axis=1) + LEAST_ROWS  # how many stand below
    valley = gaps.max(axis=1)
    distances = np.empty(k)
    spreads = np.empty(k)
    for i, below in enumerate(cut.tolist()):
        parts = ordered[i, :below], ordered[i, below:]
        middles = [float(np.median(part)) for part in parts]
        distances[i] = middles[1] - middles[0]
        spreads[i] = max(
            SIGMA_PER_MAD * float(np.median(np.abs(part - middle)))
            for part, middle in zip(parts, middles, strict=True)
        )
    shows = (valley >= LEAST_VALLEY) & (valley >= VALLEY * spreads)
    if shows.mean() < PREVAILS:
        return None
    distance = float(np.median(distances[shows]))
    shows &= np.abs(distances - distance) <= ALIKE * distance
    upper = blocks > ordered[np.arange(k), cut - 1][:, None] + valley[:, None] / 2
    shares = upper.mean(axis=1)
    changes = (np.diff(upper.astype(np.int8), axis=1) == 1).sum(axis=1)
    shows &= changes >= MIXED * width * shares * (1 - shares)
    return (distance, float(shares[shows].mean())) if shows.mean() >= PREVAILS else None
