"""Rule ``loss-divergence``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from stabcli.beginnings import negligible, warmup_rows
from stabcli.levels import SIGMA_PER_MAD, centred, turn
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, planned_changes, signals, spread, stretches
from stabcli.shifts import Shift, after_a_dip, slides
from stabcli.twofold import evened

SETTLES = 20
"""Rows about a logged change of batch size, GPUs or learning rate in which a new level begins."""
CHANGE_RISE = 0.5
"""Relative rise from which a planned change is the cause, but no excuse."""
LEAST_ROWS = 48
"""Rows without which a trend cannot be told from noise."""
PARTS = (50, 12)
"""Windows are these parts of a run."""
SURER = 1.4
"""Times the standard errors by which a climb must exceed the lowest level to count at once."""
MOST_BLOCKS = 100
"""Blocks of a run among which a slide is looked for."""
RISING = 3.0
"""Standard errors by which rows must lie above the lowest level to be the foot of a slope."""
BLOCKS = 256
"""Medians from which the level of a wide window is told."""
_QUARTILES = (0.25, 0.5, 0.75)


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def loss_divergence(
    run: Run,
    *,
    rise: float = 0.025,
    slide: float = 0.06,
    error_rise: float = 0.10,
    share: float = 0.02,
    sigmas: float = 2.5,
    critical_rise: float = 0.5,
) -> Iterator[Finding]:
    """Loss climbs away from its best level and stays away.

    ## What it finds
    Two things. A climb: the level (trimean) of a window (a fiftieth or a twelfth of the run, at
    least 16 rows) stays above the lowest such level so far: by ``rise`` and seven standard errors
    for at least ``share`` of the run and 16 rows, or by twice ``rise`` and five for twice as long
    (``sigmas`` either way of a difference). It begins where the loss left its lowest level. A
    warning; an error from ``error_rise``, and critical where it ends ``critical_rise`` above it.
    A slide: a loss that was falling goes on as before, but from a level at least ``slide`` and six
    standard errors higher, as a rise about as slow as the fall leaves it. The lines before and
    after are fitted to a twentieth of the run each, in log steps, and must be straight. A warning. A level that stays
    below 5 % of the loss that the log began with is left alone, and a climb that only brings back
    the level from which the loss had fallen at once, a tenth of the rows ago at most, is a notice.

    ## Why it matters
    A slow divergence never leaps, so that no spike rule sees it, and it wastes more than a spike.

    ## What to do
    Roll back to before ``first``, not to where it became obvious, and lower the learning rate by
    a quarter to a half. If it comes back, change what drives it: number format, weight decay on
    embeddings, QK-norm, z-loss.

    ## When it errs
    A change to harder data raises the loss on purpose; a change of batch size or number of GPUs
    that is logged excuses a rise of less than half. The noise of very short fine-tunes can hide or
    fake a trend, and what an epoch's end takes back at once leaves none. Losses at two levels all
    through the run are brought to one first, as in ``loss-spike``.

    ## Settings
    rise: Relative rise above the lowest level, where that is sure.
    slide: Relative distance of the line after a slide from the line before it.
    error_rise: Relative rise from which it is an error.
    share: Share of the run for which it must last.
    sigmas: Standard errors by which a level must exceed the lowest, half of those of the difference.
    critical_rise: Relative rise at the end from which it is critical.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_divergence.jsonl --rule loss-divergence --format brief
    error     loss-divergence      attempt 0  step 820..1200  loss 3.297, expected 2.402

    ## Sources
    - ``rise`` and ``share``: no finding in 320 clean made runs and 83 real ones, and a rise of a
      tenth over a twentieth of the run, most of which the falling loss takes back, is found.
    - A rise of 10 % over 5 % of the run: slow divergences told in public training chronicles
      (BigScience tr8-104B, IDEFICS-80B) were of this size before anybody acted.
    """
    looked = False
    floor = negligible(run)
    for raw in signals(run, "loss"):
        signal = evened(raw.finite())
        if len(signal) < LEAST_ROWS:
            continue
        looked = True
        warm = warmup_rows(run, signal)
        changes = planned_changes(run, signal)
        x = signal.values[warm:]
        if len(x) < LEAST_ROWS:
            continue
        climbs = list(_climbs(x, len(signal), rise, share, sigmas))
        for first, last, top, low in climbs:
            if low > 0 and low + top < floor:
                continue
            ended = _ended(x, first, last, low + top / 2)
            rows = signal.rows[warm + first], signal.rows[warm + ended]
            severity: Severity = "error" if top >= error_rise * abs(low) else "warning"
            if last == len(x) - 1 and top > critical_rise * abs(low):
                severity = "critical"
            after = any(-SETTLES <= warm + first - c < SETTLES for c in changes)
            if after and top < CHANGE_RISE * abs(low):
                severity = "notice"
            tags: tuple[str, ...] = ()
            if after_a_dip(x, first, low, top):
                severity, tags = "notice", ("after-a-dip",)
            begun = float(np.median(x[first : first + MINIMUM]))
            slow = begun < low + error_rise * abs(low) / 2
            yield finding(
                run,
                metric="loss",
                rows=(int(rows[0]), int(rows[1])),
                severity=severity,
                value=low + top,
                expected=low,
                score=max(1.0, top / (2 * rise * abs(low))) if low else None,
                tags=("gradual-onset",) if slow and not tags else tags,
            )
        for s in _slides(x, signal.steps[warm:], len(signal), slide):
            near = SETTLES + s.last - s.first
            told = any(a <= s.last + near and s.first - near <= b for a, b, _, _ in climbs)
            planned = any(-near <= warm + s.first - c <= near for c in changes)
            if not told and not planned:
                yield finding(
                    run,
                    metric="loss",
                    rows=(int(signal.rows[warm + s.first]), int(signal.rows[warm + s.last])),
                    severity="warning",
                    value=float(np.exp(s.after)),
                    expected=float(np.exp(s.before)),
                    score=s.score,
                    tags=("gradual-onset",),
                )
    if not looked:
        raise CannotLook(f"fewer than {LEAST_ROWS} logged losses in every attempt")


def _ended(x: np.ndarray, first: int, last: int, middle: float) -> int:
    """Return the last index of a climb at which it was not yet half-way back.

    Its windows lag. The end of the climb is where most rows before lie above the middle, and most
    behind it below.
    """
    if last == len(x) - 1:
        return last
    half = max(abs(middle - float(np.min(x[first : last + 1]))), 1e-300)
    return first + turn(-x[first + 1 : last + 1], -middle, half)


def _slides(x: np.ndarray, steps: np.ndarray, whole: int, least: float) -> list[Shift]:
    """Return where a falling loss went on falling from a higher level; see ``slides``."""
    start = whole // 20  # the first fall is straight in no unit
    if len(x) - start < MOST_BLOCKS or not (x > 0).all():
        return []
    at = np.log(steps[start:] - steps[0] + 1.0)
    found = slides(
        np.log(x[start:]), at, rows=max(8, whole // MOST_BLOCKS), least=float(np.log1p(least))
    )
    return [replace(s, first=start + s.first, last=start + s.last) for s in found]


def _climbs(
    x: np.ndarray, whole: int, rise: float, share: float, sigmas: float
) -> Iterator[tuple[int, int, float, float]]:
    """Yield first and last index, highest rise and lowest level before each lasting climb.

    Wider windows are surer but later: what the narrow ones told is not told again.
    """
    climbs: list[tuple[int, int, float, float]] = []
    wander = 0.0
    for part in PARTS:
        told, wander = _at_width(x, max(16, whole // part), share * whole, rise, sigmas, wander)
        for climb in told:
            if not any(a <= climb[1] and climb[0] <= b for a, b, _, _ in climbs):
                climbs.append(climb)
    yield from sorted(climbs)


def _at_width(
    x: np.ndarray, width: int, least: float, rise: float, sigmas: float, wander: float
) -> tuple[list[tuple[int, int, float, float]], float]:
    """Return the climbs of at least ``least`` rows that levels of ``width`` rows show.

    Second, how much such levels wander: at least as much as ``wander``, that of narrower ones,
    since of wide windows there are too few in a run to tell.
    """
    climbs: list[tuple[int, int, float, float]] = []
    if len(x) < 2 * width:
        return climbs, wander
    noise = spread(np.diff(x)) / np.sqrt(2.0)
    white = 1.10 * noise / np.sqrt(width)  # standard error of a trimean of normal values
    # Of wide windows a few hundred medians tell the level as well as all rows.
    size = max(1, width // BLOCKS)
    blocks = np.median(x[: len(x) // size * size].reshape(-1, size), axis=1)
    wide = width // size
    quartiles = [
        pl.Series(blocks).rolling_quantile(q, "linear", wide).to_numpy() for q in _QUARTILES
    ]
    level = 0.25 * quartiles[0] + 0.5 * quartiles[1] + 0.25 * quartiles[2]
    level[: wide - 1] = np.inf
    lowest = np.minimum.accumulate(level)
    level[: wide - 1] = np.nan
    wander = max(wander, _wander(level, wide))
    with np.errstate(invalid="ignore"):
        # Noise grows with the loss: where that was high, there was more than the usual of the run.
        scale = np.maximum(1.0, np.abs(lowest) / max(1e-300, float(np.nanmedian(np.abs(level)))))
        error = max(white, wander) * scale
        over = level - lowest
        sure = over > np.maximum(rise * np.abs(lowest), 2 * SURER * sigmas * error)
        # The lowest of fifty levels lies low by chance: what is less sure must be more, for longer.
        plain = over > np.maximum(2 * rise * np.abs(lowest), 2 * sigmas * error)
    spans = [
        (first, last)
        for away, rows in ((sure, least), (plain, 2 * least))
        for first, last in stretches(away, gap=wide // 2)
        if last - first + 1 >= max(16, rows) / size
    ]
    for first, last in sorted(spans):
        if climbs and (last + 1) * size - 1 <= climbs[-1][1]:
            continue
        low, top = float(lowest[first]), float(over[first : last + 1].max())
        seen = min(len(x) - 1, (first + 1) * size - 1)
        risen, whole = (
            float(over[first : min(last, first + rows) + 1].max()) for rows in (wide // 2, wide)
        )
        begun = _onset(x, seen, width, low, risen)
        steep = _onset(x, seen, width, low, whole)
        if begun < steep and np.median(x[begun:steep]) <= low + whole / 8:
            begun = steep  # nothing rose in between: a step, not a slope
        ended = len(x) - 1 if last == len(blocks) - 1 else (last + 1) * size - 1
        if climbs and begun <= climbs[-1][1]:
            begun, _, before, low = climbs.pop()
            top = max(top, before)
        climbs.append((begun, ended, top, low))
    return climbs, wander


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
    # Not the first single row up there, which noise puts there, but where the rows turn.
    near = x[about : first + 1]
    slope, step = (turn(near, low + risen * part, np.inf) for part in (0.25, 0.5))
    if slope < step:
        noise = spread(np.diff(x[start : first + 1])) / np.sqrt(2.0)
        least = max(risen / 8, RISING * noise / np.sqrt(step - slope))
        if np.median(near[slope:step]) > low + least:
            step = slope
    return min(first, about + step)
