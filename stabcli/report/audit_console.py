"""An audit for a person: what is missing first, then what cannot be told, then what is in place."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from stabcli.audit import Audit, Line
from stabcli.report import Screen, _words
from stabcli.report._page import Page
from stabcli.techniques import Status
from stabcli.units import printable

STYLES: dict[Status, str] = {"missing": "red", "unknown": "yellow", "in place": "green"}
SHOWN = 3
"""Findings that are named in a line."""


def audit_console(audits: Sequence[Audit], screen: Screen) -> str:
    """Write the audits of one or several runs or configurations."""
    page = Page(screen)
    for index, audit in enumerate(audits):
        if index:
            page.line("")
        page.line(Text(_words.short(audit.source, screen.width), style="bold"))
        page.entries([("kind", printable(f"{audit.kind}: {audit.why}"))])
        page.entries([("note", printable(note)) for note in audit.notes])
        page.line("")
        page.line(_count(audit))
        for line in audit.lines:
            if line.judgement.status != "in place":
                page.entries(_told(line))
        page.entries([_headline(line) for line in audit.of("in place")])
    return page.text()


def _count(audit: Audit) -> Text:
    """Say how many techniques are in place, with the run's name."""
    counts = [f"{len(audit.of(status))} {status}" for status in STYLES]
    name = _words.short(audit.name)
    return Text(f"{name}: {', '.join(counts)} of {len(audit.lines)} techniques", style="bold")


def _headline(line: Line) -> tuple[Text, Text]:
    judged = line.judgement
    label = Text(judged.status, style=STYLES[judged.status])
    text = Text(f"{line.technique.name}: ", style="bold")
    return label, text.append(printable(judged.evidence), style="not bold")


def _told(line: Line) -> list[tuple[str | Text, str | Text]]:
    """Return a technique that is not in place: why it matters, what to do, where it is from."""
    technique = line.technique
    rows: list[tuple[str | Text, str | Text]] = [_headline(line)]
    if found := findings(line):
        rows.append(("", Text(found, style=STYLES[line.judgement.status])))
    rows.append(("", Text(technique.section("Why it matters"), style="dim")))
    rows.append(("", f"{advice(line)} [{technique.sources[0]}]"))
    return rows


def advice(line: Line) -> str:
    """Say what to do, or where it is unknown how to make it known."""
    missing = line.judgement.status == "missing"
    return line.technique.section("What to do" if missing else "How to log it")


def findings(line: Line) -> str:
    """Say on which findings of the run a technique bears; empty where on none."""
    found = line.bears_on
    if not found:
        return ""
    shown = ", ".join(f"{f.rule} at step {f.first:,}" for f in found[:SHOWN])
    more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
    if line.judgement.status == "missing":
        return f"It {line.technique.effect} {shown}{more}."
    return f"If it is missing: it {line.technique.effect} {shown}{more}."
