"""Copies: the same log found twice is one run, and counted once; so is an older copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stabcli.run import Run

_SHOWN = 3
"""Copies that are named."""
PROOF = ("loss", "objective_loss", "grad_norm", "reward")
"""Measurements that two runs do not share by plan, as they do a schedule."""
FEWEST = 20
"""Different values of one of them from which a log is known to be the beginning of another."""
_LATER = ("discarded", "hidden")
"""Columns that tell what came later."""


def without_copies(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, of those that are the same to the last value and line the first only.

    Runs of one seed may give the same numbers, but a log that is the same in all of its rows, their
    places and times adds nothing, whatever made it. An older copy, the beginning of a longer log,
    does not either.
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
    told = [_told(run, copies[i]) if i in copies else run for i, run in enumerate(kept)]
    return _without_beginnings(told)


def _without_beginnings(runs: list[Run]) -> list[Run]:
    """Return the runs that are not the beginning of another."""
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        known = [c for c in ("step", *PROOF) if c in run.frame.columns]
        first = [(c, run.frame[c][0]) for c in known if run.frame[c][0] is not None]
        groups.setdefault(f"{run.reader} {first}", []).append(i)
    older: dict[int, list[Run]] = {}
    for members in groups.values():
        whole: list[int] = []
        for i in sorted(members, key=lambda i: -runs[i].frame.height):
            own = next((j for j in whole if _is_older(runs[j], runs[i])), None)
            if own is None:
                whole.append(i)
            else:
                older.setdefault(own, []).append(runs[i])
    gone = {id(run) for members in older.values() for run in members}
    return [
        _outgrown(run, older[i]) if i in older else run
        for i, run in enumerate(runs)
        if id(run) not in gone
    ]


def _is_older(whole: Run, part: Run) -> bool:
    """Say whether a log adds nothing to another of which it is the beginning."""
    troubles = {(t.kind, t.text) for t in whole.troubles}
    return (
        whole.files != part.files
        and troubles >= {(t.kind, t.text) for t in part.troubles}
        and begins(whole, part)
    )


def begins(whole: Run, part: Run) -> bool:
    """Say whether all rows of a run are the first of a longer one, to the last value."""
    rows = part.frame.height
    if rows >= whole.frame.height:
        return False
    columns = [c for c in part.frame.columns if c not in _LATER]
    if not set(columns) <= set(whole.frame.columns):
        return False
    start = whole.frame.head(rows)
    more = [c for c in start.columns if c not in part.frame.columns and c not in _LATER]
    if any(start[c].count() for c in more):
        return False
    if not any(part.has(m) and part.frame[m].n_unique() >= FEWEST for m in PROOF):
        return False
    return start.select(columns).equals(part.frame.select(columns))


def _outgrown(run: Run, older: list[Run]) -> Run:
    """Return a run with a note that names the older copies of its log."""
    names = _listed([f"{one.source} ({one.frame.height:,} rows)" for one in older])
    note = f"its beginning, the same to the last value, is also in {names}: counted once"
    return replace(run, notes=(*run.notes, note))


def _same(one: Run, other: Run) -> bool:
    """Say whether two runs are of different files and the same in every value."""
    return one.files != other.files and one.frame.equals(other.frame)


def _told(run: Run, copies: list[Run]) -> Run:
    names = _listed([copy.source for copy in copies])
    note = f"the same to the last value in {names}: exact copies, counted once"
    return replace(run, notes=(*run.notes, note))


def _listed(names: Sequence[str]) -> str:
    """Name the first few, and count the others."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
