"""Ignores: findings that somebody knows of, with the reason, and the day on which that ends.

An ignored finding is still found and still told; it only does not count against the run.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from stabcli.diagnosis import Diagnosis
from stabcli.errors import SettingError
from stabcli.rules import LISTED, Finding
from stabcli.run import Run
from stabcli.settings import suggestion
from stabcli.units import Step, span

KEYS = ("rule", "steps", "run", "reason", "until")
"""What an ``[[ignore]]`` may hold."""
_STEPS = re.compile(r"([0-9][0-9_,]*)(?:\s*(?:-|\.\.)\s*([0-9][0-9_,]*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """One ``[[ignore]]`` of the settings file."""

    rules: tuple[str, ...]
    """Rules whose findings it is about."""
    first: Step | None
    """First step, inclusive; None for all steps."""
    last: Step | None
    """Last step, inclusive."""
    runs: str | None
    """Pattern for names or sources of runs; None for all."""
    reason: str
    """Why it is no concern."""
    until: dt.date | None
    """Last day on which it holds; None for ever."""
    source: str
    """The file it stands in."""

    @property
    def text(self) -> str:
        """What it is about, in words."""
        said = ", ".join(self.rules)
        if self.first is not None and self.last is not None:
            said += f" in steps {self.first:,}..{self.last:,}"
        return f"{said} of {self.runs}" if self.runs else said

    @property
    def why(self) -> str:
        """The reason, and how long it holds."""
        return f"{self.reason} (until {self.until})" if self.until else self.reason

    def covers(self, run: Run, finding: Finding) -> bool:
        """Say whether a finding is one of those meant, all of it."""
        if finding.rule not in self.rules or not self.is_of(run):
            return False
        if self.first is None or self.last is None:
            return True
        return self.first <= finding.first and finding.last <= self.last

    def is_of(self, run: Run) -> bool:
        """Say whether it is about a run."""
        return self.runs is None or any(
            fnmatchcase(name, self.runs) for name in (run.name, run.source)
        )

    def to_cover(self, findings: Sequence[Finding]) -> str:
        """Return the lines to write instead of its own so that it covers these findings too."""
        rules = dict.fromkeys([*self.rules, *(f.rule for f in findings)])
        names = ", ".join(f'"{rule}"' for rule in rules)
        said = f"rule = [{names}]" if len(rules) > 1 else f"rule = {names}"
        if self.first is None or self.last is None:
            return said
        first = min(self.first, *(f.first for f in findings))
        last = max(self.last, *(f.last for f in findings))
        return f'{said} and steps = "{first}-{last}"'


def parse(table: Mapping[str, Any], source: str, known: Collection[str]) -> Ignore:
    """Read one ``[[ignore]]``.

    Args:
        table: Its keys and values.
        source: The file it stands in.
        known: Names of the rules there are.

    Raises:
        SettingError: A key is missing or unknown, or a value is of the wrong kind.
    """
    where = f"{source}: ignore"
    for key in table:
        if key not in KEYS:
            raise SettingError(f"{where}: no such key as {key!r}: {suggestion(key, KEYS)}")
    given = table.get("rule")
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise SettingError(f"{where}: rule: takes the name of a rule or a list of them")
    for name in names:
        if name not in known:
            raise SettingError(
                f"{where}: {name}: no such rule: {suggestion(name, known, see=LISTED)}"
            )
    said = f"{where} {', '.join(names)}"
    reason = table.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise SettingError(f"{said}: no reason given: add reason = '…'")
    runs = table.get("run")
    if runs is not None and not isinstance(runs, str):
        raise SettingError(f"{said}: run: takes a name or a pattern, not {runs!r}")
    first, last = _steps(table["steps"], said) if "steps" in table else (None, None)
    return Ignore(
        rules=tuple(names),
        first=first,
        last=last,
        runs=runs,
        reason=" ".join(reason.split()),
        until=_day(table["until"], said) if "until" in table else None,
        source=source,
    )


def _steps(value: Any, where: str) -> tuple[Step, Step]:
    match = None if isinstance(value, bool) else _STEPS.fullmatch(str(value).strip())
    if match is None:
        raise SettingError(f"{where}: steps: takes '12000-12100' or one step, not {value!r}")
    first = int(re.sub("[_,]", "", match[1]))
    last = int(re.sub("[_,]", "", match[2])) if match[2] else first
    if last < first:
        raise SettingError(f"{where}: steps: {value!r} ends before it begins")
    return first, last


def _day(value: Any, where: str) -> dt.date:
    if isinstance(value, dt.datetime):
        return value.date()
    if isinstance(value, dt.date):
        return value
    try:
        return dt.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise SettingError(
            f"{where}: until: takes a day such as 2027-01-31, not {value!r}"
        ) from None


def in_force(ignores: Iterable[Ignore], today: dt.date) -> tuple[list[Ignore], list[str]]:
    """Return the ignores that still hold, and a line for each that has run out."""
    holding: list[Ignore] = []
    expired: list[str] = []
    for ignore in ignores:
        if ignore.until is None or today <= ignore.until:
            holding.append(ignore)
        else:
            expired.append(
                f"{ignore.source}: ignore {ignore.text}: expired on {ignore.until}:"
                f" it counts again; set a new day, or take it out ({ignore.reason})"
            )
    return holding, expired


def ignored(d: Diagnosis, ignores: Sequence[Ignore]) -> dict[Finding, Ignore]:
    """Return the findings of a run that are ignored, each with the first ignore that covers it."""
    found: dict[Finding, Ignore] = {}
    for incident in d.incidents:
        for finding in incident.findings:
            cover = next((i for i in ignores if i.covers(d.run, finding)), None)
            if cover is not None:
                found[finding] = cover
    return found


def left_over(
    d: Diagnosis,
    findings: Sequence[Finding],
    known: Mapping[Finding, Ignore],
    ignores: Sequence[Ignore],
) -> str | None:
    """Say why an incident counts although an ignore is about it, and what to write if it should not.

    An ignore covers what it names and no more: a divergence is news to who knows of a spike.
    None where no ignore is about the incident.

    Args:
        d: The run.
        findings: All findings of the incident that are grave enough to count.
        known: Those that are ignored.
        ignores: Those in force.
    """
    rest = [f for f in findings if f not in known]
    rules = {f.rule for f in rest}
    about = next((known[f] for f in findings if f in known), None)
    where = "" if about is None else " of the same incident"
    if about is None:
        same = (i for i in ignores if rules & set(i.rules) and i.is_of(d.run))
        about = next((i for i in same if any(_meets(i, f) for f in rest)), None)
    if about is None or not rest:
        return None
    told = ", ".join(
        f"{f.rule} at {span(f.first, f.last)}"
        for f in {(f.rule, f.first, f.last): f for f in rest}.values()
    )
    return (
        f"ignore {about.text} does not cover {told}{where}: if that is known as well,"
        f" write {about.to_cover(rest)} in {about.source}"
    )


def _meets(ignore: Ignore, finding: Finding) -> bool:
    """Say whether some of a finding's steps are meant."""
    if ignore.first is None or ignore.last is None:
        return True
    return ignore.first <= finding.last and finding.first <= ignore.last


def unused(ignores: Iterable[Ignore], used: Collection[Ignore]) -> list[str]:
    """Return a line for each ignore that covered nothing."""
    return [
        f"{i.source}: ignore {i.text}: nothing was found that it covers: take it out, or check"
        " its rule and steps"
        for i in ignores
        if i not in used
    ]
