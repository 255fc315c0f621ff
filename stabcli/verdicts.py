"""Verdicts: whether a run passes, and every reason why or why not.

``unknown`` outranks ``fail``: what could not be looked at may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stabcli.baseline import Margins, against
from stabcli.criteria import Criterion, Limits, limits, looked, required
from stabcli.diagnosis import Diagnosis
from stabcli.ignores import Ignore, ignored, left_over
from stabcli.incidents import Incident, by_gravity
from stabcli.rules import SEVERITIES, Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """All that is asked of a run."""

    fail_on: Severity | None = "error"
    """The least severity of a finding that fails; None where none does."""
    require: tuple[str, ...] = ()
    """Metrics and rules that have to be there."""
    limits: Limits = field(default_factory=Limits)
    ignores: tuple[Ignore, ...] = ()
    """Those in force."""
    baseline: Diagnosis | None = None
    margins: Margins = field(default_factory=Margins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was decided of one run."""

    fail_on: Severity | None
    """The least severity that fails."""
    criteria: tuple[Criterion, ...]
    """Everything asked, in the order it was asked."""
    ignored: Mapping[Finding, Ignore] = field(default_factory=dict)
    """Findings that do not count, and what says so."""

    @property
    def status(self) -> Literal["pass", "fail", "unknown"]:
        """The verdict on the whole run."""
        found = {c.status for c in self.criteria}
        return "unknown" if "unknown" in found else "fail" if "fail" in found else "pass"

    def standing(self, incident: Incident) -> Incident | None:
        """Return an incident without its ignored findings; None where all of it is ignored."""
        return standing(incident, self.ignored)


def standing(incident: Incident, ignored: Mapping[Finding, Ignore]) -> Incident | None:
    """Return an incident without its ignored findings; None where all of it is ignored."""
    left = tuple(f for f in incident.findings if f not in ignored)
    if len(left) == len(incident.findings):
        return incident
    if not left:
        return None
    return Incident(
        findings=left, ending=incident.ending, recovered=incident.recovered, tags=incident.tags
    )


def judge(d: Diagnosis, gate: Gate) -> Verdict:
    """Hold a run against all that is asked of it."""
    known = ignored(d, gate.ignores)
    blind = looked(d)
    criteria = [blind] if blind else []
    criteria.append(_found(d, gate, known))
    criteria += [required(d, name) for name in gate.require]
    criteria += limits(d, gate.limits)
    if gate.baseline is not None:
        criteria += against(d, gate.baseline, gate.margins)
    return Verdict(fail_on=gate.fail_on, criteria=tuple(criteria), ignored=known)


def _found(d: Diagnosis, gate: Gate, known: Mapping[Finding, Ignore]) -> Criterion:
    """Say whether anything was found that is bad enough."""
    fail_on = gate.fail_on
    name = f"fail-on {fail_on or 'never'}"
    if fail_on is None:
        return Criterion(name=name, status="pass", text="findings do not fail")
    limit = SEVERITIES.index(fail_on)
    left = [i for i in (standing(i, known) for i in d.incidents) if i is not None]
    bad = [i for i in left if SEVERITIES.index(i.severity) >= limit]
    aside = f", {len(known):,} ignored" if known else ""
    if not bad:
        said = f"nothing found that is {fail_on} or worse{aside}"
        return Criterion(name=name, status="pass", text=said)
    worst = by_gravity(bad)[0]
    said = f"{worst.rule} at step {worst.worst.first:,} ({worst.severity})"
    if len(bad) > 1:
        said += f" and {len(bad) - 1:,} more"
    hints = [
        hint
        for i in by_gravity(d.incidents)
        if (hint := left_over(d, _counted(i, limit), known, gate.ignores))
    ]
    more = f" ({len(hints) - 1:,} more incidents like it)" if len(hints) > 1 else ""
    hint = f"; {hints[0]}{more}" if hints else ""
    return Criterion(name=name, status="fail", text=said + aside + hint)


def _counted(incident: Incident, limit: int) -> list[Finding]:
    """Return the findings of an incident that are grave enough to fail."""
    return [f for f in incident.findings if SEVERITIES.index(f.severity) >= limit]


def exit_status(verdicts: Sequence[Verdict], *, unread: bool, exit_zero: bool = False) -> int:
    """Return 0 where every run passes, 1 where one fails, 2 where one cannot be judged.

    Args:
        verdicts: One a run.
        unread: Whether there is anything that could not be read, or nothing was read at all.
        exit_zero: Whether a failure is told but ends with 0; what cannot be judged stays 2.
    """
    found = {v.status for v in verdicts}
    if unread or "unknown" in found:
        return 2
    return 1 if "fail" in found and not exit_zero else 0
