"""Reader ``aim``: metrics of Aim, handed out as a table by its SDK."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from stabcli.assembly import LINE, Reading
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.readers import is_text, reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.tables import find_header, read_table
from stabcli.trackers.layouts import is_aim
from stabcli.trackers.points import STEP, Points
from stabcli.trackers.values import SHOWN, Faults, named, number, seconds, settings, whole

_SYSTEM = "__system__"
"""Begin of the names of what Aim measures of the machine by itself."""
_CONTEXT = "metric.context."
_RUN = "run."


def matches(source: Source) -> bool:
    """Claim a table with the columns of ``Metric.dataframe()``."""
    header = find_header(source.head) if is_text(source.head) else None
    return header is not None and is_aim(header.names)


@reader(matches, writes="Aim: Metric.dataframe() or query_metrics(…).dataframe() as CSV")
def aim(source: Source) -> Iterator[Reading]:
    """Read a table of Aim's metrics: a row a value, with its name, context and run where included.

    A context tells metrics of one name apart: ``loss`` under ``{'subset': 'train'}`` is
    ``train/loss``. A row without a value is a NaN, which pandas writes as an empty cell. Times
    are those of the machine that made the table, and are taken as UTC.

    Raises:
        LogError: No line names these columns, or there is no value.
    """
    header = None if source.is_folder else find_header(source.head)
    if header is None or not is_aim(header.names):
        raise LogError(
            f"{source.shown}: no columns idx, step, value, epoch, time: write the table with"
            " query_metrics(…).dataframe().to_csv()"
        )
    read = read_table(source.path, header, _unique)
    if not read.frame.height:
        raise LogError(f"{source.shown}: no whole row in it: export it again")
    notes = list(read.notes)
    key = "run.hash" if "run.hash" in read.frame.columns else None
    parts = read.frame.partition_by(key, maintain_order=True) if key else [read.frame]
    bad = Faults(count=len(read.bad), first=read.bad[:SHOWN])
    broken = frozenset(line for line, _ in read.bad)
    for part in parts:
        points, made = _points(part.filter(~pl.col(LINE).is_in(broken)), source, bad)
        if not len(points):
            continue
        yield Reading(
            name=_name(part, source, several=len(parts) > 1),
            table=points.table(made, apart=True),
            names={"step": STEP},
            facts=_facts(part),
            notes=(*notes, *made),
            bad=bad.bad(),
        )
        notes, bad = [], Faults()  # told once, with the first run


def _unique(names: list[str]) -> list[str]:
    """Name the nameless, which is pandas' row number, and tell apart what has one name."""
    made: list[str] = []
    for number_, name in enumerate(names, start=1):
        free = name or f"column {number_}"
        while free in made:
            free += "'"
        made.append(free)
    return made


def _points(part: pl.DataFrame, source: Source, bad: Faults) -> tuple[Points, list[str]]:
    columns = part.columns
    contexts = [c for c in columns if c.startswith(_CONTEXT)]
    points = Points()
    notes: list[str] = []
    empty: set[str] = set()
    blanks = system = 0
    fixed = None
    if "metric.name" not in columns:
        fixed = source.name.removesuffix(".csv")
        notes.append(
            f"the table does not name its metric: {fixed!r}, after the file;"
            " --map NAME=… says what it is"
        )
    for row in part.iter_rows(named=True):
        name = fixed if fixed is not None else row["metric.name"]
        if name is None:
            bad.add(int(row[LINE]), "a value without the name of its metric")
            continue
        said = {c.removeprefix(_CONTEXT): _shown(row[c]) for c in contexts if row[c] is not None}
        metric = _in_context(str(name), said)
        if metric.startswith(_SYSTEM):
            system += 1
            continue
        value = number(row["value"])
        if row["value"] is None:
            value = float("nan")
            empty.add(metric)
            blanks += 1
        if value is None:
            bad.add(int(row[LINE]), f"no number: {str(row['value'])[:40]!r}")
            continue
        wall = seconds(row["time"])
        points.add(metric, whole(row[STEP]), value, wall=wall, line=int(row[LINE]))
    if blanks:
        notes.append(f"{blanks:,} empty values are NaN, as pandas writes them: {named(empty)}")
    if system:
        notes.append(f"values of the machine ({_SYSTEM}…) not read: {system:,}")
    return points, notes


def _shown(value: object) -> str:
    """Return a value of a context: whole numbers have become floats in the table."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_context(name: str, context: dict[str, str]) -> str:
    """Return the name of a metric with its context: the subset before it, the rest behind."""
    rest = dict(context)
    subset = rest.pop("subset", "")
    shown = f"{subset}/{name}" if subset and not name.startswith(_SYSTEM) else name
    more = ", ".join(f"{k}={v}" for k, v in sorted(rest.items()))
    return f"{shown} ({more})" if more else shown


def _name(part: pl.DataFrame, source: Source, *, several: bool) -> str:
    """Return the name of a run: its own where it has one, else that of the file."""
    for column in ("run.name", "run.hash"):
        if several and column in part.columns and part[column][0] is not None:
            return str(part[column][0])
    return source.name


def _facts(part: pl.DataFrame) -> dict[str, Fact]:
    """Read facts off the columns of the run, which have one value for all its rows."""
    said = {
        c.removeprefix(_RUN): part[c][0]
        for c in part.columns
        if c.startswith(_RUN) and part[c][0] is not None
    }
    return find_facts(settings(said), "run params, column")
