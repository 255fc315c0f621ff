"""Points: values that a tracker keeps one by one, put into the rows of a table.

A point is one value of one metric at one step. Nothing is lost on the way: a metric that comes
twice at a step takes two rows, and where a series goes back in steps the run was started anew.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from stabcli.assembly import FILE, LINE, WALL
from stabcli.attempts import PART
from stabcli.eventfile import EventFile, Scalars, Stream, build
from stabcli.trackers.values import named, text
from stabcli.units import plural

STEP = "step"
"""Column of the steps of a table made of points."""
_MOST_CELLS = 1 << 28
"""Rows times columns of a table; beyond it the columns with the fewest values are left out."""
_COUNTED = 2
"""Points of one metric beyond which one and the same step for all was never given by anybody."""


@dataclass(slots=True)
class Points:
    """The points of one run, in the order of the log."""

    keys: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    _key: array[int] = field(default_factory=lambda: array("q"))
    _step: array[int] = field(default_factory=lambda: array("q"))
    _value: array[float] = field(default_factory=lambda: array("d"))
    _wall: array[float] = field(default_factory=lambda: array("d"))
    _line: array[int] = field(default_factory=lambda: array("q"))
    _file: array[int] = field(default_factory=lambda: array("q"))
    _stepped: array[int] = field(default_factory=lambda: array("q"))
    without: set[str] = field(default_factory=set)
    """Metrics with a value that has no step."""
    stepless: int = 0
    """Values that have no step."""

    def __len__(self) -> int:
        return len(self._key)

    def add(
        self,
        key: str,
        step: int | None,
        value: float,
        *,
        wall: float | None = None,
        line: int = 0,
        file: str = "",
    ) -> None:
        """Take in a point.

        Args:
            key: Name of the metric.
            step: Its step; None where the log gives none.
            value: Its value, NaN and infinities included.
            wall: Time of it, seconds since 1970; None where unknown.
            line: Line or record number in the log, from 1.
            file: The file it stands in, where there are several.
        """
        if step is None:
            self.stepless += 1
            self.without.add(key)
        self._key.append(self.keys.setdefault(key, len(self.keys)))
        self._step.append(0 if step is None else step)
        self._value.append(value)
        self._wall.append(float("nan") if wall is None else wall)
        self._line.append(line)
        self._file.append(self.files.setdefault(file, len(self.files)))
        self._stepped.append(step is not None)

    def table(self, notes: list[str], *, apart: bool = False) -> pl.DataFrame:
        """Return the rows: ``step``, the reserved columns, and a column a metric.

        Args:
            notes: What had to be decided is added to them.
            apart: Whether each metric stands by itself, so that only the clock tells in which
                order points of different metrics were logged.
        """
        columns = _Columns(
            keys=np.frombuffer(self._key, np.int64),
            steps=np.frombuffer(self._step, np.int64),
            values=np.frombuffer(self._value, np.float64),
            walls=np.frombuffer(self._wall, np.float64),
            lines=np.frombuffer(self._line, np.int64),
            files=np.frombuffer(self._file, np.int64),
            stepped=np.frombuffer(self._stepped, np.int64),
        )
        if apart:
            columns = columns.at(_together(columns))
        columns = self._with_steps(columns, notes)
        series = self._kept(columns, notes)
        if not series:
            return pl.DataFrame({STEP: pl.Series([], dtype=pl.Int64)})
        shown = _shown(self.keys)
        event_file = EventFile(
            scalars={str(key): scalars for key, scalars in series.items()},
            starts=(),
            texts={},
            records=len(columns.keys),
            others=0,
            damaged=(),
            torn=0,
            size=0,
        )
        names = {key: name for name, key in self.keys.items()}
        stream = Stream(files=[event_file], columns={str(key): shown[names[key]] for key in series})
        built = build([stream])
        if built.late:
            notes.append(f"put in order: {plural(built.late, 'value')} that came out of order")
        if built.disordered:
            notes.append("steps go back so often that no restarts are told apart: put in order")
        begun = built.records - 1
        walls = pl.Series(WALL, built.walls)
        made = [
            pl.Series(STEP, built.steps, dtype=pl.Int64),
            pl.Series(LINE, columns.lines[begun], dtype=pl.Int64),
            pl.Series(PART, built.passes, dtype=pl.Int64),
        ]
        walls = walls.set((walls.is_nan() | (walls <= 0)).fill_null(value=True), None)
        if walls.count():
            made.append(walls)
        if len(self.files) > 1:
            made.append(pl.Series(FILE, list(self.files))[pl.Series(columns.files[begun])])
        return pl.DataFrame([*made, *(s.cast(pl.Float64) for s in built.columns.values())])

    def _with_steps(self, columns: _Columns, notes: list[str]) -> _Columns:
        """Count where nobody gave a step; leave out the odd values that have none."""
        nameless = columns.stepped == 0
        known = columns.steps[~nameless]
        counts = np.bincount(columns.keys) if len(columns.keys) else np.zeros(1, np.int64)
        never = nameless.all() or (not nameless.any() and len(np.unique(known)) == 1)
        if never and counts.max() > _COUNTED:
            busiest = int(counts.argmax())
            name = next(n for n, k in self.keys.items() if k == busiest)
            steps = np.maximum(np.cumsum(columns.keys == busiest), 1)
            said = "no step was ever given" if nameless.any() else f"every step is {known[0]}"
            notes.append(f"{said}: steps are counted by the values of {name!r}")
            return columns.with_steps(steps.astype(np.int64))
        if nameless.any():
            notes.append(
                f"{plural(self.stepless, 'value')} without a step left out: {named(self.without)}"
            )
            return columns.at(np.flatnonzero(~nameless))
        return columns

    def _kept(self, columns: _Columns, notes: list[str]) -> dict[int, Scalars]:
        """Return the series that a table has room for."""
        order = np.argsort(columns.keys, kind="stable")
        cuts = np.flatnonzero(np.diff(columns.keys[order])) + 1
        records = np.arange(1, len(order) + 1)
        found = {
            int(columns.keys[at[0]]): Scalars(
                records=records[at],
                steps=columns.steps[at],
                walls=columns.walls[at],
                values=columns.values[at],
            )
            for at in np.split(order, cuts)
            if len(at)
        }
        rows = _rows(columns)
        most = max(16, _MOST_CELLS // max(1, rows))
        if len(found) <= most:
            return dict(sorted(found.items()))
        names = {key: name for name, key in self.keys.items()}
        ranked = sorted(found, key=lambda key: -len(found[key]))
        left = ranked[most:]
        broken = [key for key in left if not np.isfinite(found[key].values).all()]
        told = f"; non-finite values in {len(broken):,}" if broken else ""
        told += f", such as {names[broken[0]]!r}" if broken else ""
        notes.append(f"{len(left):,} of {len(found):,} columns with few values left out{told}")
        return {key: found[key] for key in sorted(ranked[:most])}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Points as arrays of one length."""

    keys: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    walls: npt.NDArray[np.float64]
    lines: npt.NDArray[np.int64]
    files: npt.NDArray[np.int64]
    stepped: npt.NDArray[np.int64]
    """1 where the log gives a step, 0 where it gives none."""

    def at(self, rows: npt.NDArray[np.int64]) -> _Columns:
        """Return some of the points, in the order given."""
        return _Columns(**{name: getattr(self, name)[rows] for name in self.__slots__})

    def with_steps(self, steps: npt.NDArray[np.int64]) -> _Columns:
        """Return the points with other steps."""
        return replace(self, steps=steps)


def _together(columns: _Columns) -> npt.NDArray[np.int64]:
    """Return the order in which points were logged, where each metric stands by itself.

    That is the order of the clock, but for a metric that of the log goes before it. Without a
    clock, or where it goes back with the steps, metrics are put side by side by how often they
    went back, then by step.
    """
    times = np.nan_to_num(columns.walls)
    clocked = bool(np.isfinite(columns.walls).all())
    passes = np.zeros(len(times), np.int64)
    order = np.argsort(columns.keys, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(columns.keys[order])) + 1):
        back = np.diff(columns.steps[at]) < 0
        clocked &= not (back & (np.diff(times[at]) < 0)).any()
        times[at] = np.maximum.accumulate(times[at])
        passes[at[1:]] = np.cumsum(back)
    if clocked:
        return np.argsort(times, kind="stable")
    return np.lexsort((columns.steps, passes))


def _rows(columns: _Columns) -> int:
    """Return how many rows the points take: per step as many as its busiest metric."""
    if not len(columns.keys):
        return 0
    order = np.lexsort((columns.keys, columns.steps))
    steps, keys = columns.steps[order], columns.keys[order]
    fresh = np.append(True, (np.diff(steps) != 0) | (np.diff(keys) != 0))
    starts = np.flatnonzero(fresh)
    counts = np.diff(np.append(starts, len(order)))
    first = np.flatnonzero(np.append(True, np.diff(steps[starts]) != 0))
    return int(np.maximum.reduceat(counts, first).sum())


def _shown(keys: Mapping[str, int]) -> dict[str, str]:
    """Return names of columns: those with a meaning of their own are renamed, none comes twice."""
    made: dict[str, str] = {}
    taken: set[str] = set()
    for key in keys:
        name = text(key)
        name = f"key {name}" if not name or name == STEP or name.startswith("@") else name
        free, again = name, 2
        while free in taken:
            free, again = f"{name} ({again})", again + 1
        taken.add(free)
        made[key] = free
    return made
