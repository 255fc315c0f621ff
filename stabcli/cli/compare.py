"""Command ``compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from stabcli.cli._arguments import Asked, analysis, choose, pair, read, settings, takes_logs
from stabcli.cli._output import colour, complain, plain_ascii, put, width
from stabcli.errors import SettingError

if TYPE_CHECKING:
    from stabcli.comparison import Comparison
    from stabcli.run import Run

FORMATS = ("console", "json", "csv", "markdown")
"""How a comparison can be written."""


@takes_logs
def compare(
    asked: Asked,
    at: Annotated[
        str | None, typer.Option(metavar="STEPS", help="Steps to compare at, e.g. 50,200.")
    ] = None,
    run_fact: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN:NAME=VALUE",
            help="A fact of one run alone, by its letter: B:grad_clip=0; repeatable.",
        ),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help="console, json, csv or markdown.")
    ] = "console",
) -> int:
    """Put runs side by side: settings, losses, ends, waste, and which one to keep."""
    from stabcli.cli import CANNOT_JUDGE, FINE
    from stabcli.comparison import compare as put_side_by_side
    from stabcli.diagnosis import diagnose
    from stabcli.report._words import few

    choose("--format", format_, FORMATS)
    steps = _steps(at)
    chosen = settings()
    how = analysis(asked, chosen)
    found = read(asked, chosen, together=False)
    for line in (*found.failed, *few(found.left_out)):
        complain(line)
    if len(found.runs) < 2:
        if not found.failed:
            complain(f"{', '.join(asked.logs)}: one run alone: compare takes two or more")
        return CANNOT_JUDGE
    runs = _with_facts(found.runs, run_fact or ())
    comparison = put_side_by_side(
        [diagnose(r, presets=how.presets, only=how.only, settings=how.settings) for r in runs],
        steps,
    )
    put(_written(comparison, format_))
    return CANNOT_JUDGE if found.failed else FINE


def _steps(text: str | None) -> list[int]:
    """Return the steps that a person names, ``50,200`` or ``10k``."""
    from stabcli.units import quantity

    steps = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        try:
            steps.append(0 if part.strip() == "0" else int(quantity(part)))
        except ValueError:
            raise SettingError(f"--at {text}: takes steps such as 50,200, not {part!r}") from None
    return steps


def _with_facts(runs: Sequence[Run], given: Sequence[str]) -> list[Run]:
    """Return the runs with the facts that belong to one of them alone."""
    from stabcli.comparison.sides import letter
    from stabcli.facts import given_fact

    facts = [dict(run.facts) for run in runs]
    for text in given:
        key, colon, rest = text.partition(":")
        letters = [letter(i) for i in range(len(runs))]
        if not colon or key.strip().upper() not in letters:
            raise SettingError(
                f"--run-fact {text}: no run of that letter: write RUN:NAME=VALUE, RUN being one of"
                f" {', '.join(letters)}"
            )
        name, value = pair("--run-fact", rest)
        fact, known = given_fact(name.replace("-", "_"), value, f"--run-fact {key}:{name}")
        facts[letters.index(key.strip().upper())][fact] = known
    return [replace(run, facts=own) for run, own in zip(runs, facts, strict=True)]


def _written(comparison: Comparison, format_: str) -> str:
    from stabcli.report import Screen
    from stabcli.report.compare_console import compare_console
    from stabcli.report.compare_csv import compare_csv
    from stabcli.report.compare_json import compare_json
    from stabcli.report.compare_markdown import compare_markdown

    if format_ == "console":
        screen = Screen(width=width(), colour=colour(), ascii_only=plain_ascii())
        return compare_console(comparison, screen)
    writers = {"json": compare_json, "csv": compare_csv, "markdown": compare_markdown}
    return writers[format_](comparison)
