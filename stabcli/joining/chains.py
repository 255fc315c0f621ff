"""Chains: a run that wrote one log after another: restarts in new files, and rotated logs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from stabcli.attempts import mark_discarded, summaries
from stabcli.joining.homes import common_folder, joined_name, label
from stabcli.joining.merging import ordered, placed
from stabcli.run import Attempt, BadLines, Run

_PACKED = re.compile(r"\.(gz|bz2|xz|zst|zstd)$")
_ROTATED = re.compile(r"^(?P<stem>.+\.[A-Za-z]\w*)\.(?P<number>\d{1,3})$")
"""``train.log.1``: what logrotate and logging's RotatingFileHandler make of ``train.log``."""
_NUMBERS = re.compile(r"\d+")

GAP_ROWS = 5
"""Rows that may be missing between two logs: what was not written out when the first one died."""
GAP_SHARE = 0.05
"""Share of the first log's steps that may be missing instead, where that is more."""
LIKE = 0.7
"""Share of the columns that both must have."""
LEVEL_ROWS = 16
"""Rows before and after the seam whose losses are compared."""
LEVEL_SCALES = 6.0
"""Scales by which the losses on both sides of the seam may differ."""
LEVEL_SHARE = 0.05
"""Share of the loss by which they may differ in any case."""
_FIXED = ("parameters", "sequence_length", "vocab_size", "layers", "width", "seed")
"""Facts that a run keeps when it is restarted."""
BAD_SHOWN = 5


def chained(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, those of which several logs tell one after another put together.

    A log goes on with another where both have names that differ in numbers only, it begins later
    than the other did, no later than soon after it ended, and at the same level. Where two could
    be gone on with, neither is: a note says so.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.reader, _pattern(run)), []).append(run)
    made: list[Run] = []
    for members in groups.values():
        made += _put_together(sorted(members, key=_order)) if len(members) > 1 else members
    return made


def _file(run: Run) -> str:
    return _PACKED.sub("", Path(run.files[0]).name)


def _pattern(run: Run) -> str:
    """Return the name of a run's file without its numbers; of several files, nothing like it."""
    if len(run.files) > 1 or not run.name.endswith(_file(run)):
        return "\0".join(run.files) + run.name
    name = _file(run)
    rotated = _ROTATED.match(name)
    return _NUMBERS.sub("#", rotated["stem"] if rotated else name)


def _order(run: Run) -> tuple[int, list[int], str]:
    """Sort key: of rotated logs the highest number is the oldest, of others the lowest."""
    name = _file(run)
    rotated = _ROTATED.match(name)
    if rotated:
        return -int(rotated["number"]), [], name
    return 0, [int(n) for n in _NUMBERS.findall(name)], name


def _put_together(runs: list[Run]) -> list[Run]:
    """Hang each log on the one it goes on with."""
    heads: list[list[Run]] = []
    notes: dict[int, str] = {}
    for run in runs:
        fitting = []
        why = ""
        for chain in heads:
            doubt = _doubt(chain, run)
            if doubt is None:
                fitting.append(chain)
            elif doubt:
                why = f"kept apart from {label(chain[-1])}, which it may go on with: {doubt}"
        if len(fitting) == 1:
            fitting[0].append(run)
            continue
        if len(fitting) > 1:
            names = " or ".join(label(chain[-1]) for chain in fitting)
            why = f"kept apart: it may go on with {names}"
        if why:
            notes[len(heads)] = why
        heads.append([run])
    return [
        _noted(_chain(chain), notes[i]) if i in notes else _chain(chain)
        for i, chain in enumerate(heads)
    ]


def _noted(run: Run, note: str) -> Run:
    return replace(run, notes=(*run.notes, note))


def _doubt(chain: list[Run], run: Run) -> str | None:
    """Return None where a run goes on with a chain, why not where it might, else nothing."""
    last = chain[-1]
    first, begun = int(last.frame["step"].min()), int(run.frame["step"].min())  # type: ignore[arg-type]
    ended = int(last.frame["step"].max())  # type: ignore[arg-type]
    if begun <= first:
        return ""
    allowed = max(GAP_ROWS * (last.log_interval or 1), GAP_SHARE * (ended - first))
    if begun > ended + allowed:
        return ""
    for name in _FIXED:
        one, two = last.facts.get(name), run.facts.get(name)
        if one and two and one.value != two.value:
            return f"{name} is {one.value} there, {two.value} here"
    ours, theirs = set(last.measurements), set(run.measurements)
    if len(ours & theirs) < LIKE * len(ours | theirs):
        return "they have other columns"
    if "wall_time" in last.frame.columns and "wall_time" in run.frame.columns:
        end, start = last.frame["wall_time"].max(), run.frame["wall_time"].min()
        if isinstance(end, float) and isinstance(start, float) and start < end - 60.0:
            return "it began before the other had ended"
    return _other_level(last, run, begun)


def _other_level(last: Run, run: Run, begun: int) -> str | None:
    """Say where the losses on both sides of the seam do not meet."""
    for metric in ("loss", "objective_loss"):
        if not (last.has(metric) and run.has(metric)):
            continue
        before, after = (_finite(r, metric) for r in (last, run))
        near = before.filter(pl.col("step") < begun + (run.log_interval or 1) * LEVEL_ROWS)
        one = near[metric].tail(LEVEL_ROWS).to_numpy()
        two = after[metric].head(LEVEL_ROWS).to_numpy()
        if len(one) < 4 or len(two) < 4:
            continue
        scale = 1.4826 * float(np.median(np.abs(one - np.median(one))))
        apart = abs(float(np.median(one) - np.median(two)))
        if apart > max(LEVEL_SCALES * scale, LEVEL_SHARE * abs(float(np.median(one)))):
            return f"{metric} is {np.median(one):.4g} there and {np.median(two):.4g} here"
        return None
    return "they have no loss to tell by"


def _finite(run: Run, metric: str) -> pl.DataFrame:
    """Return the finite losses of a run in the order in which they were logged."""
    return run.frame.filter(pl.col(metric).is_finite())


def _chain(runs: list[Run]) -> Run:
    """Return one run of logs that go on with one another; each restart is an attempt."""
    if len(runs) == 1:
        return runs[0]
    folder = common_folder(path for run in runs for path in run.files)
    frames: list[pl.DataFrame] = []
    told: list[pl.DataFrame] = []
    number = -1
    ended = None
    for run in runs:
        frame = placed(run, folder)
        rotated = _ROTATED.match(_file(runs[0])) is not None
        goes_on = rotated and ended is not None and int(frame["step"][0]) > ended
        number += 0 if goes_on else 1
        shift = number - int(frame["attempt"][0])
        frame, *apart = (
            rows.with_columns(pl.col("attempt") + pl.lit(shift, pl.Int32))
            for rows in (frame, *(placed(run, folder, rows) for rows in run.told))
        )
        told += apart
        number = int(frame["attempt"][-1])
        ended = int(frame["step"][-1])
        frames.append(frame)
    frame = ordered(mark_discarded(pl.concat(frames, how="diagonal").drop("discarded")))
    if "hidden" in frame.columns:
        frame = frame.with_columns(pl.col("hidden").fill_null(value=False))
    attempts: tuple[Attempt, ...] = summaries(frame)
    facts = {name: fact for run in runs for name, fact in run.facts.items()}
    names = ", ".join(label(run) for run in runs)
    own = [f"{label(run)}: {note}" for run in runs for note in run.notes]
    bad = [(line, f"{label(run)}: {why}") for run in runs for line, why in run.bad.first]
    return replace(
        runs[-1],
        name=joined_name(runs),
        source=str(folder),
        frame=frame,
        attempts=attempts,
        facts=facts,
        columns={c: o for run in runs for c, o in run.columns.items()},
        notes=(f"joined: {len(runs)} logs that go on with one another: {names}", *own),
        bad=BadLines(count=sum(run.bad.count for run in runs), first=tuple(bad[:BAD_SHOWN])),
        left_out=tuple(one for run in runs for one in run.left_out),
        files=tuple(path for run in runs for path in run.files),
        told=tuple(told),
    )
