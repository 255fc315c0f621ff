"""Rule ``objective-loss-explosion``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stabcli.levels import SIGMA_PER_MAD
from stabcli.rules import CannotLook, Finding, Severity, finding, rule
from stabcli.run import Run
from stabcli.series import signals, stretches

HISTORY = 256
"""Values of history that set the scale."""
BLOCK = 16
"""Rows that share one scale."""


@rule(needs=("objective_loss",), presets=("default",), since="0.1.0")
def objective_loss_explosion(
    run: Run, *, factor: float = 10.0, rows: int = 5, minimum: int = 50, join: int = 16
) -> Iterator[Finding]:
    """Loss of a policy or preference objective leaves its own scale.

    ## What it finds
    ``rows`` or more rows, at most ``join`` apart, whose distance from the median of the 256
    unflagged rows before is ``factor`` times what 19 of 20 of those rows keep to: a warning; an
    error where there are 20 of them. The first ``minimum`` rows set the scale and are not judged.

    ## Why it matters
    Such a loss has no level to speak of: it sits near zero and changes its sign. When it suddenly
    counts in tens, the policy has left the region in which its ratios and advantages mean
    anything, and NaN follows.

    ## What to do
    Roll back to before ``first``. Clip the ratio and the advantages, raise the weight of the KL
    to the reference, lower the learning rate.

    ## When it errs
    A loss that is summed over tokens follows the length of the responses. Rewards that change
    their scale on purpose change that of the loss.

    ## Settings
    factor: Multiple of the usual range.
    rows: Such rows.
    minimum: Rows that set the scale at first.
    join: Rows between two such rows that still belong to one finding.

    ## Example
    $ stabcli scan sample_logs/jsonl/synthetic_objective.jsonl --rule objective-loss-explosion --format brief
    error     objective-loss-explosion attempt 0  step 500..700  objective_loss 26.99, expected -0.06123

    ## Sources
    - PPO runs whose actor loss went from 0.1 to 45 a hundred steps before the first NaN: public
      logs of ColossalAI's chat examples.
    """
    looked = False
    for raw in signals(run, "objective_loss"):
        signal = raw.finite()
        if len(signal) <= minimum:
            continue
        looked = True
        away, middle = _away(signal.values, minimum, factor)
        for first, last in stretches(away >= 1, gap=join):
            inside = away[first : last + 1]
            count = int((inside >= 1).sum())
            if count < rows:
                continue
            severity: Severity = "error" if count >= 20 else "warning"
            peak = first + int(np.argmax(inside))
            yield finding(
                run,
                metric="objective_loss",
                rows=(int(signal.rows[first]), int(signal.rows[last])),
                peak=int(signal.rows[peak]),
                severity=severity,
                value=float(signal.values[peak]),
                expected=float(middle[first]),
                score=float(away[peak]),
            )
    if not looked:
        raise CannotLook(f"no attempt has more than {minimum} logged losses of the objective")


def _away(x: np.ndarray, minimum: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Return each value's distance in units of the limit, and the median it is measured from."""
    away, middle = np.zeros(len(x)), np.zeros(len(x))
    history = x[:minimum]
    for at in range(minimum, len(x), BLOCK):
        part = slice(at, at + BLOCK)
        usual = float(np.median(history))
        apart = np.abs(history - usual)
        scale = max(SIGMA_PER_MAD * float(np.median(apart)), float(np.quantile(apart, 0.95)), 1e-12)
        away[part] = np.abs(x[part] - usual) / (factor * scale)
        middle[part] = usual
        history = np.concatenate([history, x[part][away[part] < 1]])[-HISTORY:]
    return away, middle
