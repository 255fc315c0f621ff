"""Command ``cost-report``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from stabcli.cli._arguments import Asked, analysis, choose, read, settings, takes_logs
from stabcli.cli._output import colour, complain, plain_ascii, put, width
from stabcli.errors import SettingError

if TYPE_CHECKING:
    from stabcli.bill import Bill
    from stabcli.report.cost_tables import By

FORMATS = ("console", "json", "csv", "markdown")
"""How a bill can be written."""


@takes_logs
def cost_report(
    asked: Asked,
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help="console, json, csv or markdown.")
    ] = "console",
    by: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="A line a class, incident or run."),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY",
            help="checkpoint-every=2000,stop-on=nonfinite+loss-spike,delay=10; repeatable.",
        ),
    ] = None,
    gpu_price: Annotated[
        str | None, typer.Option(metavar="USD", help="Price of a GPU-hour; there is no default.")
    ] = None,
    seq_len: Annotated[
        str | None, typer.Option(metavar="N", help="Tokens of one sequence.")
    ] = None,
    mfu: Annotated[
        str | None, typer.Option(metavar="SHARE", help="MFU to assume without a clock, e.g. 40%.")
    ] = None,
    target_mfu: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Price the distance to this MFU.")
    ] = None,
    peak_tflops: Annotated[
        str | None, typer.Option(metavar="X", help="Peak TFLOP/s of one GPU.")
    ] = None,
    flops_convention: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="titan, megatron, hf or all-params: FLOPs of a token."),
    ] = None,
    energy: Annotated[
        str | None,
        typer.Option(metavar="FIGURES", help="watts=700,load=0.8,pue=1.2,gco2=475: kWh and CO2e."),
    ] = None,
) -> int:
    """Say what a run cost, where each figure comes from, and what would have saved it."""
    from stabcli.bill import bill
    from stabcli.cli import CANNOT_JUDGE, FINE
    from stabcli.diagnosis import diagnose
    from stabcli.energy import parse_power
    from stabcli.hardware import CONVENTIONS
    from stabcli.policy import parse

    choose("--format", format_, FORMATS)
    if by is not None:
        choose("--by", by, ("class", "incident", "run"))
    if flops_convention is not None:
        choose("--flops-convention", flops_convention, CONVENTIONS)
    flags = (
        ("gpu_price", gpu_price, "--gpu-price"),
        ("sequence_length", seq_len, "--seq-len"),
        ("mfu", _share("--mfu", mfu), "--mfu"),
        ("target_mfu", _share("--target-mfu", target_mfu), "--target-mfu"),
        ("peak_tflops", peak_tflops, "--peak-tflops"),
        ("flops_convention", flops_convention, "--flops-convention"),
    )
    given = tuple((fact, value, flag) for fact, value, flag in flags if value is not None)
    asked = replace(asked, facts=asked.facts + given)
    policies = [parse(text) for text in what_if or ()]
    power = None if energy is None else parse_power(energy)
    chosen = settings()
    how = analysis(asked, chosen)
    found = read(asked, chosen)
    bills = [
        bill(
            diagnose(run, presets=how.presets, only=how.only, settings=how.settings),
            policies,
            power,
        )
        for run in found.runs
    ]
    if bills:
        put(_written(bills, format_, by))
    for line in (*found.failed, *found.left_out):
        complain(line)
    return CANNOT_JUDGE if found.failed or not bills else FINE


def _share(flag: str, text: str | None) -> str | None:
    """Return a share as people type it, ``0.4``, ``40`` or ``40%``, as a fraction."""
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise SettingError(f"{flag}: takes a share such as 0.4 or 40%, not {text!r}") from None
    value = value / 100 if value > 1 or text.strip().endswith("%") else value
    if not 0 < value <= 1:
        raise SettingError(f"{flag}: takes a share above 0 and up to 1, not {text!r}")
    return repr(value)


def _written(bills: list[Bill], format_: str, by: str | None) -> str:
    from stabcli.report import Screen
    from stabcli.report.cost_console import cost_console
    from stabcli.report.cost_csv import cost_csv
    from stabcli.report.cost_json import cost_json
    from stabcli.report.cost_markdown import cost_markdown
    from stabcli.report.cost_tables import BYS

    line: By = next((b for b in BYS if b == by), "class")
    if format_ == "console":
        screen = Screen(width=width(), colour=colour(), ascii_only=plain_ascii())
        return cost_console(bills, line, screen)
    return {"json": cost_json, "csv": cost_csv, "markdown": cost_markdown}[format_](bills, line)
