"""Reader ``trackio``: the database of a trackio project, and the parquet files made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from stabcli.assembly import LINE, Reading
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.parts import checked_parquet, flattened
from stabcli.readers import reader, sibling
from stabcli.run import Fact
from stabcli.sources import Source, open_source
from stabcli.trackers.documents import loads
from stabcli.trackers.layouts import PARQUET, TRACKIO, parquet_kind
from stabcli.trackers.points import STEP, Points
from stabcli.trackers.sqlitefile import Database, holds, opened
from stabcli.trackers.values import Faults, named, number, seconds, settings, told_apart, whole

_TABLE = "metrics"
_COLUMNS = {"run_name", "timestamp", "step", "metrics"}
_OWN = ("id", "run_id", "run_name", "log_id", "space_id")
"""Columns of a table of metrics that are no metrics, the step and the time apart."""
_DEEPEST = 8
"""Levels of nested values that are followed."""


_BESIDE = re.compile(
    r".+(\.lock|\.db-(wal|shm|journal)|_(system|configs|traces|artifacts|artifact_\w+"
    r"|(external_)?run_artifact_links)\.parquet)|media|artifacts"
)
"""What else trackio keeps in its folder: the parts of an export, locks, files of runs."""


def matches(source: Source) -> bool:
    """Claim a database with trackio's table of metrics, a parquet file of one, and trackio's folder."""
    if source.is_folder:
        return bool(_projects(source.path))
    return _is_project(source)


def _is_project(source: Source) -> bool:
    words = [b"run_name", b"CREATE TABLE metrics", b"configs"]
    return holds(source, _TABLE, _COLUMNS, words) or parquet_kind(source) == "trackio"


def _projects(folder: Path) -> list[Source]:
    """Return the projects of a folder that holds trackio's files alone, each once."""
    found: dict[str, Source] = {}
    try:
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or _BESIDE.fullmatch(path.name):
                continue
            source = open_source(path, pipes=False)
            if source.is_folder or not _is_project(source):
                return []
            found.setdefault(path.stem, source)  # a database goes before the parquet made of it
    except (OSError, LogError):
        return []
    return list(found.values())


@reader(matches, writes="trackio: <project>.db, <project>.parquet, its folder")
def trackio(source: Source) -> Iterator[Reading]:
    """Read the runs of a trackio project, or of all projects in trackio's folder.

    Nested values are named by path, joined with ``/``; "NaN" and "Infinity" are numbers. The
    configuration of each run gives facts; that of a parquet file is looked for beside it, in
    ``<project>_configs.parquet``. Measurements of the machine are not read.

    Raises:
        LogError: Nothing was logged in it, or it is broken.
    """
    if source.is_folder:
        projects = _projects(source.path)
        if not projects:
            raise LogError(
                f"{source.shown}: not a folder of trackio's files alone: give one of them"
            )
        for project in projects:
            for reading in trackio(project):
                yield replace(reading, name=f"{Path(project.name).stem}/{reading.name}")
        return
    if source.head.startswith(PARQUET):
        yield from _tables(source)
        return
    notes: list[str] = []
    faults = Faults()
    with opened(source.path, source.shown, notes) as database:
        if not database.tables.get(_TABLE, frozenset()) >= _COLUMNS:
            raise LogError(f"{source.shown}: no table of metrics of trackio in it: check the file")
        runs = _runs(database, faults)
        configs = _configs(database, faults)
        system = _count(database, "system_metrics")
    if system:
        notes.append(f"rows of the machine (system_metrics) not read: {system:,}")
    filled = {key: run for key, run in runs.items() if len(run.points)}
    if not filled:
        damaged = f" ({faults.count:,} broken rows)" if faults.count else ""
        raise LogError(f"{source.shown}: no number logged in it{damaged}: give a project with runs")
    names = told_apart((run.name, key) for key, run in filled.items())
    for name, (key, run) in zip(names, filled.items(), strict=True):
        made = [*notes]
        table = run.points.table(made)
        if run.others:
            made.append(f"no numbers, left out: {named(run.others)}")
        yield Reading(
            name=name,
            table=table,
            names={"step": STEP},
            facts=_facts(configs.get(key) or configs.get(run.name) or {}),
            notes=tuple(made),
            bad=faults.bad(),
        )
        notes, faults = [], Faults()  # told once, with the first run


@dataclass(slots=True)
class _Run:
    name: str
    points: Points = field(default_factory=Points)
    others: set[str] = field(default_factory=set)
    """Names of values that are no numbers."""


def _runs(database: Database, faults: Faults) -> dict[str, _Run]:
    """Return the runs by id, or by name in databases of older versions, which have no ids."""
    with_id = "run_id" in database.tables[_TABLE]
    listed = ["run_name", "timestamp", "step", "metrics", *(["run_id"] if with_id else [])]
    found: dict[str, _Run] = {}
    for line, (name, timestamp, step, metrics, *key) in database.rows(_TABLE, listed, faults):
        logged = loads(metrics) if isinstance(metrics, str | bytes) else None
        counted = whole(step)
        if not isinstance(name, str) or not isinstance(logged, dict) or counted is None:
            faults.add(line, "a row without run, step or metrics that can be read")
            continue
        run_id = str(key[0]) if key and key[0] else name
        run = found.setdefault(run_id, _Run(name))
        wall = seconds(timestamp)
        for metric, value in _flat(logged, run.others):
            run.points.add(metric, counted, value, wall=wall, line=line)
    return found


def _flat(logged: Mapping[str, Any], others: set[str]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of one call of ``log``; what else there is goes to ``others``."""
    stack: list[tuple[str, Any, int]] = [(str(k), v, 0) for k, v in logged.items()]
    while stack:
        name, value, depth = stack.pop(0)
        found = number(value)
        if found is not None:
            yield name, found
        elif isinstance(value, dict) and "_type" not in value and depth < _DEEPEST:
            stack[:0] = [(f"{name}/{k}", v, depth + 1) for k, v in value.items()]
        elif value is not None:
            others.add(name)


def _configs(database: Database, faults: Faults) -> dict[str, Mapping[str, Any]]:
    known = database.tables.get("configs", frozenset())
    keys = [k for k in ("run_id", "run_name") if k in known]
    if not keys or "config" not in known:
        return {}
    found: dict[str, Mapping[str, Any]] = {}
    for _, (config, *names) in database.rows("configs", ["config", *keys], faults):
        held = loads(config) if isinstance(config, str | bytes) else None
        if isinstance(held, dict):
            for name in names:
                found[str(name)] = held
    return found


def _facts(config: Mapping[str, Any], source: str = "config of the run") -> dict[str, Fact]:
    said = {k: v for k, v in config.items() if not k.startswith("_") and v is not None}
    return find_facts(settings(said), source)


def _count(database: Database, table: str) -> int:
    if "run_name" not in database.tables.get(table, frozenset()):
        return 0
    return sum(1 for _ in database.rows(table, ["run_name"], Faults()))


def _tables(source: Source) -> Iterator[Reading]:
    """Read the parquet file of a project: a row a call of ``log``, a column a metric."""
    try:
        with checked_parquet(source.path):
            table = flattened(pl.read_parquet(source.path)).with_row_index(LINE, 1)
    except (PolarsError, OSError) as error:
        why = str(error).partition("\n")[0]
        raise LogError(f"{source.shown}: a broken parquet file: {why}: export it again") from None
    if not frozenset(table.columns) >= TRACKIO:
        raise LogError(f"{source.shown}: no table of metrics of trackio: columns are missing")
    table = table.with_columns(pl.col(LINE).cast(pl.Int64))
    if not table.height:
        return
    key = "run_id" if "run_id" in table.columns else "run_name"
    parts = table.partition_by(key, maintain_order=True)
    configs = _beside(source)
    names = told_apart((str(part["run_name"][0]), str(part[key][0])) for part in parts)
    for name, part in zip(names, parts, strict=True):
        logged = [c for c in part.columns if part[c].count() and c not in _OWN]
        found = part.select(logged)
        texts = [
            c
            for c in logged
            if found[c].dtype == pl.String and c != "timestamp" and not _numeric(found[c])
        ]
        notes = [f"no numbers, left out: {named(texts)}"] if texts else []
        yield Reading(
            name=name,
            table=found.drop(texts),
            names={"step": STEP, "wall_time": "timestamp"},
            facts=_facts(configs.get(str(part[key][0]), {}), "config of the run, parquet beside"),
            notes=tuple(notes),
        )


def _numeric(series: pl.Series) -> bool:
    return all(number(value) is not None for value in series.drop_nulls())


def _beside(source: Source) -> dict[str, Mapping[str, Any]]:
    """Return the configurations that stand beside a table of metrics, by id and name."""
    path = sibling(source, f"{Path(source.name).stem}_configs.parquet")
    if path is None:
        return {}
    try:
        with checked_parquet(path):
            table = flattened(pl.read_parquet(path))
    except (PolarsError, OSError):
        return {}
    found: dict[str, Mapping[str, Any]] = {}
    for row in table.iter_rows(named=True):
        for key in ("run_id", "run_name"):
            if row.get(key) is not None:
                found[str(row[key])] = row
    return found
