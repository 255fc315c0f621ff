"""Rule ``early-spike``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import noise
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, signals, stretches
from stabcli.twofold import evened

LEAST = 8
"""Rows without which nothing can be compared at all."""
BEFORE, AFTER = 6, 8
"""Rows on either side that a leap is measured against."""
LONGEST = 8
"""Rows up to which a leap is one, with rows after it to compare with."""


@rule(needs=("loss",), presets=("default",), since="0.1.0", judges=False)
def early_spike(
    run: Run, *, warning: float = 2.0, error: float = 3.0, sigmas: float = 5.0
) -> Iterator[Finding]:
    """Loss leaps in the first rows of a log, where there is no history yet.

    ## What it finds
    In the first 16 rows of a run, in which ``loss-spike`` has too little history, one to eight
    rows of at least ``warning`` times the highest loss of the six rows before and the eight after
    them, and ``sigmas`` standard deviations of this run's own noise above it: a warning, and an
    error from ``error`` times the first loss of the log on. A loss that leaps to that and stays
    there is one as well. Needs eight rows.

    ## Why it matters
    A log may begin in the middle of a run, and short logs have nothing but first rows.

    ## What to do
    As with `loss-spike`; at the very start of a run a longer warm-up or a lower learning rate is
    the usual cure.

    ## When it errs
    It is blind below ``warning`` times the level: the report says so. Fine-tunes on single samples
    have losses that differ by more than that; then the noise of the run keeps it silent.
    Losses at two levels all through the run are brought to one first, as in ``loss-spike``.

    ## Settings
    warning: Multiple of the highest loss around for a warning.
    error: Multiple of the first loss of the log for an error.
    sigmas: Standard deviations of the log loss that it must stand out by.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_stuck.jsonl --rule early-spike --format brief
    error     early-spike          attempt 0  step 9..10  loss 15.85, expected 3.965

    ## Sources
    - Before the end of warm-up only three times the initial loss is worth an error: a judgement
      after looking at the starts of 99 public runs.
    """
    signal = signals(run, "loss")[0].finite()
    x = evened(signal).values
    if len(x) < LEAST:
        raise CannotLook(f"fewer than {LEAST} finite losses")
    start = x[: MINIMUM + LONGEST + AFTER]
    if (start <= 0).any():
        raise CannotLook("losses of 0 or below among the first rows")
    u = np.log(start)
    least = max(float(np.log(warning)), sigmas * noise(u))
    at = 1
    while at < min(MINIMUM, len(u)):
        before = float(u[max(0, at - BEFORE) : at].max())
        high = u[at:] >= before + least
        if not high[0]:
            at += 1
            continue
        last = at + stretches(high)[0][1]
        after = u[last + 1 : last + 1 + AFTER]
        lasts = last - at + 1
        if lasts <= LONGEST and len(after) and u[at : last + 1].max() < after.max() + least:
            at = last + 1
            continue
        if lasts > LONGEST and u[at] < np.log(error) + u[0]:
            at = last + 1
            continue
        peak = at + int(np.argmax(u[at : last + 1]))
        severity: Severity = "error" if x[peak] >= error * x[0] else "warning"
        yield finding(
            run,
            metric="loss",
            rows=(int(signal.rows[at]), int(signal.rows[last])),
            peak=int(signal.rows[peak]),
            severity=severity,
            value=float(signal.values[peak]),
            expected=float(x[at - 1] * signal.values[peak] / x[peak]),
            score=float((u[peak] - before) / least),
            tags=("early",),
        )
        at = last + 1
