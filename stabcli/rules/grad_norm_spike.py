"""Rule ``grad-norm-spike``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.bumps import Bumps
from stabcli.rarity import Rarity
from stabcli.rules import SEVERITIES, CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, planned_changes, robust, signals, stretches, warmup_end
from stabcli.twofold import as_the_loss

FLOOR = 0.05
"""Least spread of a gradient norm in log units: five percent."""
SHORT_ROWS = 3
"""Rows in a row up to which a bump can be one of uneven batches."""
RARE = 0.03
"""Rows so high that the noise of the whole run may bring for a bump to be none of its own."""
EXTREME = 10.0
"""Standard deviations from which a norm is no noise: its logarithm has lighter tails than a loss."""
USUAL_WITHIN = 2000
"""Rows on either side of a bump in which others are counted."""


@rule(needs=("grad_norm",), presets=("default",), since="0.1.0")
def grad_norm_spike(
    run: Run,
    *,
    notice: float = 6.0,
    least: float = 3.5,
    ratio: float = 3.0,
    evidence: float = 8.0,
    error: float = 8.0,
    error_ratio: float = 10.0,
    run_ratio: float = 5.0,
    usual: int = 3,
    usual_ratio: float = 8.0,
    join: int = 10,
) -> Iterator[Finding]:
    """Gradient norm leaps far above its own recent level.

    ## What it finds
    Rows whose gradient norm is at least ``ratio`` times the median of the 16 rows before them,
    and ``least`` robust standard deviations of the log above it, so that score times log ratio
    reaches ``evidence``: a warning (8 deviations at 2.7 times the level, 3.5 at ten times). An
    error from ``error`` deviations at ``error_ratio`` times, or three rows in a row at
    ``run_ratio`` times. A bump of up to three rows below ``usual_ratio`` times is a notice where
    ``usual`` others are about as high, or where the noise of this run, fitted with Student's t,
    brings such a row more than three times in a hundred such runs. From ``notice`` deviations and twice the level: a notice. In warm-up and
    right after a restart all count one degree less.

    ## Why it matters
    The gradient norm moves before the loss does: of BLOOM's largest spike it gave notice four
    steps ahead. A single spike that the loss does not follow did no harm, clipping took it.

    ## What to do
    Look at the batch of the peak. Where the loss follows, roll back to before ``first`` and skip
    these batches; where spikes come ever more often, lower the learning rate or clip harder.

    ## When it errs
    At a logging interval of k most trainers log the norm of the last step only: k - 1 of k
    spikes leave no trace. A norm logged after clipping cannot spike at all. Where
    losses stand at two levels all through the run, norms of the upper one are scaled down too.

    ## Settings
    notice: Robust standard deviations for a notice.
    least: Least robust standard deviations for a warning.
    ratio: Least ratio to the level for a warning.
    evidence: Score times log ratio for a warning.
    error: Robust standard deviations for an error.
    error_ratio: Ratio to the level for an error.
    run_ratio: Ratio to the level that three rows in a row must reach for an error.
    usual: Number of other bumps about as high that make one usual, a notice only.
    usual_ratio: Ratio to the level from which no bump is usual.
    join: Rows between two flagged rows that still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule grad-norm-spike --format brief
    notice    grad-norm-spike      attempt 0  step 65..66  grad_norm 2.327, expected 0.5016
    notice    grad-norm-spike      attempt 0  step 84  grad_norm 2.966, expected 0.5659
    error     grad-norm-spike      attempt 0  step 600..603  grad_norm 24.29, expected 1.917

    ## Sources
    - BLOOM, chronicles of 2022-04-12: gradient norm 0.242, 0.947, 2.39, 15.9, 145, 960 before the
      loss left its band.
    - Median and MAD in log space: as for ``loss-spike``.
    """
    looked = False
    for logged in signals(run, "grad_norm"):
        raw = logged.finite()
        signal = as_the_loss(run, raw)
        if len(signal) + len(signal.inherited) <= MINIMUM:
            continue
        looked = True
        scores = robust(
            signal.values,
            inherited=signal.inherited,
            floor=FLOOR,
            z=least,
            effect=ratio - 1,
            least_effect=1.0,
            restarts=planned_changes(run, signal),
        )
        warm = warmup_end(run, signal.attempt)
        level = np.where(np.isfinite(scores.base), scores.base, signal.values)
        over = signal.values / np.where(level > 0, level, 1.0)
        strong = scores.flagged & (scores.z * np.log(np.maximum(over, 1.0)) >= evidence)
        rarity = Rarity(signal.values, floor=FLOOR)
        bumps = Bumps(strong, scores.z >= notice, over, short=SHORT_ROWS)
        for first, last in stretches(strong | (scores.z >= notice), gap=join):
            inside = slice(first, last + 1)
            peak = first + int(np.argmax(over[inside]))
            severity: Severity = "notice"
            if strong[inside].any():
                severity = "warning"
                high = stretches(strong[inside] & (over[inside] >= run_ratio))
                leap = strong[inside] & (over[inside] >= error_ratio) & (scores.z[inside] >= error)
                if leap.any() or any(b - a + 1 >= 3 for a, b in high):
                    severity = "error"
            tags: tuple[str, ...] = ()
            common = over[peak] < usual_ratio and bumps.only_short(first, last)
            if common and (
                bumps.others(first, last, over[peak], USUAL_WITHIN) >= usual
                or (last - first < SHORT_ROWS and _noise(rarity, first, last))
            ):
                severity, tags = "notice", ("uneven-batches",)
            early = signal.steps[first] <= warm or (not signal.resumed and first < MINIMUM)
            resumed = signal.resumed and (first < 3 or signal.steps[first] < signal.steps[0] + 20)
            if early or resumed:
                tags = (*tags, "warm-up" if early else "resume")
                severity = SEVERITIES[max(0, SEVERITIES.index(severity) - 1)]
            yield finding(
                run,
                metric="grad_norm",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity=severity,
                value=float(raw.values[peak]),
                expected=float(level[first] * raw.values[peak] / signal.values[peak]),
                score=float(scores.z[peak] * np.log(max(over[peak], 1.0))) / evidence,
                tags=tags,
            )
    if not looked:
        raise CannotLook(f"fewer than {MINIMUM + 1} logged gradient norms in every attempt")


def _noise(rarity: Rarity, first: int, last: int) -> bool:
    """Say whether the noise of this run brings norms so high."""
    if rarity.sigmas[first : last + 1].max() >= EXTREME:
        return False
    return rarity.chance(first, last) > RARE
