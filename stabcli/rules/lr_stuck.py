"""Rule ``lr-stuck``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import Signal, signals

DECAYED = 0.02
"""Share of its peak below which a rate that ends at 0 had got there by its schedule."""
MOVING = 0.9
"""Share of the rows before a standstill in which the rate must have moved."""
FLOOR = 0.15
"""Share of its peak below which a rate that stays is at the floor of its schedule."""
LEARNS = 0.05
"""Relative fall of the loss from which a rate that is 0 in every row cannot be the true one."""


@rule(needs=("learning_rate",), presets=("default",), since="0.1.0", judges=False)
def lr_stuck(
    run: Run, *, rows: int = 20, tail: float = 0.05, planned: float = 0.9
) -> Iterator[Finding]:
    """Learning rate is 0 while training goes on, or stops moving where its schedule moves.

    ## What it finds
    ``rows`` or more rows in a row with a learning rate of exactly 0: an error. At the end of a
    schedule that had decayed to nothing, more than ``tail`` of the run's rows at 0: a warning.
    And ``rows`` or more rows with one and the same rate, after as many in which it changed from
    row to row, where it moves on the same way afterwards, or where the run says that it is not
    yet due: below ``planned`` of its warm-up steps, or of its total steps and not at the floor
    of the schedule. A warning.

    ## Why it matters
    At a rate of 0 nothing is learnt, and every step is paid for. A scheduler that is no longer
    stepped, as after a resume that lost it, leaves the rate where it was: training goes on at
    the wrong rate, and the loss does not show it for days.

    ## What to do
    Look at whether the scheduler is stepped and restored, at its total number of steps, and at
    the parameter group that is logged. Go back to the checkpoint before ``first``.

    ## When it errs
    A rate that is constant by plan, a staircase, and one that was rounded for printing are left
    alone. A first parameter group that is frozen on purpose has a rate of 0 though the others
    train; where the loss falls all the same the rule does not look.

    ## Settings
    rows: Rows in a row that count.
    tail: Share of the rows that may lie at 0 after a finished schedule.
    planned: Share of the planned steps before which a schedule has no reason to stand still.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_stuck.jsonl --rule lr-stuck --format brief
    error     lr-stuck             attempt 0  step 701..780  learning_rate 0, expected 6.484e-05

    ## Sources
    - A schedule that was not restored, unnoticed for a long time: chronicles of IDEFICS-80B
      (m4-logs); the figures are a judgement.
    """
    parts = [s.finite() for s in signals(run, "learning_rate", history=rows)]
    if sum(map(len, parts)) < rows:
        raise CannotLook(f"fewer than {rows} logged learning rates")
    top = max((float(s.values.max()) for s in parts if len(s)), default=0.0)
    if top <= 0 and _learns(run):
        raise CannotLook("the learning rate is 0 in every row, but the loss falls: a placeholder")
    logged = np.concatenate([s.values for s in parts])
    for signal in parts:
        # What the attempt before had is part of the movement that a lost scheduler ends.
        joined = np.concatenate([signal.inherited, signal.values])
        start = len(signal.inherited)
        for first, last in _constant(joined, rows):
            if last < start:
                continue
            severity = (
                _at_zero(joined, first, last, top, logged, tail)
                if joined[first] == 0
                else _standing(run, signal, joined, (first, last), top, rows, planned)
            )
            if severity is not None:
                yield _found(run, signal, joined, max(first, start), last, rows, severity)


def _constant(x: np.ndarray, rows: int) -> list[tuple[int, int]]:
    """Return first and last index of every stretch of at least ``rows`` equal values."""
    edges = np.concatenate([[0], np.flatnonzero(np.diff(x)) + 1, [len(x)]])
    long = np.flatnonzero(np.diff(edges) >= rows)
    return [(int(edges[i]), int(edges[i + 1]) - 1) for i in long]


def _at_zero(
    x: np.ndarray, first: int, last: int, top: float, logged: np.ndarray, tail: float
) -> Severity | None:
    """Judge a stretch at 0; None where it is the rounded end or start of a schedule."""
    # The smallest rate ever printed is the step of the rounding: next to 0 it says nothing.
    rounding = float(logged[logged > 0].min()) if top > 0 else 0.0
    beside = [float(x[i]) for i in (first - 1, last + 1) if 0 <= i < len(x)]
    if beside and min(beside) <= rounding * 1.5 and rounding > 1e-3 * top:
        return None
    if first > 0 and x[first - 1] <= DECAYED * top and last == len(x) - 1:
        return "warning" if last - first + 1 > tail * len(logged) else None
    return "error"


def _standing(
    run: Run,
    signal: Signal,
    x: np.ndarray,
    where: tuple[int, int],
    top: float,
    rows: int,
    planned: float,
) -> Severity | None:
    """Judge a stretch at one rate above 0."""
    first, last = where
    before = np.diff(x[max(0, first - rows) : first + 1])
    if len(before) < rows or (before != 0).mean() < MOVING:
        return None
    rising = bool(np.median(before) > 0)
    if last + 1 < len(x):
        after = np.diff(x[last : last + 1 + rows])
        goes_on = len(after) >= rows // 2 and (after != 0).mean() >= MOVING
        same_way = bool((np.median(after) > 0) == rising) if len(after) else False
        if goes_on and same_way:
            return "warning"
    start = len(x) - len(signal)
    step = int(signal.steps[max(0, first - start)])
    warm, total = run.fact("warmup_steps"), run.fact("total_steps")
    if rising:
        return "warning" if warm and step < planned * warm else None
    if total and step < planned * total and x[first] > FLOOR * top and last == len(x) - 1:
        return "warning"
    return None


def _learns(run: Run) -> bool:
    """Say whether the loss falls clearly from the first to the last quarter of the run."""
    if not run.has("loss"):
        return True
    loss = run.array("loss")
    loss = loss[np.isfinite(loss)]
    quarter = max(1, len(loss) // 4)
    first, last = float(np.median(loss[:quarter])), float(np.median(loss[-quarter:]))
    return last < first - LEARNS * abs(first)


def _found(
    run: Run,
    signal: Signal,
    x: np.ndarray,
    first: int,
    last: int,
    rows: int,
    severity: Severity,
) -> Finding:
    start = len(x) - len(signal)
    earlier = x[:first]
    earlier = earlier[earlier != x[first]]
    return finding(
        run,
        metric="learning_rate",
        rows=(int(signal.rows[first - start]), int(signal.rows[last - start])),
        peak=int(signal.rows[first - start]),
        severity=severity,
        value=float(x[first]),
        expected=float(earlier[-1]) if len(earlier) else None,
        score=(last - first + 1) / rows,
    )
