"""Beginnings: the loss a run set out from, and the rows in which it is still warming up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from stabcli.run import Run
from stabcli.series import MINIMUM, Signal, planned_changes, signals, warmup_end

NEGLIGIBLE = 0.05
"""Share of the loss a run began with, below which a rise undoes nothing that was learnt.

Rules that compare a loss with its own level need such a floor: a fine-tune that has memorised
its samples goes from 1e-4 to 1e-2 and back with every other batch, a hundred times its level, and
is at no moment worse than twenty times better than where it began. It scales with the loss.
"""


def negligible(run: Run) -> float:
    """Return the loss below which a rise is not worth a warning; 0 where a log began at 0 or below.

    5 % of the median of the first 16 finite losses of the first attempt.
    """
    parts = signals(run, "loss") if run.has("loss") else []
    losses = parts[0].finite().values[:MINIMUM] if parts else np.empty(0)
    middle = float(np.sort(losses)[len(losses) // 2]) if len(losses) else 0.0
    return NEGLIGIBLE * max(0.0, middle)


def warmup_rows(run: Run, signal: Signal) -> int:
    """Return how many rows of a signal lie within the warm-up; see ``warmup_end``."""
    return int(np.searchsorted(signal.steps, warmup_end(run, signal.attempt), side="right"))


def settled(run: Run, signal: Signal) -> list[tuple[int, int]]:
    """Return the segments of a signal after its warm-up: first index of each, and that behind it."""
    warm = warmup_rows(run, signal)
    return list(
        pairwise([warm, *[c for c in planned_changes(run, signal) if c > warm], len(signal)])
    )
