"""What would the batch do without these tokens: cut them out, run the touched sequences again.

Cutting (the tokens on either side move together, the target at the seam is not trained on) is the
least invasive repair. Putting a mean vector in their place makes a long run of one vector, which is
itself a fault (gradient norm 1.1 to 1.7 on clean text); cutting changes a clean batch no more than
having fewer targets does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stabcli.replay.batch import IGNORED
from stabcli.replay.probes import Grid, Measurement, Probe

Places = frozenset[tuple[int, int]]
"""Tokens as (row, column)."""
Way = Literal["cut", "untrain"]
"""``cut`` drops tokens both as targets and as context, ``untrain`` as targets only."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repaired:
    """A batch after a repair."""

    loss: float
    """Mean loss of the targets that are left."""
    grad_norm: float | None
    """Norm of the gradient of that mean; None where it was not made."""
    targets: int
    """Targets left."""
    rows: tuple[int, ...]
    """Rows that were touched, in the order of ``measured``."""
    loss_RS: Tensor
    """Loss of each token of the touched rows, in the columns of the original."""
    surprise_RS: Tensor
    """Their surprise."""
    live_RS: Tensor
    """Which of them are still trained on."""


class Repairs:
    """Tries repairs of one batch, each at the cost of the sequences it touches.

    The gradient of a batch is the sum of its sequences', so the gradient of the repaired batch is
    that of the untouched ones, kept, plus that of the touched ones, run again.

    Args:
        probe: The model; the gradient of the whole batch is taken from ``p.grad`` where there.
        grid: The batch.
        measured: The batch as it is.
    """

    def __init__(self, probe: Probe, grid: Grid, measured: Measurement) -> None:
        self.probe, self.grid, self.measured = probe, grid, measured
        self.count = grid.count
        self.tests = 0
        self.drift = 0.0
        """Largest difference of a row's loss between two runs of it, nats."""
        self._absent: frozenset[int] = frozenset()
        self._rest: list[Tensor | None] = [
            None if p.grad is None else p.grad.float() for p in probe.parameters()
        ]
        self._known: dict[tuple[Places, Way], Repaired] = {}
        self._carried: dict[tuple[frozenset[int], bytes], Repaired] = {}
        probe.clear()

    @property
    def has_gradient(self) -> bool:
        """Whether gradient norms can be asked for."""
        return any(g is not None for g in self._rest)

    def losses(self, places: Iterable[tuple[int, int]], way: Way = "cut") -> Repaired:
        """Loss after a repair: a forward pass over the touched sequences."""
        return self._try(frozenset(places), way, backward=False)

    def effect(self, places: Iterable[tuple[int, int]], way: Way = "cut") -> Repaired:
        """Loss and gradient norm after a repair."""
        return self._try(frozenset(places), way, backward=self.has_gradient)

    def _try(self, places: Places, way: Way, *, backward: bool) -> Repaired:
        known = self._known.get((places, way))
        if known is None or (backward and known.grad_norm is None):
            self.tests += 1
            rows = sorted({row for row, _ in places})
            fixed, back_RS = repaired(self.grid, places, rows, way)
            known = self._run(rows, fixed, back_RS, backward=backward)
            self._known[places, way] = known
        return known

    def carried(self, rows: list[int], guests: Grid, *, backward: bool) -> Repaired:
        """The batch with other sequences in the place of these: is what they carry enough?"""
        columns_RS = torch.arange(guests.tokens_BS.shape[1]).expand(guests.tokens_BS.shape)
        key = frozenset(rows), guests.tokens_BS.numpy().tobytes()
        if key not in self._carried:
            self.tests += 1
            found = self._run(rows, guests, columns_RS, backward=backward and self.has_gradient)
            self._carried[key] = found
        return self._carried[key]

    def rerun(self, rows: list[int]) -> float:
        """Run rows once more as they are; how far a row's loss is from the first time, nats."""
        self._compare(rows, self.probe.measure(self.grid.rows(rows)))
        return self.drift

    def _compare(self, rows: list[int], again: Measurement) -> None:
        difference = (again.loss_BS.sum(1) - self.measured.loss_BS[rows].sum(1)).abs()
        targets = self.measured.live_BS[rows].sum(1).clamp_min(1)
        self.drift = max(self.drift, float((difference / targets).max()))

    def _run(self, rows: list[int], fixed: Grid, back_RS: Tensor, *, backward: bool) -> Repaired:
        if backward:
            self._take_out(frozenset(rows))
        alive = [i for i in range(len(rows)) if bool(fixed.live_BS[i].any())]
        shape = fixed.tokens_BS.shape
        loss_RS, surprise_RS = torch.zeros(shape), torch.zeros(shape)
        if alive:
            m = self.probe.measure(fixed.rows(alive), backward=backward, count=self.count)
            loss_RS[alive], surprise_RS[alive] = m.loss_BS, m.surprise_BS
        elif backward:
            self.probe.clear()
        others = torch.ones(len(self.grid.tokens_BS), dtype=torch.bool)
        others[rows] = False
        targets = int(self.measured.live_BS[others].sum()) + fixed.count
        total = float(self.measured.loss_BS[others].double().sum()) + float(loss_RS.double().sum())
        norm = self._norm() * self.count / max(1, targets) if backward else None
        if backward:
            self.probe.clear()
        return Repaired(
            loss=total / max(1, targets),
            grad_norm=norm,
            targets=targets,
            rows=tuple(rows),
            loss_RS=_back(loss_RS, back_RS),
            surprise_RS=_back(surprise_RS, back_RS),
            live_RS=_back(fixed.live_BS, back_RS),
        )

    def _take_out(self, rows: frozenset[int]) -> None:
        """Bring the kept gradient to that of all sequences but these."""
        for change, sign in ((rows - self._absent, -1.0), (self._absent - rows, 1.0)):
            if not change:
                continue
            listed = sorted(change)
            again = self.probe.measure(self.grid.rows(listed), backward=True, count=self.count)
            self._compare(listed, again)
            for kept, parameter in zip(self._rest, self.probe.parameters(), strict=True):
                if kept is not None and parameter.grad is not None:
                    kept.add_(parameter.grad.float(), alpha=sign)
        self._absent = rows

    def _norm(self) -> float:
        """Norm of the kept gradient plus what is in ``p.grad``."""
        return self.probe.norm_of(
            kept if parameter.grad is None else kept + parameter.grad
            for kept, parameter in zip(self._rest, self.probe.parameters(), strict=True)
            if kept is not None
        )


def repaired(grid: Grid, places: Places, rows: list[int], way: Way) -> tuple[Grid, Tensor]:
    """The rows without the tokens, and the original column of each column that is left.

    Returns:
        The repaired rows at their old length, and (R, S) columns; -1 where the row has ended.
    """
    part = grid.rows(rows)
    width = part.tokens_BS.shape[1]
    tokens_RS, targets_RS = part.tokens_BS.clone(), part.targets_BS.clone()
    mask_RS = None if part.mask_BS is None else part.mask_BS.clone()
    positions_RS = None if part.positions_BS is None else part.positions_BS.clone()
    back_RS = torch.arange(width).repeat(len(rows), 1)
    gone: dict[int, list[int]] = {row: [] for row in rows}
    for row, column in places:
        gone[row].append(column)
    for i, row in enumerate(rows):
        if way == "untrain":
            targets_RS[i, gone[row]] = IGNORED
            continue
        stays_S = torch.ones(width, dtype=torch.bool)
        stays_S[gone[row]] = False
        stay = stays_S.nonzero()[:, 0]
        left = len(stay)
        kept_targets = part.targets_BS[i, stay]
        kept_targets[1:][stay.diff() > 1] = IGNORED
        kept_targets[:1] = IGNORED
        tokens_RS[i, :left] = part.tokens_BS[i, stay]
        tokens_RS[i, left:] = part.tokens_BS[i, stay[-1]] if left else 0
        targets_RS[i, :left], targets_RS[i, left:] = kept_targets, IGNORED
        back_RS[i, :left], back_RS[i, left:] = stay, -1
        if mask_RS is not None and part.mask_BS is not None:
            mask_RS[i, :left] = part.mask_BS[i, stay]
            mask_RS[i, left:] = part.mask_BS[i, stay[-1]] if left else True
        if positions_RS is not None and part.positions_BS is not None:
            positions_RS[i] = _closed_up(part.positions_BS[i], stay)
    fixed = Grid(
        tokens_BS=tokens_RS, targets_BS=targets_RS, mask_BS=mask_RS, positions_BS=positions_RS
    )
    return fixed, back_RS


def _closed_up(positions_S: Tensor, stay: Tensor) -> Tensor:
    """Positions of the tokens that stay, one after the other in each document, at the old length."""
    begins_S = torch.ones(len(positions_S), dtype=torch.bool)
    begins_S[1:] = positions_S.diff() != 1
    document_S = begins_S.cumsum(0) - 1
    first_D = positions_S[begins_S]
    left_L = document_S[stay]
    before_D = torch.bincount(left_L, minlength=len(first_D)).cumsum(0).roll(1)
    before_D[0] = 0
    moved_L = first_D[left_L] + torch.arange(len(stay)) - before_D[left_L]
    last = int(moved_L[-1]) if len(stay) else -1
    return torch.cat([moved_L, last + 1 + torch.arange(len(positions_S) - len(stay))])


def _back(value_RS: Tensor, back_RS: Tensor) -> Tensor:
    """Values in the columns of the original; 0 where a token was dropped."""
    out_RS = torch.zeros_like(value_RS)
    row_K, column_K = (back_RS >= 0).nonzero(as_tuple=True)
    out_RS[row_K, back_RS[row_K, column_K]] = value_RS[row_K, column_K]
    return out_RS


def noise_factor(before: int, after: int) -> float:
    """How much longer the mean gradient of fewer targets is: noise falls with the root of them."""
    return math.sqrt(before / max(1, after))


def clean_rows(grids: tuple[Grid, ...], count: int, like: Grid) -> Grid | None:
    """The first so many sequences of the controls, where they are of the same length."""
    width = like.tokens_BS.shape[1]
    if any(g.tokens_BS.shape[1] != width for g in grids):
        return None
    tokens_RS = torch.cat([g.tokens_BS for g in grids])[:count]
    if len(tokens_RS) < count:
        return None
    targets_RS = torch.cat([g.targets_BS for g in grids])[:count]
    positions = [g.positions_BS for g in grids if g.positions_BS is not None]
    positions_RS = torch.cat(positions)[:count] if len(positions) == len(grids) else None
    return Grid(tokens_BS=tokens_RS, targets_BS=targets_RS, positions_BS=positions_RS)


def carried(grid: Grid, places: Places, rows: list[int], hosts: Grid) -> Grid:
    """Clean sequences with the named tokens in the columns where the batch has them."""
    tokens_RS, targets_RS = hosts.tokens_BS.clone(), hosts.targets_BS.clone()
    for i, row in enumerate(rows):
        columns = [c for r, c in places if r == row]
        tokens_RS[i, columns] = grid.tokens_BS[row, columns]
        wanted = grid.targets_BS[row, columns]
        targets_RS[i, columns] = torch.where(targets_RS[i, columns] == IGNORED, IGNORED, wanted)
    return Grid(tokens_BS=tokens_RS, targets_BS=targets_RS, positions_BS=hosts.positions_BS)
