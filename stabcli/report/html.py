"""Report ``html``: one page that holds everything it needs and asks nobody for more."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from stabcli import __version__
from stabcli.diagnosis import Diagnosis
from stabcli.report import (
    Outcome,
    Screen,
    _html_budget,
    _html_charts,
    _html_cost,
    _html_incidents,
    _html_sections,
    _words,
    report,
)
from stabcli.report._html_charts import Chart, Mark
from stabcli.report._html_incidents import Numbered
from stabcli.report._html_markup import Child, Markup, el, embedded, join
from stabcli.run import Run
from stabcli.verdicts import Verdict

GENERATOR = '<meta name="generator" content="stabcli'
"""What stands in every page, and in no other program's."""
STILL = (
    "Scripts are off: the charts are still pictures of at most"
    f" {_html_charts.STILL_POINTS:,} points; every minimum and maximum is kept."
)
"""What a page says where its script does not run."""
COMPACT = 3
"""With more runs than this the healthy ones are folded."""


@report(mark=GENERATOR)
def html(outcome: Outcome, screen: Screen) -> str:
    """A page to keep and to forward: charts to zoom into, incidents, plans, costs and grounds.

    It needs no network and runs nothing but its own script, which it names by its hash.
    Without scripts it is tables and still pictures.
    """
    del screen
    found = outcome.diagnoses
    known = {name: _html_sections.explained(name) for name in _html_sections.rules_found(found)}
    told = [
        _told(d, outcome.verdicts[index] if outcome.verdicts else None, f"r{index + 1}", known)
        for index, d in enumerate(found)
    ]
    about = _html_sections.about(list(known))
    size = sum(len(t.head) + len(t.body) for t in told) + len(about or "")
    points = _shared(found, _html_budget.room(size, max(1, len(found))))
    sections, data = [], []
    for t, most in zip(told, points, strict=True):
        charts, left = _html_charts.of_run(
            t.diagnosis.run, t.marks, anchor=f"{t.anchor}-c", points=most
        )
        sections.append(_run(t, _charts(charts, left, t.anchor), folded=len(found) > COMPACT))
        data.append(_html_charts.run_data(t.diagnosis.run, t.marks, charts, t.anchor))
    main = el("main", _overview(outcome), sections, about, id="content", tabindex="-1")
    return _page(_title(found), main, embedded({"runs": data}))


def _shared(found: Sequence[Diagnosis], points: Sequence[int]) -> list[int]:
    """Share points among runs; where they do not do for all, the healthy ones go without."""
    order = sorted(range(len(found)), key=lambda i: (_healthy(found[i]), i))
    shares = [0] * len(found)
    for index, share in zip(order, points, strict=False):
        shares[index] = share
    return shares


def _healthy(d: Diagnosis) -> bool:
    return not d.cannot_judge and d.worst in (None, "notice")


def _title(found: Sequence[Diagnosis]) -> str:
    if len(found) == 1:
        word, _ = _html_sections.verdict(found[0])
        return f"{_words.short(found[0].run.name)}: {word}"
    return _words.plural(len(found), "run")


def _overview(outcome: Outcome) -> Markup:
    """List several runs with their verdicts, and what could not be read."""
    count = len(outcome.diagnoses)
    what = "a training run" if count == 1 else f"{count:,} training runs" if count else "no run"
    parts: list[Child] = [el("h1", f"Post-mortem of {what}")]
    if len(outcome.diagnoses) > 1:
        items = []
        for index, d in enumerate(outcome.diagnoses):
            word, said = _html_sections.verdict(d)
            link = el("a", _words.short(d.run.name), href=f"#r{index + 1}")
            items.append(el("li", _badge(word), " ", link, f": {said}"))
        parts.append(el("ol", *items, class_="runs"))
    for label, lines in (
        ("Could not be read", outcome.unread),
        ("Left out", outcome.left_out),
        ("Of the settings", outcome.remarks),
    ):
        if lines:
            parts += [el("p", el("b", label)), el("ul", [el("li", line) for line in lines])]
    return el("section", parts, aria_label="Overview", class_="overview")


def _badge(word: str) -> Markup:
    return el("span", word, class_=f"badge {word.replace(' ', '-')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """One run in words, before anything is drawn."""

    diagnosis: Diagnosis
    anchor: str
    head: Markup
    """The verdict and the key figures."""
    body: Markup
    """Everything below the charts."""
    marks: list[Mark]


def _told(d: Diagnosis, verdict: Verdict | None, anchor: str, known: Mapping[str, str]) -> _Told:
    run = d.run
    word, said = _html_sections.verdict(d)
    numbered = _html_incidents.numbered(d, verdict, anchor)
    figures = [el("div", el("dt", k), el("dd", v)) for k, v in _html_sections.key_figures(d)]
    head = el(
        "header",
        el("h2", _words.short(run.name, 80)),
        el("p", _badge(word), " ", said, class_="verdict"),
        _decided(verdict),
        _first_thing(numbered),
        el("dl", figures, class_="key"),
        _contents(run, anchor, numbered, verdict),
    )
    body = join(
        _html_incidents.section(run, numbered, anchor, known),
        _html_cost.section(d.cost, anchor),
        _html_sections.asked(verdict, anchor),
        _html_sections.unchecked(d, anchor),
        _html_sections.read(run, anchor),
        _html_sections.method(d, anchor),
    )
    marks = _html_incidents.marks(numbered)
    return _Told(diagnosis=d, anchor=anchor, head=head, body=body, marks=marks)


def _run(told: _Told, charts: Markup, *, folded: bool) -> Markup:
    """Put one run's part of the page together."""
    body = join(charts, told.body)
    if folded and _healthy(told.diagnosis):
        body = el("details", el("summary", "Everything about this run"), body)
    name = _words.short(told.diagnosis.run.name)
    return el("section", told.head, body, id=told.anchor, class_="run", aria_label=name)


def _first_thing(numbered: Sequence[Numbered]) -> Markup | None:
    """Tell what to do about the gravest incident that has a plan."""
    first = next((n for n in numbered if n.plans and not n.whole), None)
    if first is None:
        return None
    link = el("a", f"incident {first.number}", href=f"#{first.anchor}")
    return el("p", el("b", "To do: "), first.plans[0].text, " (", link, ")")


def _decided(verdict: Verdict | None) -> Markup | None:
    """Tell what a check of the run came to."""
    if verdict is None:
        return None
    missed = [c.name for c in verdict.criteria if c.status in ("fail", "unknown")]
    said = f": {', '.join(missed)}" if missed else ""
    status = el("span", f"check: {verdict.status}", class_=f"status {verdict.status}")
    return el("p", status, said)


def _contents(
    run: Run, anchor: str, numbered: Sequence[Numbered], verdict: Verdict | None
) -> Markup:
    grave = sum(n.grave for n in numbered)
    links = [
        ("charts", "Charts"),
        ("incidents", f"Incidents ({grave})" if grave else "Incidents"),
        ("cost", "Cost"),
        *([("check", "Check")] if verdict else []),
        ("unchecked", "Not checked"),
        ("read", "What was read"),
        ("method", "How computed"),
    ]
    items = [el("li", el("a", said, href=f"#{anchor}-{place}")) for place, said in links]
    return el("nav", el("ul", *items), aria_label=f"Parts of {_words.short(run.name)}")


def _charts(charts: Sequence[Chart], left: Sequence[str], anchor: str) -> Markup:
    parts: list[Child] = [el("h3", "Charts", id=f"{anchor}-charts", tabindex="-1")]
    if not charts:
        parts.append(el("p", "Nothing is drawn."))
    shown, more = charts[: _html_charts.OPEN], charts[_html_charts.OPEN :]
    parts += [c.figure for c in shown]
    if more:
        said = f"{_words.plural(len(more), 'more chart')}: "
        names = ", ".join(c.data["word"] for c in more)
        parts.append(el("details", el("summary", said, names), [c.figure for c in more]))
    if left:
        named = ", ".join(_words.short(name) for name in left[:40])
        rest = f" and {len(left) - 40:,} more" if len(left) > 40 else ""
        parts.append(el("p", f"Logged but not drawn: {named}{rest}.", class_="remark"))
    return el("div", parts, class_="charts", data_run=anchor)


def _page(title: str, main: Markup, data: Markup) -> str:
    """Put the page together."""
    style = _file("page.css")
    script = _file("page_parts.js") + _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline';"
        f" script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        Markup("\n"),
        Markup(f'{GENERATOR} {__version__}">\n'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{title} · stabcli"),
        Markup(f"<style>\n{style}</style>\n"),
    )
    body = el(
        "body",
        el("a", "Skip to the report", href="#content", class_="skip"),
        el("noscript", el("p", STILL)),
        main,
        el(
            "footer",
            el("p", f"stabcli {__version__}. This page holds all of its data and loads nothing."),
        ),
        join(
            Markup('<script type="application/json" id="data">'),
            data,
            Markup(f"</script>\n<script>{script}</script>\n"),
        ),
    )
    return f"<!DOCTYPE html>\n{el('html', Markup(chr(10)), head, Markup(chr(10)), body, lang='en')}"


def _file(name: str) -> str:
    return files("stabcli.report").joinpath(name).read_text(encoding="utf-8")
