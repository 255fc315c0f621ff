"""Reader ``mlflow``: the folders and the database in which MLflow keeps runs."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.assembly import Reading
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.readers import reader
from stabcli.run import BadLines
from stabcli.sources import Source
from stabcli.trackers.mlflowfile import (
    COLUMNS,
    TABLE,
    MlflowRun,
    read_database,
    read_folder,
    read_points,
    run_folders,
)
from stabcli.trackers.points import STEP, Points
from stabcli.trackers.sqlitefile import holds, opened
from stabcli.trackers.values import Faults, clock, settings, told_apart


def matches(source: Source) -> bool:
    """Claim a run, an experiment or a store in folders, and a database with metrics of runs."""
    if not source.is_folder:
        return holds(source, TABLE, COLUMNS, [b"is_nan", b"run_uuid"])
    try:
        return bool(run_folders(source.path))
    except OSError:
        return False


@reader(matches, writes="MLflow: mlruns/ folders and sqlite databases")
def mlflow(source: Source) -> Iterator[Reading]:
    """Read the runs of an MLflow store: a folder ``mlruns``, one experiment or run in it, or a database.

    Every logged value is read, in the order of the clock where each metric has a file of its
    own; a folder of runs gives several runs. Where nobody gave a step, values are counted. In a
    database NaN and infinities are put back. Parameters and tags give facts, and how a run ended
    is noted. What MLflow measures of the machine (``system/``) is not read; neither are deleted
    runs, unless there are no others.

    Raises:
        LogError: No run in it has a metric, or the database is broken.
    """
    notes: list[str] = []
    if source.is_folder:
        try:
            runs = [read_folder(path) for path in run_folders(source.path)]
        except OSError as error:
            raise LogError(
                f"{source.shown}: cannot be read: {error.strerror or error}: check its permissions"
            ) from error
        shared = Faults()
    else:
        with opened(source.path, source.shown, notes) as database:
            if not database.tables.get(TABLE, frozenset()) >= COLUMNS:
                raise LogError(
                    f"{source.shown}: no table of metrics of MLflow in it: check the file"
                )
            runs, shared = read_database(database)
    yield from _readings(source, runs, notes, shared)


def _readings(
    source: Source, runs: list[MlflowRun], notes: list[str], shared: Faults
) -> Iterator[Reading]:
    filled = [run for run in runs if run.logged]
    kept = [run for run in filled if not run.deleted] or filled
    left = [
        f"deleted runs: {len(filled) - len(kept):,}" if len(kept) < len(filled) else "",
        f"runs without a metric: {len(runs) - len(filled):,}" if len(filled) < len(runs) else "",
    ]
    notes += [f"left out, {part}" for part in left if part]
    several = len({run.experiment for run in kept}) > 1
    names = told_apart(
        (f"{run.experiment}/{run.name or run.run_id}" if several else run.name, run.run_id)
        for run in kept
    )
    found = False
    for run, name in zip(kept, names, strict=True):
        read_points(run, source.path)
        if not len(run.points):
            continue
        found = True
        made = [*notes, *run.notes]
        table = run.points.table(made, apart=source.is_folder)
        if run.system:
            made.append(f"values of the machine (system/) not read: {run.system:,}")
        yield Reading(
            name=name,
            table=table,
            names={"step": STEP},
            facts={
                **find_facts(settings(run.tags), "tags of the run"),
                **find_facts(settings(run.params), "params of the run"),
            },
            notes=(*made, *_ending(run)),
            bad=_bad(shared, run.faults),
        )
        notes, shared = [], Faults()  # told once, with the first run
        run.points = Points()  # one run at a time fills the memory
    if not found:
        damaged = f" ({shared.count:,} broken rows)" if shared.count else ""
        raise LogError(
            f"{source.shown}: no metric logged in any of its {len(runs):,} runs{damaged}:"
            " give a store with a run that logged some"
        )


def _bad(shared: Faults, own: Faults) -> BadLines:
    joined = Faults(count=shared.count + own.count, first=[*shared.first, *own.first])
    return BadLines(count=joined.count, first=tuple(joined.first[:5]))


_ENDINGS = {
    "RUNNING": "it crashed, was killed or goes on",
    "SCHEDULED": "it had not begun",
    "FAILED": "it ended with an error",
    "KILLED": "it was stopped from outside",
}


def _ending(run: MlflowRun) -> list[str]:
    """Say how MLflow thinks the run ended, unless it simply finished."""
    if run.status not in _ENDINGS:
        return []
    at = f" at {clock(run.ended)}" if run.ended is not None else ""
    return [f"MLflow says {run.status}: {_ENDINGS[run.status]}{at}"]
