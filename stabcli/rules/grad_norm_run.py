"""Rule ``grad-norm-run``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.rules import SEVERITIES, CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import MINIMUM, Signal, robust, signals, stretches, warmup_end

UNSCALED = 1000.0
"""A median norm above this is one of scaled fp16 gradients: only ratios mean anything."""


@rule(needs=("grad_norm",), presets=("default",), since="0.1.0")
def grad_norm_run(
    run: Run,
    *,
    threshold: float = 10.0,
    rows: int = 3,
    ratio: float = 5.0,
    high_base: float = 2.0,
    high_ratio: float = 10.0,
) -> Iterator[Finding]:
    """Gradient norm stays above 10, and far above its own level, for several rows.

    ## What it finds
    ``rows`` or more rows in a row with a gradient norm above ``threshold`` and above ``ratio``
    times the level before; where that level is above ``high_base``, above ``high_ratio`` times
    it. Norms of scaled fp16 gradients (median above 1000) are judged by the ratio alone.

    ## Why it matters
    One large gradient is a bad batch; several in a row are a run that is exploding, or a shard
    that is bad throughout.

    ## What to do
    Roll back to before ``first``, halve the learning rate and skip the shard.

    ## When it errs
    At a logging interval above 1 the rows are not consecutive steps. The first rows of a
    fine-tune often are this high without harm; they count one degree less.

    ## Settings
    threshold: Gradient norm that each row must exceed.
    rows: Rows in a row.
    ratio: Ratio to the level before that each row must exceed.
    high_base: Level above which ``high_ratio`` counts instead.
    high_ratio: Ratio to a high level.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_gradients.jsonl --rule grad-norm-run --format brief
    error     grad-norm-run        attempt 0  step 700..707  grad_norm 15.94, expected 0.3507
    error     grad-norm-run        attempt 0  step 709..715  grad_norm 18.14, expected 0.3507
    error     grad-norm-run        attempt 0  step 718..724  grad_norm 15.13, expected 0.3507
    error     grad-norm-run        attempt 0  step 726..728  grad_norm 12.19, expected 0.3507
    error     grad-norm-run        attempt 0  step 730..739  grad_norm 15.39, expected 0.3507

    ## Sources
    - Norm above 10 three times in a row, halve the learning rate and skip the shard: the field's
      rule of thumb, see ``seed-grad-norm-run``.
    - The ratio to the level before: real norms lie anywhere between 0.1 and 1e6.
    """
    looked = False
    for raw in signals(run, "grad_norm"):
        signal = raw.finite()
        if len(signal) + len(signal.inherited) <= MINIMUM:
            continue
        looked = True
        unscaled = float(np.median(signal.values)) > UNSCALED
        if not unscaled and not (signal.values > threshold).any():
            continue
        base = _level(signal, ratio)
        limit = np.where(base > high_base, high_ratio * base, ratio * base)
        if not unscaled:
            limit = np.maximum(limit, threshold)
        over = signal.values > np.where(np.isfinite(limit), limit, np.inf)
        warm = warmup_end(run, signal.attempt)
        for first, last in stretches(over):
            if last - first + 1 < rows:
                continue
            peak = first + int(np.argmax(signal.values[first : last + 1]))
            early = signal.steps[first] <= warm
            severity: Severity = "error"
            if early:
                severity = SEVERITIES[SEVERITIES.index(severity) - 1]
            yield finding(
                run,
                metric="grad_norm",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity=severity,
                value=float(signal.values[peak]),
                expected=float(base[first]),
                score=float(signal.values[peak] / limit[first]),
                tags=("warm-up",) if early else (),
            )
    if not looked:
        raise CannotLook(f"fewer than {MINIMUM + 1} logged gradient norms in every attempt")


def _level(signal: Signal, ratio: float) -> np.ndarray:
    """Return the level before each row, rows of a run left out of it."""
    return robust(
        signal.values, inherited=signal.inherited, floor=0.05, z=6.0, effect=ratio - 1
    ).base
