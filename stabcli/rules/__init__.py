"""Rules: each looks at a run and yields what it found.

A rule is a file ``rules/<name>.py`` holding one function of that name under ``@rule``.
Its keyword-only parameters are its settings; its docstring is its documentation.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from polars.exceptions import PolarsError

from stabcli.errors import SettingError
from stabcli.metrics import COMPUTED_FROM
from stabcli.presets import PRESETS
from stabcli.published import Detector, finite_only
from stabcli.registry import Documented, Registry
from stabcli.run import Run, Trouble
from stabcli.series import signals, stretches
from stabcli.settings import suggestion
from stabcli.units import Step

Severity = Literal["notice", "warning", "error", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From worth knowing (notice), look at it (warning), something broke (error) to stop (critical)."""
Check = Callable[..., Iterator["Finding"]]

STATISTIC = "statistic"
"""Tag of a finding that describes the whole run and belongs to no event."""
PAUSED = "loss-paused"
"""Tag of a finding that a loss was not logged for a while, beside what was."""
RESCALED = "rescaled"
"""Tag of a finding of a loss that is a multiple of what it was, and otherwise the same."""
BACK = "counted-back"
"""Tag of such a finding where the loss leaps back by the same factor behind its last row."""
ALIKE = "alike-throughout"
"""Tag of a finding of rewards that are one and the same number from the first row on."""

AT_LEVEL = 0.01
"""Relative distance to a level within which a row shows it."""


LISTED = "stabcli rules lists them"
"""Where all rules are named."""


class CannotLook(Exception):
    """Raised by a rule whose run lacks what it needs; becomes a ``Skipped``, never a clean bill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One stretch of rows that one rule objects to."""

    rule: str = ""
    """Name of the rule; stamped by ``run_rules``."""
    metric: str
    """Canonical name, or the log's own where there is none."""
    severity: Severity
    attempt: int
    first: Step
    """First step of the stretch, inclusive."""
    last: Step
    """Last step of the stretch, inclusive."""
    peak: Step
    """Step of the worst value, or of the first that shows the level where ``value`` is one."""
    value: float
    """The worst value in the stretch, or its level, in the metric's unit."""
    expected: float | None
    """What the rule compared it with, in the same unit; None where any value would be wrong."""
    score: float | None
    """How far ``value`` is from ``expected`` in the rule's own measure; 1 is the threshold."""
    line: int | None = None
    """Line or record number of ``peak`` in the source, where there is one."""
    file: str | None = None
    """File of ``peak``, where the run has several."""
    tags: tuple[str, ...] = ()
    """What else is known of it: ``warm-up``, ``resume``, ``single-row``."""
    text: str | None = None
    """The line of text that tells of it, where that is what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A rule that could not look. Not the same as a rule that found nothing."""

    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class Rule(Documented):
    """A check and everything known of it; made by ``@rule`` only."""

    check: Check
    needs: tuple[str, ...]
    """Metrics without which it cannot look."""
    presets: tuple[str, ...]
    """The presets it belongs to."""
    since: str
    """The version it came with."""
    judges: bool = True
    """Whether its silence says anything of the run's health."""

    @property
    def function(self) -> Check:
        """The function it is made of."""
        return self.check

    @property
    def settings(self) -> dict[str, Any]:
        """The settings and their defaults, read off the signature."""
        parameters = inspect.signature(self.check).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


rules: Registry[Rule] = Registry(__name__, "rule")


def rule(
    *,
    needs: tuple[str, ...] = (),
    presets: tuple[str, ...] = ("default",),
    since: str,
    judges: bool = True,
) -> Callable[[Check], Check]:
    """Register the check below as a rule named after it."""

    def register(check: Check) -> Check:
        rules.add(Rule(check, needs, presets, since, judges))
        return check

    return register


def select(
    presets: Collection[str], only: Collection[str], *, where: str = "--preset"
) -> list[Rule]:
    """Return the rules named in ``only``, or else those of the presets, given at ``where``.

    Raises:
        SettingError: There is no rule or preset of that name.
    """
    known = {r.name: r for r in rules}
    for name in only:
        if name not in known:
            raise SettingError(
                f"--rule {name}: no such rule: {suggestion(name, known, see=LISTED)}"
            )
    for name in presets:
        if name not in PRESETS:
            raise SettingError(f"{where} {name}: no such preset: {suggestion(name, PRESETS)}")
    if only:
        return [known[name] for name in dict.fromkeys(only)]
    return [r for r in rules if any(p in presets for p in r.presets)]


def run_rules(
    run: Run, chosen: Collection[Rule], settings: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[Finding], list[Skipped]]:
    """Run the chosen rules over a run; say which could not look and why.

    Args:
        run: The run to look at.
        chosen: The rules.
        settings: Rule name -> setting -> value, where it is not the default.

    Raises:
        SettingError: A setting is unknown, of the wrong type, out of range, or none that the rule
            can work with.
    """
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    values = {r.name: checked_settings(r, (settings or {}).get(r.name, {})) for r in chosen}
    for r in chosen:
        missing = [m for m in r.needs if not run.has(m)]
        if missing:
            skipped.append(Skipped(rule=r.name, why=f"the log has no {', '.join(missing)}"))
            continue
        try:
            findings += [replace(f, rule=r.name) for f in r.check(run, **values[r.name])]
        except CannotLook as why:
            skipped.append(Skipped(rule=r.name, why=str(why)))
        except (ArithmeticError, LookupError, TypeError, ValueError, PolarsError) as error:
            if not values[r.name]:
                raise
            given = ", ".join(f"{k}={v}" for k, v in values[r.name].items())
            raise SettingError(
                f"{r.name}: cannot look with {given}: give values nearer to the defaults, which"
                f" stabcli explain {r.name} names"
            ) from error
    return findings, skipped


def checked_settings(r: Rule, given: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
    """Return ``given`` converted to the types of the rule's defaults; ``where`` it was given.

    Raises:
        SettingError: A setting is unknown, of the wrong type, or out of range.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in r.settings:
            raise SettingError(
                f"{where}{r.name}.{name}: no such setting: {suggestion(name, r.settings)}"
            )
        default = r.settings[name]
        wanted = type(default)
        try:
            if isinstance(value, bool) != isinstance(default, bool):
                raise ValueError
            values[name] = wanted(value)
            if not _in_range(name, values[name], default):
                raise ValueError
        except (OverflowError, TypeError, ValueError):
            raise SettingError(
                f"{where}{r.name}.{name}: takes {_taken(name, default)}, not {value!r}"
            ) from None
    return values


_SHARES = ("share", "error_share", "keep")
"""Settings that are parts of a whole."""


def _in_range(name: str, value: Any, default: Any) -> bool:
    """Say whether a setting can be meant: finite, and negative only where its default is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    if not math.isfinite(value) or (name in _SHARES and value > 1):
        return False
    return value >= 0 or default <= 0


def _taken(name: str, default: Any) -> str:
    """Say what a setting takes."""
    if isinstance(default, (bool, str)):
        return "true or false" if isinstance(default, bool) else "a word"
    kind = "a whole number" if isinstance(default, int) else "a number"
    if name in _SHARES:
        return f"{kind} from 0 to 1"
    return f"{kind} of 0 or more" if default > 0 else kind


def finding(
    run: Run,
    *,
    metric: str,
    rows: tuple[int, int],
    peak: int | None = None,
    severity: Severity,
    value: float,
    expected: float | None = None,
    score: float | None = None,
    tags: tuple[str, ...] = (),
) -> Finding:
    """Make a finding of rows of the frame.

    Args:
        run: The run.
        metric: Canonical name, or the log's own.
        rows: First and last row of the stretch, inclusive, both of one attempt.
        peak: Row of the worst value; without, ``value`` is the level of the stretch, and the first
            row at that level shows it.
        severity: How bad it is.
        value: The worst value, or the level.
        expected: What it was compared with.
        score: How far it is, 1 being the threshold.
        tags: What else is known.
    """
    frame = run.frame
    peak = _at_level(run, metric, rows, value) if peak is None else peak
    logged = metric if metric in frame.columns else COMPUTED_FROM.get(metric, metric)
    file, line = run.place(logged, peak)
    return Finding(
        metric=metric,
        severity=severity,
        attempt=int(frame["attempt"][peak]),
        first=int(frame["step"][rows[0]]),
        last=int(frame["step"][rows[1]]),
        peak=int(frame["step"][peak]),
        value=float(value),
        expected=None if expected is None else float(expected),
        score=None if score is None else float(score),
        line=line,
        file=file,
        tags=tags,
    )


def cited(run: Run, told: Trouble, found: Finding) -> Finding:
    """Let a finding cite a line of text, and its file where that is not the only one."""
    file = os.path.relpath(told.file, run.source)
    return replace(found, line=told.line, file=None if file == "." else file, text=told.text)


def _at_level(run: Run, metric: str, rows: tuple[int, int], level: float) -> int:
    """Return the first of the rows within ``AT_LEVEL`` of a level, or the one that is nearest."""
    away = np.abs(run.array(metric)[rows[0] : rows[1] + 1] - level)
    away[~np.isfinite(away)] = np.inf
    near = np.flatnonzero(away <= AT_LEVEL * abs(level))
    return rows[0] + int(near[0] if len(near) else np.argmin(away))


def published(
    run: Run,
    metrics: Collection[str],
    detector: Detector,
    *,
    least: int,
    severity: Severity = "warning",
    join: int = 0,
    faithful: bool = True,
    statistic: bool = False,
    falls: bool = False,
    gaps: bool = False,
) -> Iterator[Finding]:
    """Yield what a detector of another system finds, attempt by attempt, as it would have run.

    Args:
        run: The run to look at.
        metrics: What it looks at; those that were not logged are passed by.
        detector: Values -> where it fires.
        least: Values of an attempt without which it can never fire.
        severity: How grave its makers take it.
        join: Rows between two that fire which still belong to one finding.
        faithful: Whether values that are not finite reach the detector.
        statistic: Whether it fires so often that the share of rows is what it tells: one notice.
        falls: Whether low values are the worst.
        gaps: Whether the distance from the row before is what is told, as of clocks.

    Raises:
        CannotLook: No attempt has ``least`` values.
    """
    looked = False
    judge = detector if faithful else finite_only(detector)
    for metric in metrics:
        rows: list[int] = []
        total, top, at = 0, -np.inf, -1
        for signal in signals(run, metric) if run.has(metric) else []:
            if len(signal) < max(1, least):
                continue
            looked, total = True, total + len(signal)
            said = judge(signal.values)
            values, limit = signal.values, said.limit
            if gaps:
                values = np.concatenate([[0.0], np.diff(values)])
                limit = np.concatenate([[np.nan], (said.limit - np.roll(signal.values, 1))[1:]])
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                size = np.where(np.isfinite(values), -values if falls else values, np.inf)
                ratio = limit / values if falls else values / limit
            if statistic:
                hits = np.flatnonzero(said.fired)
                rows += signal.rows[hits].tolist()
                if len(hits) and size[hits].max() > top:
                    top, at = float(size[hits].max()), int(signal.rows[hits[np.argmax(size[hits])]])
                continue
            for first, last in stretches(said.fired, gap=join):
                inside = np.flatnonzero(said.fired[first : last + 1]) + first
                peak = int(inside[np.argmax(size[inside])])
                known = bool(np.isfinite(limit[peak]))
                yield finding(
                    run,
                    metric=metric,
                    rows=(int(signal.rows[first]), int(signal.rows[last])),
                    peak=int(signal.rows[peak]),
                    severity=severity,
                    value=float(values[peak]),
                    expected=float(limit[peak]) if known else None,
                    score=float(ratio[peak]) if known and np.isfinite(ratio[peak]) else None,
                )
        if rows:
            # One attempt may hold the worst and another the first: a statistic is of the whole run.
            mine = [r for r in rows if run.frame["attempt"][r] == run.frame["attempt"][at]]
            yield finding(
                run,
                metric=metric,
                rows=(mine[0], mine[-1]),
                peak=at,
                severity="notice",
                value=float(run.array(metric)[at]),
                tags=(STATISTIC, f"share-{100 * len(rows) / total:.2g}%"),
            )
    if not looked:
        missing = [m for m in metrics if run.has(m)]
        if not missing:
            raise CannotLook(f"the log has no {' and no '.join(metrics)}")
        raise CannotLook(f"fewer than {least} rows with {' or '.join(missing)} in every attempt")
