"""What the log of the run says of the steps that are replayed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from stabcli.assembly import Options
from stabcli.errors import LogError, ReplayError
from stabcli.readers import read_runs
from stabcli.recipes import recipe
from stabcli.rules import SEVERITIES
from stabcli.run import Run

BEFORE = 64
"""Logged steps before a flagged one whose median is usual."""
MOST_JSON = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Losses and gradient norms by step; of a step logged twice the later attempt's."""

    loss: Mapping[int, float] = field(default_factory=dict)
    grad_norm: Mapping[int, float] = field(default_factory=dict)
    run: Run | None = None

    def usual(self, name: str, step: int, *, without: Iterable[int] = ()) -> float | None:
        """Return the median of the finite values of the steps before ``step``; None = none."""
        series: Mapping[int, float] = getattr(self, name)
        out = set(without)
        before = sorted(s for s in series if s < step and s not in out)[-BEFORE:]
        values = [series[s] for s in before if math.isfinite(series[s])]
        return median(values) if values else None

    @property
    def grad_clip(self) -> float | None:
        """Gradient norm the trainer clipped to; None where the log does not say."""
        fact = None if self.run is None else self.run.facts.get("grad_clip")
        value = None if fact is None else fact.value
        return float(value) if isinstance(value, (int, float)) and value > 0 else None

    def skip(self, resume: int | None, steps: list[int]) -> list[str]:
        """Return how the framework of the log leaves these steps out; empty where unknown."""
        if self.run is None or not steps:
            return []
        start = min(steps) - 1 if resume is None else resume
        return list(recipe(self.run, resume=start, skip=(min(steps), max(steps)), lr=None))


def read_log(paths: Iterable[str]) -> Log:
    """Read a run's log, in any format that ``stabcli scan`` reads.

    Raises:
        LogError: It cannot be read, or holds several runs.
    """
    runs, unread = read_runs(list(paths), options=Options())
    if unread and not runs:
        raise unread[0]
    if len(runs) != 1:
        shown = ", ".join(run.name for run in runs[:4])
        raise LogError(
            f"--log: {len(runs)} runs in it ({shown}): give the one run that is replayed"
        )
    (run,) = runs
    return Log(loss=_series(run, "loss"), grad_norm=_series(run, "grad_norm"), run=run)


def _series(run: Run, name: str) -> dict[int, float]:
    if not run.has(name):
        return {}
    logged = run.logged(name)
    steps, values = run.frame["step"].to_numpy()[logged], run.array(name)[logged]
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flagged:
    """One incident of a scan."""

    first: int
    last: int
    rule: str
    severity: str
    expected: Mapping[str, float]
    """What was usual, by metric."""
    source: str
    """The log it was found in."""


def read_incidents(path: Path) -> list[Flagged]:
    """Read what ``stabcli scan --format json`` wrote, the gravest incident first.

    Raises:
        ReplayError: It is something else, or has no incident of loss or gradient.
    """
    try:
        if path.stat().st_size > MOST_JSON:
            raise ReplayError(f"{path}: larger than 256 MiB: not a report of stabcli scan")
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ReplayError(
            f"{path}: no such file: write it with stabcli scan --format json"
        ) from None
    except RecursionError:
        raise ReplayError(f"{path}: nested too deep: not a report of stabcli scan") from None
    except (OSError, ValueError) as error:
        raise ReplayError(f"{path}: not JSON: {str(error)[:80]}: check the file") from None
    found = []
    try:
        for entry in document["runs"]:
            for incident in entry["incidents"]:
                found += _flagged(incident, str(entry["run"]["source"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ReplayError(
            f"{path}: not a report of stabcli scan --format json: {type(error).__name__} {error}"
        ) from None
    if not found:
        raise ReplayError(f"{path}: no incident of loss or gradient norm in it: nothing to replay")
    return sorted(found, key=lambda f: (-SEVERITIES.index(f.severity), f.first))


def _flagged(incident: Mapping[str, Any], source: str) -> list[Flagged]:
    findings = incident["findings"]
    metrics = {str(f["metric"]) for f in findings}
    if incident["severity"] not in SEVERITIES or not any(
        "loss" in m or "grad" in m for m in metrics
    ):
        return []
    return [
        Flagged(
            first=int(incident["first"]),
            last=max(int(incident["peak"]), int(incident["first"])),
            rule=str(incident["rule"]),
            severity=str(incident["severity"]),
            expected={
                str(f["metric"]): float(f["expected"])
                for f in findings
                if isinstance(f["expected"], (int, float))
            },
            source=source,
        )
    ]
