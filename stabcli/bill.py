"""Bill: all that ``cost-report`` tells of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stabcli.checkpointing import Checkpointing, checkpointing
from stabcli.diagnosis import Diagnosis
from stabcli.energy import Power
from stabcli.ledger import ledger
from stabcli.policy import BREAKERS, Outcome, Policy, replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The cost of a run, and what would have made it less."""

    diagnosis: Diagnosis
    """What went wrong, what it cost, and the plans."""
    what_if: tuple[Outcome, ...]
    """The policies that the user asked about, replayed."""
    breakers: tuple[Outcome, ...]
    """The field's circuit breakers, replayed."""
    checkpointing: Checkpointing
    """How often to save."""
    power: Power | None
    """What a GPU draws; None where energy was not asked for."""


def bill(diagnosis: Diagnosis, policies: Sequence[Policy] = (), power: Power | None = None) -> Bill:
    """Work out all that ``cost-report`` tells of a diagnosed run."""
    run, incidents, cost = diagnosis.run, diagnosis.incidents, diagnosis.cost
    return Bill(
        diagnosis=diagnosis,
        what_if=replay(run, incidents, cost, policies),
        breakers=replay(run, incidents, cost, BREAKERS),
        checkpointing=checkpointing(run, incidents, ledger(run)),
        power=power,
    )
