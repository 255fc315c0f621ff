"""Command ``compare-presets``."""

from __future__ import annotations

from typing import Annotated

import typer

from stabcli.cli._arguments import Asked, analysis, choose, read, settings, takes_logs
from stabcli.cli._output import colour, complain, plain_ascii, put, width
from stabcli.errors import SettingError

FORMATS = ("console", "json")
"""How a line-up can be written."""


@takes_logs
def compare_presets(
    asked: Asked,
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help="console or json.")
    ] = "console",
) -> int:
    """Say which presets would have fired where, and how many steps before the others."""
    from stabcli.cli import CANNOT_JUDGE, FINE
    from stabcli.lineup import line_up
    from stabcli.report import Screen
    from stabcli.report.presets_console import presets_console
    from stabcli.report.presets_json import presets_json

    choose("--format", format_, FORMATS)
    if asked.only:
        raise SettingError("--rule: compare-presets takes whole presets: name them with --preset")
    chosen = settings()
    how = analysis(asked, chosen)
    found = read(asked, chosen)
    for line in (*found.failed, *found.left_out):
        complain(line)
    lineups = [line_up(run, asked.presets, how.settings) for run in found.runs]
    for lineup in lineups:
        if not lineup.presets:
            complain(f"{lineup.run.source}: no preset could look: see what each rule needs")
    if lineups:
        screen = Screen(width=width(), colour=colour(), ascii_only=plain_ascii())
        put(presets_json(lineups) if format_ == "json" else presets_console(lineups, screen))
    blind = not lineups or any(not lineup.presets for lineup in lineups)
    return CANNOT_JUDGE if found.failed or blind else FINE
