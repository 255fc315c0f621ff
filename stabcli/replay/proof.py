"""Whether an explanation stands: placebo sets, sufficiency, and by which way the tokens do harm."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from stabcli.replay.batch import IGNORED
from stabcli.replay.controls import Calibration
from stabcli.replay.explain import Excess, Explanation
from stabcli.replay.probes import Grid, Measurement
from stabcli.replay.repair import Places, Repairs
from stabcli.replay.static import runs
from stabcli.replay.verdict import Culprit, Role

ALL_OF_IT = 0.8
"""Part of what cutting explains that one way must explain to be called the way."""
PLACEBOS = 2
"""Sets of other tokens that are cut for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the tests of an explanation gave, as parts of the excess."""

    explained: float
    """Taken away by cutting the named tokens out."""
    placebo: float
    """Taken away by cutting as many other tokens of the same sequences: the most of all sets."""
    untrained: float
    """Taken away by not training on the named tokens, which stay as context."""
    sufficient: float | None
    """Brought about in clean sequences that the named tokens were carried into; None where no
    control has the shape of the batch."""

    @property
    def role(self) -> Role:
        """By which way the tokens do harm."""
        if self.untrained >= ALL_OF_IT * self.explained:
            return "target"
        return "context" if self.untrained <= (1 - ALL_OF_IT) * self.explained else "both"


def prove(
    explanation: Explanation,
    grid: Grid,
    excess: Excess,
    repairs: Repairs,
    flagged: Places,
    seed: int,
) -> Proof:
    """Test an explanation of a batch that is out of the band."""
    places = explanation.places
    rng = np.random.default_rng(seed)
    placebos = [
        excess.explained(repairs.effect(other))
        for other in (placebo(grid, places, flagged, rng) for _ in range(PLACEBOS))
        if other
    ]
    rows = sorted({row for row, _ in places})
    sufficient = None
    guests = carry(grid, places, rows, excess.calibration)
    if guests is not None:
        sufficient = 1.0 - excess.explained(repairs.carried(rows, guests))
    return Proof(
        explained=excess.explained(repairs.effect(places)),
        placebo=max(placebos, default=0.0),
        untrained=excess.explained(repairs.effect(places, "untrain")),
        sufficient=sufficient,
    )


def placebo(grid: Grid, places: Places, flagged: Places, rng: np.random.Generator) -> Places:
    """As many other tokens, of the same sequences where they have enough."""
    rows = {row for row, _ in places}
    width = grid.tokens_BS.shape[1]
    taken = places | flagged
    near = [(r, c) for r in sorted(rows) for c in range(1, width - 1) if (r, c) not in taken]
    if len(near) < len(places):
        others = [r for r in range(len(grid.tokens_BS)) if r not in rows]
        near += [(r, c) for r in others for c in range(1, width - 1) if (r, c) not in taken]
    count = min(len(places), len(near))
    return (
        frozenset(near[i] for i in rng.choice(len(near), count, replace=False))
        if count
        else places - places
    )


def carry(grid: Grid, places: Places, rows: list[int], calibration: Calibration) -> Grid | None:
    """Clean sequences with the named tokens in the columns where the batch has them."""
    width = grid.tokens_BS.shape[1]
    hosts = [g for g in calibration.grids if g.tokens_BS.shape[1] == width]
    tokens_RS = torch.cat([g.tokens_BS for g in hosts])[: len(rows)].clone() if hosts else None
    if tokens_RS is None or len(tokens_RS) < len(rows):
        return None
    targets_RS = torch.cat([g.targets_BS for g in hosts])[: len(rows)].clone()
    for i, row in enumerate(rows):
        columns = [c for r, c in places if r == row]
        tokens_RS[i, columns] = grid.tokens_BS[row, columns]
        wanted = grid.targets_BS[row, columns]
        targets_RS[i, columns] = torch.where(targets_RS[i, columns] == IGNORED, IGNORED, wanted)
    return Grid(tokens_BS=tokens_RS, targets_BS=targets_RS)


def culprits_of(
    explanation: Explanation, grid: Grid, m: Measurement, *, explained: float | None,
    role: Role | None, notes: dict[int, str],
) -> tuple[Culprit, ...]:  # fmt: skip
    """The named tokens as culprits, each with its part of the excess, most harmful first.

    The excess is divided in proportion to what the tokens hold of the batch's squared gradient
    norm where there are shares, else of its loss.
    """
    held_BS = m.loss_BS if m.share_BS is None else m.share_BS.clamp_min(0)
    whole = sum(float(held_BS[p]) for p in explanation.places) or 1.0
    squared = (m.grad_norm or 0.0) ** 2
    live = int(m.live_BS.sum())
    groups: list[tuple[dict[str, int], list[tuple[int, int]], str]] = []
    if explanation.unit == "ids":
        for i in explanation.ids:
            places = sorted(p for p in explanation.places if int(grid.tokens_BS[p]) == i)
            groups.append(({"token_id": i}, places, notes.get(i, "")))
    else:
        for row, first, last in _stretches(explanation.places, grid.tokens_BS.shape[1]):
            places = [(row, c) for c in range(first, last + 1)]
            ids = Counter(int(grid.tokens_BS[p]) for p in places)
            top, times = ids.most_common(1)[0]
            note = (
                f"{times} of {len(places)} tokens are ID {top}" if times > len(places) / 2 else ""
            )
            groups.append(({"sequence": row, "first": first, "last": last}, places, note))
    found = []
    for name, places, note in groups:
        part = sum(float(held_BS[p]) for p in places) / whole
        gradient = None
        if m.share_BS is not None and squared > 0:
            gradient = sum(float(m.share_BS[p]) for p in places) / squared
        trained = [p for p in places if bool(m.live_BS[p])]
        loss = sum(float(m.loss_BS[p]) for p in trained) / len(trained) if trained else None
        found.append(
            Culprit(
                **name, positions=tuple(places), loss=loss if live else None, role=role, note=note,
                share=None if explained is None else part * explained, gradient_share=gradient,
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda c: -(c.share or c.gradient_share or 0.0)))


def _stretches(places: Places, width: int) -> list[tuple[int, int, int]]:
    found = []
    for row in sorted({row for row, _ in places}):
        flags = np.zeros(width, bool)
        flags[[c for r, c in places if r == row]] = True
        found += [(row, first, last) for first, last in runs(flags)]
    return found
