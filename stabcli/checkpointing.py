"""Checkpointing: how often to save, from how often the run broke and how long a save took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stabcli.damage import Damages, is_empty
from stabcli.incidents import Incident
from stabcli.ledger import Ledger
from stabcli.rollback import saved_steps
from stabcli.run import Run
from stabcli.units import Seconds, Step

CURVE = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
"""Multiples of the best interval at which the curve is given."""
FEWEST = 3
"""Saves that must be seen before their time is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """The interval between checkpoints that loses least. What cannot be known is None."""

    failures: int
    """Times that the run had to go back, or should have."""
    steps_between: float | None
    """Mean steps between two of those."""
    save_seconds: Seconds | None
    """Time that one save takes."""
    save_source: str
    """Where ``save_seconds`` comes from, or what would give it."""
    step_seconds: Seconds | None
    """Usual time of a step."""
    best: Step | None
    """Steps between checkpoints with the least expected loss."""
    used: Step | None
    """Steps between checkpoints that the run used."""
    curve: tuple[tuple[Step, float], ...]
    """Interval in steps, and the expected loss as a share of the run."""


def checkpointing(run: Run, incidents: Sequence[Incident], book: Ledger) -> Checkpointing:
    """Work out the best interval between checkpoints.

    Source: Young (1974), A first order approximation to the optimum checkpoint interval, and the
    higher-order estimate of Daly (2006), A higher order estimate of the optimum checkpoint
    interval for restart dumps.
    """
    failures = _failures(run, incidents)
    steps = int(book.steps.sum())
    between = steps / failures if failures else None
    pace = _pace(book)
    save, source = _save_seconds(run, book)
    used = run.fact("checkpoint_every")
    best: Step | None = None
    curve: list[tuple[Step, float]] = []
    if between is not None and save is not None and pace:
        cost = save / pace  # in steps
        best = max(1, round(daly(cost, between)))
        intervals = {max(1, round(best * m)) for m in CURVE} | ({int(used)} if used else set())
        curve = [(t, expected_loss(t, cost, between)) for t in sorted(intervals)]
    return Checkpointing(
        failures=failures,
        steps_between=between,
        save_seconds=save,
        save_source=source,
        step_seconds=pace,
        best=best,
        used=int(used) if used else None,
        curve=tuple(curve),
    )


def daly(save: float, between: float) -> float:
    """Return the best interval.

    Args:
        save: Cost of one save.
        between: Mean time between failures, in the same unit as ``save`` and the result.
    """
    if save >= 2 * between:
        return between
    root = float(np.sqrt(save / (2 * between)))
    return float(np.sqrt(2 * save * between) * (1 + root / 3 + root**2 / 9) - save)


def expected_loss(interval: float, save: float, between: float) -> float:
    """Return the share of a run that saving and redoing cost, at most 1.

    Saving costs ``save`` every ``interval``; a failure costs half an interval on average.
    """
    return float(min(1.0, save / (interval + save) + interval / (2 * between)))


def _failures(run: Run, incidents: Sequence[Incident]) -> int:
    """Count the restarts, and the incidents of the last attempt that should have been one."""
    last = run.attempts[-1].attempt if run.attempts else 0
    unhealed = 0
    damages = Damages(run)
    for incident in incidents:
        damage = damages.of(incident)
        if incident.attempt == last and incident.recovered is None and damage is not None:
            unhealed += not is_empty(damage.rows)
    return max(0, len(run.attempts) - 1) + unhealed


def _pace(book: Ledger) -> Seconds | None:
    if book.usual is None:
        return None
    done = book.steps > 0
    return float(np.median(book.usual[done] / book.steps[done])) if done.any() else None


def _save_seconds(run: Run, book: Ledger) -> tuple[Seconds | None, str]:
    """Return how long a save takes: as told, or as seen at the steps where one happened."""
    told = run.fact("checkpoint_seconds")
    if told:
        return told, run.facts["checkpoint_seconds"].source
    missing = "unknown: add --fact checkpoint_seconds=S"
    saved = saved_steps(run)
    if saved is None or book.seconds is None or book.usual is None:
        return None, missing
    step = run.frame["step"].to_numpy()
    before = np.searchsorted(saved, step - book.steps, side="right")
    holds = np.searchsorted(saved, step, side="right") - before
    rows = holds > 0
    excess = book.seconds - book.usual
    if rows.sum() < FEWEST or not (excess[rows] > 0).mean() > 0.5:
        return None, missing
    seen = float(np.median(excess[rows] / holds[rows]))
    return seen, f"the median pause at {int(rows.sum()):,} saves"
