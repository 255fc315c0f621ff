"""Assembly: from the raw rows of a reader to a run.

A reader says what stands in a log, in the log's own words and order. Everything that is the
same for all logs happens here once: names and units, attempts, rows that belong to one step,
values that the trainer hid, and what is kept when a log is very wide.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from stabcli.attempts import mark_discarded, number_attempts, one_row_a_step, summaries
from stabcli.errors import LogError, NoLog, SettingError
from stabcli.facts import FACTS, find_facts
from stabcli.heldout import of_training
from stabcli.metrics import METRICS, is_rl, normalise, resolve
from stabcli.run import BadLines, Fact, LeftOut, Run
from stabcli.settings import suggestion
from stabcli.sources import Source
from stabcli.spellings import as_number
from stabcli.stepping import moving_steps, steps_of_epochs, whole_steps
from stabcli.units import plural

LINE: Final = "@line"
"""Reserved column of a reading: line or record number in the source, from 1 (Int64)."""
FILE: Final = "@file"
"""Reserved column of a reading: which file of a folder the row stands in (String)."""
WALL: Final = "@wall_time"
"""Reserved column of a reading: time of the row in seconds since 1970 (Float64)."""
HIDDEN: Final = "@hidden"
"""Reserved column of a reading whose format tells where a missing loss was NaN (Boolean)."""

_FEW = 1000  # rows looked at before all are

TOGETHER = 0.9
"""Share of the rows with a gradient norm that must hold a loss, for a missing one to tell."""

FRAME_BUDGET = 1 << 30
"""Bytes of measurements kept. Beyond it only canonical columns and those asked for stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user decided about reading."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> the log's own name (``--map``)."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> where that was said, where it was not by ``--map``; for messages."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Facts given by flags or settings; they overrule what the log says."""
    metrics: tuple[str, ...] = ()
    """Columns to keep even in a log too wide to keep all (``--metric``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one reader found: the raw rows of one run, in the order of the log."""

    name: str
    """Short name of the run."""
    table: pl.DataFrame
    """The log's own columns, numbers or text, null where not logged; and the reserved ones."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> own name, where the format fixes it; the rest is found by name."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Canonical name -> factor from the log's unit to the canonical one."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """What the log says of the whole run."""
    notes: tuple[str, ...] = ()
    """What the reader had to decide."""
    bad: BadLines = field(default_factory=BadLines)
    """Lines it could not use."""
    files: tuple[Path, ...] = ()
    """Files of a folder that it was read from, as found below the source; empty for one file."""


def assemble(reading: Reading, source: Source, reader: str, options: Options) -> Run:
    """Make a run of a reading.

    Raises:
        LogError: There is no step, no row with a step, or nothing measured.
        SettingError: ``options.names`` names a column that the log does not have.
    """
    notes = [*source.notes, *reading.notes]
    blind: list[str] = []
    reading = _without_empty(reading, options, notes, blind)
    columns = _columns(reading, source, options, notes)
    facts = {**_facts(reading.table, columns), **reading.facts, **options.facts}
    frame = _counted(_canonical(reading, columns, notes, blind), columns, notes)
    if "step" not in frame.columns or frame["step"].count() == 0:
        shown = ", ".join(c for c in reading.table.columns if not c.startswith("@"))[:160]
        strange = not [c for c in columns if c not in _NOT_MEASURED]
        raise (NoLog if strange else LogError)(
            f"{source.shown}: no step in the log: say which column counts steps with"
            f" --map step=NAME (columns: {shown or 'none'})"
        )
    frame = frame.with_columns(moving_steps(frame["step"], notes))
    without = frame["step"].null_count()
    if without:
        frame = frame.filter(pl.col("step").is_not_null())
        notes.append(f"{plural(without, 'row')} without a step left out")
    if not [c for c in frame.columns if not c.startswith("@") and c not in _NOT_MEASURED]:
        raise LogError(
            f"{source.shown}: nothing but steps in it:"
            f" {blind[0] if blind else 'no numeric column that could be checked'};"
            " give a log with a loss, or name its column with --map loss=NAME"
        )
    frame = number_attempts(frame, notes)
    frame, left_out = _within_budget(frame, options, notes)
    frame, merged = one_row_a_step(frame, notes)
    frame = _unhide(frame, list(reading.table.columns), notes)
    files = [str(path) for path in reading.files] or [source.shown]
    if FILE in frame.columns and frame[FILE].n_unique() == 1:
        files.sort(key=lambda path: not path.endswith(f"{os.sep}{frame[FILE][0]}"))
        frame = frame.drop(FILE)
        merged = merged.drop(FILE) if merged is not None else None
    frame = _finish(mark_discarded(frame))
    told = merged is not None and {LINE, FILE} & set(merged.columns)
    return Run(
        name=reading.name,
        source=source.shown,
        reader=reader,
        frame=frame,
        attempts=summaries(frame),
        facts=facts,
        columns={c: o for c, o in columns.items() if c in frame.columns},
        notes=tuple(notes),
        bad=reading.bad,
        left_out=left_out,
        files=tuple(files),
        told=(_finish(merged),) if merged is not None and told else (),
        blind=blind[0] if blind and not {*_LOSSES}.intersection(frame.columns) else "",
    )


_OWN_KEYS = ("attempt", "line", "file", "discarded", "hidden")
"""Columns of a frame that are ours; a log's own column of that name keeps another one."""
_LOSSES = ("loss", "objective_loss")
_NOT_MEASURED = ("step", "epoch", "wall_time", "elapsed_seconds", "tokens_seen", "samples_seen")


def _without_empty(
    reading: Reading, options: Options, notes: list[str], blind: list[str]
) -> Reading:
    """Take out the columns that hold nothing, which would hide others that mean the same."""
    table = reading.table
    named = [*reading.names.values(), *options.names.values()]
    empty = [
        c
        for c in table.columns
        if table[c].null_count() == table.height and not (c.startswith("@") or c in named)
    ]
    held = resolve([c for c in table.columns if c not in empty], reading.names)
    told = {c: o for c, o in resolve(empty).items() if c not in held and c not in _NOT_MEASURED}
    if HIDDEN in table.columns or not empty or "step" in resolve(empty):
        return reading
    for canonical, name in told.items():
        why = f"column {name!r} ({canonical}) is empty in every row"
        notes.append(f"{why}: nothing in it to check")
        if canonical in _LOSSES:
            blind.append(why)
    return replace(reading, table=table.drop(empty))


def _columns(
    reading: Reading, source: Source, options: Options, notes: list[str]
) -> dict[str, str]:
    own = [c for c in reading.table.columns if not c.startswith("@")]
    for canonical, name in options.names.items():
        place = options.places.get(canonical, f"--map {canonical}")
        if canonical not in METRICS:
            raise SettingError(
                f"{place}={name}: {canonical!r} is no metric of stabcli:"
                f" {suggestion(canonical, METRICS)}"
            )
        if name not in own:
            raise SettingError(
                f"{place}={name}: {source.shown} has no column {name!r}:"
                f" it has {', '.join(own)[:200]}"
            )
    fixed = {**reading.names, **options.names}
    found = resolve(own, fixed)
    if "val_perplexity" not in fixed and of_training(reading.table, found):
        notes.append(f"{found.pop('val_perplexity')!r} is a perplexity of training, not validation")
    if normalise(found.get("step", "")) == "_step":
        notes.append("steps are counted by W&B's _step, the number of log calls")
    return found


def _facts(table: pl.DataFrame, columns: Mapping[str, str]) -> dict[str, Fact]:
    """Read facts off columns that never change."""
    told = ("gpus", "batch_tokens", "sequence_length")
    measured = {o for c, o in columns.items() if c not in told}
    constant: dict[str, object] = {}
    for name in table.columns:
        if name.startswith("@") or name in measured:
            continue
        values = table[name]
        first = values.first(ignore_nulls=True)
        if first is not None and not values.dtype.is_nested() and _is_constant(values, first):
            constant[name] = first
    found = find_facts(constant, "column")
    varying = {k for k in ("peak_lr",) if k in found}
    return {k: v for k, v in found.items() if k not in varying and k in FACTS}


def _is_constant(values: pl.Series, first: object) -> bool:
    """Say whether all of a column that is not null is ``first``; most tell so in a few rows."""
    return all(bool((part == first).all()) for part in (values.head(_FEW), values))


def _canonical(
    reading: Reading, columns: Mapping[str, str], notes: list[str], blind: list[str]
) -> pl.DataFrame:
    """Rename, convert and scale; keep what is a number."""
    table = reading.table
    made: list[pl.Series] = []
    canonical = {o: c for c, o in columns.items()}
    if LINE not in table.columns:
        made.append(pl.Series(LINE, np.arange(1, table.height + 1), dtype=pl.Int64))
    text = 0
    for name in table.columns:
        if name.startswith("@"):
            made.append(table[name])
            continue
        target = canonical.get(name, name)
        if (name not in canonical and name in METRICS) or target in _OWN_KEYS:
            target = f"{name} (unmapped)"
        if target == "wall_time":
            values = _times(table[name])
            if values is None:
                values = as_number(table[name])
                target = name if name not in METRICS else f"{name} (unmapped)"
        elif target == "step":
            values = _steps(table[name], notes)
        else:
            values = as_number(table[name], notes)
        if values is None:
            text += 1
            if target in METRICS:
                what = "lists" if table[name].dtype.is_nested() else "text"
                why = f"column {name!r} ({target}) holds {what}, not numbers"
                notes.append(f"{why}: left out")
                if target in _LOSSES:
                    blind.append(why)
            continue
        if target in METRICS:
            values = _scaled(target, name, values, reading.scales, notes)
        made.append(values.alias(target))
    frame = pl.DataFrame(made)
    if WALL in frame.columns and "wall_time" not in frame.columns:
        frame = frame.rename({WALL: "wall_time"})
    return frame


def _steps(series: pl.Series, notes: list[str]) -> pl.Series | None:
    """Steps as Int64: whole numbers, floats that are whole, ``"10/500"``."""
    if series.dtype.is_integer():
        return series.cast(pl.Int64, strict=False)
    if series.dtype == pl.String:
        series = series.str.split("/").list.first()
    values = as_number(series)
    return None if values is None else whole_steps(values, notes)


def _counted(frame: pl.DataFrame, columns: dict[str, str], notes: list[str]) -> pl.DataFrame:
    """Make steps of epochs where nothing else counts them."""
    if "epoch" not in frame.columns or ("step" in frame.columns and frame["step"].count()):
        return frame
    steps = steps_of_epochs(frame["epoch"], columns["epoch"], notes)
    if steps is None:
        return frame
    return frame.with_columns(steps.alias("step"))


def _times(series: pl.Series) -> pl.Series | None:
    """Times as seconds since 1970 from seconds, milliseconds or ISO text; None for durations."""
    values = as_number(series)
    if values is None:
        try:
            parsed = series.str.strip_chars().str.to_datetime(
                time_unit="us", time_zone="UTC", strict=False
            )
        except (pl.exceptions.PolarsError, AttributeError):
            return None
        return parsed.dt.epoch("us").cast(pl.Float64) / 1e6 if parsed.count() else None
    middle = values.drop_nulls().median()
    if not isinstance(middle, float) or not middle > 1e8:
        return None
    return values / (1e3 if middle > 1e11 else 1.0)


_MILLISECONDS = ("(ms)", "_ms", "millis")


def _scaled(
    target: str, name: str, values: pl.Series, scales: Mapping[str, float], notes: list[str]
) -> pl.Series:
    if target in scales:
        return values * scales[target]
    spelt = normalise(name)
    if target == "mfu":
        usable = values.set((values < 0).fill_null(value=False), None)  # -100 %: not known yet
        middle = usable.drop_nulls().median()
        if "%" in spelt or "percent" in spelt:
            return usable / 100.0
        if isinstance(middle, float) and 1.5 < middle <= 100:
            notes.append(f"{name!r} is taken as a percentage: its median is {middle:.3g}")
            return usable / 100.0
        return usable
    if target == "step_seconds" and any(m in spelt for m in _MILLISECONDS):
        return values / 1e3
    return values


def _unhide(frame: pl.DataFrame, own: list[str], notes: list[str]) -> pl.DataFrame:
    """Turn losses that hide a NaN into NaN, and mark their rows.

    transformers' Trainer replaces a NaN loss by the running mean of the interval
    (``logging_nan_inf_filter``); where all of the interval was NaN it logs 0.0. Megatron leaves
    the loss out of the line. In both the gradient norm of that row is not finite and tells. The
    losses of policy optimisation really are 0 and are left alone.
    """
    if "loss" not in frame.columns:
        return frame
    loss, never = pl.col("loss"), pl.lit(value=False)
    told = guessed = never
    if HIDDEN in frame.columns:
        told = pl.col(HIDDEN).fill_null(value=False) & loss.is_null()  # and nothing else is
    if "grad_norm" in frame.columns and not is_rl(own):
        norm = pl.col("grad_norm")
        zero = (loss == 0.0).fill_null(value=False)
        beside = frame.select((norm.is_not_null() & loss.is_not_null()).sum() / norm.count()).item()
        tells = HIDDEN not in frame.columns and (beside or 0.0) >= TOGETHER
        absent = loss.is_null() if tells else never
        guessed = (~norm.is_finite()).fill_null(value=False) & (zero | absent) & ~told
    marks = frame.select(loss, hidden=told | guessed, guessed=guessed)
    count = int(marks["guessed"].sum())
    if count:
        notes.append(
            f"{count:,} losses that are exactly 0 or left out beside a non-finite grad_norm"
            " are hidden NaN: read as NaN"
        )
    if not marks["hidden"].any():
        return frame
    seen = pl.when(pl.col("hidden")).then(float("nan")).otherwise(loss).alias("loss")
    return frame.with_columns(marks.select(seen, "hidden").get_columns())


def _within_budget(
    frame: pl.DataFrame, options: Options, notes: list[str]
) -> tuple[pl.DataFrame, tuple[LeftOut, ...]]:
    """Drop columns nobody asked for once all of them together would be too large."""
    values = [c for c in frame.columns if not c.startswith("@") and c not in ("attempt", "step")]
    if frame.height * len(values) * 8 <= FRAME_BUDGET:
        return frame, ()
    extra = [c for c in values if c not in METRICS and c not in options.metrics]
    left: list[LeftOut] = []
    for name in extra:
        rows = np.flatnonzero((~frame[name].is_finite()).fill_null(value=False).to_numpy())
        ends = rows[[0, -1]].tolist() if len(rows) else []
        spots = [(int(frame["attempt"][r]), int(frame["step"][r])) for r in ends]
        left.append(
            LeftOut(
                name=name,
                first=spots[0] if spots else None,
                last=spots[1] if spots else None,
                count=len(rows),
            )
        )
    notes.append(
        f"{len(extra)} columns besides the known metrics were only searched for non-finite values:"
        " --metric NAME keeps one"
    )
    return frame.drop(extra), tuple(left)


_LEADING = ("attempt", "step", "line", "file", "wall_time", "discarded", "hidden")


def _finish(frame: pl.DataFrame) -> pl.DataFrame:
    """Name the reserved columns and bring all into the order that ``Run.frame`` promises."""
    names = {LINE: "line", FILE: "file"}
    frame = frame.rename({k: v for k, v in names.items() if k in frame.columns})
    leading = [c for c in _LEADING if c in frame.columns]
    known = [c for c in METRICS if c in frame.columns and c not in leading]
    rest = [
        c for c in frame.columns if c not in leading and c not in known and not c.startswith("@")
    ]
    return frame.select(leading + known + rest)
