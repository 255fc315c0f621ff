"""Gates: what is asked of a run, put together from flags and settings."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stabcli.cli._arguments import Analysis, Asked, choose, pair, read
from stabcli.errors import SettingError

if TYPE_CHECKING:
    from stabcli.diagnosis import Diagnosis
    from stabcli.ignores import Ignore
    from stabcli.rules import Severity
    from stabcli.settings import Settings
    from stabcli.verdicts import Gate, Verdict

NEVER = "never"
"""What ``--fail-on`` takes where no finding is to fail."""


def least_severity(flag: str | None, chosen: Settings, default: str | None) -> Severity | None:
    """Return the severity from which findings fail; None where none does."""
    from stabcli.rules import SEVERITIES

    said = flag or chosen.word("fail_on") or default
    if said is None:
        return None
    choose(chosen.place("fail_on", flag=flag), said, (*SEVERITIES, NEVER))
    return next((s for s in SEVERITIES if s == said), None)


def today() -> dt.date:
    """Return the day it is, by which ignores expire."""
    return dt.datetime.now(dt.UTC).date()


def ignores_in_force(chosen: Settings) -> tuple[tuple[Ignore, ...], list[str]]:
    """Return the ignores of the settings file that hold, and a line for each that expired."""
    from stabcli.ignores import in_force, parse
    from stabcli.rules import rules

    known = [r.name for r in rules]
    holding, expired = in_force(
        [parse(given.value, given.source, known) for given in chosen.ignores], today()
    )
    return tuple(holding), expired


def idle(ignores: tuple[Ignore, ...], verdicts: tuple[Verdict, ...]) -> list[str]:
    """Return a line for each ignore that covered nothing in any run."""
    from stabcli.ignores import unused

    used = [ignore for v in verdicts for ignore in v.ignored.values()]
    return unused(ignores, used)


def wishes(flags: dict[str, Any], chosen: Settings) -> dict[str, tuple[Any, str]]:
    """Return what was asked, by flag or else by settings: name -> value and where it was given."""
    given = {name: (g.value, g.source) for name, g in chosen.check.items()}
    for name, value in flags.items():
        if value:
            given[name] = (value, f"--{name.replace('_', '-')}")
    return given


def make_gate(
    fail_on: Severity | None,
    asked_for: dict[str, tuple[Any, str]],
    margin_flags: list[str] | tuple[()],
    chosen: Settings,
    ignores: tuple[Ignore, ...],
) -> Gate:
    """Put together all that is asked of a run."""
    from stabcli.baseline import margins
    from stabcli.criteria import LIMITS, Limits, limit
    from stabcli.verdicts import Gate

    bounds: dict[str, float] = {
        name: limit(name, *asked_for[name]) for name in LIMITS if name in asked_for
    }
    given: dict[str, tuple[object, str]] = {
        name: (g.value, g.source) for name, g in chosen.margins.items()
    }
    for text in margin_flags:
        name, value = pair("--margin", text)
        given[name] = (value, f"--margin {name}")
    return Gate(
        fail_on=fail_on,
        require=_names(*asked_for["require"]) if "require" in asked_for else (),
        limits=Limits(**bounds),
        ignores=ignores,
        margins=margins(given),
    )


def _names(value: Any, source: str) -> tuple[str, ...]:
    """Return names given as a list, or in one text with commas."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(p, str) for p in parts):
        raise SettingError(f"{source}: takes a name or a list of names, not {value!r}")
    names = [n.strip() for part in parts for n in part.split(",")]
    return tuple(dict.fromkeys(n for n in names if n))


def read_baseline(
    asked: Asked, chosen: Settings, how: Analysis, given: tuple[Any, str]
) -> Diagnosis:
    """Read the run to compare with.

    Raises:
        SettingError: It cannot be read, or is not one run.
    """
    from stabcli.diagnosis import diagnose

    log, source = given
    if not isinstance(log, str):
        raise SettingError(f"{source}: takes the path of a log, not {log!r}")
    found = read(replace(asked, logs=(log,)), chosen)
    if found.failed:
        raise SettingError(f"{source}: {found.failed[0]}")
    if len(found.runs) != 1:
        names = ", ".join(r.name for r in found.runs)
        raise SettingError(f"{source}: {log}: {len(found.runs)} runs in it: name one ({names})")
    return diagnose(found.runs[0], presets=how.presets, only=how.only, settings=how.settings)
