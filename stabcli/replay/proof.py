"""Whether an explanation stands: placebo sets, sufficiency, and by which way the tokens do harm."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from stabcli.replay.explain import Explanation, Race
from stabcli.replay.probes import Grid, Measurement
from stabcli.replay.repair import Places
from stabcli.replay.static import runs
from stabcli.replay.verdict import Culprit, Role

ALL_OF_IT = 0.8
"""Part of what cutting explains that one way must explain to be called the way."""
PLACEBOS = 2
"""Sets of other tokens that are cut for comparison."""
SMALL = 0.1
"""Part of the targets up to which sets differ enough from one another for more than one to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the tests of an explanation gave, as parts of the excess."""

    explained: float
    """Taken away by cutting the named tokens out."""
    placebo: float
    """Taken away by cutting as many other tokens of the same sequences: the mean of the sets."""
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


def prove(explanation: Explanation, race: Race, seed: int) -> Proof:
    """Test an explanation of a batch that is out of the band."""
    places, excess = explanation.places, race.excess
    sets = placebos(race.grid, places, race.found.places, seed)
    done = [excess.explained(race.fixed(other)) for other in sets]
    return Proof(
        explained=excess.explained(race.fixed(places)),
        placebo=sum(done) / len(done) if done else 0.0,
        untrained=excess.explained(race.fixed(places, "untrain")),
        sufficient=race.sufficient(places),
    )


def placebos(grid: Grid, places: Places, flagged: Places, seed: int) -> list[Places]:
    """Sets of as many other tokens, of the same sequences where they have enough.

    Where they have not, whole further sequences make up the number, as few as will do.
    """
    rng = np.random.default_rng(seed)
    rows = sorted({row for row, _ in places})
    others = [int(r) for r in rng.permutation(len(grid.tokens_BS)) if r not in set(rows)]
    width = grid.tokens_BS.shape[1]
    taken = places | flagged

    def free(rows: list[int]) -> list[tuple[int, int]]:
        return [(r, c) for r in rows for c in range(width - 1) if (r, c) not in taken]

    near = free(rows)
    while len(near) < len(places) and others:
        near += free([others.pop()])
    count = min(len(places), len(near))
    number = PLACEBOS if count < SMALL * grid.count else 1
    return [
        frozenset(near[i] for i in rng.choice(len(near), count, replace=False))
        for _ in range(number)
        if count
    ]


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
