"""Rule ``router-z-loss``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import CannotLook, Finding, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, planned_changes, robust, signals, stretches, warmup_end

FLOOR = 0.05
"""Least spread of a z-loss in log units."""


@rule(needs=("z_loss",), presets=("default",), since="0.1.0")
def router_z_loss(
    run: Run, *, sigmas: float = 8.0, rise: float = 0.5, rows: int = 3, join: int = 10
) -> Iterator[Finding]:
    """Z-loss leaps: the logits of the router, or of the output, run away.

    ## What it finds
    ``rows`` or more rows whose z-loss stands ``sigmas`` robust standard deviations above the
    median of the 16 before, and ``rise`` above it, with at most ``join`` rows between them: a
    warning; a notice during warm-up. The score is that of ``loss-spike``.

    ## Why it matters
    The z-loss is the square of the logarithm of the softmax's denominator. Where it runs away,
    logits grow without bound, low precision rounds them, and routing or prediction collapses.

    ## What to do
    Raise the weight of the z-loss, lower the learning rate, and compute the router in float32.

    ## When it errs
    A weight that is changed on purpose, where the weighted loss is logged, looks like this.

    ## Settings
    sigmas: Robust standard deviations.
    rise: Relative rise that it must show besides.
    rows: Rows that must show it.
    join: Rows between two flagged rows that still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_guards.jsonl --rule router-z-loss --format brief
    warning   router-z-loss        attempt 0  step 700..740  z_loss 0.002622, expected 0.0004021

    ## Sources
    - Router z-loss against logits that grow: ST-MoE, arXiv 2202.08906; the threshold is that of
      the robust score at which no healthy loss fired.
    """
    looked = False
    for raw in signals(run, "z_loss"):
        signal = raw.finite()
        if len(signal) + len(signal.inherited) <= MINIMUM:
            continue
        looked = True
        scores = robust(
            signal.values,
            inherited=signal.inherited,
            floor=FLOOR,
            z=sigmas,
            effect=rise,
            restarts=planned_changes(run, signal),
        )
        warm = warmup_end(run, signal.attempt)
        for first, last in stretches(scores.flagged, gap=join):
            hit = np.flatnonzero(scores.flagged[first : last + 1]) + first
            if len(hit) < rows:
                continue
            peak = int(hit[np.argmax(signal.values[hit])])
            yield finding(
                run,
                metric="z_loss",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity="notice" if signal.steps[first] <= warm else "warning",
                value=float(signal.values[peak]),
                expected=float(scores.base[first]),
                score=float(scores.z[hit].max()) / sigmas,
            )
    if not looked:
        raise CannotLook(f"fewer than {MINIMUM + 1} logged z-losses in every attempt")
