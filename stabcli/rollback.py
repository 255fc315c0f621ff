"""Rollback: the checkpoints of a run, which of them can be trusted, and what going back costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stabcli.cost import Cost
from stabcli.endings import TRAINED
from stabcli.incidents import ONE_PROCESS, Incident
from stabcli.ledger import HOUR, Ledger
from stabcli.rules import SEVERITIES, STATISTIC
from stabcli.run import Run
from stabcli.units import Step

QUIET = 200
"""Steps before a checkpoint that must be free of warnings for it to count as stable."""
NEWEST = 200
"""Checkpoints looked at, the newest first."""


_Grave = tuple[list[Incident], np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Incidents, and of each first step, last step, attempt, and the end of an attempt gone bad."""


class Rollback:
    """What plans are made from: checkpoints, the run's end, the price of a step."""

    def __init__(self, run: Run, incidents: Sequence[Incident], book: Ledger) -> None:
        self.run = run
        self.incidents = incidents
        self.book = book
        self.steps = run.frame["step"].to_numpy()
        self.attempts = run.frame["attempt"].to_numpy()
        self.first = int(self.steps.min())
        self.interval = run.log_interval or 1
        self.saved = saved_steps(run)
        self.tokens_per_step = _each(book.tokens, book.steps)
        seconds = _each(book.gpu_seconds, book.steps)
        self.gpu_hours_per_step = None if seconds is None else seconds / HOUR
        self._ends = {a.attempt: a.last_step for a in run.attempts}
        self._grave = self._all_grave(incidents)

    @property
    def begins_at_once(self) -> bool:
        """Whether the log shows the run from its first steps."""
        return self.first <= 2 * self.interval

    def end(self, attempt: int) -> Step:
        """Return the last step of an attempt."""
        return self._ends[attempt]

    def stable(self, step: Step, before: Incident) -> bool:
        """Say whether weights of ``step`` can be trusted to go on from."""
        grave, first, over, attempt, bad_to = self._grave
        if not len(grave):
            return True
        until = np.where(attempt == before.attempt, np.maximum(over, bad_to), over)
        near = (attempt <= before.attempt) & (first <= step) & (until > step - QUIET)
        return not any(grave[i] is not before for i in np.flatnonzero(near).tolist())

    def _all_grave(self, incidents: Sequence[Incident]) -> _Grave:
        """Return the incidents after which weights are in doubt, and how long each is."""
        grave = [
            i
            for i in incidents
            if STATISTIC not in i.tags
            and i.family not in ("speed", "schedule", "restarts", "hardware", "process")
            and SEVERITIES.index(i.severity) >= SEVERITIES.index("warning")
        ]
        ends = {a: self.end(a) for a in {i.attempt for i in grave}}
        over = [i.last if i.recovered is None else i.recovered for i in grave]
        bad = [ends[i.attempt] if i.recovered is None and went_bad(i) else -1 for i in grave]
        return (
            grave,
            np.array([i.first for i in grave], np.int64),
            np.array(over, np.int64),
            np.array([i.attempt for i in grave], np.int64),
            np.array(bad, np.int64),
        )

    def checkpoint(self, latest: Step, before: Incident) -> tuple[Step, bool] | None:
        """Return the newest stable step not after ``latest``, and whether it was saved.

        None where the log begins too late to hold one.
        """
        if self.saved is not None:
            known = self.saved[(self.saved <= latest) & (self.saved >= 0)][::-1]
            for step in known[:NEWEST].tolist():
                if self.stable(step, before):
                    return step, True
        step = latest
        while step >= max(self.first, 1):
            if self.stable(step, before):
                return step, False
            step -= max(QUIET // 2, self.interval)
        return None

    def redo(self, since: Step, incident: Incident) -> Cost:
        """Price the steps from a checkpoint to the end of the incident's attempt."""
        count = max(0, self.end(incident.attempt) - since)
        return self.price_of(count)

    def price_of(self, steps: int) -> Cost:
        """Price steps at the run's usual pace."""
        tokens, hours = self.tokens_per_step, self.gpu_hours_per_step
        price = self.run.fact("gpu_price")
        return Cost(
            steps=steps,
            tokens=None if tokens is None else tokens * steps,
            gpu_hours=None if hours is None else hours * steps,
            usd=None if hours is None or price is None else hours * steps * price,
        )


def _each(values: np.ndarray | None, steps: np.ndarray) -> float | None:
    """Return the median of ``values`` for one step; None where unknown."""
    rows = steps > 0
    if values is None or not rows.any():
        return None
    return float(np.median(values[rows] / steps[rows]))


def saved_steps(run: Run) -> np.ndarray | None:
    """Return the steps at which checkpoints were saved, in order; None where nothing says."""
    listed = run.facts.get("checkpoints")
    if listed is not None and isinstance(listed.value, tuple):
        return np.array(sorted(listed.value), np.int64)
    every = run.fact("checkpoint_every")
    if every:
        last = int(run.frame["step"].max())  # type: ignore[arg-type]
        return np.arange(every, last + 1, every).astype(np.int64)
    return None


def went_bad(incident: Incident) -> bool:
    """Say whether an incident holds a non-finite loss or gradient norm, not of one process alone."""
    if ONE_PROCESS in incident.tags:
        return False
    return any(f.metric in TRAINED and not np.isfinite(f.value) for f in incident.findings)
