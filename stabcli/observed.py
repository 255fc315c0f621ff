"""Observed: settings that a log shows even where no configuration tells them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stabcli.run import Run
from stabcli.series import signals
from stabcli.units import Step, number

FULL = 0.995
"""Share of the peak from which the learning rate has risen."""
RISES = 0.9
"""Share of the peak below which a rate must begin to count as rising."""
FEWEST = 3
"""Rows with a rate, without which they show nothing."""
BEGINNING = 1
"""Last step at which a log begins at the beginning: trainers count from 0 or from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """What the learning rate of a log tells of its warm-up."""

    steps: Step | None
    """Step at which the rate had risen; 0 where there was no rise, None where it cannot be told."""
    told: str
    """One sentence without its full stop."""


def warm_up(run: Run) -> WarmUp | None:
    """Read the warm-up off the learning rate of the first attempt; None where it has none."""
    if not run.has("learning_rate"):
        return None
    rate = signals(run, "learning_rate")[0].finite()
    if rate.attempt != int(run.frame["attempt"][0]) or not len(rate):
        return None
    column = f"column {run.word('learning_rate')}"
    values, begins, ends = rate.values, int(rate.steps[0]), int(rate.steps[-1])
    start = float(values[0])
    falls = np.flatnonzero(np.diff(values) < 0)
    risen = values[: int(falls[0]) + 1] if len(falls) else values
    top = float(risen.max())
    full = int(np.argmax(risen >= FULL * top))
    if start < RISES * top and (np.diff(risen[: full + 1]) > 0).mean() > 0.5:
        if full >= len(values) - 1 - len(values) // 100:
            told = "a warm-up that never ended, or a log that ends early"
            return WarmUp(
                steps=None, told=f"the rate still rises at step {ends:,}, the last: {told}"
            )
        end = int(rate.steps[full])
        told = f"the rate rises to {number(top)} up to step {end:,} ({column})"
        return WarmUp(steps=max(1, end), told=told)
    if begins > BEGINNING or len(values) < FEWEST:
        told = f"the log begins at step {begins:,} with a rate of {number(start)} ({column})"
        return WarmUp(steps=None, told=f"{told}: what came before is not told")
    told = f"the rate is {number(start)} at step {begins:,} and does not rise from there ({column})"
    return WarmUp(steps=0, told=told)


def peak_rate(run: Run) -> float | None:
    """Return the highest learning rate that was logged; None where none was."""
    if not run.has("learning_rate"):
        return None
    values = run.array("learning_rate")
    values = values[np.isfinite(values)]
    return float(values.max()) if len(values) else None
