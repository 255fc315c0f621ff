"""The run: one training run as a table, whatever wrote its log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stabcli.units import Step

KEYS = ("attempt", "step", "line", "file", "wall_time", "discarded", "hidden")
"""Columns of a frame that are not measurements."""


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

    def has(self, *metrics: str) -> bool:
        """Say whether every one of ``metrics`` was logged at least once."""
        return all(m in self.frame.columns and self.frame[m].count() > 0 for m in metrics)

    def array(self, metric: str) -> np.ndarray:
        """Return a measurement of every row as float64; null becomes NaN (see ``logged``)."""
        return self.frame[metric].cast(pl.Float64).fill_null(float("nan")).to_numpy()

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

    def fact(self, name: str) -> float | None:
        """Return a numeric fact, or None where the run does not say."""
        known = self.facts.get(name)
        return float(known.value) if known and isinstance(known.value, (int, float)) else None

    def word(self, metric: str) -> str:
        """Return the name the log gives ``metric``."""
        return self.columns.get(metric, metric)
