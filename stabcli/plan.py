"""Plan: where to roll back to, what to skip, and what else to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stabcli.cost import Cost, CostReport
from stabcli.incidents import Incident
from stabcli.run import Run
from stabcli.units import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to recover from an incident."""

    name: str
    """``rule-of-thumb``, ``skip-batches``, ``wait``, …"""
    roll_back_to: Step | None
    """Step of the checkpoint to go back to; None where nothing is rolled back."""
    known_checkpoint: bool
    """Whether a checkpoint is known to exist there, or the step is only where one is needed."""
    skip_first: Step | None
    """First step whose batches to skip."""
    skip_last: Step | None
    """Last step whose batches to skip."""
    lr_factor: tuple[float, float] | None
    """Range to multiply the learning rate by, e.g. (0.5, 0.9)."""
    text: str
    """The plan as one sentence."""
    why: str
    """What it rests on: the source of the figures, the evidence in the run."""
    redo: Cost
    """What has to be trained again."""


def plans(
    run: Run, incidents: Sequence[Incident], cost: CostReport
) -> tuple[tuple[Plan, ...], ...]:
    """Return for each incident the ways to recover, the recommended one first; none below error."""
    return tuple(() for _ in incidents)
