"""Command ``scan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stabcli.cli._arguments import Asked, analysis, choose, read, settings, takes_logs
from stabcli.cli._output import colour, complain, plain_ascii, put, width

if TYPE_CHECKING:
    from stabcli.diagnosis import Diagnosis
    from stabcli.settings import Settings


@takes_logs
def scan(
    asked: Asked,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="Report as console, json or brief."),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="SEVERITY", help="End with 1 where something this bad was found."),
    ] = None,
) -> int:
    """Say what went wrong in a run, and where to roll back to."""
    from stabcli.diagnosis import diagnose
    from stabcli.report import reports

    chosen = settings()
    how = analysis(asked, chosen)
    shown_as = format_ or chosen.word("format") or "console"
    choose("--format", shown_as, [r.name for r in reports])
    limit = _limit(fail_on, chosen)
    found = read(asked, chosen)
    diagnoses = [
        diagnose(run, presets=how.presets, only=how.only, settings=how.settings)
        for run in found.runs
    ]
    return show(diagnoses, shown_as, failed=found.failed, left_out=found.left_out, fail_on=limit)


def show(
    diagnoses: list[Diagnosis],
    shown_as: str,
    *,
    failed: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
    fail_on: str | None = None,
) -> int:
    """Print diagnoses, and what could not be read; return the exit status."""
    from stabcli.report import Outcome, Screen, reports

    status = _status(diagnoses, failed, fail_on)
    outcome = Outcome(diagnoses=tuple(diagnoses), exit_status=status, left_out=left_out)
    if diagnoses or shown_as == "json":
        screen = Screen(width=width(), colour=colour(), ascii_only=plain_ascii())
        put(reports[shown_as].write(outcome, screen))
    for line in failed:
        complain(line)
    for diagnosis in diagnoses:
        if not diagnosis.checked:
            complain(f"{diagnosis.run.source}: no rule could look: see what each of them needs")
    return status


def _status(diagnoses: list[Diagnosis], failed: tuple[str, ...], fail_on: str | None) -> int:
    from stabcli.cli import CANNOT_JUDGE, FINE, FOUND
    from stabcli.rules import SEVERITIES

    if failed or not diagnoses or not all(d.checked for d in diagnoses):
        return CANNOT_JUDGE
    if fail_on is None:
        return FINE
    bad = SEVERITIES[SEVERITIES.index(fail_on) :]
    return FOUND if any(d.worst in bad for d in diagnoses) else FINE


def _limit(fail_on: str | None, chosen: Settings) -> str | None:
    from stabcli.rules import SEVERITIES

    limit = fail_on or chosen.word("fail_on")
    return None if limit is None else choose("--fail-on", limit, SEVERITIES)
