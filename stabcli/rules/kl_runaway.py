"""Rule ``kl-runaway``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stabcli.beginnings import warmup_rows
from stabcli.levels import centred, lasting, trailing
from stabcli.metrics import normalise
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import signals

STEEPER = 2
"""Times ``ratio`` from which a climb is no square of the steps, however noisy."""
MIDDLE = 20
"""Rows whose median is the level half as many rows ago."""

STEP_KL = re.compile(r"(?:^|/)ppo_kl(?:/mean)?$")
"""What the divergence of one update is called: ``actor/ppo_kl`` in verl."""


@rule(presets=("default",), since="0.1.0")
def kl_runaway(
    run: Run,
    *,
    ratio: float = 10.0,
    least: float = 0.1,
    error: float = 100.0,
    before: int = 50,
    rows: int = 5,
    step: float = 0.1,
) -> Iterator[Finding]:
    """The policy runs away from its reference.

    ## What it finds
    KL divergence, as a median of five rows, at ``ratio`` times the median of the ``before`` rows
    before the leap, or at twice that multiple of those in the middle of the run so far, and above
    ``least`` nats, for ``rows`` rows: a warning, an error from ``error`` times on. A rise that
    grows no steeper to ``ratio`` times the level of rows 5 to 50 is a notice, for a policy that
    learns moves away from where it started. And the divergence of one update, from the policy
    that made its rollouts, above ``step`` nats for as long: a warning.

    ## Why it matters
    Far from the reference the reward model was never trained, and the gradients of the penalty
    take over.

    ## What to do
    Raise the KL coefficient or lower the learning rate, and go back to before the leap.

    ## When it errs
    Estimators of single samples have heavy tails. Where the divergence is summed over the tokens
    of a response it grows with their length.

    ## Settings
    ratio: Multiple of the level before.
    least: Divergence in nats below which nothing is said.
    error: Multiple of the level before, for an error.
    before: Rows whose median is the level before.
    rows: Rows it must last.
    step: Divergence of one update in nats that is still healthy.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_policy.jsonl --rule kl-runaway --format brief
    error     kl-runaway           attempt 0  step 428..800  kl 4.024, expected 0.02261

    ## Sources
    - 0.1 nats as the limit of health: docs/algo/rollout_corr.md of verl. Ten times the early
      level is a judgement, not a measurement.
    """
    looked = False
    for metric in (m for m in run.measurements if STEP_KL.search(normalise(m))):
        for raw in signals(run, metric):
            signal = raw.finite()
            if len(signal) < 10 + rows:
                continue
            looked = True
            smooth = centred(signal.values, 5)
            for first, last in lasting(smooth > step, rows, gap=5):
                peak = first + int(np.argmax(signal.values[first : last + 1]))
                yield finding(
                    run,
                    metric=metric,
                    rows=(int(signal.rows[first]), int(signal.rows[last])),
                    peak=int(signal.rows[peak]),
                    severity="warning",
                    value=float(signal.values[peak]),
                    expected=step,
                    score=float(signal.values[peak] / step),
                )
    for raw in signals(run, "kl") if run.has("kl") else []:
        signal = raw.finite()
        if len(signal) < 10 + rows:
            continue
        looked = True
        values = np.concatenate([signal.inherited, signal.values])
        start = len(signal.inherited)
        smooth = centred(values, 5)
        level = np.full(len(values), np.nan)
        # The five rows of the smoothed value are no part of the level that it is compared with.
        level[5:] = trailing(values, before, 10)[:-5]
        # The climb of many rows shows against the level of half as many rows, which is far below it
        # only where the climb grows ever steeper: a policy that learns moves away ever more slowly.
        middle = np.arange(len(values)) // 2
        half = trailing(values, MIDDLE)[middle]
        warm = warmup_rows(run, signal)
        half[middle < max(before, warm)] = np.nan
        with np.errstate(invalid="ignore"):
            level = np.where(smooth >= STEEPER * ratio * half, np.fmin(level, half), level)
            level = np.maximum(level, least / ratio / 10)
            leapt = (smooth >= ratio * level) & (smooth >= least)
        leapt[:start] = False
        leaps = lasting(leapt, rows, gap=5)
        reached = -1
        for first, last in leaps:
            if first <= reached:
                continue
            limit = max(ratio * level[first], least)
            back = np.flatnonzero(smooth[last + 1 :] < limit)
            reached = last + int(back[0]) if len(back) else len(values) - 1
            last = reached  # noqa: PLW2901  it lasts until it is back, however the level adapts
            peak = first + int(np.argmax(smooth[first : last + 1]))
            times = float(np.max(smooth[first : last + 1]) / level[first])
            severity: Severity = "error" if times >= error else "warning"
            yield _finding(run, signal.rows, (first, last, peak), start, severity, level, ratio)
        early = float(np.median(values[5:50]))
        slow = (smooth >= ratio * early) & (smooth >= least) & (np.arange(len(values)) >= start)
        drifts = lasting(slow, rows, gap=5)
        if drifts and not leaps:
            first, last = drifts[0][0], drifts[-1][1]
            peak = first + int(np.argmax(smooth[first : last + 1]))
            levels = np.full(len(values), early)
            yield _finding(run, signal.rows, (first, last, peak), start, "notice", levels, ratio)
    if not looked:
        few = f"fewer than {10 + rows} logged divergences in every attempt"
        raise CannotLook(few if run.has("kl") else "the log has no kl")


def _finding(
    run: Run,
    rows: np.ndarray,
    where: tuple[int, int, int],
    start: int,
    severity: Severity,
    level: np.ndarray,
    ratio: float,
) -> Finding:
    first, last, peak = where
    value = float(run.array("kl")[rows[peak - start]])
    expected = float(level[first])
    return finding(
        run,
        metric="kl",
        rows=(int(rows[first - start]), int(rows[last - start])),
        peak=int(rows[peak - start]),
        severity=severity,
        value=value,
        expected=expected,
        score=value / max(expected * ratio, 1e-12),
    )
