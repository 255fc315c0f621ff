"""Command ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stabcli.cli._arguments import Asked, read, settings, takes_logs
from stabcli.cli._output import complain, new_file
from stabcli.errors import SettingError

ENDINGS = (".parquet", ".csv", ".jsonl")


@takes_logs
def export(
    asked: Asked,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write: .parquet, .csv or .jsonl.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
) -> int:
    """Write a log as one table, in canonical names and units."""
    from stabcli.cli import CANNOT_JUDGE, FINE
    from stabcli.report._words import few

    if output.suffix not in ENDINGS:
        raise SettingError(f"{output}: unknown ending: one of {', '.join(ENDINGS)}")
    new_file(output, force=force)
    found = read(asked, settings())
    for line in (*found.failed, *few(found.left_out)):
        complain(line)
    if not found.runs:
        return CANNOT_JUDGE
    read_from = [Path(f) for run in found.runs for f in run.files]
    if output.exists() and any(f.exists() and f.samefile(output) for f in read_from):
        raise SettingError(f"{output}: the log itself: give another file to write to")
    from stabcli.report.table import write_table

    write_table([*found.runs], output)
    return CANNOT_JUDGE if found.failed else FINE
