"""Copies: the same log found twice is one run, and counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stabcli.run import Run

_SHOWN = 3
"""Copies that are named."""


def without_copies(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, of those that are the same to the last value and line the first only.

    Runs of one seed may give the same numbers, but a log that is the same in all of its rows, their
    places and times adds nothing, whatever made it.
    """
    kept: list[Run] = []
    copies: dict[int, list[Run]] = {}
    alike: dict[tuple[object, ...], list[int]] = {}
    for run in runs:
        key = (run.reader, run.frame.shape, tuple(run.frame.columns), run.attempts, run.bad)
        twin = next((i for i in alike.get(key, []) if _same(kept[i], run)), None)
        if twin is None:
            alike.setdefault(key, []).append(len(kept))
            kept.append(run)
        else:
            copies.setdefault(twin, []).append(run)
    return [_told(run, copies[i]) if i in copies else run for i, run in enumerate(kept)]


def _same(one: Run, other: Run) -> bool:
    """Say whether two runs are of different files and the same in every value."""
    return one.files != other.files and one.frame.equals(other.frame)


def _told(run: Run, copies: list[Run]) -> Run:
    more = f" and {len(copies) - _SHOWN:,} more" if len(copies) > _SHOWN else ""
    names = ", ".join(copy.source for copy in copies[:_SHOWN])
    note = f"the same to the last value in {names}{more}: exact copies, counted once"
    return replace(run, notes=(*run.notes, note))
