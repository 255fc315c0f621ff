"""MLflow: the two places where it keeps runs, folders of small files and a database.

Source: mlflow/store/tracking/file_store.py (``_log_run_metric``), mlflow/store/tracking/dbmodels/models.py
(``SqlMetric``, ``SqlRun``) and sqlalchemy_store.py, which writes NaN as 0 with ``is_nan`` and
infinities as the largest numbers there are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stabcli.configs import plain
from stabcli.trackers.points import Points
from stabcli.trackers.sqlitefile import Database
from stabcli.trackers.values import Faults, number, seconds, text, whole

META = "meta.yaml"
SYSTEM = "system/"
"""Begin of the names of what MLflow measures of the machine by itself."""
TABLE = "metrics"
COLUMNS = {"key", "value", "timestamp", "step", "is_nan", "run_uuid"}
LARGEST = 1.797e308
"""Numbers of a database from here on stand for infinity: the largest float is 1.7976931348623157e308."""

_STATUS = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_SMALL = 1 << 16
"""Bytes of a file with one setting up to which it is read."""
_LINE = 1 << 12


@dataclass(slots=True, kw_only=True)
class MlflowRun:
    """One run as MLflow keeps it."""

    run_id: str
    name: str = ""
    experiment: str = ""
    status: str = ""
    started: float | None = None
    """Seconds since 1970."""
    ended: float | None = None
    deleted: bool = False
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    metrics: Path | None = None
    """The folder with a file a metric, whose points are read later; None in a database."""
    points: Points = field(default_factory=Points)
    system: int = 0
    """Values measured of the machine, which are not read."""
    faults: Faults = field(default_factory=Faults)
    notes: list[str] = field(default_factory=list)

    @property
    def logged(self) -> bool:
        """Whether there is something that could be points."""
        if self.metrics is None:
            return len(self.points) > 0
        return any(True for _ in _files(self.metrics))


def is_run(folder: Path) -> bool:
    """Say whether a folder is that of one run."""
    return (folder / META).is_file() and (folder / "metrics").is_dir()


def run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs in a run, an experiment or a whole store; each once.

    Raises:
        OSError: The folder cannot be listed.
    """
    if is_run(folder):
        return [folder]
    inner = _folders(folder)
    found = [path for path in inner if is_run(path)] if (folder / META).is_file() else []
    if not found:
        experiments = [path for path in inner if (path / META).is_file()]
        found = [run for path in experiments for run in _folders(path) if is_run(run)]
    once: dict[str, Path] = {}
    for path in found:
        once.setdefault(os.path.realpath(path), path)
    return list(once.values())


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.is_dir())
    except PermissionError:
        return []


def read_folder(folder: Path) -> MlflowRun:
    """Read what is said of a run of the file store; its points are for ``read_points``."""
    meta = plain(_content(folder / META, _SMALL), [])
    tags = _settings(folder / "tags")
    status = whole(meta.get("status"))
    return MlflowRun(
        run_id=str(meta.get("run_id") or meta.get("run_uuid") or folder.name),
        name=str(meta.get("run_name") or tags.get("mlflow.runName") or ""),
        experiment=_experiment(folder.parent),
        status=_STATUS.get(status or 0, ""),
        started=seconds(meta.get("start_time")),
        ended=seconds(meta.get("end_time")),
        deleted=meta.get("lifecycle_stage") == "deleted",
        params=_settings(folder / "params"),
        tags=tags,
        metrics=folder / "metrics",
    )


def read_points(run: MlflowRun, shown: Path) -> None:
    """Read the points of a run of the file store; names of files refer to the folder ``shown``."""
    if run.metrics is not None:
        for path in _files(run.metrics):
            _read_metric(run, path, run.metrics, shown)


def _experiment(folder: Path) -> str:
    return str(plain(_content(folder / META, _SMALL), []).get("name") or folder.name)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in order of name; links to folders are not followed."""
    for place, inner, names in os.walk(folder):
        inner.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file():
                yield path


def _settings(folder: Path) -> dict[str, str]:
    """Return what stands in the files of a folder, one setting each."""
    return {
        path.relative_to(folder).as_posix(): _content(path, _SMALL).strip()
        for path in _files(folder)
    }


def _content(path: Path, most: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def _read_metric(run: MlflowRun, path: Path, metrics: Path, shown: Path) -> None:
    """Read the values of one metric: ``time value [step [dataset digest]]`` a line."""
    name = path.relative_to(metrics).as_posix()
    where = path.relative_to(shown).as_posix() if path.is_relative_to(shown) else path.name
    found: list[tuple[int, str, float, int | None, float | None]] = []
    try:
        with path.open("rb") as file:
            line = 0
            while data := file.readline(_LINE):
                line += 1
                parts = data.decode("utf-8", "replace").split()
                if not parts:
                    continue
                value = number(parts[1]) if len(parts) > 1 else None
                step = whole(parts[2]) if len(parts) > 2 else None
                cut = not data.endswith(b"\n")
                if value is None or (len(parts) > 2 and step is None) or (cut and len(parts) < 3):
                    why = "cut short" if cut else "no time, value and step"
                    run.faults.add(line, f"{where}: {why}")
                    continue
                dataset = parts[3] if len(parts) > 4 else ""
                found.append((line, dataset, value, step, seconds(parts[0])))
    except OSError as error:
        run.notes.append(f"left out: {where} cannot be read: {error.strerror or error}")
    if name.startswith(SYSTEM):
        run.system += len(found)
        return
    datasets = {dataset for _, dataset, *_ in found if dataset}
    for line, dataset, value, step, wall in found:
        key = f"{name} ({dataset})" if dataset and len(datasets) > 1 else name
        run.points.add(key, step, value, wall=wall, line=line, file=where)


def read_database(database: Database) -> tuple[list[MlflowRun], Faults]:
    """Read the runs of a database, in the order in which they were begun; and what is broken."""
    faults = Faults()
    runs = {run.run_id: run for run in _runs(database, faults)}
    listed = ["key", "value", "timestamp", "step", "is_nan", "run_uuid"]
    for line, row in database.rows(TABLE, listed, faults):
        key, value, timestamp, step, is_nan, run_id = row
        told = number(value)
        if not isinstance(key, str) or not isinstance(run_id, str) or (told is None and not is_nan):
            faults.add(line, "a metric without name, run or value")
            continue
        run = runs.setdefault(run_id, MlflowRun(run_id=run_id))
        if key.startswith(SYSTEM):
            run.system += 1
            continue
        counted = whole(step)
        if counted is None and step is not None:
            faults.add(line, f"no step: {text(step)[:40]!r}")
            continue
        run.points.add(key, counted, _unpacked(told, is_nan), wall=seconds(timestamp), line=line)
    return list(runs.values()), faults


def _unpacked(value: float | None, is_nan: object) -> float:
    """Return the number that was logged, NaN and infinities included."""
    if value is None or is_nan in (1, "1", "true", "True"):
        return math.nan
    return math.copysign(math.inf, value) if abs(value) >= LARGEST else value


def _runs(database: Database, faults: Faults) -> Iterator[MlflowRun]:
    """Yield the runs without their metrics."""
    experiments = dict(_pairs(database, "experiments", "experiment_id", "name", faults))
    params: dict[object, dict[str, Any]] = {}
    tags: dict[object, dict[str, Any]] = {}
    for table, into in (("params", params), ("tags", tags)):
        if {"key", "value", "run_uuid"} <= database.tables.get(table, frozenset()):
            for _, (key, value, run_id) in database.rows(
                table, ["key", "value", "run_uuid"], faults
            ):
                into.setdefault(run_id, {})[text(key)] = value
    known = database.tables.get("runs", frozenset())
    if "run_uuid" not in known:
        return
    wanted = ("name", "status", "start_time", "end_time", "lifecycle_stage", "experiment_id")
    listed = ["run_uuid", *(c for c in wanted if c in known)]
    for _, row in database.rows("runs", listed, faults):
        said = dict(zip(listed, row, strict=True))
        run_id = said["run_uuid"]
        if not isinstance(run_id, str):
            continue
        own = tags.get(run_id, {})
        yield MlflowRun(
            run_id=run_id,
            name=str(said.get("name") or own.get("mlflow.runName") or ""),
            experiment=str(experiments.get(said.get("experiment_id"), "")),
            status=str(said.get("status") or ""),
            started=seconds(said.get("start_time")),
            ended=seconds(said.get("end_time")),
            deleted=said.get("lifecycle_stage") == "deleted",
            params=params.get(run_id, {}),
            tags=own,
        )


def _pairs(
    database: Database, table: str, key: str, value: str, faults: Faults
) -> Iterator[tuple[object, object]]:
    if {key, value} <= database.tables.get(table, frozenset()):
        for _, row in database.rows(table, [key, value], faults):
            yield row[0], row[1]
