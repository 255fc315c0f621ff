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
from stabcli.units import Step

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
        if finding.rule not in self.rules:
            return False
        if self.runs is not None and not any(
            fnmatchcase(name, self.runs) for name in (run.name, run.source)
        ):
            return False
        if self.first is None or self.last is None:
            return True
        return self.first <= finding.first and finding.last <= self.last


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


def unused(ignores: Iterable[Ignore], used: Collection[Ignore]) -> list[str]:
    """Return a line for each ignore that covered nothing."""
    return [
        f"{i.source}: ignore {i.text}: nothing was found that it covers: take it out, or check"
        " its rule and steps"
        for i in ignores
        if i not in used
    ]
