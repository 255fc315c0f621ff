"""Rule ``loss-divergence``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from stabcli.beginnings import negligible
from stabcli.levels import SIGMA_PER_MAD, centred
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, planned_changes, signals, spread, stretches, warmup_end

SETTLES = 20
"""Rows about a logged change of batch size, GPUs or learning rate in which a new level begins."""
CHANGE_RISE = 0.5
"""Relative rise from which a planned change is the cause, but no excuse."""
LEAST_ROWS = 48
"""Rows without which a trend cannot be told from noise."""
_QUARTILES = (0.25, 0.5, 0.75)


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def loss_divergence(
    run: Run,
    *,
    rise: float = 0.05,
    error_rise: float = 0.10,
    share: float = 0.04,
    sigmas: float = 2.5,
    critical_rise: float = 0.5,
) -> Iterator[Finding]:
    """Loss climbs away from its best level and stays away.

    ## What it finds
    The level (trimean) of a window (a fiftieth of the run, at least 16 rows) stays more than
    ``rise`` above the lowest such level so far, for at least ``share`` of the run and 16 rows, and
    by more than ``sigmas`` standard errors. The finding begins where the loss left its lowest
    level. A warning; an error from ``error_rise``, and critical where it ends ``critical_rise``
    above it. A level that stays below 5 % of the loss that the log began with is left alone.

    ## Why it matters
    A slow divergence never leaps, so that no spike rule sees it, and it wastes more than a spike.

    ## What to do
    Roll back to before ``first``, not to where it became obvious, and lower the learning rate by
    a quarter to a half. If it comes back, change what drives it: number format, weight decay on
    embeddings, QK-norm, z-loss.

    ## When it errs
    A change to harder data raises the loss on purpose; a change of batch size or number of GPUs
    that is logged excuses a rise of less than half. The noise of very short fine-tunes can hide or fake a trend.

    ## Settings
    rise: Relative rise above the lowest level.
    error_rise: Relative rise from which it is an error.
    share: Share of the run for which it must last.
    sigmas: Standard errors of the window's level by which it must exceed the lowest level.
    critical_rise: Relative rise at the end from which it is critical.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_divergence.jsonl --rule loss-divergence --format brief
    error     loss-divergence      attempt 0  step 818..1200  loss 3.297, expected 2.402

    ## Sources
    - A rise of 10 % over 5 % of the run: slow divergences told in public training chronicles
      (BigScience tr8-104B, IDEFICS-80B) were of this size before anybody acted.
    """
    looked = False
    floor = negligible(run)
    for raw in signals(run, "loss"):
        signal = raw.finite()
        if len(signal) < LEAST_ROWS:
            continue
        looked = True
        warm = int(np.searchsorted(signal.steps, warmup_end(run, signal.attempt), side="right"))
        changes = planned_changes(run, signal)
        x = signal.values[warm:]
        if len(x) < LEAST_ROWS:
            continue
        for first, last, top, low in _climbs(x, len(signal), rise, share, sigmas):
            if low > 0 and low + top < floor:
                continue
            rows = signal.rows[warm + first], signal.rows[warm + last]
            severity: Severity = "error" if top >= error_rise * abs(low) else "warning"
            if last == len(x) - 1 and top > critical_rise * abs(low):
                severity = "critical"
            after = any(-SETTLES <= warm + first - c < SETTLES for c in changes)
            if after and top < CHANGE_RISE * abs(low):
                severity = "notice"
            peak = warm + first + int(np.argmax(x[first : last + 1]))
            begun = float(np.median(x[first : first + MINIMUM]))
            slow = begun < low + error_rise * abs(low) / 2
            yield finding(
                run,
                metric="loss",
                rows=(int(rows[0]), int(rows[1])),
                peak=int(signal.rows[peak]),
                severity=severity,
                value=low + top,
                expected=low,
                score=top / (rise * abs(low)) if low else None,
                tags=("gradual-onset",) if slow else (),
            )
    if not looked:
        raise CannotLook(f"fewer than {LEAST_ROWS} logged losses in every attempt")


def _climbs(
    x: np.ndarray, whole: int, rise: float, share: float, sigmas: float
) -> Iterator[tuple[int, int, float, float]]:
    """Yield first and last index, highest rise and lowest level before each lasting climb."""
    width = max(16, whole // 50)
    if len(x) < 2 * width:
        return
    quartiles = [pl.Series(x).rolling_quantile(q, "linear", width).to_numpy() for q in _QUARTILES]
    level = 0.25 * quartiles[0] + 0.5 * quartiles[1] + 0.25 * quartiles[2]
    level[: width - 1] = np.inf
    lowest = np.minimum.accumulate(level)
    level[: width - 1] = np.nan
    noise = spread(np.diff(x)) / np.sqrt(2.0)
    white = 1.10 * noise / np.sqrt(width)  # standard error of a trimean of normal values
    error = max(white, _wander(level, width))
    with np.errstate(invalid="ignore"):
        over = level - lowest
        away = over > np.maximum(rise * np.abs(lowest), 2 * sigmas * error)
    lasting = max(16, int(share * whole), width)
    climbs: list[tuple[int, int, float, float]] = []
    for first, last in stretches(away, gap=width // 2):
        if last - first + 1 < lasting:
            continue
        low, top = float(lowest[first]), float(over[first : last + 1].max())
        risen = float(over[first : min(last, first + width // 2) + 1].max())
        begun = _onset(x, first, width, low, risen)
        if climbs and begun <= climbs[-1][1]:
            begun, _, before, low = climbs.pop()
            top = max(top, before)
        climbs.append((begun, last, top, low))
    yield from climbs


def _wander(level: np.ndarray, width: int) -> float:
    """Return how much such levels differ from one window to the next, beyond their own course."""
    steps = level[2 * width - 1 :: 8] - level[width - 1 : -width : 8]
    rest = steps - centred(steps, 10 * width // 8)
    return float(SIGMA_PER_MAD * np.median(np.abs(rest)) / np.sqrt(2.0)) if len(rest) else 0.0


def _onset(x: np.ndarray, first: int, width: int, low: float, risen: float) -> int:
    """Return where a climb that was plain at ``first`` left its lowest level.

    After the last row at which a short median (a quarter of the window) was within a quarter of
    the rise; a trailing median lags by half its width.
    """
    short = max(8, width // 4)
    start = max(0, first - 20 * width)
    level = pl.Series(x[start : first + 1]).rolling_median(short, min_samples=1).to_numpy()
    below = np.flatnonzero(level <= low + risen / 4)
    last_low = int(below[-1]) if len(below) else 0
    about = min(first, max(0, start + last_low + 1 - short // 2))
    high = np.flatnonzero(x[about : first + 1] > low + risen / 4)
    return about + int(high[0]) if len(high) else about
