"""Reader ``neptune``: runs that neptune-exporter saved as parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from stabcli.assembly import Reading
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.parts import checked_parquet
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source, open_source
from stabcli.trackers.layouts import NEPTUNE, parquet_kind
from stabcli.trackers.points import STEP, Points
from stabcli.trackers.values import Faults, counted, settings, told_apart

_SERIES = "float_series"
_MACHINE = "monitoring/"
"""Begin of the paths of what Neptune measures of the machine by itself."""
_VALUES = ("float_value", "int_value", "string_value", "bool_value")
_LINE = "@row"


def matches(source: Source) -> bool:
    """Claim the exporter's parquet files, and folders of nothing else."""
    if not source.is_folder:
        return parquet_kind(source) == "neptune"
    return bool(_parts(source.path))


@reader(matches, writes="Neptune: the parquet files of neptune-exporter")
def neptune(source: Source) -> Iterator[Reading]:
    """Read the parquet files that neptune-exporter writes, or a folder of them.

    The parts of one run are joined. Steps may be fractions: those that are not whole are
    counted, in order, and a note says so. All that is no series gives facts. What Neptune
    measures of the machine is not read.

    Raises:
        LogError: A file is broken, or no metric stands in any of them.
    """
    paths = _parts(source.path) if source.is_folder else [source.path]
    if not paths:
        raise LogError(f"{source.shown}: not a folder of the exporter's parquet files alone")
    tables = [_table(path, source) for path in paths]
    table = pl.concat(tables, how="diagonal_relaxed")
    found = False
    runs = table.partition_by("project_id", "run_id", maintain_order=True)
    names = told_apart(
        (_said(run).get("sys/name") or run["run_id"][0], run["run_id"][0]) for run in runs
    )
    for name, run in zip(names, runs, strict=True):
        reading = _reading(run, name, many=len(paths) > 1)
        if reading is not None:
            found = True
            yield reading
    if not found:
        raise LogError(f"{source.shown}: no {_SERIES} in it: export the metrics of a run")


def _parts(folder: Path) -> list[Path]:
    """Return the files of a folder that holds the exporter's files alone, in order of part."""
    try:
        names = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except OSError:
        return []
    if not names or not all(p.suffix == ".parquet" and p.is_file() for p in names):
        return []
    try:
        if not all(parquet_kind(open_source(path, pipes=False)) == "neptune" for path in names):
            return []
    except LogError:
        return []
    return sorted(names, key=_order)


def _order(path: Path) -> tuple[str, int]:
    stem, _, part = path.stem.rpartition("_part_")
    return (stem, int(part)) if stem and part.isdecimal() and len(part) < 9 else (path.stem, 0)


def _table(path: Path, source: Source) -> pl.DataFrame:
    try:
        with checked_parquet(path):
            table = pl.read_parquet(path)
    except (PolarsError, OSError) as error:
        where = f"{source.shown}/{path.name}" if source.is_folder else source.shown
        why = str(error).partition("\n")[0]
        raise LogError(f"{where}: a broken parquet file: {why}: export it again") from None
    if not frozenset(table.columns) >= NEPTUNE:
        raise LogError(f"{source.shown}: no table of neptune-exporter: columns are missing")
    for name, dtype in (("project_id", pl.String), ("timestamp", pl.Datetime("ms", "UTC"))):
        if name not in table.columns:
            table = table.with_columns(pl.lit(None, dtype).alias(name))
    try:
        return table.with_columns(
            pl.col("project_id", "run_id", "attribute_path", "attribute_type").cast(pl.String),
            pl.col("step").cast(pl.Float64),
            pl.col("float_value").cast(pl.Float64),
            pl.lit(path.name).alias("@name"),
        ).with_row_index(_LINE, 1)
    except PolarsError as error:
        why = str(error).partition("\n")[0]
        raise LogError(f"{source.shown}: no table of neptune-exporter: {why}") from None


def _reading(run: pl.DataFrame, name: str, *, many: bool) -> Reading | None:
    series = run.filter(pl.col("attribute_type") == _SERIES)
    machine = series["attribute_path"].str.starts_with(_MACHINE).fill_null(value=False)
    notes: list[str] = []
    if machine.any():
        notes.append(f"values of the machine (monitoring) not read: {int(machine.sum()):,}")
    series = series.filter(~machine)
    usable = (
        series["attribute_path"].is_not_null()
        & series["float_value"].is_not_null()
        & series["step"].is_finite().fill_null(value=False)
        & (series["step"].abs() < 2**62).fill_null(value=False)
    )
    faults = Faults()
    for line in series.filter(~usable)[_LINE]:
        faults.add(int(line), "a value without its path, its step or itself")
    series = series.filter(usable)
    if not series.height:
        return None
    steps = counted(series["step"].to_list(), notes)
    times = series["timestamp"]
    walls = (
        times.dt.epoch("ms") / 1e3
        if times.dtype == pl.Datetime
        else times.cast(pl.Float64, strict=False)
    )
    points = Points()
    rows = zip(
        series["attribute_path"], steps, series["float_value"], walls,
        series[_LINE], series["@name"], strict=True,
    )  # fmt: skip
    for key, step, value, wall, line, file in rows:
        points.add(key, step, value, wall=wall, line=line, file=file if many else "")
    said = _said(run)
    if said.get("sys/failed") is True:
        notes.append("Neptune says that the run failed")
    return Reading(
        name=name,
        table=points.table(notes, apart=True),
        names={"step": STEP},
        facts=_facts(said),
        notes=tuple(notes),
        bad=faults.bad(),
    )


def _said(run: pl.DataFrame) -> dict[str, Any]:
    """Return what is known of a run besides series: path -> value."""
    columns = [c for c in _VALUES if c in run.columns]
    single = run.filter(~pl.col("attribute_type").str.ends_with("_series").fill_null(value=True))
    found: dict[str, Any] = {}
    for row in single.iter_rows(named=True):
        values = [row[c] for c in columns if row[c] is not None]
        if row["attribute_path"] is not None and values:
            found[row["attribute_path"]] = values[0]
    return found


def _facts(said: dict[str, Any]) -> dict[str, Fact]:
    own = {
        k: v for k, v in said.items() if not k.startswith(("sys/", "monitoring/", "source_code/"))
    }
    return find_facts(settings(own), "attributes of the run")
