"""Ranks: one log a process, all of one run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from stabcli.attempts import mark_discarded, summaries
from stabcli.joining.homes import common_folder, joined_name, label
from stabcli.joining.merging import ordered, placed, told_apart
from stabcli.run import KEYS, BadLines, Fact, Run

_RANK = re.compile(
    r"(?i)(?<![a-z])((?:global|local)?[._-]?(?:rank|worker|process|proc|procid))([._-]?)(\d+)"
)
"""A name that says which process wrote a file: ``rank_3.log``, ``train-worker12.txt``."""
_LAST_SPEAKS = ("megatron",)
"""Readers of frameworks whose last process prints; elsewhere it is the first."""
COMMON = 0.5
"""Share of the steps that two processes must have in common."""
BAD_SHOWN = 5


def one_of_ranks(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, those of which each process wrote a log joined.

    Of each value the median of the processes is kept, one that is not finite before any other, and
    the largest loss in ``loss_max``.
    """
    groups: dict[tuple[str, str], list[tuple[int, Run]]] = {}
    made: list[Run] = []
    for run in runs:
        named = _rank(run)
        if named is None:
            made.append(run)
        else:
            groups.setdefault((run.reader, named[0]), []).append((named[1], run))
    for members in groups.values():
        numbered = sorted(members, key=lambda member: member[0])
        ranks = [rank for rank, _ in numbered]
        logs = [run for _, run in numbered]
        if len(logs) < 2 or len(set(ranks)) < len(ranks) or not _together(logs):
            made += logs
        else:
            made.append(_merged(ranks, logs))
    return made


def process_in(path: str) -> int | None:
    """Return the number of the process that wrote a file, by its name; None where it has none."""
    found = list(_RANK.finditer(path))
    return int(found[-1][3]) if found else None


def _rank(run: Run) -> tuple[str, int] | None:
    """Return the path without the number of the process, and that number."""
    if len(run.files) > 1:
        return None
    found = list(_RANK.finditer(run.files[0]))
    if not found:
        return None
    last = found[-1]
    path = run.files[0]
    return f"{path[: last.start(3)]}*{path[last.end(3) :]}", int(last[3])


def _together(logs: Sequence[Run]) -> bool:
    """Say whether all logs tell of much the same steps, in as many attempts."""
    first = logs[0]
    steps = first.frame.select("attempt", "step")
    for run in logs[1:]:
        common = run.frame.join(steps, on=["attempt", "step"], how="semi").height
        if common < COMMON * max(run.frame.height, steps.height):
            return False
    return True


def _merged(ranks: Sequence[int], logs: Sequence[Run]) -> Run:
    speaks = -1 if logs[0].reader in _LAST_SPEAKS else 0
    base = logs[speaks]
    folder = common_folder(path for run in logs for path in run.files)
    order = [base, *(run for run in logs if run is not base)]
    frames = [
        placed(run, folder).with_columns(pl.lit(ranks[logs.index(run)]).alias("@rank"))
        for run in order
    ]
    table = pl.concat(frames, how="diagonal")
    values = [c for c in table.columns if c not in KEYS and not c.startswith("@")]
    broken = table.filter(pl.any_horizontal(~pl.col(c).is_finite() for c in values))
    merged = table.group_by("attempt", "step", maintain_order=True).agg(
        *[pl.col(c).first() for c in ("line", "file", "wall_time") if c in table.columns],
        *[pl.col(c).any() for c in ("hidden",) if c in table.columns],
        *[
            pl.coalesce(
                pl.col(c).filter(~pl.col(c).is_finite()).drop_nulls().first(),
                pl.col(c).drop_nulls().median(),
            ).alias(c)
            for c in values
        ],
        *([pl.col("loss").max().alias("@max")] if "loss" in values else []),
    )
    differs = "@max" in merged.columns and "loss_max" not in merged.columns
    differs = differs and bool(((merged["@max"] - merged["loss"]).abs() > 0).any())
    merged = merged.with_columns(pl.col("@max").alias("loss_max")) if differs else merged
    merged = merged.drop("@max", strict=False)
    frame = ordered(mark_discarded(merged.sort("attempt", "step", maintain_order=True)))
    names = f"{label(logs[0])} to {label(logs[-1])}"
    said = f"joined: {len(logs)} logs of one run, one a process ({names}): the median of each"
    said += f" value was taken; rows are cited from {label(base)}"
    notes = [f"{said}, or from the log in which a value stands that it lacks"]
    if broken.height:
        first = broken.sort("attempt", "step", maintain_order=True).row(0, named=True)
        notes.append(
            f"process {first['@rank']} was the first with a non-finite value,"
            f" at step {first['step']:,}"
        )
    facts = dict(base.facts)
    if list(ranks) == list(range(len(ranks))):
        source = f"logs of processes 0 to {ranks[-1]}"
        facts.setdefault("gpus", Fact(value=len(ranks), source=source))
    return replace(
        base,
        facts=facts,
        name=joined_name(order),
        source=str(folder),
        frame=frame,
        attempts=summaries(frame),
        notes=(*notes, *base.notes),
        bad=BadLines(
            count=sum(run.bad.count for run in logs),
            first=tuple(
                (line, f"{label(run)}: {why}") for run in order for line, why in run.bad.first
            )[:BAD_SHOWN],
        ),
        files=tuple(path for run in order for path in run.files),
        told=tuple(
            rows.with_columns(pl.col("loss").alias("loss_max")) if differs else rows
            for run in order
            for rows in told_apart(run, folder)
        ),
    )
