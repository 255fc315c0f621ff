"""Sections of the HTML report: the verdict, what was not checked, and what every figure rests on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from stabcli.diagnosis import Diagnosis
from stabcli.incidents import Incident, by_gravity
from stabcli.metrics import METRICS
from stabcli.report import _sampling, _words
from stabcli.report._html_cost import part
from stabcli.report._html_markup import Child, Markup, Row, el, join, prose, table
from stabcli.rules import SEVERITIES, rules
from stabcli.run import Run
from stabcli.units import number, percent
from stabcli.verdicts import Verdict


def verdict(d: Diagnosis) -> tuple[str, str]:
    """Return a word for the state of a run, and the sentence that goes with it."""
    looked = _words.plural(len(d.checked), "rule")
    blind = f"; {len(d.skipped)} could not look" if d.skipped else ""
    if d.cannot_judge:
        return "cannot judge", f"{d.cannot_judge}: what each rule needs stands below."
    if d.worst in (None, "notice"):
        count = len(d.incidents)
        what = f"nothing above notice ({_words.plural(count, 'notice')})" if count else "nothing"
        return "fine", f"{looked} looked and found {what}{blind}."
    first = by_gravity(d.incidents)[0]
    end = _words.ending(first)
    said = f"{first.rule} at step {first.worst.first:,}" + (f", {end}" if end else "")
    counts = [
        f"{n:,} {severity}" if severity == "critical" else _words.plural(n, severity)
        for severity in reversed(SEVERITIES)
        if severity != "notice" and (n := sum(i.severity == severity for i in d.incidents))
    ]
    total = f"; {', '.join(counts)} in all" if sum(map(_grave, d.incidents)) > 1 else ""
    return first.severity, f"{said}{total}. {looked} looked{blind}."


def _grave(i: Incident) -> bool:
    return i.severity != "notice"


def key_figures(d: Diagnosis) -> list[tuple[str, str]]:
    """Return what a reader looks for first: label and figure."""
    run, cost = d.run, d.cost
    steps = run.frame["step"]
    first, last = int(steps.min()), int(steps.max())  # type: ignore[arg-type]
    figures = [("steps", f"{first:,} to {last:,}"), ("rows", f"{run.frame.height:,}")]
    if len(run.attempts) > 1:
        figures.append(("attempts", f"{len(run.attempts):,}"))
    figures.append(("wasted", _words.price(cost.total) or "nothing that shows"))
    if cost.goodput is not None:
        figures.append(("productive", part(cost.goodput)))
    fit = cost.efficiency
    if (mfu := fit.mfu if fit.mfu is not None else fit.logged) is not None:
        figures.append(("MFU", percent(mfu)))
    return figures


def asked(verdict: Verdict | None, anchor: str) -> Markup | None:
    """Tell what was asked of a run, and whether it was met."""
    if verdict is None:
        return None
    rows = [
        Row([el("span", c.status, class_=f"status {c.status}"), c.name, c.text])
        for c in verdict.criteria
    ]
    head = ("status", "criterion", "seen")
    return join(
        el("h3", f"Check: {verdict.status}", id=f"{anchor}-check"),
        table("What was asked of the run", head, rows, name=1),
    )


def unchecked(d: Diagnosis, anchor: str) -> Markup:
    """Tell what was checked, what could not be, and what this log cannot show."""
    why: dict[str, list[str]] = defaultdict(list)
    for s in d.skipped:
        why[s.why].append(s.rule)
    parts: list[Child] = [el("h3", "What was not checked", id=f"{anchor}-unchecked")]
    if why:
        parts.append(listed((", ".join(names), reason) for reason, names in why.items()))
    else:
        parts.append(el("p", "Every rule that was chosen could look."))
    parts += [el("p", el("b", "Unseen: "), line, ".") for line in _sampling.blind_spots(d.run)]
    if d.checked:
        count = _words.plural(len(d.checked), "rule")
        presets = f" (preset {', '.join(d.presets)})" if d.presets else ""
        parts.append(el("p", el("b", f"Checked by {count}{presets}: "), ", ".join(d.checked), "."))
    return join(*parts)


def read(run: Run, anchor: str) -> Markup:
    """Tell what was read, and what the reader made of it."""
    entries: list[tuple[str, Child]] = [("source", run.source), ("format", run.reader)]
    if run.bad.count:
        entries.append(("bad lines", f"{run.bad.count:,} could not be used"))
        entries += [("", f"{line:,}: {why}") for line, why in run.bad.first]
    entries += [("note" if i == 0 else "", note) for i, note in enumerate(run.notes)]
    for left in run.left_out:
        said = "all finite" if not left.count else f"{left.count:,} values not finite"
        if left.first:
            said += f", the first at step {left.first[1]:,} of attempt {left.first[0]}"
        entries.append(("not kept", f"{_words.short(left.name)}: {said}"))
    columns = [
        Row(
            [
                _words.short(own),
                canonical,
                METRICS[canonical].unit if canonical in METRICS else "",
            ]
        )
        for canonical, own in run.columns.items()
    ]
    facts = [Row([name, _words.value(fact.value), fact.source]) for name, fact in run.facts.items()]
    attempts = [
        Row([f"{a.attempt}", f"{a.first_step:,}", f"{a.last_step:,}", f"{a.rows:,}"])
        for a in run.attempts[:ATTEMPTS]
    ]
    heads = ("attempt", "first step", "last step", "rows")
    more = len(run.attempts) - len(attempts)
    return join(
        el("h3", "What was read", id=f"{anchor}-read"),
        listed(entries),
        table("Attempts", heads, attempts) if len(run.attempts) > 1 else None,
        el("p", f"{more:,} more attempts: --format json has all of them.") if more else None,
        el(
            "div",
            table("Facts of the run and their sources", ("fact", "value", "source"), facts)
            if facts
            else None,
            table("Columns", ("the log's name", "read as", "unit"), columns) if columns else None,
            class_="pair",
        ),
    )


ATTEMPTS = 50
"""Attempts that are listed."""


def method(d: Diagnosis, anchor: str) -> Markup:
    """Tell how each figure was worked out."""
    cost, fit = d.cost, d.cost.efficiency
    names = {"tokens": "tokens", "gpu_hours": "GPU-hours"}
    entries: list[tuple[str, Child]] = [
        (names.get(name, name), f"from {source}" if source != "unknown" else source)
        for name, source in cost.sources
    ]
    if cost.goodput is not None:
        entries.append(
            ("productive", "share of the GPU time, of the tokens where that is unknown, else steps")
        )
    if fit.doubt:
        entries.append(("MFU", fit.doubt))
    if fit.mfu is not None:
        logged = f"; the log says {percent(fit.logged)}" if fit.logged is not None else ""
        entries.append(("MFU", f"{percent(fit.mfu)} ({fit.source}){logged}"))
    elif fit.logged is not None:
        entries.append(("" if fit.doubt else "MFU", f"{percent(fit.logged)} as logged"))
    if fit.shortfall_gpu_hours is not None and fit.target is not None:
        said = f"{number(fit.shortfall_gpu_hours)} GPU-hours less at {percent(fit.target)} MFU"
        entries.append(("", f"{said}: beside the classes, not in them"))
    entries += [("given that" if i == 0 else "", a) for i, a in enumerate(cost.assumptions)]
    entries.append(
        ("incidents", "each is priced on its own; their spans may overlap, the classes not")
    )
    entries.append(("score", SCORE))
    return join(el("h3", "How the figures were computed", id=f"{anchor}-method"), listed(entries))


SCORE = (
    "how far a value is from what was expected, in the rule's own measure; 1 is its threshold,"
    " which stands with its source under the rule's name below"
)


def listed(entries: Iterable[tuple[str, Child]]) -> Markup:
    """Return labels and texts; an empty label goes on with what stands above."""
    items: list[Child] = []
    for label, said in entries:
        if label:
            items.append(el("dt", label))
        items.append(el("dd", said))
    return el("dl", items)


def about(names: Sequence[str]) -> Markup | None:
    """Explain the rules that found something."""
    known = {r.name: r for r in rules}
    items = []
    for name in names:
        if name not in known:
            continue
        r = known[name]
        told = [(heading, prose(said)) for heading in HEADINGS if (said := r.section(heading))]
        items.append(
            el(
                "details",
                el("summary", el("b", name), ": ", prose(r.summary)),
                listed(told),
                id=explained(name),
            )
        )
    if not items:
        return None
    return el("section", el("h2", "The rules that found something", id="rules"), items)


HEADINGS = ("What it finds", "Why it matters", "What to do", "When it errs", "Sources")
"""Sections of a rule's page that are shown."""


def explained(rule: str) -> str:
    """Return where a rule is explained."""
    return f"rule-{rule}"


def rules_found(diagnoses: Sequence[Diagnosis]) -> list[str]:
    """Return the rules that found something and have a page, in order of name."""
    known = {r.name for r in rules}
    found = {f.rule for d in diagnoses for i in d.incidents for f in i.findings}
    return sorted(found & known)
