"""The diagnosis: all that is known of a run once it has been looked at; all a report may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stabcli.causes import causes
from stabcli.cost import CostReport, price
from stabcli.evidence import Cause
from stabcli.incidents import Incident, group
from stabcli.plan import plans
from stabcli.rules import SEVERITIES, Severity, Skipped, rules, run_rules, select
from stabcli.run import Run
from stabcli.ways import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A run, what went wrong in it, what it cost, what to do, and what could not be looked at."""

    run: Run
    """What was read."""
    incidents: tuple[Incident, ...]
    """Ordered by attempt and first step."""
    plans: tuple[tuple[Plan, ...], ...]
    """For each incident the ways to recover, the recommended one first."""
    cost: CostReport
    """What it cost."""
    checked: tuple[str, ...]
    """Names of the rules that looked."""
    skipped: tuple[Skipped, ...]
    """Rules that could not look, and why."""
    presets: tuple[str, ...]
    """The presets the rules were taken from; empty where rules were named one by one."""
    causes: tuple[tuple[Cause, ...], ...] = ()
    """For each incident what may have brought it about, the surest first."""

    @property
    def cannot_judge(self) -> str | None:
        """Why nothing can be said of the run's health; None where something can.

        Something can where anything above a notice was found, or a rule looked whose silence
        tells something. Looking for NaN alone, which any row allows, does not, unless only that
        was asked for; nor does anything where the loss is there, but is no number.
        """
        if not self.checked:
            return "no rule could look"
        if not self.presets or self.worst not in (None, "notice"):
            return None
        if self.run.blind and not self.run.has("loss") and not self.run.has("objective_loss"):
            return self.run.blind
        if any(r.judges for r in rules if r.name in self.checked):
            return None
        rows = f"{self.run.frame.height:,} row" + ("s" if self.run.frame.height != 1 else "")
        return f"too little to judge by: {rows}, and only {', '.join(self.checked)} could look"

    @property
    def worst(self) -> Severity | None:
        """The gravest severity found; None where nothing was."""
        found = [i.severity for i in self.incidents]
        return max(found, key=SEVERITIES.index) if found else None


def diagnose(
    run: Run,
    *,
    presets: Sequence[str] = ("default",),
    only: Sequence[str] = (),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Diagnosis:
    """Detect, group, price, plan: the whole of the analysis, in the order it happens.

    Args:
        run: The run to look at.
        presets: The presets whose rules to run.
        only: Rules to run instead, by name.
        settings: Rule name -> setting -> value, where it is not the default.

    Raises:
        SettingError: A rule, preset or setting does not exist, or a value is of the wrong type.
    """
    chosen = select(presets, only)
    with np.errstate(all="ignore"):  # logs hold values of any size
        findings, skipped = run_rules(run, chosen, settings)
        incidents = group(run, findings)
        cost = price(run, incidents)
        brought_about = causes(run, incidents)
        ways_out = plans(run, incidents, cost)
    not_looked = {s.rule for s in skipped}
    return Diagnosis(
        run=run,
        incidents=incidents,
        plans=ways_out,
        cost=cost,
        checked=tuple(r.name for r in chosen if r.name not in not_looked),
        skipped=tuple(skipped),
        presets=() if only else tuple(presets),
        causes=brought_about,
    )
