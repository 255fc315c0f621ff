"""Tables of a bill: by class, by incident, by run. What all formats of ``cost-report`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from stabcli.bill import Bill
from stabcli.cost import MEANING, Cost
from stabcli.report import _words
from stabcli.units import span

By = Literal["class", "incident", "run"]
BYS: tuple[By, ...] = get_args(By)
"""What a line of the table is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table."""

    run: str
    """Name of the run; empty in the total of several."""
    name: str
    """The class, the incident, or what else the line is about."""
    cost: Cost
    share: float | None
    """Share of the run's GPU time, or of its tokens where that is unknown."""
    remark: str = ""
    """What a person should know of the line."""


def lines(bills: Sequence[Bill], by: By) -> list[Line]:
    """Return the table that was asked for, with a total at the end."""
    return [line for b in bills for line in _MAKERS[by](b)] + (
        [_total(bills)] if by == "run" and len(bills) > 1 else []
    )


def _classes(b: Bill) -> list[Line]:
    report, name = b.diagnosis.cost, b.diagnosis.run.name
    found = [
        Line(run=name, name=c, cost=cost, share=_share(cost, report.all), remark=MEANING[c])
        for c, cost in report.classes
    ]
    return [*found, Line(run=name, name="all", cost=report.all, share=1.0)]


def _incidents(b: Bill) -> list[Line]:
    d = b.diagnosis
    found = []
    for index, (incident, cost) in enumerate(zip(d.incidents, d.cost.incidents, strict=True)):
        if incident.severity == "notice" or (
            not d.plans[index] and not cost.steps and not cost.gpu_hours
        ):
            continue
        where = span(incident.first, incident.last)
        attempt = f" (attempt {incident.attempt})" if len(d.run.attempts) > 1 else ""
        found.append(
            Line(
                run=d.run.name,
                name=f"{incident.rule}, {where}{attempt}",
                cost=cost,
                share=_share(cost, d.cost.all),
                remark="; ".join([p for p in [_words.ending(incident)] if p] + voids(b, index)),
            )
        )
    return [*found, Line(run=d.run.name, name="wasted", cost=d.cost.total, share=_wasted(b))]


def voids(b: Bill, index: int) -> list[str]:
    """Say what an incident costs in all where its steps are void and the stretch is run again."""
    ways, cost = b.diagnosis.plans[index], b.diagnosis.cost.incidents[index]
    if not ways or not ways[0].redo.steps or not cost.steps:
        return []
    redo = ways[0].redo
    both = Cost(
        steps=cost.steps + redo.steps,
        tokens=_both(cost.tokens, redo.tokens),
        gpu_hours=_both(cost.gpu_hours, redo.gpu_hours),
        usd=_both(cost.usd, redo.usd),
    )
    void, again, all_of_it = (_words.price(c) for c in (cost, redo, both))
    return [f"{void} are void, {again} to train again: {all_of_it} in all"]


def _both(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _runs(b: Bill) -> list[Line]:
    d = b.diagnosis
    goodput = d.cost.goodput
    return [
        Line(
            run=d.run.name,
            name="wasted",
            cost=d.cost.total,
            share=None if goodput is None else 1 - goodput,
            remark=f"of {_words.price(d.cost.all)}",
        )
    ]


def _total(bills: Sequence[Bill]) -> Line:
    """Add up several runs; unknown where one of them is."""
    wasted = _sum([b.diagnosis.cost.total for b in bills])
    everything = _sum([b.diagnosis.cost.all for b in bills])
    return Line(
        run="",
        name="all runs",
        cost=wasted,
        share=_share(wasted, everything),
        remark=f"of {_words.price(everything)}",
    )


def _sum(costs: Sequence[Cost]) -> Cost:
    def add(values: Sequence[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) if len(known) == len(values) else None

    return Cost(
        steps=sum(c.steps for c in costs),
        tokens=add([c.tokens for c in costs]),
        gpu_hours=add([c.gpu_hours for c in costs]),
        usd=add([c.usd for c in costs]),
    )


def _wasted(b: Bill) -> float | None:
    goodput = b.diagnosis.cost.goodput
    return None if goodput is None else 1 - goodput


def _share(part: Cost, whole: Cost) -> float | None:
    """Return the share of the GPU time, or else of the tokens, or else of the steps."""
    pairs = (
        (part.gpu_hours, whole.gpu_hours),
        (part.tokens, whole.tokens),
        (float(part.steps), float(whole.steps)),
    )
    for a, b in pairs:
        if a is not None and b:
            return a / b
    return None


_MAKERS: Final[dict[By, Callable[[Bill], list[Line]]]] = {
    "class": _classes,
    "incident": _incidents,
    "run": _runs,
}
