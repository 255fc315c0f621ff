"""Rule ``standstill``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import on_a_grid
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals

CLOCKS = ("wall_time", "elapsed_seconds")
"""What tells when a row was logged, the best first."""
LEAST = 8
"""Timed rows without which the usual pace is not known."""


@rule(presets=("default",), since="0.1.0", judges=False)
def standstill(run: Run, *, seconds: float = 1800.0, times: float = 10.0) -> Iterator[Finding]:
    """Nothing was logged for a long time: the run hung, or was not there.

    ## What it finds
    Two neighbouring rows of one attempt, more than ``seconds`` and more than ``times`` the usual
    time of a row apart by the wall clock of the log, or by the time elapsed: an error. A notice
    where such gaps recur at a fixed distance, as long evaluations do, where the gap is an hour to
    the minute, which may be a change of time zone, and where a new attempt begins after it, or
    another learning rate, as after a stop and a resume. A clock that goes back later is believed
    only in what remains.

    ## Why it matters
    Every GPU of the run is paid for while it hangs. Speeds that trainers log are measured between
    the beginning and the end of a step, and so never show it.

    ## What to do
    Look at what the scheduler, the kernel and NCCL logged in that time; set a timeout on
    collectives and a watchdog on the log. `stabcli cost-report` prices it.

    ## When it errs
    A job that was stopped on purpose and went on at the next step looks the same. A hang that
    the log ends with is seen in no log.

    ## Settings
    seconds: Time between two rows from which it is a standstill.
    times: Multiple of the usual time between rows that it must be besides.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_standstill.jsonl --rule standstill --format brief
    error     standstill           attempt 0  step 401  wall_time 18,002, expected 2

    ## Sources
    - 30 minutes without a step: StalledTrainingRule of the SageMaker Debugger.
    - Hangs of 6 to 18 hours that nobody was woken by: chronicles of BLOOM (bigscience-workshop).
    """
    metric = next((m for m in CLOCKS if run.has(m)), None)
    if metric is None:
        raise CannotLook("the log has no wall_time and no elapsed_seconds")
    parts = [s.finite() for s in signals(run, metric)]
    pace = _pace(parts)
    if pace is None:
        raise CannotLook(f"fewer than {LEAST} rows with a running {metric}")
    before: Signal | None = None
    for signal in parts:
        took = _believed(signal.values)
        usual = pace * np.maximum(1, np.diff(signal.steps))
        stands = np.flatnonzero((took >= seconds) & (took >= times * usual))
        planned = on_a_grid(stands, len(took)) if len(stands) > 2 else np.zeros(len(stands), bool)
        for i, regular in zip(stands.tolist(), planned.tolist(), strict=True):
            row = int(signal.rows[i + 1])
            zone = abs(took[i] - usual[i] - 3600) <= 60
            tags = ("periodic",) if regular else ("time-zone",) if zone else ()
            if _another_rate(run, row):
                tags = (*tags, "resume")
            yield _found(run, metric, row, took[i], usual[i], seconds, tags)
        if before is not None and len(signal) and signal.steps[0] > before.steps[0]:
            away = float(signal.values[0] - before.values[-1])
            if metric == "wall_time" and away >= max(seconds, times * pace):
                yield _found(
                    run, metric, int(signal.rows[0]), away, pace, seconds, ("between-attempts",)
                )
        before = signal if len(signal) else before


def _pace(parts: list[Signal]) -> float | None:
    """Return the usual seconds of a step; None where too few rows tell it."""
    paces = [np.diff(s.values) / np.maximum(1, np.diff(s.steps)) for s in parts if len(s) > 1]
    every = np.concatenate(paces) if paces else np.empty(0)
    every = every[every >= 0]
    if len(every) < LEAST:
        return None
    middle = float(np.median(every))
    return middle if middle > 0 else float(np.mean(np.sort(every)[: int(0.99 * len(every)) or 1]))


def _believed(clock: np.ndarray) -> np.ndarray:
    """Return how far the clock moved for good between neighbours, shape (n - 1,)."""
    never_before = np.minimum.accumulate(clock[::-1])[::-1]
    return np.asarray(np.diff(never_before))


def _another_rate(run: Run, row: int) -> bool:
    """Say whether the learning rate leapt by half between a row and the one before it."""
    if not run.has("learning_rate"):
        return False
    before, after = run.array("learning_rate")[row - 1 : row + 1]
    return bool(before > 0 and after > 0 and not 1 / 1.5 < after / before < 1.5)


def _found(
    run: Run,
    metric: str,
    row: int,
    took: float,
    usual: float,
    seconds: float,
    tags: tuple[str, ...],
) -> Finding:
    severity: Severity = "notice" if tags else "error"
    return finding(
        run,
        metric=metric,
        rows=(row, row),
        peak=row,
        severity=severity,
        value=float(took),
        expected=float(usual),
        score=float(took / seconds),
        tags=tags,
    )
