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
        # what came back at once and stayed finite left the weights as good as they were
        fast = [i.ending == "fast-recovery" and not went_bad(i) for i in self._grave[0]]
        self._healed = np.array(fast, bool)

    @property
    def begins_at_once(self) -> bool:
        """Whether the log shows the run from its first steps."""
        return self.first <= 2 * self.interval

    def end(self, attempt: int) -> Step:
        """Return the last step of an attempt."""
        return self._ends[attempt]

    def stable(self, step: Step, before: Incident, healed: int = QUIET) -> bool:
        """Say whether weights of ``step`` can be trusted to go on from.

        ``healed`` is how many steps after what healed must be quiet.
        """
        return self._in_doubt(step, before, healed) is None

    def _in_doubt(self, step: Step, before: Incident, healed: int = QUIET) -> Incident | None:
        """Return the newest incident for which weights of ``step`` cannot be trusted."""
        grave, first, over, attempt, bad_to = self._grave
        if not len(grave):
            return None
        until = np.where(attempt == before.attempt, np.maximum(over, bad_to), over)
        quiet = np.where(self._healed, healed, QUIET)
        near = (attempt <= before.attempt) & (first <= step) & (until > step - quiet)
        doubts = (grave[i] for i in np.flatnonzero(near)[::-1].tolist())
        return next((i for i in doubts if i is not before), None)

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

        A spike that healed by itself keeps plans away from the steps right after it, but asks for
        no roll back of its own: where one after the other did, they are not all gone back past.
        None where the log begins too late to hold one.
        """
        quiet = self._newest(latest, before, QUIET)
        near = self._newest(latest, before, 0)
        if near is None or (quiet is not None and self._spikes(quiet[0], near[0]) <= 1):
            return quiet
        return near

    def passed_over(
        self, latest: Step, found: tuple[Step, bool] | None, before: Incident
    ) -> str | None:
        """Say in a sentence why a plan passes over a newer checkpoint; None where it does not.

        Args:
            latest: The step from which on back one was looked for.
            found: What was found.
            before: The incident that the plan is for.
        """
        known = None if self.saved is None else self.saved[self.saved <= latest]
        newest = int(known[-1]) if known is not None and len(known) else latest
        if found is not None and found[0] >= newest:
            return None
        doubt = self._in_doubt(newest, before)
        if doubt is None:
            return None
        said = f"Step {newest:,} is passed over for {doubt.rule} at step {doubt.first:,}"
        if doubt.recovered is None:
            return f"{said}, which never recovered."
        if newest < doubt.recovered:
            return f"{said}, which was over only at step {doubt.recovered:,}."
        return f"{said}: {QUIET} quiet steps make a checkpoint stable."

    def _spikes(self, after: Step, until: Step) -> int:
        """Count the incidents that healed by themselves and began in a stretch of steps."""
        first = self._grave[1]
        return int((self._healed & (first > after) & (first <= until)).sum())

    def _newest(self, latest: Step, before: Incident, healed: int) -> tuple[Step, bool] | None:
        """Return the newest step that is stable for so many quiet steps after what healed."""
        if self.saved is not None:
            known = self.saved[(self.saved <= latest) & (self.saved >= 0)][::-1]
            for step in known[:NEWEST].tolist():
                if self.stable(step, before, healed):
                    return step, True
        step = latest
        while step >= max(self.first, 1):
            if self.stable(step, before, healed):
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
