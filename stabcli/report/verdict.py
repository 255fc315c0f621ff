"""Report ``verdict``."""

from __future__ import annotations

from rich.text import Text

from stabcli.incidents import by_gravity
from stabcli.report import Outcome, Screen, _words, report
from stabcli.report._page import Page
from stabcli.units import printable, span

STYLES = {"pass": "bold green", "fail": "bold red", "unknown": "bold yellow", "skipped": "dim"}
TITLES = {"pass": "PASS", "fail": "FAIL", "unknown": "CANNOT JUDGE"}
SHOWN = 5
"""Incidents of a run that are told; the rest are counted."""


@report
def verdict(outcome: Outcome, screen: Screen) -> str:
    """Whether each run passes, and every reason why or why not.

    Where nothing was asked of the runs there is nothing to decide, and that is said.
    """
    page = Page(screen)
    for index in range(len(outcome.diagnoses)):
        if index:
            page.line("")
        _tell(page, outcome, index)
    if not outcome.verdicts:
        page.line("nothing was asked of these runs: no verdict")
    if len(outcome.verdicts) > 1:
        page.line("")
        page.line(_count(outcome))
    for line in (*outcome.unread, *_words.few(outcome.left_out)):
        page.line(Text(printable(line), style="dim"))
    return page.text()


def _tell(page: Page, outcome: Outcome, index: int) -> None:
    if not outcome.verdicts:
        return
    d, decided = outcome.diagnoses[index], outcome.verdicts[index]
    missed = [c for c in decided.criteria if c.status in ("fail", "unknown")]
    title = Text(TITLES[decided.status], style=STYLES[decided.status])
    name = f"  {_words.short(d.run.source, 60)}"
    if d.run.name not in d.run.source:
        name += f" ({_words.short(d.run.name)})"
    count = f": {len(missed)} of {_words.plural(len(decided.criteria), 'criterion')} not met"
    count = count.replace("criterions", "criteria") if missed else ""
    page.line(title.append(name + count, style="not bold default"))
    page.entries(
        [
            (Text(c.status, style=STYLES[c.status]), f"{c.name}: {printable(c.text)}")
            for c in decided.criteria
        ]
    )
    page.entries(_incidents(outcome, index))


def _incidents(outcome: Outcome, index: int) -> list[tuple[str | Text, str | Text]]:
    """Return a line for each of the gravest incidents, and what was ignored or not checked."""
    d, decided = outcome.diagnoses[index], outcome.verdicts[index]
    left = [i for i in map(decided.standing, d.incidents) if i is not None]
    grave = [i for i in by_gravity(left) if i.severity != "notice"]
    rows: list[tuple[str | Text, str | Text]] = []
    for i in grave[:SHOWN]:
        end = _words.ending(i)
        said = f"{span(i.first, i.last)}  {i.rule}: {_words.measured(d.run, i.worst)}"
        rows.append((i.severity, said + (f"; {end}" if end else "")))
    if len(grave) > SHOWN:
        rows.append(("", f"and {len(grave) - SHOWN:,} more"))
    for f, ignore in decided.ignored.items():
        said = f"{f.rule}, {span(f.first, f.last)}: {printable(ignore.why)}"
        rows.append(("ignored", said))
    if d.run.bad.count:
        rows.append(("not read", _words.plural(d.run.bad.count, "bad line")))
    if d.skipped:
        said = f"{_words.plural(len(d.skipped), 'rule')} could not look; --format brief names them"
        rows.append(("unchecked", said))
    return rows


def _count(outcome: Outcome) -> Text:
    found = [v.status for v in outcome.verdicts]
    said = [
        f"{found.count(status)} {words}"
        for status, words in (
            ("pass", "passed"),
            ("fail", "failed"),
            ("unknown", "could not be judged"),
        )
        if status in found
    ]
    return Text(f"{_words.plural(len(found), 'run')}: {', '.join(said)}", style="bold")
