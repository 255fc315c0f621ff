"""Sampling: what a log cannot show because not every step is in it."""

from __future__ import annotations

import math

import numpy as np

from stabcli.run import Run
from stabcli.series import signals, spread

FLOOR = 0.005
"""Least spread of a log loss that detection assumes."""
SIGMAS = 6.0
"""Robust standard deviations at which a loss is worth a warning."""
RISE = 0.05
"""Relative rise that a warning needs besides."""


def blind_spots(run: Run) -> list[str]:
    """Say what the logging interval hides, a sentence each; empty where every step is logged.

    Where the loss is a mean of k steps, a spike of one step to r times the level raises it by
    (r - 1) / k, and a rise below max(exp(6 s), 1.05) is not told from noise of spread s:
    r = 1 + k (max(exp(6 s), 1.05) - 1) is the smallest that can be seen. Where it is the
    value of one step, all but 1 in k spikes of one step are between the rows.
    """
    interval = run.log_interval or 1
    if interval <= 1 or not run.has("loss"):
        return []
    widths = []
    for signal in signals(run, "loss"):
        values = signal.values[np.isfinite(signal.values) & (signal.values > 0)]
        if len(values) > 16:
            widths.append(spread(np.diff(np.log(values))) / math.sqrt(2))
    if not widths:
        return []
    least = max(math.exp(min(SIGMAS * max(FLOOR, float(np.median(widths))), 5.0)), 1 + RISE) - 1
    seen = f"{1 + interval * least:.3g}"
    said = (
        f"logged every {interval:,} steps: if a row is their mean, a loss spike of one step"
        f" shows only from {seen} x the level on; if it is one step's value,"
        f" {interval - 1:,} of {interval:,} such spikes fall between the rows"
    )
    return [said]
