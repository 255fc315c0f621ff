"""Incidents: findings that belong together are one event, told in the order things moved."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from stabcli.rules import SEVERITIES, STATISTIC, Finding, Severity
from stabcli.run import Run
from stabcli.series import SHORT, WINDOW, Signal, signals, spread
from stabcli.units import Step

Ending = Literal[
    "fast-recovery", "slow-recovery", "new-basin", "diverged", "rolled-back", "unresolved"
]
ENDINGS: tuple[Ending, ...] = get_args(Ending)
"""How an incident ended; ``unresolved`` where the log ends too soon to tell."""

FAST_STEPS = 200
"""Steps within which a recovery is fast (BLOOM's largest spike took 30)."""
TOLERANCE = 0.02
"""Relative distance to the level before, within which a series has recovered."""
NEAR_STEPS = 50
NEAR_ROWS = 5
"""Findings closer than this many steps or rows are one incident."""

_FAMILIES = {
    "speed": ("tokens_per_second", "tokens_per_second_per_gpu", "mfu", "step_seconds", "wall_time",
              "tflops_per_gpu"),
    "validation": ("val_loss", "val_perplexity"),
    "routing": ("aux_loss", "z_loss", "expert_load_ratio"),
    "policy": ("entropy", "reward", "reward_std", "val_reward", "kl", "clip_fraction",
               "response_length", "response_clip_fraction", "dead_group_fraction"),
    "schedule": ("learning_rate",),
    "restarts": ("step",),
}  # fmt: skip
_COMPUTED_FROM = {"val_perplexity": "val_loss", "tokens_per_second": "step_seconds"}
"""What a rule computes a metric from where it was not logged."""
_FAMILY = {metric: family for family, metrics in _FAMILIES.items() for metric in metrics}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One event of a run: everything that went wrong together."""

    findings: tuple[Finding, ...]
    """Ordered by first step: the first is what moved first, which is often the cause."""
    ending: Ending
    """How it ended."""
    recovered: Step | None
    """Step at which it was over; None where it never was, or cannot be told."""
    tags: tuple[str, ...] = ()
    """What else is known: ``instant``, ``gradual-onset``, ``warm-up``, ``resume``, …"""

    @property
    def lead(self) -> Finding:
        """What moved first."""
        return self.findings[0]

    @property
    def worst(self) -> Finding:
        """The gravest finding: of several one of the loss, of those the first, then the highest."""
        return max(
            self.findings,
            key=lambda f: (
                SEVERITIES.index(f.severity),
                f.metric == "loss",
                -f.first,
                f.score or 0.0,
            ),
        )

    @property
    def severity(self) -> Severity:
        """The gravest severity in it."""
        return self.worst.severity

    @property
    def rule(self) -> str:
        """Name of the gravest finding's rule."""
        return self.worst.rule

    @property
    def attempt(self) -> int:
        """The attempt it happened in."""
        return self.lead.attempt

    @property
    def first(self) -> Step:
        """First step of the event."""
        return self.lead.first

    @property
    def last(self) -> Step:
        """Last step of the event."""
        return max(f.last for f in self.findings)

    @property
    def family(self) -> str:
        """What kind of thing moved: ``numerics``, ``speed``, ``validation`` and so on."""
        return family(self.worst)


def family(finding: Finding) -> str:
    """Return the kind of thing a finding is about.

    Losses, gradients and unknown columns are of one kind, and so is whatever is not finite.
    """
    if not math.isfinite(finding.value):
        return "numerics"
    return _FAMILY.get(finding.metric, "numerics")


def group(run: Run, findings: Iterable[Finding]) -> tuple[Incident, ...]:
    """Join findings of one kind that are near one another; say how each incident ended.

    A notice alone never joins two events, and a statistic of the whole run stands alone.
    """
    near = max(NEAR_STEPS, NEAR_ROWS * (run.log_interval or 1))
    groups: list[list[Finding]] = []
    grave = [f for f in findings if STATISTIC not in f.tags]
    alone = [f for f in findings if STATISTIC in f.tags]
    for f in sorted(grave, key=lambda f: (f.severity == "notice", f.attempt, f.first, f.rule)):
        joined = [g for g in groups if _belongs(f, g, near)]
        if not joined:
            groups.append([f])
            continue
        home = joined[0]
        home.append(f)
        if f.severity != "notice":
            for other in joined[1:]:
                home += other
                groups.remove(other)
    groups += [[f] for f in alone]
    incidents = []
    for g in groups:
        g.sort(key=lambda f: (f.first, -SEVERITIES.index(f.severity), f.rule))
        incidents.append(_told(run, tuple(g)))
    incidents.sort(key=lambda i: (i.attempt, i.first, -SEVERITIES.index(i.severity), i.rule))
    return _recurring(tuple(incidents), near)


def _belongs(f: Finding, others: list[Finding], near: Step) -> bool:
    if f.attempt != others[0].attempt or family(f) != family(others[0]):
        return False
    first = min(o.first for o in others)
    last = max(o.last for o in others)
    return f.first <= last + near and f.last >= first - near


def _told(run: Run, findings: tuple[Finding, ...]) -> Incident:
    """Make an incident of findings, with its ending and tags."""
    incident = Incident(findings=findings, ending="unresolved", recovered=None)
    telling = [f for f in findings if f.severity != "notice"] or findings
    tags = {t for f in telling for t in f.tags}
    if STATISTIC in tags or incident.family in ("restarts", "schedule"):
        return replace(incident, tags=tuple(sorted(tags)))
    signal = _judged_by(run, incident)
    if signal is None:
        return replace(incident, tags=tuple(sorted(tags)))
    ending, recovered, onset = _ending(run, incident, signal)
    if onset is not None and "gradual-onset" not in tags:
        tags.add(onset)
    lead, worst = incident.lead, incident.worst
    if lead.metric == "grad_norm" and worst.metric == "loss" and lead.first < worst.first:
        tags.add("grad-norm-first")
    return replace(incident, ending=ending, recovered=recovered, tags=tuple(sorted(tags)))


def _judged_by(run: Run, incident: Incident) -> Signal | None:
    """Return the series that says when an incident was over: the loss where there is one."""
    metrics = [f.metric for f in incident.findings]
    wanted = incident.worst.metric
    if incident.family == "numerics" and run.has("loss") and {"loss", "grad_norm"} & set(metrics):
        wanted = "loss"
    if not run.has(wanted):
        wanted = _COMPUTED_FROM.get(wanted, wanted)
    if not run.has(wanted):
        return None
    return next((s for s in signals(run, wanted) if s.attempt == incident.attempt), None)


def _ending(run: Run, incident: Incident, signal: Signal) -> tuple[Ending, Step | None, str | None]:
    """Return ending, step of recovery, and whether the onset was instant or gradual.

    Recovered is the first place from which the median of the next five rows (fewer where rows are
    far apart) is back within 2 %, or one robust standard deviation, of the level before.
    """
    steps, values = signal.steps, signal.values
    start = int(np.searchsorted(steps, incident.first))
    before = np.concatenate([signal.inherited, values[:start]])
    before = before[np.isfinite(before)]
    interval = run.log_interval or 1
    total = int(run.frame["step"].max()) - int(run.frame["step"].min())  # type: ignore[arg-type]
    horizon = min(max(total // 20, 1000), 5000, 10**9)
    horizon = max(horizon, 20 * interval)
    rows = min(5, max(1, 50 // interval))
    after = max(start, int(np.searchsorted(steps, incident.last, side="right")) - 1)
    stop = int(np.searchsorted(steps, incident.last + horizon, side="right"))
    x = values[start:stop]
    if not len(x):
        return "unresolved", None, None
    level, width, sign = _before(before, x, incident)
    onset = _onset(before, level, width) if len(before) > SHORT and np.isfinite(level) else None
    last_bad = max(0, int(np.searchsorted(steps, incident.last, side="right")) - 1 - start)
    recovered = _recovery(x, sign, level, width, rows, last_bad)
    if recovered is not None:
        at = int(steps[start + recovered])
        fast = at - incident.first <= max(FAST_STEPS, 3 * interval)
        return ("fast-recovery" if fast else "slow-recovery"), at, onset
    gone = run.frame.filter(
        (run.frame["attempt"] == incident.attempt) & (run.frame["step"] == incident.worst.peak)
    )["discarded"]
    if len(gone) and bool(gone[0]):
        return "rolled-back", None, onset
    ended = stop >= len(values)
    seen = int(steps[min(stop, len(steps)) - 1]) - int(steps[after])
    tail = x[-max(4, len(x) // 4) :]
    if not np.isfinite(tail).all():
        return "diverged", None, onset
    if ended and seen < horizon // 2 and len(x) - last_bad <= 20 and not _persists(x):
        return "unresolved", None, onset
    half = len(x) // 2
    finite = np.isfinite(x)
    first_half, second_half = x[:half][finite[:half]], x[half:][finite[half:]]
    rising = len(first_half) > 2 and sign * (
        np.median(second_half) - np.median(first_half)
    ) > 0.02 * abs(level)
    far = sign * (np.median(tail) - level) > 0.5 * abs(level)
    if incident.family != "numerics":
        return "unresolved" if ended and len(x) <= 20 else "new-basin", None, onset
    return ("diverged" if far or rising else "new-basin"), None, onset


def _persists(x: np.ndarray) -> bool:
    """Say whether a series stayed bad for long enough that the end of the log is no excuse."""
    return len(x) >= 2 * WINDOW


def _before(before: np.ndarray, x: np.ndarray, incident: Incident) -> tuple[float, float, float]:
    """Return level and spread before an incident, and the direction in which it is worse."""
    worst = incident.worst
    if len(before) >= 3:
        level = float(np.median(before[-SHORT:]))
        recent = before[-WINDOW:]
        width = spread(np.diff(recent)) / np.sqrt(2) if len(recent) > 4 else 0.0
    elif worst.expected is not None and np.isfinite(worst.expected):
        level, width = float(worst.expected), 0.0
    else:
        finite = x[np.isfinite(x)]
        level, width = (float(np.min(finite)) if len(finite) else float("nan")), 0.0
    falls = worst.expected is not None and np.isfinite(worst.value) and worst.value < worst.expected
    return level, max(width, TOLERANCE * abs(level)), (-1.0 if falls else 1.0)


def _recovery(
    x: np.ndarray, sign: float, level: float, width: float, rows: int, last_bad: int
) -> int | None:
    """Return the first index past the bad rows from which ``rows`` values are back at the level."""
    if not np.isfinite(level):
        return None
    limit = sign * level + width
    ahead = sign * x
    for j in range(last_bad + 1, len(x)):
        window = ahead[j : j + rows]
        if len(window) == rows and np.isfinite(window).all() and np.median(window) <= limit:
            return j
    return None


def _onset(before: np.ndarray, level: float, width: float) -> str:
    """Say whether the level had been leaving its band for a while before it was flagged."""
    recent = before[-20:]
    earlier = before[-WINDOW:-20]
    if len(earlier) < SHORT:
        return "instant"
    middle = float(np.median(earlier))
    gradual = float(np.median(recent)) > middle + 3 * width / 2
    return "gradual-onset" if gradual and level > middle else "instant"


def _recurring(incidents: tuple[Incident, ...], near: Step) -> tuple[Incident, ...]:
    """Tag incidents that happened at the same step in several attempts."""
    out = []
    for i in incidents:
        again = any(
            o.attempt != i.attempt and o.family == i.family and abs(o.first - i.first) <= near // 2
            for o in incidents
            if o.severity != "notice"
        )
        tags = tuple(sorted({*i.tags, "recurs-at-same-step"})) if again else i.tags
        out.append(replace(i, tags=tags))
    return tuple(out)
