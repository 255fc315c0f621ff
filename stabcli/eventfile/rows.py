"""Rows: the scalars of the event files of one run as a table, a row a step.

Every tag is a series of its own in the files. Where a series goes back in steps, the run was
started anew there, and so were the other series, even those that happen not to go back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stabcli.eventfile.contents import EventFile, Floats, Integers, Scalars

MOST_PASSES = 1000
"""Restarts beyond which steps that go back are taken for disorder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Event files that one writer wrote one after another."""

    files: Sequence[EventFile]
    """In the order they were written."""
    columns: Mapping[str, str]
    """Tag -> column it becomes; other tags are left out."""
    anew: Sequence[int] = ()
    """Indices of files with which the run was started anew."""


@dataclass(slots=True, kw_only=True)
class Table:
    """One run as columns; rows are in order of pass, then step."""

    steps: Integers
    """Steps, (rows,)."""
    passes: Integers
    """Number of the pass a row belongs to: it rises with every (re)start, (rows,)."""
    files: Integers
    """Which file the row was begun in, counted over all streams, (rows,)."""
    records: Integers
    """Record of that file that holds the first value of the row, from 1, (rows,)."""
    walls: Floats
    """Time of that record, seconds since 1970, (rows,)."""
    columns: dict[str, pl.Series] = field(default_factory=dict)
    """Values by column, null where not logged."""
    late: int = 0
    """Values that were written out of order."""
    disordered: bool = False
    """Whether steps go back so often that no restarts are told apart."""


@dataclass(slots=True)
class _Series:
    """One column: its values, and where each pass begins in them."""

    scalars: Scalars
    cuts: list[int] = field(default_factory=list)
    rows: list[Integers] = field(default_factory=list)

    def part(self, number: int) -> Scalars:
        """Return the values of one pass in order of step."""
        ends = [0, *self.cuts, len(self.scalars)]
        part = self.scalars.at(slice(ends[number], ends[number + 1]))
        if len(part) > 1 and (np.diff(part.steps) < 0).any():
            return part.at(np.argsort(part.steps, kind="stable"))
        return part


def build(streams: Sequence[Stream]) -> Table:
    """Put the scalars of a run into rows.

    Args:
        streams: Its writers. The first decides where the run was started anew; the values of
            the others go to the pass that was under way at the time.
    """
    offsets: list[int] = [0]
    series: dict[str, _Series] = {}
    table = _Empty()
    passes: list[int] = []
    times: list[float] = []
    for number, stream in enumerate(streams):
        starts = [offsets[-1]]
        for file in stream.files:
            starts.append(starts[-1] + file.records)
        own = _columns(stream, starts)
        if number == 0:
            passes, times = _passes(own, stream, starts, table)
        for column in own.values():
            if number == 0:
                column.cuts = np.searchsorted(column.scalars.records, passes).tolist()
            else:
                clock = np.maximum.accumulate(np.nan_to_num(column.scalars.walls))
                column.cuts = np.searchsorted(clock, times).tolist()
        for name, column in own.items():
            series[_free(name, series)] = column
        offsets += starts[1:]
    return _filled(series, len(passes) + 1, np.array(offsets, np.int64), table)


def _free(name: str, taken: Mapping[str, Any]) -> str:
    number, free = 2, name
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free


@dataclass(slots=True)
class _Empty:
    """What is found out on the way."""

    late: int = 0
    disordered: bool = False


def _columns(stream: Stream, starts: Sequence[int]) -> dict[str, _Series]:
    """Join the values of each tag over files; records are counted through all files."""
    parts: dict[str, list[Scalars]] = {}
    for file, start in zip(stream.files, starts, strict=False):
        for tag, found in file.scalars.items():
            if tag in stream.columns:
                moved = Scalars(
                    records=found.records + start,
                    steps=found.steps,
                    walls=found.walls,
                    values=found.values,
                )
                parts.setdefault(tag, []).append(moved)
    return {
        stream.columns[tag]: _Series(
            Scalars(
                records=np.concatenate([p.records for p in found]),
                steps=np.concatenate([p.steps for p in found]),
                walls=np.concatenate([p.walls for p in found]),
                values=np.concatenate([p.values for p in found]),
            )
            if len(found) > 1
            else found[0]
        )
        for tag, found in parts.items()
    }


def _passes(
    columns: Mapping[str, _Series], stream: Stream, starts: Sequence[int], told: _Empty
) -> tuple[list[int], list[float]]:
    """Return the first record of every pass but the first, and its time."""
    every = [c.scalars for c in columns.values()]
    first = min(int(s.records[0]) for s in every)
    begun = {starts[number] + 1 for number in stream.anew}
    for file, start in zip(stream.files, starts, strict=False):
        begun |= {start + record for record in file.starts}
    known = sorted(record for record in begun if record > first)
    back: list[tuple[int, int, int]] = []
    late = 0
    for s in every:
        steps = s.steps
        down = np.flatnonzero(np.diff(steps) < 0) + 1
        if not len(down):
            continue
        inner = np.minimum(down + 1, len(steps) - 1)
        higher = (down + 1 < len(steps)) & (steps[inner] > steps[down - 1])
        alone = (down < 2) | (steps[np.maximum(down - 2, 0)] < steps[down])
        late += int((higher & alone).sum())
        for i in down[~(higher & alone)].tolist():
            back.append((int(s.records[i]), int(s.records[i - 1]), int(steps[i])))
    told.late = late
    passes = list(known)
    for at, before, step in sorted(back):
        if bisect_right(passes, at) == bisect_right(passes, before):
            insort(passes, _first_of_step(every, at, before, step))
        if len(passes) > MOST_PASSES + len(known):
            told.disordered = True
            passes = list(known)
            break
    ends = [_first_time(every, record) for record in passes]
    kept = [(p, t) for p, t in zip(passes, ends, strict=True) if t is not None]
    return [p for p, _ in kept], np.maximum.accumulate([t for _, t in kept]).tolist()


def _first_of_step(every: Sequence[Scalars], at: int, before: int, step: int) -> int:
    """Return the first of the records up to ``at`` in which one and the same step was logged."""
    last: dict[int, int] = {}
    for s in every:
        i = bisect_left(s.records, at) - 1
        if i >= 0 and s.records[i] > before:
            last[int(s.records[i])] = int(s.steps[i])
    for record in sorted(last, reverse=True):
        if last[record] != step:
            break
        at = record
    return at


def _first_time(every: Sequence[Scalars], record: int) -> float | None:
    """Return the time of the first value from ``record`` on; None where there is none."""
    found: tuple[int, float] | None = None
    for s in every:
        i = bisect_left(s.records, record)
        if i < len(s) and (found is None or s.records[i] < found[0]):
            found = int(s.records[i]), float(np.nan_to_num(s.walls[i]))
    return None if found is None else found[1]


def _filled(series: Mapping[str, _Series], passes: int, offsets: Integers, told: _Empty) -> Table:
    """Give every value its row, and every row its step, record and time."""
    steps: list[Integers] = []
    numbers: list[Integers] = []
    records: list[Integers] = []
    walls: list[Floats] = []
    height = 0
    for number in range(passes):
        parts = {name: column.part(number) for name, column in series.items()}
        parts = {name: part for name, part in parts.items() if len(part)}
        own, spots = _spots(parts)
        begun = np.full(len(own), np.iinfo(np.int64).max)
        times = np.zeros(len(own))
        for name, column in series.items():
            if name not in parts:
                continue
            part, rows = parts[name], spots[name]
            every = len(rows) == len(own)  # no row twice, and so each, in order
            known = begun if every else begun[rows]
            earlier = part.records < known
            if every:
                np.copyto(begun, part.records, where=earlier)
                np.copyto(times, part.walls, where=earlier)
            else:
                begun[rows[earlier]] = part.records[earlier]
                times[rows[earlier]] = part.walls[earlier]
            column.rows.append(rows + height if height else rows)
        steps.append(own)
        numbers.append(np.full(len(own), number))
        records.append(begun)
        walls.append(times)
        height += len(own)
    all_records = np.concatenate(records)
    files = np.searchsorted(offsets, all_records - 1, side="right") - 1
    table = Table(
        steps=np.concatenate(steps),
        passes=np.concatenate(numbers),
        files=files,
        records=all_records - offsets[files],
        walls=np.concatenate(walls),
        late=told.late,
        disordered=told.disordered,
    )
    for name, column in series.items():
        values = [column.part(number).values for number in range(passes)]
        table.columns[name] = _column(name, column.rows, values, height)
    return table


def _spots(parts: Mapping[str, Scalars]) -> tuple[Integers, dict[str, Integers]]:
    """Return the steps of the rows of one pass, and the row of each value of each column.

    A step that a column gives several times takes as many rows.
    """
    kinds: list[Integers] = []
    kind: dict[str, int] = {}
    for name, part in parts.items():
        for number, known in enumerate(kinds):
            if len(known) == len(part) and np.array_equal(known, part.steps):
                kind[name] = number
                break
        else:
            kind[name] = len(kinds)
            kinds.append(part.steps)
    once = [bool((np.diff(known) > 0).all()) for known in kinds]
    if len(kinds) == 1 and once[0]:
        rows = np.arange(len(kinds[0]))
        return kinds[0], dict.fromkeys(parts, rows)
    union = np.unique(np.concatenate(kinds)) if kinds else np.empty(0, np.int64)
    places = [np.searchsorted(union, known) for known in kinds]
    times = np.ones(len(union), np.int64)
    for place, single in zip(places, once, strict=True):
        if not single:
            times = np.maximum(times, np.bincount(place, minlength=len(union)))
    first = np.cumsum(times) - times
    spots: list[Integers] = []
    for place, single in zip(places, once, strict=True):
        again = np.zeros(len(place), np.int64)
        if not single:
            fresh = np.append(True, np.diff(place) > 0)
            again = np.arange(len(place)) - np.flatnonzero(fresh)[np.cumsum(fresh) - 1]
        spots.append(first[place] + again)
    return np.repeat(union, times), {name: spots[number] for name, number in kind.items()}


def _column(
    name: str, rows: Sequence[Integers], values: Sequence[npt.NDArray[Any]], height: int
) -> pl.Series:
    """Return a column with its values in their rows, null in the others."""
    where = np.concatenate(rows)
    joined = values[0] if len(values) == 1 else np.concatenate(values)
    if len(where) == height:  # no row twice, and so each, in order
        return pl.Series(name, joined)
    out = np.zeros(height, joined.dtype)
    out[where] = joined
    logged = np.zeros(height, bool)
    logged[where] = True
    return pl.Series(name, out).set(pl.Series(~logged), None)
