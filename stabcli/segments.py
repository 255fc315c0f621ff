"""Segments: where a run was changed on purpose, so that what follows is compared anew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stabcli.run import Run
from stabcli.series import PLANNED, planned_changes, signals
from stabcli.units import Step

CHANGED = (*PLANNED, "learning_rate")
"""Columns whose change begins a segment; a learning rate only where it leaps."""
BASES = ("loss", "objective_loss", "tokens_per_second", "grad_norm")
"""Series along which changes are looked for, the first that a run has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A planned change between two rows."""

    metric: str
    attempt: int
    step: Step
    """First step after it."""
    before: float
    after: float


def changes(run: Run) -> tuple[Change, ...]:
    """Return every planned change of a run, by attempt and step; see ``planned_changes``."""
    base = next((m for m in BASES if run.has(m)), None)
    found: list[Change] = []
    for signal in signals(run, base) if base else []:
        at = planned_changes(run, signal)
        if not at:
            continue
        for metric in CHANGED:
            if not run.has(metric):
                continue
            values = run.array(metric)[signal.rows]
            for i in at:
                before, after = float(values[i - 1]), float(values[i])
                known = np.isfinite(before) and np.isfinite(after)
                leapt = metric != "learning_rate" or after > 1.5 * before > 0
                if known and before != after and leapt:
                    found.append(
                        Change(
                            metric=metric,
                            attempt=signal.attempt,
                            step=int(signal.steps[i]),
                            before=before,
                            after=after,
                        )
                    )
    return tuple(sorted(found, key=lambda c: (c.attempt, c.step)))
