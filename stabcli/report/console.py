"""Report ``console``."""

from __future__ import annotations

from stabcli.report import Outcome, Screen, report
from stabcli.report.brief import brief


@report
def console(outcome: Outcome, screen: Screen) -> str:
    """One screen for a person: the truth first, then the cost, then what to do."""
    return brief(outcome, screen)
