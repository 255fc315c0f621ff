"""Policy: what an automatic stop, or more checkpoints, would have made of the same log.

A stop condition is a rule, run again and again over the log as it grew: it trips at the row with
which it first objects, not at the row it blames in hindsight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from stabcli.attempts import mark_discarded
from stabcli.cost import Cost, CostReport, cost_of_rows
from stabcli.damage import Damages, onset
from stabcli.errors import SettingError
from stabcli.incidents import Incident
from stabcli.ledger import ledger
from stabcli.rollback import Rollback
from stabcli.rules import SEVERITIES, CannotLook, Finding, Rule, Severity, run_rules, select
from stabcli.run import Run
from stabcli.units import Step, quantity

REPLAYED = 20
"""Findings of a rule that are replayed; of the rest the first row is taken as the stop."""

Kind = Literal["roll-back", "stop", "look"]
"""What happens at a trip: back to the last checkpoint; the end of the run; somebody looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When to stop, and how often to save."""

    name: str
    """As the user wrote it, or the name of a circuit breaker."""
    checkpoint_every: Step | None
    """Steps between checkpoints; None for those the run had."""
    stop_on: tuple[str, ...]
    """Names of the rules that stop the run; none means that nobody stops it."""
    delay: Step = 0
    """Steps from a trip to the stop."""
    kind: Kind = "roll-back"
    action: str = "stop and roll back"
    """What is done at a trip, for a person."""
    least: Severity = "error"
    """Least severity of a finding that trips."""


BREAKERS: Final = (
    Policy(
        name="loss is NaN",
        checkpoint_every=None,
        stop_on=("seed-nonfinite",),
        action="stop, roll back to the last stable checkpoint",
        least="notice",
    ),
    Policy(
        name="grad norm > 10 for 3 steps",
        checkpoint_every=None,
        stop_on=("seed-grad-norm-run",),
        action="learning rate x 0.5, skip the shard",
        least="notice",
    ),
    Policy(
        name="tokens/s down 30 %",
        checkpoint_every=None,
        stop_on=("seed-throughput-drop",),
        kind="look",
        action="look at checkpoint writing and the network",
        least="notice",
    ),
    Policy(
        name="validation perplexity +15 %",
        checkpoint_every=None,
        stop_on=("seed-perplexity-jump",),
        action="pause, check the shard for contamination",
        least="notice",
    ),
    Policy(
        name="entropy < 1.0, reward rising",
        checkpoint_every=None,
        stop_on=("seed-entropy-collapse",),
        kind="stop",
        action="stop early, change the KL coefficient",
        least="notice",
    ),
)
"""The field's circuit breakers, to the letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """One time that a stop condition would have fired."""

    attempt: int
    step: Step
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """One incident under a policy."""

    incident: int
    """Its index."""
    trip: Trip | None
    """What would have stopped it; None where nothing would have."""
    actual: Cost
    """What it threw away as it was."""
    at_most: Cost | None
    """What it could have cost under the policy, wherever it had struck; None where unbounded."""
    here: Cost | None
    """What it would have cost where it struck: back to the checkpoint before its onset."""
    saved: Cost | None
    """``actual`` less ``at_most``; negative where the stop costs more than the incident did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A policy replayed over a run."""

    policy: Policy
    trips: tuple[Trip, ...]
    """Every trip."""
    needless: tuple[Trip, ...]
    """Trips at which no work was being lost: stops of a healthy run."""
    incidents: tuple[Bounded, ...]
    """The incidents that cost work."""
    actual: Cost
    """What those threw away, each step once."""
    at_most: Cost | None
    """What they would have cost at most under the policy; None where one is unbounded."""
    saved: Cost | None
    """The difference."""
    after_first: Cost | None = None
    """All that came after the first trip of each attempt, whether or not it was wasted."""
    why_not: str = ""
    """Why a rule of the policy could not look, where it could not."""


def parse(text: str) -> Policy:
    """Read a policy as the user types it: ``checkpoint-every=2000,stop-on=nonfinite+loss-spike``.

    Raises:
        SettingError: A key or a rule is unknown, or a number is none.
    """
    flag = f"--what-if {text}"
    every: Step | None = None
    stop_on: tuple[str, ...] = ()
    delay = 0
    for part in text.split(","):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not equals or not value:
            raise SettingError(f"{flag}: {part!r} has no value: write checkpoint-every=2000")
        if key == "stop-on":
            stop_on += tuple(name.strip() for name in value.split("+"))
        elif key in ("checkpoint-every", "delay"):
            try:
                number = 0 if key == "delay" and value == "0" else int(quantity(value))
            except ValueError:
                raise SettingError(
                    f"{flag}: {key} takes a number of steps, not {value!r}"
                ) from None
            every, delay = (number, delay) if key == "checkpoint-every" else (every, number)
        else:
            raise SettingError(
                f"{flag}: no such key as {key!r}: one of checkpoint-every, stop-on, delay"
            )
    if stop_on:
        try:
            select((), stop_on)
        except SettingError as error:
            raise SettingError(f"{flag}: {str(error).partition(': ')[2]}") from None
    return Policy(name=text, checkpoint_every=every, stop_on=stop_on, delay=delay)


def replay(
    run: Run, incidents: Sequence[Incident], cost: CostReport, policies: Sequence[Policy]
) -> tuple[Outcome, ...]:
    """Say of each policy what it would have made of the run."""
    book = ledger(run)
    view = Rollback(run, incidents, book)
    return tuple(_replay(view, incidents, cost, policy) for policy in policies)


def _replay(
    view: Rollback, incidents: Sequence[Incident], cost: CostReport, policy: Policy
) -> Outcome:
    run = view.run
    trips: list[Trip] = []
    blind: list[str] = []
    for rule in select((), policy.stop_on) if policy.stop_on else []:
        try:
            trips += _trips(run, rule, policy.least)
        except CannotLook as why:
            blind.append(f"{rule.name}: {why}")
    trips.sort(key=lambda t: (t.attempt, t.step, t.rule))
    needed: set[Trip] = set()
    bounded: list[Bounded] = []
    hurt = np.zeros(run.frame.height, bool)
    damages = Damages(run)
    for index, incident in enumerate(incidents):
        damage = damages.of(incident)
        if damage is None or not damage.thrown_away or incident.family == "restarts":
            continue
        for stretch in damage.thrown_away:
            hurt[stretch] = True
        last = max(int(view.steps[stretch].max()) for stretch in damage.thrown_away)
        own = [t for t in trips if t.attempt == incident.attempt]
        inside = [t for t in own if incident.first <= t.step <= last]
        needed.update(inside)
        bounded.append(
            _bounded(view, incident, index, cost.incidents[index], inside, policy, damage.rows)
        )
    actual = cost_of_rows(view.book, hurt)
    at_most = _in_all(view, bounded)
    return Outcome(
        policy=policy,
        trips=tuple(trips),
        needless=tuple(t for t in trips if t not in needed),
        incidents=tuple(bounded),
        actual=_priced(view, actual),
        at_most=at_most,
        saved=None if at_most is None else _less(_priced(view, actual), at_most),
        after_first=_priced(view, cost_of_rows(view.book, _after_first(view, trips)))
        if trips
        else None,
        why_not="; ".join(blind),
    )


def _in_all(view: Rollback, bounded: Sequence[Bounded]) -> Cost | None:
    """Add up incidents under a policy; one that nothing stops costs what it did."""
    each = [b.actual if b.trip is None else b.at_most for b in bounded]
    known = [c for c in each if c is not None]
    if len(known) < len(each):
        return None
    book = view.book
    return _priced(
        view,
        Cost(
            steps=sum(c.steps for c in known),
            tokens=None if book.tokens is None else sum(c.tokens or 0.0 for c in known),
            gpu_hours=None if book.gpu_seconds is None else sum(c.gpu_hours or 0.0 for c in known),
        ),
    )


def _after_first(view: Rollback, trips: Sequence[Trip]) -> np.ndarray:
    """Mark the rows after the first trip of each attempt."""
    rows = np.zeros(len(view.steps), bool)
    for attempt in {t.attempt for t in trips}:
        first = min(t.step for t in trips if t.attempt == attempt)
        rows |= (view.attempts == attempt) & (view.steps > first)
    return rows


def _bounded(
    view: Rollback,
    incident: Incident,
    index: int,
    actual: Cost,
    trips: Sequence[Trip],
    policy: Policy,
    rows: slice,
) -> Bounded:
    """Say what a policy would have made of one incident."""
    trip = trips[0] if trips else None
    start = onset(incident)
    at_most: Cost | None = None
    here: Cost | None = None
    every = policy.checkpoint_every or _every(view)
    if trip is not None and policy.kind == "stop":
        until = np.zeros(len(view.steps), bool)
        until[rows] = view.steps[rows] <= trip.step + policy.delay
        at_most = here = _priced(view, cost_of_rows(view.book, until))
    elif trip is not None and policy.kind == "roll-back" and every is not None:
        late = max(0, trip.step + policy.delay - start)
        at_most = view.price_of(every + late)
        here = view.price_of(min(start, 1 + (start - 1) % every) + late)
    return Bounded(
        incident=index,
        trip=trip,
        actual=actual,
        at_most=at_most,
        here=here,
        saved=None if at_most is None else _less(actual, at_most),
    )


def _every(view: Rollback) -> Step | None:
    """Return the steps between the checkpoints that the run itself saved."""
    if view.saved is None or not len(view.saved):
        return None
    return int(np.median(np.diff(view.saved))) if len(view.saved) > 1 else int(view.saved[0])


def _priced(view: Rollback, cost: Cost) -> Cost:
    price = view.run.fact("gpu_price")
    if price is None or cost.gpu_hours is None:
        return cost
    return replace(cost, usd=cost.gpu_hours * price)


def _less(a: Cost, b: Cost) -> Cost:
    """Return ``a`` less ``b``, unknown where either is."""

    def gap(x: float | None, y: float | None) -> float | None:
        return None if x is None or y is None else x - y

    return Cost(
        steps=a.steps - b.steps,
        tokens=gap(a.tokens, b.tokens),
        gpu_hours=gap(a.gpu_hours, b.gpu_hours),
        usd=gap(a.usd, b.usd),
    )


def _trips(run: Run, rule: Rule, least: Severity) -> list[Trip]:
    """Return where a rule would have tripped while the log grew.

    Raises:
        CannotLook: The run lacks what the rule needs.
    """
    findings, skipped = run_rules(run, [rule])
    if skipped:
        raise CannotLook(skipped[0].why)
    grave = [f for f in findings if _as_bad(f, least)]
    grave.sort(key=lambda f: (f.attempt, f.first))
    return [
        Trip(
            attempt=f.attempt,
            step=_first_seen(run, rule, f, least) if index < REPLAYED else f.first,
            rule=rule.name,
        )
        for index, f in enumerate(grave)
    ]


def _as_bad(f: Finding, least: Severity) -> bool:
    return SEVERITIES.index(f.severity) >= SEVERITIES.index(least)


def _first_seen(run: Run, rule: Rule, f: Finding, least: Severity) -> Step:
    """Return the step of the row with which a rule first objects to a stretch of rows."""
    step = run.frame["step"].to_numpy()
    attempt = run.frame["attempt"].to_numpy()
    here = np.flatnonzero(attempt == f.attempt)
    low = int(here[np.searchsorted(step[here], f.first)])
    high = int(here[-1])

    def objects(rows: int) -> bool:
        grown = replace(run, frame=mark_discarded(run.frame.head(rows)))
        found, _ = run_rules(grown, [rule])
        return any(
            g.attempt == f.attempt and g.last >= f.first and g.first <= f.last and _as_bad(g, least)
            for g in found
        )

    while low < high:
        middle = (low + high) // 2
        if objects(middle + 1):
            high = middle
        else:
            low = middle + 1
    return int(step[low])
