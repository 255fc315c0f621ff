"""Line-up: what several presets say of one run, event by event, and who says it first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stabcli.incidents import NEAR_ROWS, NEAR_STEPS, family
from stabcli.presets import PRESETS
from stabcli.rules import SEVERITIES, STATISTIC, Finding, Rule, Skipped, run_rules, select
from stabcli.run import Run
from stabcli.units import Step

EARLY = 0.05
"""Share of the run within which a finding that is no event begins."""
MOST = 0.5
"""Share of the run that such a finding covers."""
REACH = 0.25
"""Share of the run after its first step up to which what others find is the same event."""
_KINDS = {
    "loss": "numerics",
    "grad_norm": "numerics",
    "val_loss": "validation",
    "val_perplexity": "validation",
    "tokens_per_second": "speed",
    "step_seconds": "speed",
    "mfu": "speed",
    "learning_rate": "schedule",
}
"""Metrics that a rule may need -> the kind of event that it can see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """What one preset says of one event."""

    preset: str
    finding: Finding
    """Its first finding of the event."""
    late: Step
    """Steps between the first that anybody said of it and this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Findings of one kind that belong together, whoever made them."""

    kind: str
    """``numerics``, ``speed``, ``validation`` and so on."""
    attempt: int
    first: Step
    last: Step
    """Last step of the finding that reaches farthest."""
    voices: tuple[Voice, ...]
    """In the order in which they spoke."""
    silent: tuple[str, ...]
    """Presets that look at such things and said nothing."""

    @property
    def severity(self) -> str:
        """The gravest that anybody takes it for."""
        return max((v.finding.severity for v in self.voices), key=SEVERITIES.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineup:
    """A run under several presets."""

    run: Run
    presets: tuple[str, ...]
    """Those that could look, in the order asked for."""
    events: tuple[Event, ...]
    """By attempt and first step; made of findings of warning or worse."""
    throughout: tuple[tuple[str, Finding], ...]
    """Findings that begin with the run and cover most of it, which are no event."""
    statistics: tuple[tuple[str, Finding], ...]
    """What describes the whole run: the share of its rows that a clip would have touched."""
    notices: Mapping[str, int]
    """Preset -> its notices, which make no event."""
    skipped: Mapping[str, tuple[Skipped, ...]]
    """Preset -> those of its rules that could not look."""
    blind: tuple[str, ...]
    """Presets none of whose rules could look."""


def line_up(
    run: Run,
    presets: Sequence[str] = (),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Lineup:
    """Run every preset over a run, and put what they find side by side.

    Args:
        run: The run.
        presets: The presets; all there are where none is named.
        settings: Rule name -> setting -> value, where it is not the default.

    Raises:
        SettingError: A preset or setting does not exist.
    """
    asked = tuple(dict.fromkeys(presets or PRESETS))
    found: list[tuple[str, Finding]] = []
    skipped: dict[str, tuple[Skipped, ...]] = {}
    sees: dict[str, set[str]] = {}
    blind: list[str] = []
    for preset in asked:
        chosen = select((preset,), ())
        with np.errstate(all="ignore"):
            findings, left = run_rules(run, chosen, settings)
        skipped[preset] = tuple(left)
        looked = [r for r in chosen if r.name not in {s.rule for s in left}]
        if not looked:
            blind.append(preset)
            continue
        sees[preset] = _sees(looked) | {family(f) for f in findings if STATISTIC not in f.tags}
        found += [(preset, f) for f in findings]
    statistics = [g for g in found if STATISTIC in g[1].tags]
    found = [g for g in found if STATISTIC not in g[1].tags]
    grave = [(p, f) for p, f in found if f.severity != "notice"]
    steps = run.frame["step"].to_numpy()
    start, span = int(steps.min()), max(1, int(steps.max() - steps.min()))
    throughout = [
        (p, f)
        for p, f in grave
        if f.first <= start + EARLY * span and f.last - f.first >= MOST * span
    ]
    near = max(NEAR_STEPS, NEAR_ROWS * (run.log_interval or 1))
    events = _events([g for g in grave if g not in throughout], near, int(REACH * span))
    return Lineup(
        run=run,
        presets=tuple(p for p in asked if p not in blind),
        events=tuple(_event(e, sees) for e in events),
        throughout=tuple(throughout),
        statistics=tuple(statistics),
        notices={p: sum(q == p and f.severity == "notice" for q, f in found) for p in sees},
        skipped=skipped,
        blind=tuple(blind),
    )


def _sees(looked: Sequence[Rule]) -> set[str]:
    """Return the kinds of events that rules look for, by what they need."""
    return {_KINDS[m] for r in looked if r.judges for m in r.needs if m in _KINDS}


def _events(
    found: list[tuple[str, Finding]], near: Step, reach: Step
) -> list[list[tuple[str, Finding]]]:
    """Put findings of one kind and attempt together that begin within the first one's reach."""
    events: list[list[tuple[str, Finding]]] = []
    open_: dict[tuple[int, str], tuple[list[tuple[str, Finding]], Step]] = {}
    for preset, f in sorted(found, key=lambda g: (g[1].attempt, g[1].first)):
        key = f.attempt, family(f)
        if key in open_ and f.first <= open_[key][1] + near:
            event, end = open_[key]
            event.append((preset, f))
        else:
            event, end = [(preset, f)], f.first
            events.append(event)
        open_[key] = event, max(end, min(f.last, event[0][1].first + reach))
    return events


def _event(found: list[tuple[str, Finding]], sees: Mapping[str, set[str]]) -> Event:
    first = found[0][1]
    kind = family(first)
    voices: dict[str, Voice] = {}
    for preset, f in found:
        voices.setdefault(preset, Voice(preset=preset, finding=f, late=f.first - first.first))
    return Event(
        kind=kind,
        attempt=first.attempt,
        first=first.first,
        last=max(f.last for _, f in found),
        voices=tuple(voices.values()),
        silent=tuple(p for p, kinds in sees.items() if kind in kinds and p not in voices),
    )
