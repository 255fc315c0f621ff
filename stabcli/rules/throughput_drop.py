"""Rule ``throughput-drop``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from stabcli.levels import centred, falls, lasting, noise, on_a_grid
from stabcli.rules import STATISTIC, CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, planned_changes, signals, spread
from stabcli.waiting import SHARE, waiting

METRICS = ("tokens_per_second", "tokens_per_second_per_gpu", "step_seconds")
"""What may tell the speed, the best first."""
LEAST = 8
"""Rows of a segment without which its usual speed is not known."""


@rule(presets=("default",), since="0.1.0")
def throughput_drop(
    run: Run,
    *,
    drop: float = 0.05,
    slide: float = 0.1,
    error: float = 0.3,
    rows: int = 20,
    stall: float = 0.35,
    lost: float = 10.0,
    startup: int = 3,
    loading: float = SHARE,
) -> Iterator[Finding]:
    """Training gets slower and stays slower, or stands still for a while.

    ## What it finds
    Two things, in the tokens per second, else the tokens per second and GPU, else the inverse of
    the step time. A lasting drop: the median speed falls by ``drop`` against the 200 rows before,
    or by ``slide`` against the best such level so far, for at least ``rows`` rows, and six times
    further than such medians wander in this run: a warning, from ``error`` on an error, and a
    notice where it costs less time than ``lost`` rows take. A stall: fewer than ``rows`` rows at
    less than ``stall`` of the usual speed, six standard deviations of single rows below it: a
    warning, and a notice where it is one row at a multiple of 500 steps, as checkpoints are. Left
    out are the first rows of an attempt, rows of evaluations and known checkpoints, dips that
    recur at a fixed distance, and the last row, which holds the final checkpoint. A change of
    batch size or number of GPUs begins anew. And one notice for the run, which belongs to no event,
    where more than ``loading`` of the time goes into loading data, in the median of both halves of
    its rows; only where the log tells that time, in percent, or in seconds beside those of a step.

    ## Why it matters
    A run that is 6 % slower costs 6 % more, and nothing in the loss shows it. One slow node sets
    the pace of all; BLOOM lost 6 % to a single one until somebody looked.

    ## What to do
    Compare the step time per rank, and drain the slowest node. For stalls look at the file
    system, the data loader and the network at the wall-clock time of the row.

    ## When it errs
    Speed that depends on the length of sequences or responses changes with the data, above all in
    reinforcement learning. Running averages hide stalls and stretch drops. Rare checkpoints that
    keep to no distance look like stalls: give ``--fact checkpoint_every=N``.

    ## Settings
    drop: Least relative fall of the speed against the rows before.
    slide: Least relative fall against the best level so far.
    error: Relative fall from which a drop is an error.
    rows: Rows a drop must last; shorter ones are stalls.
    stall: Share of the usual speed below which a row is a stall.
    lost: Time that a drop must cost, in rows at the usual speed, to be more than a notice.
    startup: Rows at the start of each attempt that are left out, at least.
    loading: Share of the time for loading data from which a run is held up by it.

    ## Example
    $ stabcli scan sample_logs/csv/slow_stretch.csv --rule throughput-drop --format brief
    error     throughput-drop      attempt 0  step 502..652  tokens_per_second 38,425, expected 64,159

    ## Sources
    - 30 % below the recent median: the field's rule of thumb, true at every checkpoint and blind
      to a sick node; kept as ``seed-throughput-drop``.
    - 10 % of the time for loading data is a judgement; torchtitan and OLMo-core log that share.
    - 149 to 140 TFLOP/s from one sick node: chronicles of BLOOM (bigscience-workshop).
    """
    metric = next((m for m in METRICS if run.has(m)), None)
    if metric is None:
        raise CannotLook("the log has no tokens_per_second and no step_seconds")
    looked = False
    stalls: list[tuple[Finding, float]] = []
    total = 0
    for signal in signals(run, metric, history=200):
        for segment in _segments(run, signal, startup):
            looked = True
            total += len(segment.speed)
            quiet = np.ones(len(segment.speed), bool)
            for first, last in _stalls(segment, stall, rows):
                alone = first == last and round_step(run, int(segment.rows[first]))
                quiet[first : last + 1] = False
                peak = first + int(np.argmin(segment.speed[first : last + 1]))
                usual = float(segment.usual[peak])
                ratio = float(np.exp(segment.speed[peak] - usual))
                found = _finding(
                    run,
                    metric,
                    segment.rows,
                    (first, last, peak),
                    usual,
                    ("stall",),
                    "notice" if alone else "warning",
                )
                stalls.append((found, stall / ratio))
            kept = np.flatnonzero(quiet & ~segment.explained)
            for first, last, level, depth in _falls(segment, kept, (drop, slide), rows):
                inside = np.arange(first, last + 1)
                peak = int(inside[np.argmin(centred(segment.speed[inside], 9))])
                grave = depth >= -np.log1p(-error)
                plain = inside[~segment.explained[inside]]
                cost = float(np.expm1(level - segment.speed[plain]).sum())
                severity: Severity = "error" if grave else "warning"
                yield _finding(
                    run,
                    metric,
                    segment.rows,
                    (first, last, peak),
                    level,
                    (),
                    severity if cost >= lost else "notice",
                    value=level - depth,
                    score=depth / -float(np.log1p(-drop)),
                )
    if not looked:
        raise CannotLook(f"fewer than {LEAST} rows with {metric} after the start of each attempt")
    yield from _told(stalls, total)
    yield from _loading(run, startup, loading)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """A stretch of n rows of one attempt over which nothing was changed on purpose."""

    rows: np.ndarray
    """Rows in the frame, int64 of shape (n,)."""
    speed: np.ndarray
    """Log speed, float64 of shape (n,)."""
    usual: np.ndarray
    """Median log speed of the rows around each, shape (n,)."""
    explained: np.ndarray
    """Whether a row is known to be slow for a reason, bool of shape (n,)."""
    history: np.ndarray
    """Log speeds that an earlier attempt had before it."""
    ends: bool
    """Whether the attempt ends with it."""


def _segments(run: Run, signal: Signal, startup: int) -> Iterator[_Segment]:
    sign = -1.0 if signal.metric == "step_seconds" else 1.0
    good = np.isfinite(signal.values) & (signal.values > 0)
    cuts = [0, *planned_changes(run, signal), len(signal)]
    before = signal.inherited[signal.inherited > 0]
    for start, stop in pairwise(cuts):
        # Compilation and caches: more rows where there are many, as they may then be short.
        n = stop - start
        skip = min(max(startup, min(20, n // 100)), max(2, n - LEAST))
        kept = np.arange(start + skip, stop)
        kept = kept[good[kept]]
        if len(kept) < min(LEAST, 5):
            continue
        rows = signal.rows[kept]
        speed = sign * np.log(signal.values[kept])
        usual = centred(speed, 51)
        yield _Segment(
            rows=rows,
            speed=speed,
            usual=usual,
            explained=_explained(run, rows, signal.steps[kept], speed - usual),
            history=sign * np.log(before) if start == 0 else np.empty(0),
            ends=stop == len(signal),
        )


def _explained(run: Run, rows: np.ndarray, steps: np.ndarray, away: np.ndarray) -> np.ndarray:
    """Say which rows hold an evaluation or a checkpoint, or dip at a fixed distance."""
    n = len(rows)
    explained = np.zeros(n, bool)
    interval = max(1, int(np.median(np.diff(steps)))) if n > 1 else 1
    for metric in ("val_loss", "val_perplexity", "val_reward"):
        if run.has(metric):
            held = np.flatnonzero(run.logged(metric))
            if len(held) <= run.frame.height // 2:
                for lag in (0, 1):
                    explained |= np.isin(rows, held + lag)
    every = run.fact("checkpoint_every")
    if every and every > 2 * interval:
        explained |= steps % int(every) < interval
    saved = run.facts.get("checkpoints")
    if saved is not None and isinstance(saved.value, tuple):
        explained |= np.isin(steps // interval, np.asarray(saved.value) // interval)
    low = away < -max(0.05, 4.0 * noise(away))
    for depth in (0.0, -0.7):  # deep ones once more by themselves: checkpoints among hiccups
        short = [f for f, last in lasting(low & (away < depth), 1) if last - f < 3]
        dips = np.asarray(short, np.int64)
        for first in dips[on_a_grid(steps[dips] // interval, int(steps[-1]) // interval + 1)]:
            explained[first : first + 3] |= low[first : first + 3]
    return explained


def round_step(run: Run, row: int) -> bool:
    """Say whether a row stands at a multiple of 500 steps, or just after, where rows are close."""
    interval = run.log_interval or 1
    return interval <= 10 and int(run.frame["step"][row]) % 500 in {0, 1, interval}


def _stalls(segment: _Segment, stall: float, rows: int) -> list[tuple[int, int]]:
    away = segment.speed - segment.usual
    slow = away < min(float(np.log(stall)), -6.0 * spread(away))
    slow &= ~segment.explained
    if segment.ends:
        slow[-1] = False
    return [(f, k) for f, k in lasting(slow, 1, gap=1) if k - f + 1 < rows]


def _falls(
    segment: _Segment, kept: np.ndarray, depths: tuple[float, float], rows: int
) -> Iterator[tuple[int, int, float, float]]:
    """Yield first and last index, level before and depth of each lasting drop."""
    speed = segment.speed[kept]
    drop, slide = (-float(np.log1p(-d)) for d in depths)
    steep = falls(speed, history=segment.history, depth=drop, rows=rows)
    slow = falls(speed, history=segment.history, depth=slide, rows=2 * rows, before=100, best=True)
    slow = [f for f in slow if not any(f.first <= s.last and s.first <= f.last for s in steep)]
    for f in sorted([*steep, *slow], key=lambda f: f.first):
        yield int(kept[f.first]), int(kept[f.last]), f.level, f.depth


def _finding(
    run: Run,
    metric: str,
    rows: np.ndarray,
    where: tuple[int, int, int],
    level: float,
    tags: tuple[str, ...],
    severity: Severity,
    *,
    value: float | None = None,
    score: float | None = None,
) -> Finding:
    """Make a finding; ``level`` and ``value`` are log speeds."""
    first, last, peak = (int(rows[i]) for i in where)
    sign = -1.0 if metric == "step_seconds" else 1.0
    worst = float(run.array(metric)[peak]) if value is None else float(np.exp(sign * value))
    usual = float(np.exp(sign * level))
    return finding(
        run,
        metric=metric,
        rows=(first, last),
        peak=peak if value is None else None,
        severity=severity,
        value=worst,
        expected=usual,
        score=score if score is not None else float((worst / usual) ** -sign),
        tags=tags,
    )


def _told(stalls: list[tuple[Finding, float]], total: int) -> Iterator[Finding]:
    """Tell stalls one by one; as one statistic where they are the run's habit."""
    if len(stalls) <= max(10, total // 200):
        for found, _ in stalls:
            yield found
        return
    worst = max(stalls, key=lambda pair: pair[1])[0]
    yield replace(
        worst,
        severity="notice",
        first=min(found.first for found, _ in stalls),
        last=max(found.last for found, _ in stalls),
        tags=(STATISTIC, f"stalls-{len(stalls)}"),
    )


def _loading(run: Run, startup: int, limit: float) -> Iterator[Finding]:
    """Tell of a run that waits for its data from start to end."""
    told = waiting(run)
    if told is None:
        return
    known = [s.rows[startup:] for s in signals(run, told.metric)]
    rows = np.concatenate([*known, np.empty(0, np.int64)]).astype(np.int64)
    rows = rows[np.isfinite(told.share[rows])]
    halves = np.array_split(told.share[rows], 2)
    if len(rows) < LEAST or min(float(np.median(h)) for h in halves) <= limit:
        return
    middle = float(np.median(told.share[rows]))
    at = int(rows[np.argmin(np.abs(told.share[rows] - middle))])
    mine = rows[run.frame["attempt"].to_numpy()[rows] == run.frame["attempt"][at]]
    scale = float(told.scale[at])
    yield finding(
        run,
        metric=told.metric,
        rows=(int(mine[0]), int(mine[-1])),
        peak=at,
        severity="notice",
        value=float(told.share[at]) * scale,
        expected=limit * scale,
        score=float(told.share[at]) / limit if limit else None,
        tags=(STATISTIC, "waits-for-data"),
    )
