"""Page: paragraphs and hanging labels at the width of a screen; what reports for people share."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stabcli.report import Screen
from stabcli.units import printable

STYLES = {"critical": "bold red", "error": "red", "warning": "yellow", "notice": "dim"}
_PLAIN = (("×", "x"), ("·", "-"), ("→", "->"), ("±", "+-"), ("–", "-"))


class Page:
    """Lines of a report as they are put together."""

    ascii_ellipsis = "~"
    """What stands for an ellipsis on a screen that shows ASCII only."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=screen.width,
            force_terminal=screen.colour,
            color_system="standard" if screen.colour else None,
            no_color=not screen.colour,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def line(self, text: str | Text) -> None:
        """Add a paragraph."""
        self._console.print(text)

    def entries(self, rows: Iterable[tuple[str | Text, str | Text]], *, label: int = 10) -> None:
        """Add paragraphs with a label in front of each; the text hangs beside the label."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=label, no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in rows:
            shown = name if isinstance(name, Text) else Text(name, style="dim")
            grid.add_row(shown, text if isinstance(text, Text) else Text(text))
        if grid.row_count:
            self._console.print(grid)

    def columns(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table whose first column names the rows; the others share the width."""
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
        for index, name in enumerate(head):
            style = "dim" if index == 0 else ""
            table.add_column(Text(printable(name)), style=style, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._console.print(table)

    def text(self) -> str:
        """Return the page without blanks at the ends of lines."""
        lines = [line.rstrip() for line in self._out.getvalue().splitlines()]
        text = "\n".join(lines) + "\n"
        if self.screen.ascii_only:
            for fancy, simple in (("…", self.ascii_ellipsis), *_PLAIN):
                text = text.replace(fancy, simple)
        return text
