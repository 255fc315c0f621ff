"""Merging: the rows of one run, told by two logs, in one table.

Of a metric that both have, the more complete is taken, of two as complete the more exact, and
what only the other has fills its gaps. A value that is not finite goes before any other, whoever
has it. Where the two mean different things by one name, both are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from stabcli.attempts import mark_discarded, summaries
from stabcli.joining.agreement import Alignment
from stabcli.joining.homes import common_folder, label
from stabcli.joining.rounding import Rounding, same
from stabcli.metrics import METRICS
from stabcli.run import KEYS, BadLines, LeftOut, Run

ALIKE = 0.9
"""Share of common finite values that must agree for two columns to measure the same."""
AS_COMPLETE = 0.98
"""Share of the values of the fuller column from which another is as complete."""
_CLOCK = 60.0
"""Seconds by which two clocks may differ and be one."""
_THEIRS = "\0"
"""End of the names of the other's columns while both are in one table."""
BAD_SHOWN = 5


@dataclass(slots=True)
class _Both:
    """Two runs side by side."""

    frame: pl.DataFrame
    base: Run
    other: Run
    one: Mapping[str, Rounding]
    two: Mapping[str, Rounding]
    notes: list[str]

    @property
    def ours(self) -> str:
        return label(self.base)

    @property
    def theirs(self) -> str:
        return label(self.other)


def merge(
    base: Run,
    other: Run,
    alignment: Alignment,
    one: Mapping[str, Rounding],
    two: Mapping[str, Rounding],
) -> Run | None:
    """Return one run with the rows of both; None where two rows would become one.

    Args:
        base: The run whose attempts and lines count.
        other: The run that is added.
        alignment: How its rows lie in ``base``.
        one: How the columns of ``base`` were rounded.
        two: The same of ``other``.
    """
    folder = common_folder((*base.files, *other.files))
    moved = placed(other, folder).with_columns(
        pl.Series("attempt", alignment.attempts).cast(pl.Int32),
        pl.col("step") + alignment.offset,
    )
    key = ["attempt", "step"]
    if moved.select(pl.struct(key).is_duplicated().any()).item():
        return None
    left = placed(base, folder)
    right = moved.rename(
        {c: c + _THEIRS for c in moved.columns if c not in key and c in left.columns}
    )
    notes: list[str] = []
    if alignment.offset:
        notes.append(
            f"{label(other)} counts steps {abs(alignment.offset)}"
            f" {'lower' if alignment.offset > 0 else 'higher'} than {label(base)}: moved to match"
        )
    frame = left.join(right, on=key, how="full", coalesce=True, maintain_order="left_right")
    frame = frame.sort(key, maintain_order=True)
    both = _Both(frame, base, other, one, two, notes)
    made = _columns(both)
    numbers = other.frame.select(key), moved.select(key)
    theirs = [_renumbered(rows, *numbers) for rows in told_apart(other, folder)]
    table = mark_discarded(pl.DataFrame(made).drop("discarded", strict=False))
    columns = {**other.columns, **base.columns}
    proof = f"{base.word(alignment.metric)!r} is the same in"
    proof += f" {alignment.agreeing:,} of {alignment.compared:,} rows"
    return replace(
        base,
        source=str(folder),
        reader=_readers(base, other),
        frame=ordered(table),
        attempts=summaries(table),
        facts={**other.facts, **base.facts},
        columns={c: o for c, o in columns.items() if c in table.columns},
        notes=told(base, other, [f"joined with {label(other)} ({other.reader}): {proof}", *notes]),
        bad=_bad(base, other),
        left_out=(*base.left_out, *_moved(other, moved)),
        files=(*base.files, *(f for f in other.files if f not in base.files)),
        told=(*told_apart(base, folder), *theirs),
    )


def _renumbered(rows: pl.DataFrame, old: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the attempt and step by which the joined run knows them."""
    numbers = old.with_columns(new["attempt"].alias("@attempt"), new["step"].alias("@step"))
    return (
        rows.join(numbers, on=["attempt", "step"], how="inner", maintain_order="left")
        .drop("attempt", "step")
        .rename({"@attempt": "attempt", "@step": "step"})
        .sort("attempt", "step", maintain_order=True)
    )


def told(base: Run, other: Run, notes: Iterable[str]) -> tuple[str, ...]:
    """Return the notes of a joined run: what joins it, then those of each file under its name."""
    joins = [n for n in base.notes if n.startswith(JOINS)]
    own = [n for n in base.notes if not n.startswith(JOINS)]
    if not joins:
        joins = [f"{JOINS[0]}{label(base)} ({base.reader})"]
        own = [f"{label(base)}: {note}" for note in own]
    theirs = [f"{label(other)}: {note}" for note in other.notes]
    return (*joins, *notes, *own, *theirs, *_contradictions(base, other))


JOINS = ("rows are cited from ", "joined with ", "joined: ")
"""How the notes begin that say what was joined."""


def placed(run: Run, folder: Path, rows: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return rows of a run, by default all, each with its file as seen from ``folder``."""
    frame = run.frame if rows is None else rows
    if "file" not in frame.columns:
        return frame.with_columns(pl.lit(_below(run.files[0], folder)).alias("file"))
    names = [n for n in frame["file"].unique().to_list() if n]
    return frame.with_columns(
        pl.col("file").replace({name: _below(_found(run, name), folder) for name in names})
    )


def told_apart(run: Run, folder: Path) -> list[pl.DataFrame]:
    """Return the rows of a run as its logs hold them, those that say most exactly first."""
    own = [placed(run, folder, rows) for rows in run.told]
    whole = sum(rows.height for rows in own) >= run.frame.height  # joined, and so told already
    return own if whole else [*own, placed(run, folder)]


def _found(run: Run, name: str) -> str:
    """Return the path of a file that rows name below the source of their run."""
    return next((f for f in run.files if f == name or f.endswith("/" + name)), name)


def _below(path: str, folder: Path) -> str:
    return os.path.relpath(path, folder)


def ordered(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with its columns in the order that ``Run.frame`` promises."""
    if "hidden" in frame.columns and not frame["hidden"].any():
        frame = frame.drop("hidden")
    leading = [c for c in ("attempt", "step", *KEYS[2:]) if c in frame.columns]
    known = [c for c in METRICS if c in frame.columns and c not in leading]
    rest = [c for c in frame.columns if c not in leading and c not in known]
    return frame.select(leading + known + rest)


def _readers(base: Run, other: Run) -> str:
    names = dict.fromkeys([*base.reader.split(" + "), *other.reader.split(" + ")])
    return " + ".join(names)


def _columns(both: _Both) -> list[pl.Series]:
    frame = both.frame
    made: list[pl.Series] = []
    for name in frame.columns:
        if name.endswith(_THEIRS) and name[: -len(_THEIRS)] in frame.columns:
            continue
        if name + _THEIRS not in frame.columns:
            made.append(frame[name])
        elif name in ("line", "file"):
            made.append(_cited(frame, name))
        elif name == "wall_time":
            made.append(_clock(both))
        elif name in KEYS:
            either = frame[name].fill_null(value=False) | frame[name + _THEIRS].fill_null(
                value=False
            )
            made.append(either.alias(name))
        else:
            made += _value(both, name)
    return [s.fill_null(value=False) if s.dtype == pl.Boolean else s for s in made]


def _cited(frame: pl.DataFrame, name: str) -> pl.Series:
    """Cite a row where the base has it, else where the other does: line and file of one log."""
    has = frame["file"].is_not_null()
    return frame.select(
        pl.when(has).then(pl.col(name)).otherwise(pl.col(name + _THEIRS)).alias(name)
    )[name]


def _clock(both: _Both) -> pl.Series:
    """Return the time of each row: of the fuller clock, with its gaps filled where both are one."""
    ours, theirs = both.frame["wall_time"], both.frame["wall_time" + _THEIRS]
    apart = (ours - theirs).abs().median()
    first, second = (ours, theirs) if ours.count() >= theirs.count() else (theirs, ours)
    if isinstance(apart, (int, float)) and apart <= _CLOCK:
        return first.fill_null(second).alias("wall_time")
    if isinstance(apart, (int, float)):
        both.notes.append(
            f"the clocks of the two differ by {apart:,.0f} s: that of"
            f" {both.ours if first is ours else both.theirs} was taken"
        )
    return first.alias("wall_time")


def _value(both: _Both, name: str) -> list[pl.Series]:
    """Return a column that both have: one where they mean the same, else two."""
    ours, theirs = both.frame[name], both.frame[name + _THEIRS]
    if not (ours.dtype == theirs.dtype == pl.Float64):
        return [ours.fill_null(theirs)] if ours.dtype == theirs.dtype else [ours]
    a, b = (s.fill_null(float("nan")).to_numpy() for s in (ours, theirs))
    one, two = both.one[name], both.two[name]
    finite = np.isfinite(a) & np.isfinite(b)
    agree = same(a[finite], b[finite], one, two)
    ours_first = _goes_before(ours, theirs, one, two)
    first, second = (ours, theirs) if ours_first else (theirs, ours)
    whose, whose_not = (both.ours, both.theirs) if ours_first else (both.theirs, both.ours)
    word = (both.base if name in both.base.columns else both.other).word(name)
    if finite.any() and agree.mean() < ALIKE:
        kept = f"{name} ({whose_not})"
        while kept in both.frame.columns:
            kept += "'"
        both.notes.append(
            f"{word!r} agrees in only {int(agree.sum()):,} of {int(finite.sum()):,} rows: that of"
            f" {whose} was taken, the other kept as {kept!r}"
        )
        return [first.alias(name), second.alias(kept)]
    if not agree.all():
        off = np.flatnonzero(finite)[~agree]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.nanmax(np.abs(a[off] - b[off]) / np.maximum(np.abs(b[off]), 1e-300))
        both.notes.append(
            f"{word!r} differs in {len(off):,} of {int(finite.sum()):,} rows, by up to"
            f" {share:.1%}, first at step {int(both.frame['step'][int(off[0])]):,}:"
            f" that of {whose} was taken"
        )
    return [_finest(both, name, first, second, word)]


def _goes_before(ours: pl.Series, theirs: pl.Series, one: Rounding, two: Rounding) -> bool:
    """Say whether ours is the better column: fuller, or of two as full the more exact."""
    fuller = max(ours.count(), theirs.count())
    if min(ours.count(), theirs.count()) < AS_COMPLETE * fuller:
        return ours.count() >= theirs.count()
    return one.fineness >= two.fineness


def _finest(both: _Both, name: str, first: pl.Series, second: pl.Series, word: str) -> pl.Series:
    """Return the first column, its gaps filled by the second, with what is not finite in either."""
    broken = [
        s.set((s.is_finite() | s.is_null()).fill_null(value=True), None) for s in (first, second)
    ]
    only = broken[0].is_null() & broken[1].is_not_null() & first.is_not_null()
    others = broken[1].is_null() & broken[0].is_not_null() & second.is_not_null()
    alone = int((only | others).sum())
    if alone:
        both.notes.append(
            f"{word!r} is not finite in {alone:,} rows of one log where the other has a number:"
            " kept as not finite"
        )
    return broken[0].fill_null(broken[1]).fill_null(first).fill_null(second).alias(name)


def _contradictions(base: Run, other: Run) -> list[str]:
    """Name the facts on which two logs disagree."""
    return [
        f"{name}: {base.facts[name].value} by {base.facts[name].source},"
        f" {fact.value} by {fact.source} of {label(other)}: the first was taken"
        for name, fact in other.facts.items()
        if name in base.facts and base.facts[name].value != fact.value and name != "checkpoints"
    ]


def _bad(base: Run, other: Run) -> BadLines:
    theirs = tuple((line, f"{label(other)}: {why}") for line, why in other.bad.first)
    return BadLines(
        count=base.bad.count + other.bad.count, first=(*base.bad.first, *theirs)[:BAD_SHOWN]
    )


def _moved(other: Run, moved: pl.DataFrame) -> list[LeftOut]:
    """Return the columns the other left out, with their places as they are numbered now."""
    before = zip(other.frame["attempt"].to_list(), other.frame["step"].to_list(), strict=True)
    after = zip(moved["attempt"].to_list(), moved["step"].to_list(), strict=True)
    where = dict(zip(before, after, strict=True)) if other.left_out else {}
    return [
        replace(
            one,
            first=where.get(one.first, one.first) if one.first else None,
            last=where.get(one.last, one.last) if one.last else None,
        )
        for one in other.left_out
    ]
