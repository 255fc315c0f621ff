"""Rule ``loss-spike``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.beginnings import negligible
from stabcli.bumps import Bumps
from stabcli.rarity import EXTREME, Rarity
from stabcli.rules import SEVERITIES, CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, planned_changes, robust, signals, stretches, warmup_end
from stabcli.shifts import after_a_dip
from stabcli.twofold import evened

FLOOR = 0.005
"""Least spread of a loss in log units: half a percent."""
RAISED = 0.7
"""Share of a notice that a row must score to be part of a bump."""
FREQUENT = 0.02
"""Share of the rows that are bumps about as high, from which they are part of the data."""
AFTER_CHANGE = 20
"""Rows after a logged change of batch size, GPUs or learning rate that may be due to it."""
CHANGE_RATIO = 1.5
"""Ratio to the level from which a planned change is the cause, but no excuse."""
USUAL_RATIO = 1.5
"""Ratio to the level from which no bump is put down to uneven batches."""
SHORT_RISE_BELOW_ERROR = 0.4
"""Relative rise that a short bump must show for a warning where its score is no error's."""
USUAL_SCORE = 16.0
"""Robust standard deviations from which no bump is put down to uneven batches."""
HIGH_RATIO = 2.7
"""Ratio to the level from which a bump must be as good as certain noise to be put down to it."""
RARE = 0.03
"""Rows so high that the noise of the whole run may bring for a bump to be none of its own."""
RARE_HIGH = 0.001
"""For bumps above ``HIGH_RATIO`` it is one row up to a thousand rows, and falls with their number."""
APART = 2.0
"""Times the height of the highest other row of the run that is out of reach of its noise too."""
ALONE_RISE = float(np.log(1.4))
"""Log ratio to the level from which a row that the noise does not bring is a warning."""
EVEN, EVEN_RISE = 30.0, float(np.log(1.25))
"""Standard deviations of the run's own noise, and log ratio, that are news among other spikes, too.

In a run whose batches differ by half a percent a few rows 1.3 to 1.4 times the level make the tail
of its noise look heavy, and each other usual; no one who looks at the curve takes them for noise.
"""
ALONE = 0.88
"""Share of the deviations of a notice from which that is asked, in those of a thousand rows."""


@rule(needs=("loss",), presets=("default",), since="0.1.0")
def loss_spike(
    run: Run,
    *,
    notice: float = 5.0,
    warning: float = 6.0,
    error: float = 8.0,
    rise: float = 0.05,
    critical_ratio: float = 2.0,
    short: int = 8,
    short_rise: float = 0.30,
    usual: int = 3,
    usual_within: int = 2000,
    join: int = 10,
) -> Iterator[Finding]:
    """Loss leaps far above its own recent level.

    ## What it finds
    Rows whose log loss stands ``notice``, ``warning`` or ``error`` robust standard deviations
    above the median of the 16 rows before them, and at least ``rise`` above it (3 % for a
    notice). The spread is the median absolute deviation of the 64 rows before, without their
    trend. Rows already flagged are not part of that history. During warm-up, and in the first
    rows after a restart, everything counts one degree less, unless it is three times the level.

    A bump of at most ``short`` rows is only a notice where it rises by less than ``short_rise``
    (40 % below ``error`` deviations) in a log of every step, or reaches neither one and a half
    times the level nor 16 deviations while ``usual`` others about as high stand within
    ``usual_within`` rows. So is one that the noise of this run may well bring: Student's t,
    fitted to how far the rows around lie above their level, expects more than 0.03 such rows in
    the whole run (up to one in short runs from 2.7 times the level on), unless it is twice as high as any
    other row of the run, or 20 standard deviations. A row 1.4 times the level that the noise does
    not bring is a warning, whatever the 64 rows before it say. So is one 1.25 times the level that
    stands 30 standard deviations out of a run of very even batches, whatever other rows do. A
    leap that ends below 5 % of the loss that the log began with is a notice, and so is one that
    only brings back the level from before a short dip. Where losses stand at two levels from
    beginning to end, as two kinds of batches leave them, the upper is scaled down to the lower.

    ## Why it matters
    A spike that heals costs the steps it took to heal; one that does not costs the run. It is
    usually a bad batch, or a learning rate that is too high for this point of the run.

    ## What to do
    Go back to the last stable checkpoint before ``first`` and skip the batches up to ``last``;
    if it comes again, lower the learning rate as well.

    ## When it errs
    At a logging interval of k the loss is a mean of k steps, so that a spike of one step is
    divided by k. Where batches are so uneven that single rows reach twice the level by chance,
    one that does so for a reason is a notice only; look for spikes that come back in every epoch
    at the same sample. With two kinds of batches a row of the lower kind that leaps just to the
    level of the upper one looks like one of those. A planned change of data shows as a shift, not as a spike.

    ## Settings
    notice: Robust standard deviations for a notice.
    warning: Robust standard deviations for a warning.
    error: Robust standard deviations for an error.
    rise: Relative rise that a warning or an error must show besides.
    critical_ratio: Ratio to the level at which an error is critical.
    short: Rows in a row up to which a bump can be one of uneven batches.
    short_rise: Relative rise that a short bump must show for a warning, in a log of every step.
    usual: Number of other such bumps that make one usual.
    usual_within: Rows on either side in which those are counted.
    join: Rows between two flagged rows that still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule loss-spike --format brief
    critical  loss-spike           attempt 0  step 600..603  loss 9.325, expected 1.778

    ## Sources
    - Log values, median base and floored MAD: compared with ten published detectors over 99
      runs, 0 of 92 healthy runs flagged at 8 standard deviations.
    - Student's t as the law of noise with heavy tails: Lange, Little and Taylor (1989), Robust
      Statistical Modeling Using the t Distribution.
    - Median and MAD in place of mean and standard deviation: Iglewicz and Hoaglin (1993),
      How to Detect and Handle Outliers.
    """
    looked = False
    floor = negligible(run)
    for logged in signals(run, "loss"):
        raw = logged.finite()
        signal = evened(raw)
        if len(signal) + len(signal.inherited) <= MINIMUM:
            continue
        looked = True
        scores = robust(
            signal.values,
            inherited=signal.inherited,
            floor=FLOOR,
            z=warning,
            effect=rise,
            least_effect=min(0.03, rise),
        )
        changes = planned_changes(run, signal)
        warm = warmup_end(run, signal.attempt)
        level = np.where(np.isfinite(scores.base), scores.base, signal.values)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nan_to_num(signal.values / level, nan=1.0)
        bumps = Bumps(scores.z >= notice, scores.z >= notice * RAISED, ratio, short=short)
        rarity = Rarity(signal.values, floor=FLOOR)
        log = np.log(np.maximum(signal.values, 1e-300))
        with np.errstate(invalid="ignore"):
            high = (rarity.sigmas >= ALONE * notice) & (rarity.above >= ALONE_RISE)
        high &= ratio >= 1 + short_rise  # above what came before, too: no first row of a fall
        every_step = (run.log_interval or 1) == 1
        for first, last in stretches((scores.z >= notice) | high, gap=join):
            inside = np.arange(first, last + 1)
            peak = int(inside[np.argmax(ratio[inside])])
            top = float(scores.z[inside].max())
            flagged = bool(scores.flagged[inside].any())
            severity: Severity = "notice"
            if flagged:
                severity = "error" if top >= error else "warning"
                if severity == "error" and ratio[peak] >= critical_ratio:
                    severity = "critical"
            tags: tuple[str, ...] = ()
            usual_size = ratio[peak] < USUAL_RATIO and top < USUAL_SCORE
            if usual_size and bumps.only_short(first, last):
                least = short_rise if top >= error else SHORT_RISE_BELOW_ERROR
                small = every_step and ratio[peak] < 1 + least
                if small or bumps.others(first, last, ratio[peak], usual_within) >= usual:
                    severity, tags = "notice", ("uneven-batches",)
            if bumps.only_short(first, last):
                if not _rare(rarity, first, last, ratio[peak]):
                    severity, tags = "notice", ("uneven-batches",)
                elif severity == "notice" and rarity.above[first : last + 1].max() >= ALONE_RISE:
                    severity, tags = "warning", ()
            even = (rarity.plain[inside] >= EVEN) & (rarity.above[inside] >= EVEN_RISE)
            if severity == "notice" and even.any() and np.log(ratio[peak]) >= EVEN_RISE:
                severity, tags = "warning", ()
            if top < notice and severity == "notice":
                continue
            if bumps.only_short(first, last) and ratio[peak] < HIGH_RATIO:
                spread_out = bumps.share(first, last, ratio[peak], usual_within)
                if spread_out >= FREQUENT:
                    severity, tags = "notice", ("uneven-batches",)
            if signal.values[peak] < floor:
                severity, tags = "notice", ("near-zero",)
            if severity != "notice" and level[first] > 0:
                low, top = float(np.log(level[first])), float(np.log(ratio[peak]))
                if after_a_dip(log, first, low, top):
                    severity, tags = "notice", ("after-a-dip",)
            if any(0 <= first - c < AFTER_CHANGE for c in changes):
                tags = (*tags, "after-change")
                severity = "notice" if ratio[peak] < CHANGE_RATIO else severity
            early = signal.steps[first] <= warm or (not signal.resumed and first < MINIMUM)
            resumed = signal.resumed and (first < 3 or signal.steps[first] < signal.steps[0] + 20)
            if early or resumed:
                tags = (*tags, "warm-up" if early else "resume")
                if ratio[peak] < 3:
                    severity = SEVERITIES[max(0, SEVERITIES.index(severity) - 1)]
            yield finding(
                run,
                metric="loss",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity=severity,
                value=float(raw.values[peak]),
                expected=float(level[first] * raw.values[peak] / signal.values[peak]),
                score=top / notice,
                tags=tags,
            )
    if not looked:
        raise CannotLook(f"fewer than {MINIMUM + 1} logged losses in every attempt")


def _rare(rarity: Rarity, first: int, last: int, ratio: float) -> bool:
    """Say whether the noise of this run does not bring a row so high."""
    height = float(rarity.sigmas[first : last + 1].max())
    if height >= EXTREME and ratio >= np.exp(ALONE_RISE):
        return True
    # One leap in a thousand rows is worth a look in a short run; a long one would bring many.
    high = max(RARE, min(1.0, 1.0 / (RARE_HIGH * len(rarity.sigmas))))
    if rarity.chance(first, last) <= (RARE if ratio < HIGH_RATIO else high):
        return True
    return height >= APART * rarity.besides(first, last)
