"""Reader ``clearml``: scalars that ClearML hands out, and the archives of its offline sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from stabcli.assembly import HIDDEN, Reading
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.metrics import is_rl, resolve
from stabcli.readers import reader
from stabcli.sources import Source
from stabcli.trackers import zips
from stabcli.trackers.documents import document, loads
from stabcli.trackers.layouts import is_clearml
from stabcli.trackers.points import STEP, Points
from stabcli.trackers.values import Faults, named, number, seconds, settings, text, whole

AVERAGED: Final = 5000
"""Points of a series beyond which ``get_reported_scalars`` averages windows of them."""
_METRICS = "metrics.jsonl"
_TASK = "task.json"
_MACHINE = (":monitor:",)
"""Begin of the titles of what ClearML measures of the machine by itself."""
_SINGLE = -(2**31)
"""Iteration under which single values of a whole run are reported."""
_TIMES = 1e11
"""Numbers on the x axis from here on are milliseconds since 1970."""


def matches(source: Source) -> bool:
    """Claim title, series, ``x`` and ``y`` in one JSON object, and an offline archive."""
    return zips.holds(source, _METRICS, _TASK) or is_clearml(source)


@reader(matches, writes="ClearML: offline sessions, get_(all_)reported_scalars() as JSON")
def clearml(source: Source) -> Iterator[Reading]:
    """Read the scalars of one task, named ``title/series``.

    ClearML writes 0.0 for NaN and infinities. A training loss of exactly 0.0 among others that
    are far from it is read as a hidden NaN; zeros of other metrics are left and noted.
    ``get_reported_scalars`` averages series of more than 5,000 points, which flattens spikes:
    noted where it may have happened. Hyperparameters give facts. What ClearML measures of the
    machine (``:monitor:``) is not read.

    Raises:
        LogError: The archive or the object is broken, or holds no scalar.
    """
    archive = zips.is_archive(source)
    found = _archive(source) if archive else _scalars(source)
    if not len(found.points):
        broken = f" ({found.faults.count:,} broken)" if found.faults.count else ""
        raise LogError(f"{source.shown}: no scalar in it{broken}: give a task that reported some")
    notes = found.notes
    if found.machine:
        notes.append(f"values of the machine (:monitor:) not read: {found.machine:,}")
    if found.single:
        notes.append(f"single values of the whole run, left out: {named(found.single)}")
    table = found.points.table(notes, apart=not archive)
    yield Reading(
        name=found.name or source.name,
        table=_with_hidden(table, notes),
        names={"step": STEP},
        facts=find_facts(settings(found.params), "hyperparameters of the task"),
        notes=tuple(notes),
        bad=found.faults.bad(),
    )


@dataclass(slots=True)
class _Found:
    """What stands in a source."""

    points: Points = field(default_factory=Points)
    faults: Faults = field(default_factory=Faults)
    params: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    single: set[str] = field(default_factory=set)
    machine: int = 0
    name: str = ""

    def add(
        self, title: str, series: str, step: object, value: object, wall: object, line: int
    ) -> None:
        """Take in a value."""
        key = title if title == series else f"{title}/{series}"
        told, counted = number(value), whole(step)
        if title.startswith(_MACHINE):
            self.machine += 1
        elif counted == _SINGLE:
            self.single.add(key)
        elif told is None or (counted is None and step is not None):
            self.faults.add(line, f"{text(key)[:60]}: no iteration and value")
        else:
            self.points.add(key, counted, told, wall=seconds(wall), line=line)


def _archive(source: Source) -> _Found:
    """Read the events of an offline session: a list of them a line."""
    found = _Found()
    for line, data in zips.lines(source, _METRICS, found.faults):
        if not data.strip():
            continue
        events = loads(data)
        for event in events if isinstance(events, list) else [None]:
            if not isinstance(event, dict):
                found.faults.add(line, f"{_METRICS}: no list of events")
            elif str(event.get("type", "")).endswith("scalar"):
                title, series = event.get("metric"), event.get("variant")
                found.add(
                    str(title), str(series), event.get("iter"), event.get("value"),
                    event.get("timestamp"), line,
                )  # fmt: skip
    task = loads(zips.content(source, _TASK))
    if isinstance(task, dict):
        found.name = text(task.get("name") or "")
        sections = task.get("hyperparams")
        for section in sections.values() if isinstance(sections, dict) else []:
            for name, said in section.items() if isinstance(section, dict) else []:
                if isinstance(said, dict):
                    found.params[text(name)] = said.get("value")
    return found


def _scalars(source: Source) -> _Found:
    """Read title -> series -> x and y."""
    found = _Found()
    held = document(source)
    full: list[str] = []
    timed = False
    for title, series in held.items() if isinstance(held, dict) else []:
        for name, curve in series.items() if isinstance(series, dict) else []:
            x, y = (curve.get("x"), curve.get("y")) if isinstance(curve, dict) else (None, None)
            if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
                found.faults.add(
                    1, f"{text(title)[:40]}/{text(name)[:40]}: no x and y of one length"
                )
                continue
            timed |= _add(found, (str(title), str(name)), x, y)
            full += [f"{title}/{name}"] if len(x) >= AVERAGED else []
    if timed:
        found.notes.append("the x axis is the time, not the iteration")
    if full:
        found.notes.append(
            f"{named(full)}: {AVERAGED:,} points or more, of which get_reported_scalars hands out"
            " averages: spikes may be flattened; get_all_reported_scalars hands out every value"
        )
    return found


def _add(found: _Found, names: tuple[str, str], x: Sequence[Any], y: Sequence[Any]) -> bool:
    """Take in a curve; say whether it is one over the time."""
    steps = [whole(v) for v in x]
    timed = bool(x) and all(s is not None and s > _TIMES for s in steps)
    for at, (spot, value) in enumerate(zip(x, y, strict=True), start=1):
        step, wall = (None, spot) if timed else (spot, None)
        found.add(*names, step, value, wall, at)
    return timed


_FAR = 1e-3
"""The smallest loss beside which one of exactly 0.0 cannot be a loss that came near to nothing."""


def _with_hidden(table: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Mark the losses that are 0.0 because they were not finite; note other zeros."""
    known = resolve([c for c in table.columns if not c.startswith("@")], {"step": STEP})
    loss = known.get("loss")
    told: list[str] = []
    for canonical in ("loss", "val_loss", "grad_norm"):
        name = known.get(canonical)
        if name is None:
            continue
        values = table[name]
        zero = (values == 0.0).fill_null(value=False)
        others = values.filter(~zero).drop_nulls().abs()
        if not zero.any() or not len(others):
            continue
        nearest = others.min()
        far = isinstance(nearest, float) and nearest >= _FAR
        told.append(f"{int(zero.sum()):,} of {name!r}, first at step {table[STEP].filter(zero)[0]}")
        if name == loss and far and not is_rl(table.columns):
            table = table.with_columns(
                pl.Series(HIDDEN, zero), pl.when(~zero).then(pl.col(name)).alias(name)
            )
            notes.append(
                "losses of exactly 0.0 among others that are far from it are NaN or infinities,"
                " which ClearML writes as 0.0: read as hidden NaN"
            )
    if told:
        notes.append(f"zeros, which in ClearML may stand for NaN and infinities: {'; '.join(told)}")
    return table
