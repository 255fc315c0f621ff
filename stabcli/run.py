"""The run: one training run as a table, whatever wrote its log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import polars as pl

from stabcli.units import Step

T = TypeVar("T")

KEYS = ("attempt", "step", "line", "file", "wall_time", "discarded", "hidden")
"""Columns of a frame that are not measurements."""
_PLACE = ("file", "line")


HOLE = 20
"""Usual distances of rows from which there is a hole between two of them."""
HOLE_SHARE = 0.01
"""Share of an attempt's steps that a hole must be besides."""
AROUND = 16
"""Rows on either side of a hole that tell what is usual there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Steps of an attempt that its log does not tell of, though it does of those around them."""

    row: int
    """The row after it, in the frame."""
    first: Step
    """The last logged step before it."""
    last: Step
    """The step of ``row``."""
    steps: int
    """How many steps it holds beyond those that a row usually stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something known of the whole run that is not a series."""

    value: float | int | str | tuple[int, ...]
    """In the fact's unit; see ``stabcli.assembly.FACTS``."""
    source: str
    """Where it comes from: ``--gpus``, ``config.yaml``, ``column world_size``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A stretch of a run between two (re)starts."""

    attempt: int
    """Its number, from 0."""
    first_step: Step
    """First logged step."""
    last_step: Step
    """Last logged step."""
    rows: int
    """Logged steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLines:
    """Lines, records or rows of a log that could not be used."""

    count: int = 0
    """How many in all."""
    first: tuple[tuple[int, str], ...] = ()
    """The first few: line or record number, and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A line of text that tells of hardware, memory, communication or of how a process ended."""

    kind: str
    """One of ``stabcli.troubles.KINDS``."""
    file: str
    """The file it stands in."""
    line: int
    """Its line in that, from 1."""
    text: str
    """What it says."""
    attempt: int | None
    """Attempt of the row that was logged last before it; None where the file has no rows."""
    step: Step | None
    """Step of that row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A column that was not kept, and the non-finite values it held."""

    name: str
    """The log's own name."""
    first: tuple[int, Step] | None
    """Attempt and step of its first non-finite value; None where all are finite."""
    last: tuple[int, Step] | None
    """Attempt and step of its last non-finite value."""
    count: int
    """Non-finite values in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run. Assembly makes it; nothing after that knows which format it came from."""

    name: str
    """Short name for people: the file, the folder, the run's name in a tracker."""
    source: str
    """The file or folder it was read from, as the user gave it."""
    reader: str
    """Name of the reader, e.g. ``jsonl``."""
    frame: pl.DataFrame
    """One row per (attempt, step), sorted by both.

    ``attempt`` Int32, ``step`` Int64, ``line`` Int64 (line or record number in the source),
    ``file`` String (only where there are several), ``wall_time`` Float64 (s since 1970),
    ``discarded`` Boolean (a later attempt went back past this step), ``hidden`` Boolean (the
    trainer hid a non-finite value in this row), then measurements as Float64, canonical ones
    first. NaN and infinities are values the trainer had; null was not logged.
    """
    attempts: tuple[Attempt, ...]
    """In the order they ran."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """What is known of the whole run, by name."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> the log's own name, so that a report can quote the user's words."""
    notes: tuple[str, ...] = ()
    """What the reader had to decide: a cut last line, a restart, a repeated step."""
    bad: BadLines = field(default_factory=BadLines)
    """Lines that could not be used."""
    left_out: tuple[LeftOut, ...] = ()
    """Columns dropped to keep the frame small, with the non-finite values they held."""
    files: tuple[str, ...] = ()
    """The files it was read from, as the user would name them, the one that rows cite first."""
    blind: str = ""
    """Why the loss that the log names says nothing; empty where it does, or none is named."""
    troubles: tuple[Trouble, ...] = ()
    """What its text logs, and other text beside them, say of troubles."""
    searched: tuple[str, ...] = ()
    """The text files that were searched for troubles from end to end."""
    told: tuple[pl.DataFrame, ...] = ()
    """Rows as the logs hold them, of steps that several lines or files tell of.

    Columns as in ``frame``, whose rows were made of them and cite one of them; as sorted.
    """
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` makes, asked only once: a pass over all rows of a long run costs.

        Args:
            name: What it is; one name, one thing. A changed copy of the run begins anew.
            make: Makes it of nothing but this run; the result is shared, and not to be changed.
        """
        if name not in self._known:
            self._known[name] = make()
        known: T = self._known[name]
        return known

    def has(self, *metrics: str) -> bool:
        """Say whether every one of ``metrics`` was logged at least once."""
        return all(m in self.frame.columns and self.frame[m].count() > 0 for m in metrics)

    def array(self, metric: str) -> np.ndarray:
        """Return a measurement of every row as float64; null becomes NaN (see ``logged``)."""
        column = self.frame[metric].cast(pl.Float64)
        return (column.fill_null(float("nan")) if column.null_count() else column).to_numpy()

    def logged(self, metric: str) -> np.ndarray:
        """Say for every row whether ``metric`` was logged there, NaN included."""
        return self.frame[metric].is_not_null().to_numpy()

    @property
    def measurements(self) -> list[str]:
        """Names of the columns that measure something."""
        return [c for c in self.frame.columns if c not in KEYS]

    @property
    def log_interval(self) -> Step | None:
        """Median distance in steps between two logged losses; None with fewer than two rows."""
        return self.once("log_interval", self._measured_interval)

    def _measured_interval(self) -> Step | None:
        for metric in ("loss", "objective_loss", "grad_norm", None):
            frame = self.frame
            if metric is not None:
                if not self.has(metric):
                    continue
                frame = frame.filter(pl.col(metric).is_not_null())
            gaps = frame.select(gap=pl.col("step").diff().over("attempt")).drop_nulls()["gap"]
            if len(gaps):
                return max(1, round(float(np.median(gaps.to_numpy()))))
        return None

    def place(self, metric: str, row: int) -> tuple[str | None, int | None]:
        """Return file and line in which a measurement of a row stands, None where unknown.

        Of several lines that tell of its step it is the one with that value, or else with the
        nearest, since a median of two values stands nowhere.
        """
        frame = self.frame
        where: dict[str, Any] = {c: frame[c][row] for c in _PLACE if c in frame.columns}
        value = frame[metric][row] if metric in frame.columns else None
        nearest = math.inf, math.inf
        for rows in self.told:
            if value is None or metric not in rows.columns or rows[metric].dtype != pl.Float64:
                continue
            wanted = rows.select(c for c in (*_PLACE, metric) if c in rows.columns)
            for one in wanted[_at_step(rows, frame["attempt"][row], frame["step"][row])].to_dicts():
                other = one[metric]
                if other is None:
                    continue
                same = other == value or (math.isnan(other) and math.isnan(value))
                away = 0.0 if same else abs(other - value)
                rank = (0.0, away) if math.isfinite(away) else (1.0, 0.0)
                if rank < nearest:
                    nearest, where = rank, one
        return where.get("file"), where.get("line")

    @property
    def holes(self) -> list[Hole]:
        """Where steps are missing from an attempt, in the order of the frame."""
        return self.once("holes", self._found_holes)

    def _found_holes(self) -> list[Hole]:
        steps, attempts = self.frame["step"].to_numpy(), self.frame["attempt"].to_numpy()
        found: list[Hole] = []
        for attempt in self.attempts:
            start, stop = np.searchsorted(attempts, [attempt.attempt, attempt.attempt + 1])
            gaps = np.diff(steps[start:stop])
            least = HOLE_SHARE * (attempt.last_step - attempt.first_step)
            if len(gaps) < 4 or gaps.max() <= max(HOLE * np.median(gaps), least):
                continue
            for i in np.flatnonzero(gaps > max(HOLE * gaps.min(), least)).tolist():
                sides = gaps[max(0, i - AROUND) : i], gaps[i + 1 : i + 1 + AROUND]
                usual = max(float(np.median(side)) for side in sides if len(side))
                if gaps[i] > HOLE * usual:
                    first, last = int(steps[start + i]), int(steps[start + i + 1])
                    missing = last - first - round(usual)
                    found.append(
                        Hole(row=int(start) + i + 1, first=first, last=last, steps=missing)
                    )
        return found

    def fact(self, name: str) -> float | None:
        """Return a numeric fact, or None where the run does not say."""
        known = self.facts.get(name)
        return float(known.value) if known and isinstance(known.value, (int, float)) else None

    @property
    def finished(self) -> bool | None:
        """Whether the newest row is the last that was planned; None where no end is known.

        The last step that was planned need not be logged: not where only each tenth is, nor where
        steps are counted from 0.
        """
        planned = self.fact("total_steps")
        if planned is None or not self.attempts:
            return None
        return self.attempts[-1].last_step + (self.log_interval or 1) >= planned

    def word(self, metric: str) -> str:
        """Return the name the log gives ``metric``."""
        return self.columns.get(metric, metric)


def _at_step(rows: pl.DataFrame, attempt: int, step: Step) -> slice:
    """Return where rows that are sorted by attempt and step tell of one step."""
    first, last = (rows["attempt"].search_sorted(attempt, side) for side in ("left", "right"))
    steps = rows["step"][first:last]
    low, high = (steps.search_sorted(step, side) for side in ("left", "right"))
    return slice(first + low, first + high)
