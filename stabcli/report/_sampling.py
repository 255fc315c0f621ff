"""Sampling: what a log cannot show, for want of history or because not every step is in it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from stabcli.cost import HOLES_SHOWN
from stabcli.run import HOLE, Run
from stabcli.series import MINIMUM, signals, spread

FLOOR = 0.005
"""Least spread of a log loss that detection assumes."""
EARLY_ROWS = 8
"""Rows without which ``early-spike`` does not look."""
EARLY_RATIO = 2.0
"""Multiple of what is around it from which it sees a leap."""
SIGMAS = 6.0
"""Robust standard deviations at which a loss is worth a warning."""
RISE = 0.05
"""Relative rise that a warning needs besides."""
ALONE = ((6.0, 0.40), (8.0, 0.30), (16.0, 0.05))
"""The same for one row alone in a log of every step, any of the three: see ``loss-spike``."""


def blind_spots(run: Run) -> list[str]:
    """Say what no rule could have seen in this log, a sentence each."""
    return [*_holes(run), *_between_rows(run), *_beginning(run)]


def _holes(run: Run) -> list[str]:
    """Say which steps are in no row, though those around them are."""
    several = len(run.attempts) > 1
    said = []
    for hole in run.holes:
        attempt = f" of attempt {int(run.frame['attempt'][hole.row])}" if several else ""
        said.append(f"steps {hole.first:,}..{hole.last:,}{attempt}: {_NOTHING}")
    for before, after in pairwise(run.attempts):
        if after.first_step - before.last_step > HOLE * (run.log_interval or 1):
            where = f"steps {before.last_step:,}..{after.first_step:,}"
            said.append(f"{where}, before attempt {after.attempt}: {_NOTHING}")
    more = len(said) - HOLES_SHOWN
    return [*said[:HOLES_SHOWN], *([f"{more:,} more such stretches"] if more > 0 else [])]


_NOTHING = "no row between them, and nothing is known of what happened there"


def _beginning(run: Run) -> list[str]:
    """Say how far the first rows of a log can be judged; nothing where no loss is logged."""
    parts = signals(run, "loss") if run.has("loss") else []
    first = parts[0].finite() if parts else None
    if first is None or not len(first):
        return []
    rows = min(MINIMUM, len(first))
    a, b = int(first.steps[0]), int(first.steps[rows - 1])
    where = f"steps {a:,}..{b:,}" if b > a else f"step {a:,}"
    if len(first) < EARLY_ROWS:
        return [f"{where}: any leap of the loss to a finite value, for want of history"]
    return [f"{where}: leaps of the loss below {EARLY_RATIO:g} x what is around them"]


def least_spike(run: Run) -> float | None:
    """Return the least spike of one step, as a multiple of the level, that a warning could see.

    None where that cannot be told. Where the loss is a mean of k steps, a spike of one step to r
    times the level raises it by (r - 1) / k, and a rise below max(exp(6 s), 1.05) is not told
    from noise of spread s: r = 1 + k (max(exp(6 s), 1.05) - 1). In a log of every step one row
    alone must rise further to be more than a notice.
    """
    widths = []
    for signal in signals(run, "loss") if run.has("loss") else []:
        values = signal.values[np.isfinite(signal.values) & (signal.values > 0)]
        if len(values) > MINIMUM:
            widths.append(spread(np.diff(np.log(values))) / math.sqrt(2))
    if not widths:
        return None
    width = max(FLOOR, float(np.median(widths)))
    interval = run.log_interval or 1
    asked = ALONE if interval == 1 else ((SIGMAS, RISE),)
    least = min(max(math.expm1(min(sigmas * width, 5.0)), rise) for sigmas, rise in asked)
    return 1 + interval * least


def _between_rows(run: Run) -> list[str]:
    """Say what the logging interval hides; nothing where every step is logged.

    Where a row is the mean of the steps since the last, ``least_spike`` is the smallest of one
    step that can be seen; where it is the value of one step, all but 1 in k are between the rows.
    """
    interval = run.log_interval or 1
    if interval <= 1:
        return []
    norms: list[str] = []
    if run.has("grad_norm"):
        norms.append(
            "the gradient norm of a row is mostly that of one step: a leap of one step in between"
            f" shows in 1 of {interval:,} cases"
        )
    least = least_spike(run)
    if least is None:
        return norms
    seen = f"{least:.3g}"
    said = (
        f"logged every {interval:,} steps: if a row is their mean, a loss spike of one step"
        f" shows only from {seen} x the level on; if it is one step's value,"
        f" {interval - 1:,} of {interval:,} such spikes fall between the rows"
    )
    return [said, *norms]
