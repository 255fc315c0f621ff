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

K3 = ("k3", "low_var_kl")
"""What the estimator r - 1 - ln r, which is never negative, is called; the latter by verl."""
K3_NAME = re.compile(r"(?:^|[/_.])(?:k3|low_var_kl)(?:$|[/_.])")
ROUNDING = 1e-6
"""Nats below 0 that rounding of fp32 brings an estimate to."""
NO_ESTIMATE = re.compile(r"coef|weight|beta|grad|std|diff|reward|penalty|advantage")
"""What is computed with a divergence, or from it, may have either sign."""


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
    negative: float = 0.004,
) -> Iterator[Finding]:
    """The policy runs away from its reference.

    ## What it finds
    KL divergence, as a median of five rows, at ``ratio`` times the median of the ``before`` rows
    before the leap, or at twice that multiple of those in the middle of the run so far, and above
    ``least`` nats, for ``rows`` rows: a warning, an error from ``error`` times on. A rise that
    grows no steeper to ``ratio`` times the level of rows 5 to 50 is a notice, for a policy that
    learns moves away from where it started. And the divergence of one update, from the policy
    that made its rollouts, above ``step`` nats for as long: a warning.

    And an estimate of the kind k3, r - 1 - ln r, below 0, where it cannot be: a warning from
    ``negative`` nats on, an error where it lies there in half of all rows, and a notice where
    rounding explains it. A column is of that kind only if its name says k3 or low_var_kl, or the
    run's kl_estimator (of ``kl``) or kl_loss_type (of ``kl_loss``) does; ``kl`` alone may be k1,
    which is negative in healthy runs.

    ## Why it matters
    Far from the reference the reward model was never trained, and the gradients of the penalty
    take over.

    ## What to do
    Raise the KL coefficient or lower the learning rate, and go back to before the leap. Where k3
    is negative, look for a wrong sign, a mask, or the estimator that is really used: the penalty
    may push the policy away.

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
    negative: Nats below 0 that rounding may bring an estimate of the kind k3 to.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_policy.jsonl --rule kl-runaway --format brief
    error     kl-runaway           attempt 0  step 428..800  kl 4.024, expected 0.02261

    ## Sources
    - 0.1 nats as the limit of health: docs/algo/rollout_corr.md of verl. Ten times the early
      level is a judgement, not a measurement.
    - k3 is never negative: Schulman, Approximating KL divergence (2020); low_var_kl is the same in
      verl's core_algos.py. 0.004 is half the distance of two bf16 numbers above 1.
    """
    found = [*_negative(run, negative)]
    yield from found
    looked = bool(found)
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


def _negative(run: Run, least: float) -> Iterator[Finding]:
    """Find estimates below 0 in columns that are known never to be."""
    for metric in run.measurements:
        if not _is_k3(run, metric):
            continue
        x = run.array(metric)
        for raw in signals(run, metric):
            signal = raw.finite()
            low = signal.values < -ROUNDING
            if not low.any():
                continue
            bad = signal.values < -least
            severity: Severity = "warning" if bad.any() else "notice"
            if 2 * int(bad.sum()) >= len(signal) >= 10:
                severity = "error"
            rows = signal.rows[bad if bad.any() else low]
            peak = int(rows[np.argmin(x[rows])])
            yield finding(
                run,
                metric=metric,
                rows=(int(rows[0]), int(rows[-1])),
                peak=peak,
                severity=severity,
                value=float(x[peak]),
                expected=0.0,
                score=float(-x[peak] / max(least, ROUNDING)),
                tags=("negative-k3",),
            )


def _is_k3(run: Run, metric: str) -> bool:
    """Say whether a column is known to hold an estimate of the kind k3."""
    name = normalise(run.word(metric))
    last = re.sub(r"/mean$", "", name).rpartition("/")[2]
    if NO_ESTIMATE.search(name):
        return False
    if K3_NAME.search(name):
        return True
    fact = {"kl_loss": "kl_loss_type", "kl": "kl_estimator"}.get(last)
    known = run.facts.get(fact) if fact else None
    return known is not None and normalise(str(known.value)) in K3


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
