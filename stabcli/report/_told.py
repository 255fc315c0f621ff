"""Told: incidents as other programs take them in: one message, one place, one fingerprint each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stabcli.diagnosis import Diagnosis
from stabcli.ignores import Ignore
from stabcli.incidents import Incident
from stabcli.report import Outcome, _words
from stabcli.report._places import Place, place, relative
from stabcli.rules import SEVERITIES, Finding, Severity
from stabcli.units import span
from stabcli.verdicts import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One incident, or what counts of it."""

    diagnosis: Diagnosis
    index: int
    """Which of the diagnosis's incidents it is."""
    incident: Incident
    """Without its ignored findings; whole where all of it is ignored."""
    ignore: Ignore | None
    """What says that none of it counts."""
    place: Place
    """Where its gravest finding peaks."""
    fingerprint: str
    """The same for the same incident of the same log, however often it is looked at or goes on."""

    @property
    def worst(self) -> Finding:
        """Its gravest finding."""
        return self.incident.worst

    @property
    def severity(self) -> Severity:
        """The gravest severity in it."""
        return self.incident.severity

    @property
    def title(self) -> str:
        """The rule and the steps."""
        return f"{self.incident.rule} at {span(self.incident.first, self.incident.last)}"

    @property
    def message(self) -> str:
        """What was seen, what it cost and what to do, in one paragraph."""
        d, i = self.diagnosis, self.incident
        attempt = f", attempt {i.attempt}" if len(d.run.attempts) > 1 else ""
        parts = [f"{self.title}{attempt}: {_words.measured(d.run, self._placeless)}"]
        parts += [p for p in (_words.lead(d.run, i), *_words.tags(i), _words.ending(i)) if p]
        index = self.index
        if index < len(d.cost.incidents) and (cost := _words.price(d.cost.incidents[index])):
            parts.append(f"cost {cost}")
        said = "; ".join(parts) + "."
        ways = d.plans[index]
        return f"{said} {ways[0].text}" if ways and self.ignore is None else said

    @property
    def _placeless(self) -> Finding:
        """The gravest finding without its line, where the place tells it already."""
        return replace(self.worst, line=None) if self.place.line is not None else self.worst


def verdict_of(outcome: Outcome, index: int) -> Verdict | None:
    """Return what was decided of a diagnosis, where anything was asked."""
    return outcome.verdicts[index] if outcome.verdicts else None


def told(outcome: Outcome) -> list[Told]:
    """Return every incident of every run, in their order."""
    return [t for i in range(len(outcome.diagnoses)) for t in told_of(outcome, i)]


def told_of(outcome: Outcome, index: int) -> Iterator[Told]:
    """Yield the incidents of one run."""
    d, verdict = outcome.diagnoses[index], verdict_of(outcome, index)
    seen: dict[str, int] = {}
    for number, incident in enumerate(d.incidents):
        left = verdict.standing(incident) if verdict else incident
        shown = left or incident
        ignore = verdict.ignored[incident.worst] if verdict and left is None else None
        print_ = _fingerprint(d, incident, outcome.base)
        seen[print_] = seen.get(print_, 0) + 1
        if seen[print_] > 1:
            print_ = _hash(print_, str(seen[print_]))
        yield Told(
            diagnosis=d,
            index=number,
            incident=shown,
            ignore=ignore,
            place=place(d.run, shown.worst, outcome.base),
            fingerprint=print_,
        )


def gravest(outcome: Outcome, least: Severity = "warning") -> list[Told]:
    """Return the incidents that count, the gravest first, those alike by run and step."""
    counted = [
        t
        for t in told(outcome)
        if t.ignore is None and SEVERITIES.index(t.severity) >= SEVERITIES.index(least)
    ]
    return sorted(counted, key=lambda t: t.incident.gravity, reverse=True)


def _fingerprint(d: Diagnosis, incident: Incident, base: str) -> str:
    """Return a name for an incident that does not change when the log grows.

    By what moved first and where: which finding is the gravest, and how long it lasts, is not
    settled while a run goes on.
    """
    lead = incident.lead
    path = "-" if d.run.source == "-" else relative(Path(d.run.source), base)
    return _hash(path, d.run.name, lead.rule, lead.metric, str(lead.attempt), str(lead.first))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:32]


def fingerprint(d: Diagnosis, name: str, base: str) -> str:
    """Return a name for a criterion that a run missed."""
    path = "-" if d.run.source == "-" else relative(Path(d.run.source), base)
    return _hash(path, d.run.name, "criterion", name)
