"""Command ``scan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stabcli.cli._arguments import Asked, analysis, choose, read, settings, takes_logs
from stabcli.cli._delivery import Target, base, deliver, targets
from stabcli.cli._gates import idle, ignores_in_force, least_severity
from stabcli.cli._output import complain

if TYPE_CHECKING:
    from stabcli.cli._arguments import Read
    from stabcli.diagnosis import Diagnosis
    from stabcli.verdicts import Gate


@takes_logs
def scan(
    asked: Asked,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help="What to print. [console]"),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(metavar="FORMAT:FILE", help="Write a report into a file; repeatable."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over existing files.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="SEVERITY", help="End with 1 where something this bad was found."),
    ] = None,
) -> int:
    """Say what went wrong in a run, and where to roll back to."""
    from stabcli.diagnosis import diagnose
    from stabcli.report import reports
    from stabcli.verdicts import Gate

    chosen = settings()
    how = analysis(asked, chosen)
    shown_as = format_ or chosen.word("format") or "console"
    choose(chosen.place("format", flag=format_), shown_as, [r.name for r in reports])
    wanted = targets(output or (), force=force)
    limit = least_severity(fail_on, chosen, None)
    gate = None
    remarks: list[str] = []
    if limit is not None:
        ignores, remarks = ignores_in_force(chosen)
        gate = Gate(fail_on=limit, ignores=ignores)
    found = read(asked, chosen)
    diagnoses = [
        diagnose(run, presets=how.presets, only=how.only, settings=how.settings)
        for run in found.runs
    ]
    return show(diagnoses, shown_as, found=found, gate=gate, remarks=remarks, wanted=wanted)


def show(
    diagnoses: list[Diagnosis],
    shown_as: str,
    *,
    found: Read | None = None,
    gate: Gate | None = None,
    remarks: list[str] | None = None,
    wanted: list[Target] | None = None,
) -> int:
    """Print diagnoses, and what could not be read; return the exit status."""
    from stabcli.cli import CANNOT_JUDGE
    from stabcli.report import Outcome
    from stabcli.verdicts import exit_status, judge

    failed = found.failed if found else ()
    verdicts = tuple(judge(d, gate) for d in diagnoses) if gate else ()
    lines = [*(remarks or ()), *(idle(gate.ignores, verdicts) if gate and diagnoses else ())]
    unread = bool(failed) or not diagnoses or any(d.cannot_judge for d in diagnoses)
    status = exit_status(verdicts, unread=unread)
    outcome = Outcome(
        diagnoses=tuple(diagnoses),
        exit_status=status,
        left_out=found.left_out if found else (),
        unread=failed,
        verdicts=verdicts,
        remarks=tuple(lines),
        base=base(),
    )
    for line in (*lines, *failed):
        complain(line)
    for diagnosis in diagnoses:
        if why := diagnosis.cannot_judge:
            complain(f"{diagnosis.run.source}: {why}: see what each rule needs")
    return status if deliver(outcome, shown_as, wanted or ()) else CANNOT_JUDGE
