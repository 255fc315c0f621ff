"""Command ``check``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from stabcli.cli._arguments import Asked, analysis, choose, read, settings, takes_logs
from stabcli.cli._delivery import base, deliver, targets
from stabcli.cli._gates import (
    idle,
    ignores_in_force,
    least_severity,
    make_gate,
    read_baseline,
    wishes,
)
from stabcli.cli._output import complain


@takes_logs
def check(
    asked: Asked,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="SEVERITY",
            help="Least severity that fails: notice, warning, error, critical or never. [error]",
        ),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="Metrics that must be logged, rules that must look."),
    ] = None,
    max_wasted_gpu_hours: Annotated[
        str | None, typer.Option(metavar="H", help="Most GPU-hours that may be wasted.")
    ] = None,
    max_wasted_share: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Most of the run that may be, e.g. 5%.")
    ] = None,
    min_mfu: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Least MFU of the run, e.g. 35%.")
    ] = None,
    max_final_loss: Annotated[
        str | None, typer.Option(metavar="X", help="Highest loss that the run may end with.")
    ] = None,
    max_discarded_steps: Annotated[
        str | None, typer.Option(metavar="N", help="Most steps that restarts may throw away.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="LOG", help="A run that this one may not be worse than.")
    ] = None,
    margin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=SHARE",
            help="How much worse is still well: loss=1%, throughput=5%, mfu=5%, spikes=0%.",
        ),
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="What to print. [verdict]")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(metavar="FORMAT:FILE", help="Write a report into a file; repeatable."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over existing files.")] = False,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="End with 0 where runs fail; told all the same.")
    ] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Let a pattern match nothing.")
    ] = False,
) -> int:
    """Decide whether runs pass: 0 they do, 1 one fails, 2 one cannot be judged."""
    from stabcli.cli import CANNOT_JUDGE
    from stabcli.diagnosis import diagnose
    from stabcli.report import Outcome, reports
    from stabcli.verdicts import exit_status, judge

    chosen = settings()
    how = analysis(asked, chosen)
    shown_as = format_ or chosen.word("format") or "verdict"
    choose(chosen.place("format", flag=format_), shown_as, [r.name for r in reports])
    wanted = targets(output or (), force=force)
    flags = {
        "require": require,
        "baseline": baseline,
        "max_wasted_gpu_hours": max_wasted_gpu_hours,
        "max_wasted_share": max_wasted_share,
        "min_mfu": min_mfu,
        "max_final_loss": max_final_loss,
        "max_discarded_steps": max_discarded_steps,
    }
    asked_for = wishes(flags, chosen)
    ignores, remarks = ignores_in_force(chosen)
    limit = least_severity(fail_on, chosen, "error")
    gate = make_gate(limit, asked_for, margin or (), chosen, ignores)
    if "baseline" in asked_for:
        gate = replace(gate, baseline=read_baseline(asked, chosen, how, asked_for["baseline"]))
    found = read(asked, chosen, allow_empty=allow_empty)
    diagnoses = tuple(
        diagnose(run, presets=how.presets, only=how.only, settings=how.settings)
        for run in found.runs
    )
    verdicts = tuple(judge(d, gate) for d in diagnoses)
    if diagnoses:
        remarks += idle(ignores, verdicts)
    unread = bool(found.failed) or not (diagnoses or found.empty)
    status = exit_status(verdicts, unread=unread, exit_zero=exit_zero)
    outcome = Outcome(
        diagnoses=diagnoses,
        exit_status=status,
        left_out=found.left_out,
        unread=found.failed,
        verdicts=verdicts,
        remarks=tuple(remarks),
        base=base(),
    )
    for line in (*remarks, *found.failed, *found.empty):
        complain(line)
    if not deliver(outcome, shown_as, wanted):
        return CANNOT_JUDGE
    return status
