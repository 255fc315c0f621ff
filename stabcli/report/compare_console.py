"""A comparison for a person: which run to keep, the table people make by hand, the curves."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from stabcli.comparison import Comparison
from stabcli.report import Screen, _words
from stabcli.report._compare_rows import Row, grounds, keep, pair, pairs_shown, table
from stabcli.report._page import Page
from stabcli.report.chart import overlay
from stabcli.units import printable

NARROWEST = 15
"""Columns that the cells of a run need at least."""
LABEL = 19
"""Columns of the names of rows."""


def compare_console(c: Comparison, screen: Screen) -> str:
    """Write a comparison."""
    page = Page(screen)
    page.line(Text("KEEP  ", style="bold green").append(keep(c), style="bold default"))
    for key, why in c.choice.unfit:
        page.entries([("", printable(f"not {key}: {why}"))], label=4)
    page.entries([("", printable(why)) for why in c.choice.why], label=4)
    page.line("")
    page.entries([(s.key, _words.short(s.run.source, screen.width - 8)) for s in c.sides], label=2)
    made = table(c)
    fit = max(1, (screen.width - LABEL) // NARROWEST)
    for first in range(0, len(c.sides), fit):
        page.line("")
        _table(page, c, made, range(first, min(first + fit, len(c.sides))))
    _draw(page, c)
    page.line("")
    alike: list[tuple[str, str]] = [("alike", printable(pair(p))) for p in pairs_shown(c)]
    if c.shared:
        alike.append(("the same", ", ".join(c.shared)))
    elif not c.differences:
        alike.append(("settings", "no log tells any"))
    notes = [*c.notes, *grounds(c)]
    page.entries([*alike, *[("note", printable(note)) for note in notes]], label=8)
    return page.text()


def _table(page: Page, c: Comparison, made: Sequence[Row], which: range) -> None:
    """Add the rows of some of the runs, side by side."""
    head = ["", *(f"{c.sides[i].key} {_words.short(c.sides[i].name, 24)}" for i in which)]
    page.columns(head, [[row.name, *(row.cells[i] for i in which)] for row in made])


def _draw(page: Page, c: Comparison) -> None:
    """Draw the curves over one another."""
    curves = [(s.key, s.curve.steps, s.curve.values) for s in c.sides if s.curve is not None]
    image = overlay(
        curves, width=page.screen.width - 1, height=14, ascii_only=page.screen.ascii_only
    )
    if image is None:
        return
    remark = f"  ({image.remark})" if image.remark else ""
    page.line("")
    page.line(Text(f"{c.metric}{remark}", style="dim"))
    for line in image.lines:
        page.line(Text(line, no_wrap=True))
