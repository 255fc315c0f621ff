"""Settling: of all the runs that were read, those that are one become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import polars as pl

from stabcli.joining.agreement import Alignment, Doubt, align, columns_of
from stabcli.joining.chains import chained
from stabcli.joining.homes import (
    folders_of,
    grouped,
    homes_of,
    is_joinable,
    joined_name,
    label,
)
from stabcli.joining.merging import merge
from stabcli.joining.ranks import one_of_ranks
from stabcli.run import Run

MOST = 40
"""Logs of one folder that are compared each with each."""
TOLD = 6
"""Logs of one folder up to which is said why they were kept apart."""
TRACKERS = frozenset({"tensorboard", "wandb", "hf-trainer"})
"""Readers that tell by themselves which of their files are one run."""
OTHERWISE = 2
"""Columns that only one of two text logs has, from which they are of two kinds."""
CLASH = 0.1
"""Share of its rows that a log may have in common with another of its kind, and both be parts."""


def joined(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, those of which several files tell joined; the order stays.

    First the files of one folder are put together, then those of one home: a run's own folder
    with all that tools put below it.
    """
    apart = [run for run in runs if not is_joinable(run)]
    found = [run for run in runs if is_joinable(run)]
    found = _in_groups(found, homes_of, one_of_ranks)
    found = _in_groups(found, folders_of, lambda members: _parallel(chained(members)))
    found = _in_groups(found, homes_of, _parallel)
    order = {path: i for i, run in enumerate(runs) for path in run.files}
    return sorted([*apart, *found], key=lambda run: min(order[path] for path in run.files))


def _in_groups(
    runs: list[Run], keys: Callable[[Run], set[str]], join: Callable[[list[Run]], list[Run]]
) -> list[Run]:
    """Join the runs of each group that has several."""
    made: list[Run] = []
    for group in grouped([keys(run) for run in runs]):
        members = [runs[i] for i in group]
        made += join(members) if len(members) > 1 else members
    return made


def _parallel(runs: list[Run]) -> list[Run]:
    """Join the logs that tell of the same steps of one run."""
    if len(runs) < 2:
        return runs
    if len(runs) > MOST:
        note = f"one of {len(runs):,} logs in one place: too many to find out which are of one run"
        return [replace(run, notes=(*run.notes, note)) for run in runs]
    columns = [columns_of(run) for run in runs]
    proofs: dict[tuple[int, int], Alignment] = {}
    doubts: dict[tuple[int, int], Doubt] = {}
    for i, j in combinations(range(len(runs)), 2):
        if _alike(runs[i], runs[j]):
            continue
        base, other = sorted((i, j), key=lambda k: _rank(runs[k]))
        found = align(runs[base], runs[other], columns[base], columns[other])
        if isinstance(found, Alignment):
            proofs[base, other] = found
        else:
            doubts[base, other] = found
    left = dict(enumerate(runs))
    for group in grouped([_linked(i, proofs) for i in range(len(runs))]):
        if len(group) > 1:
            made = _one_of([runs[i] for i in group])
            for i in group:
                left.pop(i, None)
            left.update(zip(group, made, strict=False))
    settled = [left[i] for i in sorted(left)]
    return _with_doubts(settled, runs, doubts)


def _linked(index: int, proofs: dict[tuple[int, int], Alignment]) -> set[str]:
    return {str(index), *(f"{a} {b}" for a, b in proofs if index in (a, b))}


def _alike(a: Run, b: Run) -> bool:
    """Say whether two logs are of one kind: those are two runs, however alike they are.

    Two text logs of which one says much that the other does not are of two kinds: the console, and
    the few values that a loop wrote apart.
    """
    common = set(a.reader.split(" + ")) & set(b.reader.split(" + "))
    if not common or common & TRACKERS:
        return bool(common)
    return len(set(a.measurements) ^ set(b.measurements)) < OTHERWISE


def _rank(run: Run) -> tuple[int, int, bool]:
    """Sort key of who is the base: most attempts, most rows; of as many, text that has lines."""
    return -len(run.attempts), -run.frame.height, run.reader in ("tensorboard", "wandb")


def _one_of(runs: list[Run]) -> list[Run]:
    """Join runs that are all linked by proofs; what clashes stays apart."""
    alone = [run for run in runs if not any(_alike(run, r) for r in runs if r is not run)]
    if not alone:
        why = "kept apart: of each kind several logs agree with one another"
        return [_noted(run, why) for run in runs]
    base = min(alone, key=_rank)
    others = sorted((run for run in runs if run is not base), key=_rank)
    apart: list[Run] = []
    parts = [base]
    waiting = others
    for _ in others:
        moved = False
        columns = columns_of(base)
        placed = [(run, align(base, run, columns, columns_of(run))) for run in waiting]
        good = [(run, found) for run, found in placed if isinstance(found, Alignment)]
        for run, found in good:
            rivals = [(r, f) for r, f in good if r is not run and _alike(r, run)]
            if any(_clash(run, found, r, f) for r, f in rivals):
                apart.append(_noted(run, f"kept apart: it and {label(rivals[0][0])} both agree"
                                         f" with {label(base)}"))  # fmt: skip
                waiting = [r for r in waiting if r is not run]
                continue
            current = align(base, run, columns_of(base), columns_of(run))
            one = (
                merge(base, run, current, columns_of(base), columns_of(run))
                if isinstance(current, Alignment)
                else None
            )
            waiting = [r for r in waiting if r is not run]
            if one is None:
                why = (
                    f"kept apart from {label(base)}, with which it agrees: its restarts are others"
                )
                apart.append(_noted(run, why))
                continue
            base, moved = one, True
            parts.append(run)
        if not moved:
            break
    if len(parts) > 1:
        base = replace(base, name=joined_name(parts))
    return [base, *apart, *waiting]


def _clash(run: Run, found: Alignment, rival: Run, other: Alignment) -> bool:
    """Say whether two logs of a kind claim the same rows."""
    ours, theirs = (
        pl.DataFrame(
            {"attempt": f.attempts, "step": r.frame["step"] + f.offset},
        )
        for r, f in ((run, found), (rival, other))
    )
    common = ours.join(theirs, on=["attempt", "step"], how="semi").height
    return common > CLASH * min(ours.height, theirs.height)


def _noted(run: Run, note: str) -> Run:
    return replace(run, notes=(*run.notes, note))


def _with_doubts(
    settled: list[Run], runs: Sequence[Run], doubts: dict[tuple[int, int], Doubt]
) -> list[Run]:
    """Say of logs that lie together, but were not joined, why not."""
    if len(settled) < 2 or len(runs) > TOLD:
        return settled
    made = settled
    for (i, j), doubt in doubts.items():
        homes = [
            next(k for k, s in enumerate(settled) if set(runs[n].files) <= set(s.files))
            for n in (i, j)
        ]
        if homes[0] == homes[1] or runs[i].reader == runs[j].reader:
            continue
        for here, there in ((0, 1), (1, 0)):
            other = runs[(i, j)[there]]
            note = f"kept apart from {label(other)} beside it: {doubt.why}"
            if note not in made[homes[here]].notes:
                made[homes[here]] = _noted(made[homes[here]], note)
    return made
