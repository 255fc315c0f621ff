"""Report ``console``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from rich.text import Text

from stabcli.diagnosis import Diagnosis
from stabcli.evidence import Cause
from stabcli.incidents import Incident, by_gravity
from stabcli.report import Outcome, Screen, _sections, _words, report
from stabcli.report._page import STYLES, Page
from stabcli.report.chart import picture
from stabcli.report.verdict import verdict
from stabcli.rules import SEVERITIES
from stabcli.run import Run
from stabcli.units import printable, span

ALONE = 5
"""Incidents of one rule and severity that get a line each; the rest share one."""
OTHERS = 4
"""Other rules or columns of an incident that are named beside its gravest."""
CAUSES = 3
"""Causes of an incident that are named."""
COMPACT = 3
"""With more runs than this a healthy one gets a single line, and none a picture."""


@report
def console(outcome: Outcome, screen: Screen) -> str:
    """One screen for a person: the truth first, then the cost, then what to do."""
    page = Page(screen)
    several = len(outcome.diagnoses) > 1
    for index, diagnosis in enumerate(outcome.diagnoses):
        if len(outcome.diagnoses) > COMPACT and not diagnosis.cannot_judge and _healthy(diagnosis):
            page.line(_verdict(diagnosis))
            continue
        if index:
            page.line("")
        _tell(page, diagnosis, pictures=len(outcome.diagnoses) <= COMPACT)
    if several:
        page.line("")
        page.line(_summary(outcome))
    if outcome.verdicts:
        page.line("")
        page.line(Text(verdict(outcome, screen).rstrip("\n")))
        return page.text()
    for line in _words.few(outcome.left_out):
        page.line(Text(printable(line), style="dim"))
    return page.text()


def _tell(page: Page, d: Diagnosis, *, pictures: bool) -> None:
    run = d.run
    page.line(Text(_words.short(run.source, page.screen.width), style="bold"))
    page.entries(_sections.what_was_read(run))
    page.line("")
    page.line(_verdict(d))
    grave = [i for i in d.incidents if i.severity != "notice"]
    page.entries(_incidents(d, grave))
    if grave and pictures:
        _draw(page, d, grave)
    for section in (_sections.what_to_do, _sections.bill, _sections.what_else):
        rows = section(d, grave)
        if rows and grave:
            page.line("")
        page.entries(rows)


def _healthy(d: Diagnosis) -> bool:
    return d.worst in (None, "notice")


def _verdict(d: Diagnosis) -> Text:
    name = _words.short(d.run.name)
    looked = _words.plural(len(d.checked), "rule")
    blind = f", {len(d.skipped)} could not look" if d.skipped else ""
    if d.cannot_judge:
        return Text(f"CANNOT JUDGE  {name}: {d.cannot_judge}", style="bold red")
    if _healthy(d):
        text = Text("fine", style="bold green")
        notices = len(d.incidents)
        found = (
            f"nothing above notice ({_words.plural(notices, 'notice')})" if notices else "nothing"
        )
        told = _words.troubles(d.run)
        said = f"  {name}: {found} found by {looked}{blind}{told}"
        return text.append(said, style="not bold default")
    counts = [
        _words.plural(n, severity) if severity != "critical" else f"{n:,} critical"
        for severity in reversed(SEVERITIES)
        if severity != "notice" and (n := sum(i.severity == severity for i in d.incidents))
    ]
    worst = by_gravity(d.incidents)[0]
    text = Text(f"{worst.severity.upper()}  ", style=STYLES[worst.severity])
    end = _words.ending(worst)
    said = f"{name}: {worst.rule} at step {worst.worst.first:,}" + (f", {end}" if end else "")
    if len([i for i in d.incidents if i.severity != "notice"]) > 1:
        said += f"; {', '.join(counts)} in all"
    return text.append(said, style="not bold default")


def _incidents(d: Diagnosis, grave: list[Incident]) -> list[tuple[Text, Text]]:
    """Return a line an incident, and one for those of a rule that are too many."""
    alike: dict[tuple[str, str], list[Incident]] = defaultdict(list)
    for i in by_gravity(grave):
        alike[i.severity, i.rule].append(i)
    rows = []
    costs = {id(i): _words.price(c) for i, c in zip(d.incidents, d.cost.incidents, strict=False)}
    causes = {id(i): c for i, c in zip(d.incidents, d.causes, strict=False)}
    for (severity, rule), members in alike.items():
        few = len(members) <= ALONE
        shown = (
            members
            if few
            else sorted(members, key=lambda i: (i.gravity, i.worst.score or 0.0), reverse=True)[
                : ALONE - 2
            ]
        )
        shown = sorted(shown, key=lambda i: (i.attempt, i.first))
        for i in shown:
            label = Text(severity, style=STYLES[severity])
            rows.append((label, _incident(d.run, i, costs.get(id(i), ""))))
            if told := _causes(causes.get(id(i), ())):
                rows.append((Text("cause"), Text(told)))
        if not few:
            rest = [i for i in members if not any(i is s for s in shown)]
            at = _words.places([i.first for i in rest])
            said = f"{len(rest)} more × {rule}, steps {at}"
            rows.append((Text(severity, style=STYLES[severity]), Text(said)))
    return rows


def _causes(causes: Sequence[Cause]) -> str:
    """Name the surest causes of an incident, why the first, and how sure each is."""
    if not causes:
        return ""
    first, *rest = causes[:CAUSES]
    said = f"{first.name.replace('-', ' ')} ({first.standing}: {first.why})"
    return "; ".join([said, *(f"{c.name.replace('-', ' ')} ({c.standing})" for c in rest)])


def _incident(run: Run, i: Incident, cost: str) -> Text:
    attempt = f", attempt {i.attempt}" if len(run.attempts) > 1 else ""
    text = Text(f"{span(i.first, i.last)}{attempt}  ", style="bold")
    parts = [f"{i.rule}: {_words.measured(run, i.worst)}"]
    others: dict[str, int] = {}
    for f in i.findings:
        if f.severity == "notice" or (f.rule, f.metric) == (i.rule, i.worst.metric):
            continue
        others.setdefault(f.rule if f.rule != i.rule else _words.short(run.word(f.metric)), f.first)
    also = [f"{name} ({span(first, first)})" for name, first in others.items()]
    if len(also) > OTHERS:
        also = [*also[:OTHERS], f"{len(also) - OTHERS} more"]
    parts += [p for p in (_words.lead(run, i), *_words.tags(i), _words.ending(i)) if p]
    if cost:
        parts.append(f"cost {cost}")
    if also:
        parts.append(f"also {', '.join(also)}")
    return text.append("; ".join(parts), style="not bold")


def _draw(page: Page, d: Diagnosis, grave: list[Incident]) -> None:
    """Draw what the worst incident is about, and what led it; in numerics always the loss."""
    run = d.run
    first = by_gravity(grave)[0]
    wanted = [first.worst.metric, first.lead.metric]
    if first.family == "numerics":
        wanted = ["loss", "objective_loss", first.lead.metric, first.worst.metric]
    measured = set(run.measurements)
    drawn = [m for m in dict.fromkeys(wanted) if m in measured and run.has(m)]
    for metric in drawn[:2]:
        rows = np.flatnonzero(run.logged(metric))
        image = picture(
            run.frame["step"].to_numpy()[rows],
            run.array(metric)[rows],
            run.frame["attempt"].to_numpy()[rows],
            incidents=[i.first for i in grave],
            width=page.screen.width - 1,
            height=10 if len(drawn) == 1 else 7,
            ascii_only=page.screen.ascii_only,
        )
        if image is None:
            continue
        remark = f"  ({image.remark})" if image.remark else ""
        page.line("")
        page.line(Text(f"{_words.short(run.word(metric))}{remark}", style="dim"))
        for line in image.lines:
            page.line(Text(line, no_wrap=True))
        if image.marks:
            page.line(Text(image.marks, no_wrap=True, style="red"))


def _summary(outcome: Outcome) -> Text:
    """Count the runs by the worst that was found in them."""
    counts = []
    for severity in reversed(SEVERITIES):
        n = sum(d.worst == severity for d in outcome.diagnoses)
        if n and severity != "notice":
            counts.append(f"{n} {severity}")
    fine = sum(_healthy(d) and not d.cannot_judge for d in outcome.diagnoses)
    blind = sum(bool(d.cannot_judge) for d in outcome.diagnoses)
    if fine:
        counts.append(f"{fine} fine")
    if blind:
        counts.append(f"{blind} could not be judged")
    return Text(
        f"{_words.plural(len(outcome.diagnoses), 'run')}: {', '.join(counts)}", style="bold"
    )
