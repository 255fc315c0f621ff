"""Command ``audit``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from stabcli.cli._arguments import Asked, analysis, choose, given_facts, read, settings, takes_logs
from stabcli.cli._output import colour, complain, plain_ascii, put, width

if TYPE_CHECKING:
    from stabcli.audit import Audit

FORMATS = ("console", "json", "markdown")
"""How an audit can be written."""


@takes_logs
def audit(
    asked: Asked,
    kind: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="pretraining, sft or rl, where it guesses wrong."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Configuration of the runs; repeatable."),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help="console, json or markdown.")
    ] = "console",
) -> int:
    """Hold a run, or its configuration alone, against what keeps trainings stable."""
    from stabcli.audit import audit_config, audit_run
    from stabcli.cli import CANNOT_JUDGE, FINE
    from stabcli.configs import is_config, read_config
    from stabcli.diagnosis import diagnose
    from stabcli.errors import LogError
    from stabcli.readers import expand
    from stabcli.report._words import few
    from stabcli.techniques import KINDS

    choose("--format", format_, FORMATS)
    told = None if kind is None else next(k for k in KINDS if k == choose("--kind", kind, KINDS))
    chosen = settings()
    how = analysis(asked, chosen)
    flags = given_facts(asked, chosen)
    beside = {name: fact for file in config or () for name, fact in read_config(file).facts.items()}
    audits: list[Audit] = []
    failed: list[str] = []
    remarks: list[str] = []
    for log in asked.logs:
        try:
            paths = expand(log)
        except LogError as error:
            failed.append(str(error))
            continue
        for path in paths:
            if asked.reader is None and is_config(path):
                try:
                    audits.append(audit_config(read_config(path), {**beside, **flags}, told))
                except LogError as error:
                    failed.append(str(error))
                continue
            found = read(replace(asked, logs=(path,)), chosen)
            failed += found.failed
            remarks += few(found.left_out)
            for run in found.runs:
                known = replace(run, facts={**run.facts, **beside, **flags})
                looked = diagnose(known, presets=how.presets, only=how.only, settings=how.settings)
                audits.append(audit_run(looked, told))
    if audits:
        put(_written(audits, format_))
    for line in (*failed, *remarks):
        complain(line)
    return CANNOT_JUDGE if failed or not audits else FINE


def _written(audits: list[Audit], format_: str) -> str:
    from stabcli.report import Screen
    from stabcli.report.audit_console import audit_console
    from stabcli.report.audit_json import audit_json
    from stabcli.report.audit_markdown import audit_markdown

    if format_ == "console":
        screen = Screen(width=width(), colour=colour(), ascii_only=plain_ascii())
        return audit_console(audits, screen)
    return {"json": audit_json, "markdown": audit_markdown}[format_](audits)
