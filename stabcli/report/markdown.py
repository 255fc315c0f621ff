"""Report ``markdown``."""

from __future__ import annotations

from stabcli.diagnosis import Diagnosis
from stabcli.report import Outcome, Screen, _sections, _words, report
from stabcli.report._escaping import code, prose
from stabcli.report._told import Told, told_of, verdict_of
from stabcli.report.verdict import TITLES
from stabcli.units import percent, span
from stabcli.verdicts import Verdict

SHOWN = 20
"""Incidents of a run in its table; the rest are counted."""
MARKS = {"pass": "✅", "fail": "❌", "unknown": "❔", "skipped": "–"}


@report(mark="<!-- stabcli markdown -->")
def markdown(outcome: Outcome, screen: Screen) -> str:
    """Tables for a pull request, an issue, or the summary of a job.

    Text from logs stands as code or is escaped: it neither links, mentions nor formats.
    """
    del screen
    out = ["<!-- stabcli markdown -->"]
    if len(outcome.diagnoses) > 1:
        out += _overview(outcome)
    for index in range(len(outcome.diagnoses)):
        out += _run(outcome, index)
    for title, lines in (
        ("Not read", outcome.unread),
        ("Left out", outcome.left_out),
        ("Settings", outcome.remarks),
    ):
        if lines:
            out += ["", f"**{title}**", "", *(f"- {prose(line)}" for line in lines)]
    if not outcome.diagnoses:
        out += ["", "**Cannot judge**: no run was read."]
    return "\n".join(out) + "\n"


def _overview(outcome: Outcome) -> list[str]:
    rows = []
    for index, d in enumerate(outcome.diagnoses):
        verdict = verdict_of(outcome, index)
        title = _title(d, verdict)
        rows.append([code(d.run.source, cell=True), title, d.worst or "", _wasted(d)])
    return ["", "## stabcli", "", *_table(["run", "verdict", "worst", "wasted"], rows)]


def _title(d: Diagnosis, verdict: Verdict | None) -> str:
    if verdict is not None:
        return f"{MARKS[verdict.status]} {TITLES[verdict.status]}"
    if d.cannot_judge:
        return "CANNOT JUDGE"
    return "fine" if d.worst in (None, "notice") else str(d.worst).upper()


def _wasted(d: Diagnosis) -> str:
    said = _words.price(d.cost.total)
    if said and d.cost.goodput is not None and d.cost.total.steps:
        said += f" ({percent(1 - d.cost.goodput)})"
    return said


def _run(outcome: Outcome, index: int) -> list[str]:
    d, verdict = outcome.diagnoses[index], verdict_of(outcome, index)
    out = ["", f"### {_title(d, verdict)}: {code(d.run.name)}", ""]
    steps = d.run.frame["step"].to_numpy()
    read = f"{d.run.frame.height:,} rows, {span(int(steps.min()), int(steps.max()))}"
    if d.run.bad.count:
        read += f", {_words.plural(d.run.bad.count, 'bad line')}"
    out.append(f"{code(d.run.source)}, {d.run.reader}: {read}.")
    if verdict is not None:
        rows = [
            [MARKS[c.status] + f" {c.status}", code(c.name, cell=True), prose(c.text)]
            for c in verdict.criteria
        ]
        out += ["", *_table(["", "criterion", "seen"], rows)]
    out += _incidents([*told_of(outcome, index)])
    grave = [i for i in d.incidents if i.severity != "notice"]
    for section in (_sections.what_to_do, _sections.bill):
        rows = [[label, text] for label, text in section(d, grave)]
        out += [""] * bool(rows) + [f"- {f'**{a}**: ' if a else ''}{prose(b)}" for a, b in rows]
    if d.skipped:
        out += ["", f"<details><summary>{len(d.skipped)} rules could not look</summary>", ""]
        out += [f"- {code(s.rule)}: {prose(s.why)}" for s in d.skipped]
        out += ["", "</details>"]
    return out


def _incidents(found: list[Told]) -> list[str]:
    """Return the gravest incidents as a table, and count what is only worth knowing."""
    by_gravity = sorted(found, key=lambda t: (t.ignore is None, t.incident.gravity), reverse=True)
    grave = [t for t in by_gravity if t.severity != "notice"]
    if not grave:
        return ["", f"Nothing above notice, {_words.plural(len(found), 'notice')}."]
    rows = []
    for t in grave[:SHOWN]:
        line = t.place.path + (f":{t.place.line}" if t.place.line is not None else "")
        end = _words.ending(t.incident)
        if t.ignore is not None:
            end = f"ignored: {t.ignore.why}"
        rows.append(
            [
                t.severity,
                code(t.incident.rule, cell=True),
                span(t.incident.first, t.incident.last),
                prose(_words.measured(t.diagnosis.run, t.worst)),
                prose(end),
                code(line, cell=True),
            ]
        )
    out = ["", *_table(["severity", "rule", "where", "seen", "ended", "line"], rows)]
    rest = len(found) - len(rows)
    return out + (
        ["", f"and {rest:,} more, {len(found) - len(grave):,} of them notices"] * bool(rest)
    )


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def shortened(text: str, limit: int) -> str:
    """Return a Markdown report of at most ``limit`` bytes, cut between lines; that is said."""
    if len(text.encode("utf-8")) <= limit:
        return text
    end = "\n\n</details>\n\n**Cut here: the report is too long for this page.**\n"
    room = limit - len(end.encode("utf-8"))
    if room <= 0:
        return ""
    head = text.encode("utf-8")[:room].rpartition(b"\n")[0].decode("utf-8")
    inside = head.count("<details>") > head.count("</details>")
    return head + (end if inside else end.replace("</details>\n\n", ""))
