"""Rule ``frozen-values``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, WINDOW, Signal, after_clipping, signals

METRICS = ("loss", "grad_norm")
"""What is a new number in every step that trains on new data."""
REPEATS = 0.1
"""Share of rows equal to the one before, up to which a log shows enough digits."""
DIGITS = 50.0
"""Steps of its own rounding that a value must be worth, to tell a frozen from a rounded one."""
WHOLE = 100
"""Rows from which a column that never changed at all is frozen."""


@rule(presets=("default",), since="0.1.0", judges=False)
def frozen_values(run: Run, *, rows: int = 20) -> Iterator[Finding]:
    """Loss or gradient norm is one and the same number, to the last digit, row after row.

    ## What it finds
    ``rows`` or more rows in a row with exactly the same loss, or gradient norm, after rows that
    nearly all differ from one another (one in ten may be equal); or a column that never changed
    in the whole run, of 100 rows at least. An error for the loss, a warning for the gradient norm
    alone. Left out are 0, which other rules explain, losses that are not positive, and a norm at
    the clip, where it was logged after clipping.

    ## Why it matters
    Batches differ, and so do their losses. The same number again and again is the same batch
    again and again, weights that no longer move, or a logger that repeats what it once had:
    either the run stands still, or nobody sees it any more.

    ## What to do
    Compare the batches of two such rows, and the checkpoints before and after; look at the data
    loader, and at whether the logged value is still computed.

    ## When it errs
    Values that are printed with too few digits repeat by themselves: where that is the case
    before the stretch, or the value is below 50 steps of its own rounding, the rule says
    nothing.

    ## Settings
    rows: Rows in a row that must be equal.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_stuck.jsonl --rule frozen-values --format brief
    error     frozen-values        attempt 0  step 301..340  loss 2.692, expected 2.649
    warning   frozen-values        attempt 0  step 301..340  grad_norm 0.4565, expected 0.2925

    ## Sources
    - With one row in ten equal to the one before by rounding, 20 in a row come by chance once in
      1e19 rows.
    """
    looked = False
    for metric in METRICS:
        if not run.has(metric):
            continue
        clip = run.fact("grad_clip") if metric == "grad_norm" else None
        pinned = metric == "grad_norm" and after_clipping(run) is not None
        for raw in signals(run, metric):
            signal = raw.finite()
            if len(signal) < rows + MINIMUM and len(signal) < WHOLE:
                continue
            looked = True
            for first, last in _equal(signal.values, rows):
                value = float(signal.values[first])
                if value <= 0 or (clip and abs(value - clip) <= 1e-3 * clip) or pinned:
                    continue
                if _frozen(signal.values, first, last, metric):
                    yield _found(run, signal, first, last, rows)
    if not looked:
        raise CannotLook(f"fewer than {rows + MINIMUM} logged losses or gradient norms")


def _equal(x: np.ndarray, rows: int) -> list[tuple[int, int]]:
    """Return first and last index of every stretch of at least ``rows`` equal values."""
    edges = np.concatenate([[0], np.flatnonzero(np.diff(x)) + 1, [len(x)]])
    long = np.flatnonzero(np.diff(edges) >= rows)
    return [(int(edges[i]), int(edges[i + 1]) - 1) for i in long]


def _frozen(x: np.ndarray, first: int, last: int, metric: str) -> bool:
    """Say whether equal values are more than rounding, by the rows before them."""
    before = x[max(0, first - WINDOW) : first]
    if not len(before):
        return last == len(x) - 1 and len(x) >= WHOLE
    if len(before) < MINIMUM or (np.diff(before) == 0).mean() > REPEATS:
        return False
    if metric == "grad_norm" and x[first] >= x.max():
        return False  # cut at a clip that nobody told us of
    gaps = np.diff(np.unique(x))
    return bool(x[first] >= DIGITS * gaps.min())


def _found(run: Run, signal: Signal, first: int, last: int, rows: int) -> Finding:
    severity: Severity = "error" if signal.metric == "loss" else "warning"
    return finding(
        run,
        metric=signal.metric,
        rows=(int(signal.rows[first]), int(signal.rows[last])),
        peak=int(signal.rows[first]),
        severity=severity,
        value=float(signal.values[first]),
        expected=float(signal.values[first - 1]) if first else None,
        score=(last - first + 1) / rows,
    )
