"""A line-up of presets for a person: event by event who speaks, when, and who keeps silent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.text import Text

from stabcli.lineup import Event, Lineup
from stabcli.report import Screen, _sections, _words
from stabcli.report._page import STYLES, Page
from stabcli.rules import SEVERITIES
from stabcli.units import printable, span

DELAY = (
    "steps after the first step that any preset names; a rule that looks back names the step at"
    " which it began, which it could not know then"
)
SHOWN = 8
"""Events told one by one; the gravest where there are more."""


def presets_console(lineups: Sequence[Lineup], screen: Screen) -> str:
    """Write what every preset says of every run."""
    page = Page(screen)
    for index, lineup in enumerate(lineups):
        if index:
            page.line("")
        _tell(page, lineup)
    return page.text()


def _tell(page: Page, lineup: Lineup) -> None:
    run = lineup.run
    page.line(Text(_words.short(run.source, page.screen.width), style="bold"))
    page.entries(_sections.what_was_read(run)[:1])
    told = sorted(lineup.events, key=lambda e: -SEVERITIES.index(e.severity))[:SHOWN]
    for event in sorted(told, key=lambda e: (e.attempt, e.first)):
        page.line("")
        _event(page, lineup, event)
    if len(lineup.events) > len(told):
        page.line("")
        rest = len(lineup.events) - len(told)
        page.line(f"{_words.plural(rest, 'event')} more: --format json has them all")
    page.line("")
    if not lineup.events:
        page.line(f"no event: nothing of warning or worse by {_looked(lineup)}")
    page.columns(("preset", "events", "first in", "median delay"), _sums(lineup))
    rows = [
        (
            "throughout",
            f"{f.rule} on {span(f.first, f.last)}: true of most of the run, so no event",
        )
        for _, f in lineup.throughout
    ]
    notices = [f"{p} {n:,}" for p, n in lineup.notices.items() if n]
    if notices:
        rows.append(("notices", ", ".join(notices)))
    if lineup.blind:
        why = [f"{p} ({printable(lineup.skipped[p][0].why)})" for p in lineup.blind]
        rows.append(("blind", "; ".join(why)))
    shares = [
        f"{p} {t.removeprefix('share-').replace('%', ' %')} of {_words.short(run.word(f.metric))}"
        for p, f in lineup.statistics
        for t in f.tags
        if t.startswith("share-")
    ]
    if shares:
        rows.append(("rows hit", ", ".join(shares)))
    rows.append(("delay", DELAY))
    page.line("")
    page.entries(rows)


def _event(page: Page, lineup: Lineup, event: Event) -> None:
    attempt = f", attempt {event.attempt}" if len(lineup.run.attempts) > 1 else ""
    of = len(event.voices) + len(event.silent)
    head = Text(f"{span(event.first, event.last)}{attempt}", style="bold")
    head.append(f"  {event.kind}: {len(event.voices)} of {of} presets speak", style="not bold")
    page.line(head)
    rows = []
    for voice in event.voices:
        f = voice.finding
        delay = "first" if not voice.late else f"{voice.late:,} steps later"
        name = Text(voice.preset, style=STYLES.get(f.severity, ""))
        said = f"step {f.first:,}, {delay}: {f.severity}, {_words.measured(lineup.run, f)}"
        if f.rule != voice.preset:
            said = f"step {f.first:,}, {delay}: {f.severity}, {f.rule}: " + _words.measured(
                lineup.run, f
            )
        rows.append((name, Text(said)))
    if event.silent:
        rows.append((Text("silent", style="dim"), Text(", ".join(event.silent))))
    page.entries(rows, label=24)


def _sums(lineup: Lineup) -> list[tuple[str, str, str, str]]:
    """Return for every preset its events, how often it was first, and its usual delay."""
    rows = []
    told = {p for p, _ in lineup.statistics}
    for preset in lineup.presets:
        late = [v.late for e in lineup.events for v in e.voices if v.preset == preset]
        if preset in told and not late:
            continue
        first = sum(x == 0 for x in late)
        usual = f"{int(np.median(late)):,} steps" if late else "-"
        rows.append((preset, f"{len(late)} of {len(lineup.events)}", f"{first}", usual))
    return sorted(rows, key=lambda r: (-int(r[1].split()[0]), r[3], r[0]))


def _looked(lineup: Lineup) -> str:
    return _words.plural(len(lineup.presets), "preset")
