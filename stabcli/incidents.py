"""Incidents: findings that belong together are one event, told in the order things moved."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stabcli.endings import Ending, Judge
from stabcli.metrics import is_chosen_reward
from stabcli.rules import BACK, PAUSED, RESCALED, SEVERITIES, STATISTIC, Finding, Severity
from stabcli.run import Run
from stabcli.units import Step

NEAR_STEPS = 50
NEAR_ROWS = 5
"""Findings closer than this many steps or rows are one incident."""

NOT_UNSTABLE = ("frozen-values", "grad-norm-vanishing", "loss-broken")
"""Rules that find no instability: no batch did it, and no learning rate mends it."""
NO_LOSS = "no-loss"
"""Tag of a finding that a loss is no longer logged, which may hide a NaN or be a logger's fault."""
ONE_PROCESS = "one-process"
"""Tag of what was not finite in one process alone, of which the weights have shown nothing yet."""
STAYS = "stays-"
"""Begins the tag that names the metric which keeps an incident from being over."""

_FAMILIES = {
    "speed": ("tokens_per_second", "tokens_per_second_per_gpu", "mfu", "step_seconds", "wall_time",
              "elapsed_seconds", "tflops_per_gpu"),
    "validation": ("val_loss", "val_perplexity"),
    "routing": ("aux_loss", "z_loss", "expert_load_ratio"),
    "policy": ("entropy", "reward", "reward_std", "val_reward", "kl", "clip_fraction",
               "response_length", "response_clip_fraction", "dead_group_fraction"),
    "schedule": ("learning_rate",),
    "restarts": ("step",),
    "hardware": ("gpu-fault", "communication", "wrong-result", "straggler"),
    "process": ("out-of-memory", "host-out-of-memory", "exception", "ended-from-outside"),
}  # fmt: skip
_FAMILY = {metric: family for family, metrics in _FAMILIES.items() for metric in metrics}


NO_ENDING = ("restarts", "schedule", "hardware", "process")
"""Families of which no series says how an incident ended."""
LAST_WORDS = frozenset({"died", "unfinished"})
"""Tags of what stopped a run, or one of its attempts, for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One event of a run: everything that went wrong together."""

    findings: tuple[Finding, ...]
    """Ordered by first step."""
    ending: Ending
    """How it ended."""
    recovered: Step | None
    """Step at which it was over; None where it never was, or cannot be told."""
    tags: tuple[str, ...] = ()
    """What else is known: ``instant``, ``gradual-onset``, ``warm-up``, ``resume``, …"""

    @property
    def telling(self) -> tuple[Finding, ...]:
        """The findings that make it: those above notice, or all where there is none above."""
        return tuple(f for f in self.findings if f.severity != "notice") or self.findings

    @property
    def lead(self) -> Finding:
        """What moved first, which is often the cause; a notice does not lead graver findings."""
        return self.telling[0]

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
    def ends(self) -> bool:
        """Whether it makes sense to ask how it ended."""
        return STATISTIC not in self.tags and self.family not in NO_ENDING

    @property
    def gravity(self) -> tuple[int, int]:
        """How grave it is: its severity, then how far it is from being over; compares greater.

        2 where it never recovered or stopped the run, 1 where it settled elsewhere or the log
        does not tell yet, 0 where it is over, or is nothing that could be.
        """
        staying = 0
        if self.ending == "diverged" or not LAST_WORDS.isdisjoint(self.tags):
            staying = 2
        elif self.ending in ("new-basin", "unresolved"):
            staying = int(self.ends and RESCALED not in self.worst.tags)
        return SEVERITIES.index(self.severity), staying

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
        """First step of the event; a notice beside graver findings does not make it longer."""
        return self.lead.first

    @property
    def last(self) -> Step:
        """Last step of the event; a notice beside graver findings does not make it longer."""
        return max(f.last for f in self.telling)

    @property
    def unstable(self) -> bool:
        """Whether training went wrong, and not the set-up of the run, its code or its logging."""
        hides = NO_LOSS in self.worst.tags or PAUSED in self.worst.tags
        return self.rule not in NOT_UNSTABLE and not hides

    @property
    def shown(self) -> Finding:
        """The gravest finding that a series shows; where there is none, the gravest line of text."""
        series = tuple(f for f in self.findings if f.text is None)
        return replace(self, findings=series).worst if series else self.worst

    @property
    def family(self) -> str:
        """What kind of thing moved: ``numerics``, ``speed``, ``validation`` and so on."""
        return family(self.shown)


def by_gravity(incidents: Iterable[Incident]) -> list[Incident]:
    """Return incidents with the gravest first, those alike in the order they happened.

    Of one severity what never recovered stands before what healed: a run that healed twelve times
    and then diverged has diverged.
    """
    in_order = sorted(incidents, key=lambda i: (i.attempt, i.first))
    return sorted(in_order, key=lambda i: i.gravity, reverse=True)


def family(finding: Finding) -> str:
    """Return the kind of thing a finding is about.

    Losses, gradients and unknown columns are of one kind, and so is whatever is not finite.
    """
    if not math.isfinite(finding.value):
        return "numerics"
    unknown = "policy" if is_chosen_reward(finding.metric) else "numerics"
    return _FAMILY.get(finding.metric, unknown)


def group(run: Run, findings: Iterable[Finding]) -> tuple[Incident, ...]:
    """Join findings of one kind that are near one another; say how each incident ended.

    A notice alone never joins two events, and a statistic of the whole run stands alone.
    """
    near = max(NEAR_STEPS, NEAR_ROWS * (run.log_interval or 1))
    findings = _recounted(list(findings), near)
    groups: list[list[Finding]] = []
    kinds: dict[tuple[int, str], list[Finding]] = {}
    for f in findings:
        if STATISTIC in f.tags:
            groups.append([f])
        else:
            kinds.setdefault((f.attempt, family(f)), []).append(f)
    for (attempt, kind), told in kinds.items():
        if kind == "hardware":
            told[:] = [f for f in told if not _attached(f, attempt, kinds, near)]
    for together in kinds.values():
        groups += _joined(together, near)
    judge = Judge(run)
    incidents = [_told(judge, g) for g in groups]
    incidents.sort(key=lambda i: (i.attempt, i.first, -SEVERITIES.index(i.severity), i.rule))
    return _recurring(tuple(incidents), near)


def _recounted(findings: list[Finding], near: Step) -> list[Finding]:
    """Make notices of what is said of a loss at the rows where it begins and ends to be counted otherwise."""
    anew = [f for f in findings if RESCALED in f.tags and f.severity != "notice"]
    rows = [(f, f.first) for f in anew] + [(f, f.last + 1) for f in anew if BACK in f.tags]
    return [
        replace(f, severity="notice", tags=(*f.tags, "counted-anew"))
        if f.metric == "loss"
        and math.isfinite(f.value)
        and RESCALED not in f.tags
        and any(f.attempt == a.attempt and abs(f.first - row) <= near for a, row in rows)
        else f
        for f in findings
    ]


def _attached(
    told: Finding, attempt: int, kinds: dict[tuple[int, str], list[Finding]], near: Step
) -> bool:
    """Put what a line tells of hardware to what then went wrong near it, if anything did."""
    for kind in ("numerics", "speed"):
        others = kinds.get((attempt, kind), [])
        if any(
            f.severity != "notice" and f.first <= told.last + near and told.first <= f.last + near
            for f in others
        ):
            others.append(told)
            return True
    return False


def _joined(findings: list[Finding], near: Step) -> list[list[Finding]]:
    """Join findings of one kind and attempt: first what is grave, then the notices beside it."""
    groups: list[list[Finding]] = []
    spans: list[tuple[Step, Step]] = []
    for f in sorted(findings, key=lambda f: (f.severity == "notice", f.first, f.rule)):
        if f.severity != "notice":
            if spans and f.first <= spans[-1][1] + near:
                groups[-1].append(f)
                spans[-1] = (spans[-1][0], max(spans[-1][1], f.last))
            else:
                groups.append([f])
                spans.append((f.first, f.last))
            continue
        at = bisect_right(spans, (f.last + near, math.inf)) - 1
        if at >= 0 and f.first <= spans[at][1] + near:
            groups[at].append(f)
        else:
            insort(spans, (f.first, f.last))
            groups.insert(spans.index((f.first, f.last)), [f])
    return groups


def _told(judge: Judge, findings: list[Finding]) -> Incident:
    """Make an incident of findings, with its ending and tags."""
    findings.sort(key=lambda f: (f.first, -SEVERITIES.index(f.severity), f.rule))
    incident = Incident(findings=tuple(findings), ending="unresolved", recovered=None)
    tags = {t for f in incident.telling for t in f.tags}
    if STATISTIC in tags or incident.family in NO_ENDING:
        return replace(incident, tags=tuple(sorted(tags)))
    numeric = incident.family == "numerics"
    end = judge.ending(incident.telling, incident.shown, numeric=numeric)
    if end.onset is not None and "gradual-onset" not in tags:
        tags.add(end.onset)
    lead, worst = incident.lead, incident.worst
    if lead.metric == "grad_norm" and worst.metric == "loss" and lead.first < worst.first:
        tags.add("grad-norm-first")
    if not all(math.isfinite(f.value) for f in incident.telling) and judge.one_process(findings):
        tags.add(ONE_PROCESS)
    if end.stays is not None:
        tags.add(STAYS + end.stays)
    return replace(incident, ending=end.ending, recovered=end.recovered, tags=tuple(sorted(tags)))


def _recurring(incidents: tuple[Incident, ...], near: Step) -> tuple[Incident, ...]:
    """Tag incidents that happened at the same step in several attempts."""
    grave: dict[str, list[tuple[Step, int]]] = {}
    for i in incidents:
        if i.severity != "notice":
            insort(grave.setdefault(i.family, []), (i.first, i.attempt))
    out = []
    for i in incidents:
        others = grave.get(i.family, [])
        low = bisect_left(others, (i.first - near // 2, -1))
        high = bisect_right(others, (i.first + near // 2, math.inf))
        again = any(attempt != i.attempt for _, attempt in others[low:high])
        tags = tuple(sorted({*i.tags, "recurs-at-same-step"})) if again else i.tags
        out.append(replace(i, tags=tags))
    return tuple(out)
