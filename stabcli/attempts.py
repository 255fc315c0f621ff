"""Attempts: where a run was started anew, and which row speaks for a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from stabcli.run import Attempt
from stabcli.units import does, plural

PART = "@part"
"""Column of a reading that rises where the reader knows that the run was started anew."""

MOST_RESTARTS, FEWEST_ROWS = 64, 20
"""More restarts than this, fewer rows than this apart on the mean, are rows in no order."""
_CLOCKS = ("step", "wall_time", "epoch", "elapsed_seconds")


def number_attempts(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Number the attempts: a new one begins where any series goes back in steps.

    A series that goes back by one row and at once goes on beyond where it had been was
    written out of order, not restarted; such rows are only put in order.
    """
    frame = _counted_on(frame, notes)
    starts: list[int] = []
    if PART in frame.columns:
        part = frame[PART].to_numpy()
        starts = (np.flatnonzero(part[1:] != part[:-1]) + 1).tolist()
    disordered = 0
    if not frame["step"].is_sorted():
        step = frame["step"].to_numpy()
        back: set[tuple[int, int]] = set()
        for name in frame.columns:
            if name.startswith("@") or name in _CLOCKS:
                continue
            logged = np.flatnonzero(frame[name].is_not_null().to_numpy())
            at = step[logged]
            down = np.flatnonzero(np.diff(at) < 0) + 1
            for i in down.tolist():
                if _out_of_order(at, i):
                    disordered += 1
                else:
                    back.add((int(logged[i - 1]), int(logged[i])))
        begun = list(starts)
        for before, row in sorted(back, key=lambda span: span[1]):
            if not any(before < start <= row for start in begun[-2:] + starts):
                begun.append(row)
        restarts = len(begun) - len(starts)
        if restarts > MOST_RESTARTS and restarts * FEWEST_ROWS > frame.height:
            notes.append(
                f"steps go back {restarts:,} times, too often for restarts: the rows were written"
                " out of order, and put in order"
            )
        else:
            starts = sorted(set(begun))
    attempt = np.zeros(frame.height, np.int32)
    attempt[starts] = 1
    if disordered:
        notes.append(f"put in order: {plural(disordered, 'value')} that came out of order")
    return frame.with_columns(pl.Series("attempt", np.cumsum(attempt, dtype=np.int32)))


def _counted_on(frame: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Bring steps that run backwards, or begin anew in every epoch, into the order of the run."""
    if frame["step"].is_sorted():
        return frame
    step = frame["step"].to_numpy()
    gaps = np.diff(step)
    down = np.flatnonzero(gaps < 0) + 1
    if len(step) > 2 and (gaps < 0).all():
        notes.append("the log runs backwards: read from its end")
        return frame.reverse()
    if "epoch" not in frame.columns or frame["epoch"].null_count():
        return frame
    epoch = frame["epoch"].to_numpy()
    whole = bool((epoch == np.floor(epoch)).all())
    if not whole or not (epoch[down] > epoch[down - 1]).all() or (np.diff(epoch) < 0).any():
        return frame
    usual = int(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1
    added = np.zeros(len(step), np.int64)
    added[down] = step[down - 1] - step[down] + usual
    notes.append(f"steps begin anew in every epoch: counted on over {len(down) + 1} epochs")
    return frame.with_columns(step=pl.Series(step + np.cumsum(added), dtype=pl.Int64))


def _out_of_order(at: np.ndarray, i: int) -> bool:
    """Say whether ``at[i]``, lower than ``at[i - 1]``, is a late row rather than a restart."""
    higher = i + 1 < len(at) and at[i + 1] > at[i - 1]
    alone = i < 2 or at[i - 2] < at[i]
    return bool(higher and alone)


PROCESS = ("rank", "local_rank", "global_rank", "process", "process_index", "worker")
"""Columns that say which process wrote a row."""


def one_row_a_step(
    frame: pl.DataFrame, notes: list[str]
) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Merge the rows of one step of one attempt: per field the last value, non-finite first.

    Where a column says which process wrote a row, the median of the processes is taken instead.

    Returns:
        The rows, and those that were merged, both sorted by attempt and step; None where no step
        had several.
    """
    key = ["attempt", "step"]
    if not _in_order(frame):
        frame = frame.sort(key, maintain_order=True)
    same = _same_step(frame)
    if not same.any():
        return frame, None
    values = [c for c in frame.columns if c not in key and not c.startswith("@")]
    near = same | same.shift(-1, fill_value=False)
    alike, second = frame.filter(near), same.filter(near)
    conflicting = int((second & _conflicts(alike, values)).sum())
    again = int((second & _repeats(alike, values)).sum())
    measured = [pl.col(c) for c in values]
    rank = next((c for c in values if c.lower() in PROCESS and frame[c].n_unique() > 1), None)
    merged = frame.group_by(key, maintain_order=True).agg(
        [
            pl.coalesce(
                c.filter(~c.is_finite()).drop_nulls().first(),
                c.drop_nulls().last() if rank is None else c.drop_nulls().median(),
            ).alias(c.meta.output_name())
            for c in measured
        ]
        + [
            pl.col(c).max() if frame[c].dtype == pl.Boolean else pl.col(c).first()
            for c in frame.columns
            if c.startswith("@")
        ]
    )
    if rank is not None:
        notes.append(
            f"{frame[rank].drop_nulls().n_unique():,} processes (column {rank!r}) logged the same"
            " steps: the median of each value was taken, a non-finite one before any other"
        )
    elif conflicting:
        notes.append(
            f"{plural(conflicting, 'row')} {does(conflicting, 'repeat')} a step with other values:"
            " the last value was taken, a non-finite one before any other"
        )
    if again:
        notes.append(f"rows that only repeat the row before them, counted once: {again:,}")
    return merged, alike


def _repeats(frame: pl.DataFrame, values: Sequence[str]) -> pl.Series:
    """Say for every row whether it has most of the numbers of the row above it, and no other."""
    kept = [pl.col(c) for c in values if c not in _CLOCKS]
    if not kept:
        return pl.Series([False]).new_from_index(0, frame.height)
    same = [c.is_null() | c.eq_missing(c.shift(1)) for c in kept]
    held = pl.sum_horizontal(c.is_finite().fill_null(value=False) for c in kept)
    most = 2 * held > held.shift(1)  # else it is a summary, which holds what never changes
    return frame.select((pl.all_horizontal(same) & (held > 0) & most).alias("again"))["again"]


def _same_step(frame: pl.DataFrame) -> pl.Series:
    """Say for every row whether it is of the step and the attempt of the row above it."""
    return ((frame["step"].diff() == 0) & (frame["attempt"].diff() == 0)).fill_null(value=False)


def _in_order(frame: pl.DataFrame) -> bool:
    """Say whether rows stand as they are to: most logs are long, and sorting copies all of them."""
    step, attempt = frame["step"], frame["attempt"]
    if attempt.min() == attempt.max():
        return step.is_sorted()
    back = (step.diff() < 0) & (attempt.diff() == 0)
    return attempt.is_sorted() and not back.any()


def _conflicts(frame: pl.DataFrame, values: Sequence[str]) -> pl.Series:
    """Say for every row whether it gives another value for what the row above it gave."""
    kept = [c for c in values if c not in _CLOCKS]
    if not kept:
        return pl.Series([False]).new_from_index(0, frame.height)
    return frame.select(
        pl.any_horizontal(
            [(pl.col(c) != pl.col(c).shift(1)).fill_null(value=False) for c in kept]
        ).alias("conflict")
    )["conflict"]


def mark_discarded(frame: pl.DataFrame) -> pl.DataFrame:
    """Say of every row whether a later attempt started at or before its step."""
    if frame["attempt"].min() == frame["attempt"].max():
        return frame.with_columns(discarded=pl.lit(value=False))
    firsts = frame.group_by("attempt").agg(pl.col("step").min()).sort("attempt")["step"].to_numpy()
    later = np.minimum.accumulate(firsts[::-1])[::-1]
    limit = np.append(later[1:], np.iinfo(np.int64).max)
    attempts = frame["attempt"].to_numpy()
    order = np.searchsorted(np.unique(attempts), attempts)
    return frame.with_columns(discarded=pl.Series(frame["step"].to_numpy() >= limit[order]))


def summaries(frame: pl.DataFrame) -> tuple[Attempt, ...]:
    """Tell of each attempt where it began and ended."""
    grouped = frame.group_by("attempt", maintain_order=True).agg(
        first_step=pl.col("step").min(), last_step=pl.col("step").max(), rows=pl.len()
    )
    return tuple(Attempt(**row) for row in grouped.iter_rows(named=True))
