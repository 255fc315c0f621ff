"""Clocks: how long each row of a run took, by the best clock its log has.

Clocks of real logs are missing in places, go back at a change of time zone, and stand still in
second-wide steps. A row whose time cannot be known gets the run's usual pace, and a note counts
such rows; an interval is never negative and never made up from a clock that cannot be read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from stabcli.levels import trailing
from stabcli.run import Run
from stabcli.series import spread, stretches
from stabcli.units import Seconds, does, duration, plural

FEWEST = 5
"""Timed rows without which there is no usual pace to compare with."""
SLOW = 0.05
"""Least relative excess over the usual pace that counts, whatever the spread."""
DEVIATIONS = 3.0
"""Robust standard deviations above the usual pace from which a row is slow.

Source: ml-goodput-measurement takes steps up to median + 3 MAD as ideal.
"""
STANDSTILL = 2.0
"""Times its usual duration from which a lone row holds a standstill."""
LONE_ROWS = 3
"""Rows in a row that may still be one standstill; more are a slow stretch."""
SMOOTH = 21
"""Rows over which a small but lasting slowdown is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How long the n rows of a run took."""

    seconds: np.ndarray
    """Seconds of every row, float64 of shape (n,), never negative."""
    gaps: np.ndarray
    """Seconds between the attempt before and the first row of one; 0 in all other rows."""
    usual: np.ndarray
    """``seconds``, cut to the run's usual pace where a row took longer than it should have."""
    stands: np.ndarray
    """Whether the excess is a standstill rather than slowness; bool of shape (n,)."""
    source: str
    """Which clock it was, in words."""


def read_clock(
    run: Run,
    steps: np.ndarray,
    tokens: np.ndarray | None,
    gpus: np.ndarray | None,
    notes: list[str],
) -> Clock | None:
    """Time every row; None where no clock can be read.

    Args:
        run: The run.
        steps: Steps of every row.
        tokens: Tokens of every row, which tokens/s turns into time.
        gpus: GPUs of every row, whose change sets a new pace.
        notes: Receives what had to be assumed.
    """
    attempt = run.frame["attempt"].to_numpy()
    raw = np.full(len(steps), np.nan)
    gaps = np.zeros(len(steps))
    edges = np.concatenate([[0], np.flatnonzero(np.diff(attempt)) + 1, [len(attempt)]])
    parts = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    used: dict[str, int] = {}
    columns = _columns(run, steps, tokens)
    for part in parts:
        for name, values in columns.items():
            timed = _timed(name, values[part], steps[part])
            if timed is None:
                continue
            raw[part] = timed
            used[name] = used.get(name, 0) + part.stop - part.start
            break
    if not used:
        return None
    back = _mend(raw, parts, columns.get("wall clock"))
    pace = _pace(run, raw, steps, gpus)
    if pace is None:
        return None
    own = columns.get("step time")
    first = np.zeros(len(steps), bool)
    first[edges[:-1]] = True
    if own is not None:
        raw = np.where(first & np.isnan(raw) & np.isfinite(own), own, raw)
    unknown = np.isnan(raw)
    seconds = np.where(unknown, pace, raw)
    for part in parts:
        gaps[part.start] = _gap(run, parts, part, columns, seconds, notes)
    _say(
        notes, back=back, filled=int((unknown & ~first).sum()), starts=int((unknown & first).sum())
    )
    if own is not None and "wall clock" in used:
        _compare(raw, own, notes)
    usual, stands = _judge(seconds, pace, unknown, parts)
    _time_zones(run, seconds, usual, stands, notes)
    return Clock(
        seconds=seconds,
        gaps=gaps,
        usual=usual,
        stands=stands,
        source=max(used, key=lambda name: used[name]),
    )


def _columns(run: Run, steps: np.ndarray, tokens: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the clocks a log has, the best first; NaN where a row has none."""
    found: dict[str, np.ndarray] = {}
    if run.has("wall_time"):
        found["wall clock"] = run.array("wall_time")
    if run.has("elapsed_seconds"):
        found["elapsed time"] = run.array("elapsed_seconds")
    if run.has("step_seconds"):
        took = run.array("step_seconds") * steps
        found["step time"] = np.where(took > 0, took, np.nan)
    if tokens is not None and run.has("tokens_per_second"):
        with np.errstate(divide="ignore", invalid="ignore"):
            took = tokens / run.array("tokens_per_second")
        found["tokens/s"] = np.where(np.isfinite(took) & (took > 0), took, np.nan)
    return found


def _timed(name: str, values: np.ndarray, steps: np.ndarray) -> np.ndarray | None:
    """Return the seconds of an attempt's rows by one clock, NaN where unknown; None if unusable."""
    known = np.flatnonzero(np.isfinite(values))
    if name in ("step time", "tokens/s"):
        return values if len(known) else None
    if len(known) < 2 or not np.diff(values[known]).clip(0).sum() > 0:
        return None
    reached = np.cumsum(steps).astype(float)
    inner = np.arange(known[0], known[-1] + 1)
    timed = np.full(len(values), np.nan)
    timed[inner[1:]] = np.diff(np.interp(reached[inner], reached[known], values[known]))
    return timed


def _mend(raw: np.ndarray, parts: list[slice], wall: np.ndarray | None) -> int:
    """Drop negative intervals, and later ones that put the same clock right; return how many."""
    back = 0
    for part in parts:
        row = raw[part]
        wrong = np.flatnonzero(row < 0)
        if not len(wrong):
            continue
        usual = float(np.median(row[row >= 0])) if (row >= 0).any() else 0.0
        for at in wrong.tolist():
            off = usual - row[at]
            ahead = np.flatnonzero(np.abs(row[at + 1 :] - usual - off) <= max(2.0, 2 * usual))
            if off >= 60 and len(ahead) and wall is not None:
                row[at + 1 + ahead[0]] = np.nan
            row[at] = np.nan
        back += len(wrong)
    return back


def _pace(
    run: Run, raw: np.ndarray, steps: np.ndarray, gpus: np.ndarray | None
) -> np.ndarray | None:
    """Return the seconds every row takes at the usual pace; None with no timed row at all.

    Rows are compared with rows of the same batch size and the same number of GPUs, where there
    are enough of those.
    """
    kinds = np.zeros(len(raw), np.int64)
    for metric in ("batch_tokens", "batch_sequences"):
        if run.has(metric):
            kinds = _split(kinds, run.frame[metric].fill_null(-1.0).fill_nan(-1.0).to_numpy())
            break
    if gpus is not None:
        kinds = _split(kinds, gpus)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(steps > 0, raw / steps, np.nan)
    overall = _typical(rate)
    if overall is None:
        return None
    pace = np.full(len(raw), overall)
    for kind in np.unique(kinds):
        inside = kinds == kind
        typical = _typical(rate[inside])
        if typical is not None and np.isfinite(rate[inside]).sum() >= FEWEST:
            pace[inside] = typical
    times: np.ndarray = pace * steps
    return times


def _split(kinds: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Split kinds of rows further by ``values``, unless those vary like a measurement."""
    codes = np.unique(values, return_inverse=True)[1]
    if codes.max() >= 64:
        return kinds
    return np.unique(kinds * (codes.max() + 1) + codes, return_inverse=True)[1].astype(np.int64)


def _typical(rate: np.ndarray) -> float | None:
    """Return the median of the known rates; the mean where a coarse clock makes that 0."""
    known = rate[np.isfinite(rate)]
    if not len(known):
        return None
    middle = float(np.median(known))
    if middle <= 0:
        middle = float(np.mean(np.sort(known)[: max(1, int(len(known) * 0.99))]))
    return middle if middle > 0 else None


def _judge(
    seconds: np.ndarray, pace: np.ndarray, unknown: np.ndarray, parts: list[slice]
) -> tuple[np.ndarray, np.ndarray]:
    """Cut what took too long to the usual pace; say which of it was a standstill."""
    usual = seconds.copy()
    stands = np.zeros(len(seconds), bool)
    timed = ~unknown & (pace > 0)
    if timed.sum() < FEWEST:
        return usual, stands
    ratio = np.where(timed, seconds / np.where(pace > 0, pace, 1.0), 1.0)
    limit = 1 + max(SLOW, DEVIATIONS * spread(ratio[timed]))
    quantum = 0.0
    if (seconds[timed] == 0).mean() > 0.02:  # a clock of whole seconds, faster steps
        positive = seconds[timed & (seconds > 0)]
        quantum = 2 * float(positive.min()) if len(positive) else 0.0
    over = timed & (ratio > limit) & (seconds - pace > quantum)
    for part in parts:
        row = ratio[part]
        if not quantum and len(row) >= SMOOTH:
            smooth = trailing(row, SMOOTH)[SMOOTH - 1 :]
            middle = slice(SMOOTH // 2, SMOOTH // 2 + len(smooth))
            over[part][middle] |= timed[part][middle] & (smooth > 1 + SLOW) & (row[middle] > 1)
        for first, last in stretches(over[part] & (row >= STANDSTILL)):
            if last - first < LONE_ROWS:
                stands[part][first : last + 1] = True
    usual[over] = pace[over]
    return usual, stands


def _gap(
    run: Run,
    parts: list[slice],
    part: slice,
    columns: dict[str, np.ndarray],
    seconds: np.ndarray,
    notes: list[str],
) -> Seconds:
    """Return the time lost before an attempt's first steps."""
    row, own = part.start, seconds[part.start]
    attempt = int(run.frame["attempt"][row])
    earlier = parts[: parts.index(part)]
    wall = columns.get("wall clock")
    if wall is not None and earlier:
        before = wall[earlier[-1]]
        known = np.flatnonzero(np.isfinite(before))
        if np.isfinite(wall[row]) and len(known):
            late = seconds[earlier[-1]][known[-1] + 1 :].sum()
            gap = float(wall[row] - before[known[-1]] - own - late)
            if gap < -max(1.0, own):
                notes.append(
                    f"downtime before attempt {attempt}: unknown: its first row is"
                    f" {duration(-gap - own if -gap > own else -gap)} before the end of the attempt"
                    " before; check the clocks"
                )
            return max(0.0, gap)
    elapsed = columns.get("elapsed time")
    if elapsed is not None and np.isfinite(elapsed[row]):
        before_end = elapsed[earlier[-1]] if earlier else np.empty(0)
        ends = before_end[np.isfinite(before_end)]
        start = float(ends[-1]) if len(ends) and elapsed[row] >= ends[-1] else 0.0
        begun = not earlier and int(run.frame["step"][row]) > 2 * (run.log_interval or 1)
        return 0.0 if begun else max(0.0, float(elapsed[row]) - start - own)
    if earlier:
        notes.append(f"downtime before attempt {attempt}: unknown: the log has no clock there")
    return 0.0


def _say(notes: list[str], *, back: int, filled: int, starts: int) -> None:
    if back:
        notes.append(f"the clock goes back {plural(back, 'time')}: such rows get the usual pace")
    if filled - back > 0:
        rows = filled - back
        get = does(rows, "get")
        notes.append(f"{plural(rows, 'row')} without a usable time {get} the usual pace")
    if starts:
        what = "row of each attempt gets" if starts > 1 else "row gets"
        notes.append(f"the first {what} the usual pace, for no clock shows when it began")


def _compare(wall: np.ndarray, own: np.ndarray, notes: list[str]) -> None:
    """Report a step time that contradicts the wall clock."""
    both = np.isfinite(wall) & np.isfinite(own) & (wall > 0)
    if both.sum() < FEWEST:
        return
    ratio = float(np.median(wall[both] / own[both]))
    if not 0.8 <= ratio <= 1.25:
        notes.append(
            f"contradiction: by the wall clock a row takes {ratio:.3g} times its logged step time:"
            " the wall clock was used; is the step time that of a micro-batch, or of several steps"
        )


def _time_zones(
    run: Run, seconds: np.ndarray, usual: np.ndarray, stands: np.ndarray, notes: list[str]
) -> None:
    """Point at a standstill of just one hour, which may be a change of time zone."""
    if not run.has("wall_time"):
        return
    excess = np.where(stands, seconds - usual, 0.0)
    near = (np.abs(excess - 3600) <= np.maximum(2.0, 0.2 * usual)) & (usual < 600)
    for row in np.flatnonzero(near)[:3].tolist():
        notes.append(
            f"the standstill before step {int(run.frame['step'][row]):,} is just one hour:"
            " it may be a change of time zone; it is counted as a stall"
        )
