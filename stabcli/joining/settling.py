"""Settling: of all the runs that were read, those that are one become one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import polars as pl

from stabcli.joining.agreement import Alignment, Doubt, align, columns_of
from stabcli.joining.chains import chained
from stabcli.joining.copies import without_copies
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
from stabcli.joining.rounding import Rounding
from stabcli.run import Run

MOST = 1000
"""Pairs of logs of one place that are compared."""
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
    order = {path: i for i, run in enumerate(runs) for path in run.files}

    def place(run: Run) -> int:
        return min(order[path] for path in run.files)

    apart = [run for run in runs if not is_joinable(run)]
    found = [run for run in runs if is_joinable(run)]
    found = _in_groups(found, homes_of, one_of_ranks)  # processes may print the very same
    single = without_copies(sorted([*apart, *found], key=place))
    apart = [run for run in single if not is_joinable(run)]
    found = [run for run in single if is_joinable(run)]
    found = _in_groups(found, folders_of, lambda members: _parallel(chained(members)))
    found = _in_groups(found, homes_of, _parallel)
    return sorted([*apart, *found], key=place)


def _in_groups(
    runs: list[Run], keys: Callable[[Run], set[str]], join: Callable[[list[Run]], list[Run]]
) -> list[Run]:
    """Join the runs of each group that has several."""
    made: list[Run] = []
    for group in grouped([keys(run) for run in runs]):
        members = [runs[i] for i in group]
        made += join(members) if len(members) > 1 else members
    return made


class _Compared:
    """Runs held against one another; each pair is looked at once."""

    def __init__(self) -> None:
        self._columns: dict[int, tuple[Run, dict[str, Rounding]]] = {}
        self._found: dict[tuple[int, int], Alignment | Doubt] = {}

    def columns(self, run: Run) -> dict[str, Rounding]:
        """Return the columns of a run and how each was rounded."""
        if id(run) not in self._columns:
            self._columns[id(run)] = run, columns_of(run)  # the run is kept, and so its number
        return self._columns[id(run)][1]

    def __call__(self, base: Run, other: Run) -> Alignment | Doubt:
        """Say how the rows of one run lie in another."""
        key = id(base), id(other)
        if key not in self._found:
            self._found[key] = align(base, other, self.columns(base), self.columns(other))
        return self._found[key]

    def merge(self, base: Run, other: Run) -> Run | None:
        """Return one run of both, where that is possible."""
        found = self(base, other)
        if isinstance(found, Doubt):
            return None
        return merge(base, other, found, self.columns(base), self.columns(other))


def _parallel(runs: list[Run]) -> list[Run]:
    """Join the logs that tell of the same steps of one run."""
    pairs = [(i, j) for i, j in combinations(range(len(runs)), 2) if not _alike(runs[i], runs[j])]
    if len(pairs) > MOST:
        note = f"one of {len(runs):,} logs in one place: too many to find out which are of one run"
        return [run if note in run.notes else _noted(run, note) for run in runs]
    compared = _Compared()
    proofs: list[tuple[int, int]] = []
    doubts: dict[tuple[int, int], Doubt] = {}
    for pair in pairs:
        base, other = sorted(pair, key=lambda k: _rank(runs[k]))
        found = compared(runs[base], runs[other])
        if isinstance(found, Doubt):
            doubts[pair] = found
        else:
            proofs.append(pair)
    left = dict(enumerate(runs))
    for group in grouped([_linked(i, proofs) for i in range(len(runs))]):
        if len(group) > 1:
            made = _one_of([runs[i] for i in group], compared)
            for i in group:
                left.pop(i, None)
            left.update(zip(group, made, strict=False))
    return _with_doubts([left[i] for i in sorted(left)], runs, doubts)


def _linked(index: int, proofs: Sequence[tuple[int, int]]) -> set[str]:
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


def _one_of(runs: list[Run], compared: _Compared) -> list[Run]:
    """Join runs that are all linked by proofs; what clashes stays apart."""
    alone = [run for run in runs if not any(_alike(run, r) for r in runs if r is not run)]
    if not alone:
        why = "kept apart: of each kind several logs agree with one another"
        return [_noted(run, why) for run in runs]
    base = min(alone, key=_rank)
    waiting = sorted((run for run in runs if run is not base), key=_rank)
    apart: list[Run] = []
    parts = [base]
    while waiting:
        agreeing = [run for run in waiting if isinstance(compared(base, run), Alignment)]
        if not agreeing:
            break
        run = agreeing[0]
        waiting = [r for r in waiting if r is not run]
        rival = next((r for r in agreeing if _clash(base, run, r, compared)), None)
        if rival is not None:
            why = f"both agree with {label(base)}, and whose it is nobody can say"
            apart += [
                _noted(run, f"kept apart: it and {label(rival)} {why}"),
                _noted(rival, f"kept apart: it and {label(run)} {why}"),
            ]
            waiting = [r for r in waiting if r is not rival]
            continue
        one = compared.merge(base, run)
        if one is None:
            why = f"kept apart from {label(base)}, with which it agrees: its restarts are others"
            apart.append(_noted(run, why))
        else:
            base = one
            parts.append(run)
    if len(parts) > 1:
        base = replace(base, name=joined_name(parts))
    return [base, *apart, *waiting]


def _clash(base: Run, run: Run, rival: Run, compared: _Compared) -> bool:
    """Say whether two logs of a kind claim the same rows."""
    if rival is run or not _alike(run, rival):
        return False
    claims = []
    for one in (run, rival):
        found = compared(base, one)
        if isinstance(found, Doubt):
            return False
        steps = one.frame["step"] + found.offset
        claims.append(pl.DataFrame({"attempt": found.attempts, "step": steps}))
    common = claims[0].join(claims[1], on=["attempt", "step"], how="semi").height
    return common > CLASH * min(claim.height for claim in claims)


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
