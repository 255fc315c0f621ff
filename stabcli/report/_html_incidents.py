"""Incidents in the HTML report: a line each, then one by one with evidence and ways out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stabcli.cost import Cost
from stabcli.diagnosis import Diagnosis
from stabcli.incidents import Incident, by_gravity
from stabcli.report import _words
from stabcli.report._html_charts import Mark
from stabcli.report._html_markup import Child, Markup, Row, el, join, table
from stabcli.rules import Finding
from stabcli.run import Run
from stabcli.units import number, span
from stabcli.verdicts import Verdict
from stabcli.ways import Plan

CARDS = 30
"""Incidents that are told one by one, the gravest."""
LISTED = 150
"""Incidents that have a line of their own and a mark in the charts."""
EVIDENCE = 8
"""Findings of one incident that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """An incident under the number it goes by in the page."""

    number: int
    """From 1, the gravest first."""
    anchor: str
    """Where it is told."""
    incident: Incident
    plans: tuple[Plan, ...]
    cost: Cost
    at_stake: Cost
    """What followed a warning that never recovered."""
    ignored: tuple[str, ...]
    """Why it, or some of it, does not count."""
    whole: bool
    """Whether all of it does not count."""

    @property
    def grave(self) -> bool:
        """Whether it is more than a notice."""
        return self.incident.severity != "notice"


def numbered(d: Diagnosis, verdict: Verdict | None, anchor: str) -> list[Numbered]:
    """Return every incident of a run, the gravest first."""
    costs = _padded(d.cost.incidents, len(d.incidents))
    stakes = _padded(d.cost.at_stake, len(d.incidents))
    place = {id(i): n for n, i in enumerate(d.incidents)}
    ignored = verdict.ignored if verdict else {}
    found = []
    for n, incident in enumerate(by_gravity(d.incidents), start=1):
        at = place[id(incident)]
        known = [ignored[f] for f in incident.findings if f in ignored]
        found.append(
            Numbered(
                number=n,
                anchor=f"{anchor}-i{n}",
                incident=incident,
                plans=d.plans[at],
                cost=costs[at],
                at_stake=stakes[at],
                ignored=tuple(dict.fromkeys(i.why for i in known)),
                whole=len(known) == len(incident.findings),
            )
        )
    return found


def _padded(costs: Sequence[Cost], length: int) -> list[Cost]:
    return [*costs, *[Cost()] * (length - len(costs))]


def marks(found: Sequence[Numbered]) -> list[Mark]:
    """Return what the charts mark: the incidents that have a line in the page."""
    return [
        Mark(
            number=n.number,
            anchor=n.anchor,
            rule=n.incident.rule,
            severity=n.incident.severity,
            attempt=n.incident.attempt,
            first=n.incident.first,
            last=n.incident.last,
            metrics=tuple(dict.fromkeys(f.metric for f in n.incident.findings)),
            tags=n.incident.tags,
        )
        for n in found[:LISTED]
    ]


def section(run: Run, found: Sequence[Numbered], anchor: str, known: Mapping[str, str]) -> Markup:
    """Tell the incidents of a run.

    Args:
        run: The run.
        found: Its incidents, the gravest first.
        anchor: Prefix of the section's names.
        known: Rule -> where the page explains it.
    """
    grave = [n for n in found if n.grave]
    notices = [n for n in found if not n.grave]
    listed = [n for n in grave if n.number <= LISTED]
    parts: list[Child] = [el("h3", "Incidents", id=f"{anchor}-incidents")]
    if not grave:
        parts.append(el("p", "Nothing above notice was found."))
    if len(listed) > 1:
        parts.append(_overview(run, listed))
    for n in listed:
        if n.number <= CARDS:
            parts.append(_card(run, n, anchor, known))
    parts += [_rest(grave[len(listed) :], "not listed here: --format json has all of them")]
    if notices:
        parts.append(_notices(run, notices, anchor, known))
    return join(*parts)


def _overview(run: Run, listed: Sequence[Numbered]) -> Markup:
    rows = []
    for n in listed:
        i, worst = n.incident, n.incident.worst
        target = n.anchor if n.number <= CARDS else None
        own = {} if target else {"id": n.anchor}
        where = el("a", i.rule, href=f"#{target}") if target else i.rule
        rows.append(
            Row(
                [
                    f"{n.number}",
                    badge(i.severity),
                    [where, _attempt(run, i)],
                    span(i.first, i.last),
                    f"{_words.short(run.word(worst.metric))} {_against(worst)}",
                    _words.ending(i) or "-",
                    _words.price(n.cost) or "-",
                ],
                own,
            )
        )
    head = ("no.", "severity", "rule", "when", "saw", "ending", "cost")
    return table("Incidents, the gravest first", head, rows, name=2)


def _against(f: Finding) -> str:
    return number(f.value) + ("" if f.expected is None else f", expected {number(f.expected)}")


def _attempt(run: Run, i: Incident) -> str | None:
    return f", attempt {i.attempt}" if len(run.attempts) > 1 else None


def badge(severity: str) -> Markup:
    """Return a severity as a word on its colour."""
    return el("span", severity, class_=f"badge {severity}")


def _card(run: Run, n: Numbered, anchor: str, known: Mapping[str, str]) -> Markup:
    i = n.incident
    told = [p for p in (_words.lead(run, i), *_words.tags(i), _words.ending(i)) if p]
    said = "; ".join([_words.measured(run, i.worst), *told]) + "."
    cost = _words.price(n.cost)
    stake = _words.price(n.at_stake)
    return el(
        "article",
        el(
            "h4",
            el("span", f"{n.number}", class_="number"),
            badge(i.severity),
            f" {i.rule} ",
            el("span", span(i.first, i.last), _attempt(run, i), class_="where"),
        ),
        el(
            "p",
            said,
            f" Cost: {cost}." if cost else None,
            f" What followed it and never recovered: {stake}." if stake else None,
        ),
        _does_not_count(n),
        _ways(n),
        _evidence(run, i),
        el(
            "p",
            el("a", "Show in the charts", href=f"#{anchor}-charts", data_show=n.number),
            [" · ", _about(i.rule, known)] if i.rule in known else None,
            class_="links",
        ),
        class_=f"incident {i.severity}",
        id=n.anchor,
        tabindex="-1",
    )


def _about(rule: str, known: Mapping[str, str]) -> Markup:
    return el("a", f"About {rule}", href=f"#{known[rule]}")


def _does_not_count(n: Numbered) -> Markup | None:
    if not n.ignored:
        return None
    what = "Does not count" if n.whole else "Part of it does not count"
    return el("p", f"{what}: {'; '.join(n.ignored)}.", class_="remark")


def _ways(n: Numbered) -> Markup | None:
    """Tell the ways to recover, the recommended one first, each with lines to copy."""
    if not n.plans:
        return None
    items = []
    for index, plan in enumerate(n.plans):
        redo = _words.price(plan.redo)
        where = f"{n.anchor}-p{index + 1}"
        items.append(
            el(
                "li",
                el("b", "To do: " if index == 0 else "Or: "),
                el("span", plan.text, id=where),
                f" To train again: {redo}." if redo else None,
                None if plan.recipe else el("span", class_="copy", data_copy=where),
                el("p", f"Why: {plan.why}.", class_="remark") if plan.why else None,
                _recipe(plan.recipe, f"{where}-recipe") if plan.recipe else None,
            )
        )
    return el("ul", *items, class_="ways")


def _recipe(lines: Sequence[str], where: str) -> Markup:
    code: list[Child] = []
    for line in lines:
        code += [line, Markup("\n")]
    return el(
        "div", el("pre", el("code", code[:-1], id=where)), class_="recipe copy", data_copy=where
    )


def _evidence(run: Run, i: Incident) -> Markup:
    several = len(run.attempts) > 1
    rows = []
    for f in i.findings[:EVIDENCE]:
        place = f"line {f.line:,}" if f.line is not None else "-"
        if f.file:
            place = f"{_words.short(f.file)}:{f.line}" if f.line is not None else f.file
        rows.append(
            Row(
                [
                    f.rule,
                    badge(f.severity),
                    _words.short(run.word(f.metric)),
                    span(f.first, f.last) + f", attempt {f.attempt}" * several,
                    f"{number(f.value)} at {f.peak:,}",
                    "-" if f.expected is None else number(f.expected),
                    "-" if f.score is None else number(f.score, 3),
                    place,
                ]
            )
        )
    head = ("rule", "severity", "metric", "when", "value at step", "expected", "score", "where")
    count = len(i.findings)
    more = f", the first {EVIDENCE} of {count:,}" if count > EVIDENCE else ""
    caption = f"Evidence, in the order things moved{more}; a score of 1 is the rule's threshold"
    return table(caption, head, rows)


def _rest(left: Sequence[Numbered], why: str) -> Markup | None:
    """Count what has no line of its own, by rule."""
    if not left:
        return None
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for n in left:
        alike[n.incident.severity, n.incident.rule].append(n.incident.first)
    items = [
        el("li", badge(severity), f" {len(at):,} × {rule}, steps {_words.places(sorted(at))}")
        for (severity, rule), at in alike.items()
    ]
    return join(el("p", f"{len(left):,} more, {why}:"), el("ul", *items))


def _notices(
    run: Run, notices: Sequence[Numbered], anchor: str, known: Mapping[str, str]
) -> Markup:
    listed = [n for n in notices if n.number <= LISTED]
    rows = []
    for n in listed:
        i, worst = n.incident, n.incident.worst
        share = next((t.removeprefix("share-") for t in i.tags if t.startswith("share-")), None)
        name = el("a", i.rule, href=f"#{known[i.rule]}") if i.rule in known else i.rule
        rows.append(
            Row(
                [
                    f"{n.number}",
                    [name, _attempt(run, i)],
                    f"{share} of the rows" if share else span(i.first, i.last),
                    _words.measured(run, worst),
                    _words.ending(i) or "-",
                ],
                {"id": n.anchor, "tabindex": "-1"},
            )
        )
    head = ("no.", "rule", "when", "saw", "ending")
    return el(
        "details",
        el("summary", _words.plural(len(notices), "notice"), ": worth knowing, no harm seen"),
        table("Notices", head, rows, name=1) if rows else None,
        _rest(notices[len(listed) :], "not listed here: --format json has all of them"),
        id=f"{anchor}-notices",
    )
