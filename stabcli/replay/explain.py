"""Which explanation is the shortest: a few IDs, a few stretches, or whole sequences.

An explanation must be *necessary*: with its tokens cut out, what was out of the band is back in it,
or at least 80 % of the excess is gone, and what the screen had flagged is mostly gone too. Of those
that pass, the one that is said in the fewest bits is kept.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from stabcli.replay.controls import FOLLOWERS, Calibration
from stabcli.replay.probes import Grid, Measurement
from stabcli.replay.repair import Places, Repaired, Repairs, Way, carried, clean_rows, noise_factor
from stabcli.replay.screening import (
    ENDS_FROM,
    HARM_REACH,
    Screened,
    Segment,
    acquit,
    places_of,
    rescored,
    sharpen,
)
from stabcli.replay.verdict import Unit

ENOUGH = 0.8
"""Part of the excess an explanation must take away where the band is not reached."""
MAX_RESIDUAL = 0.25
"""Part of what was flagged that may stay flagged under an explanation by IDs."""
BITS_A_TOKEN = 0.2
"""Price of each token an explanation takes, so that a common ID is not blamed for a short stretch."""
MAX_PART = 0.3
"""Largest part of the batch an explanation by IDs may take: beyond it, cutting is no small repair."""
SET_SIZES = (1, 2, 3, 4, 6, 8)
"""Numbers of IDs tried together."""
MIN_MASS = 0.04
"""Part of the flagged strength an ID must hold to join a set of several."""
MIN_INSIDE = 0.25
"""Part of an ID's places that must be flagged for it to join a set of several: every second place of
a never-trained ID is not beyond the controls by itself."""
LEAST_RAISED = 0.5
"""Nats a flagged token that the residual loss is measured in at least: a repeated ID is predicted too
well, not too badly, and would leave a part of nothing."""
DENSE = 0.3
"""Part of a stretch that IDs must make up to fill it."""
MOSTLY = 0.5
"""Part of an ID's places that must lie in stretches it fills for the others to be let go."""
MINOR = 0.2
"""Part of the highest stretch's strength below which another is first tried to be left out."""
NO_WORSE = 0.01
"""Part of the excess, or of what was flagged, by which the smaller set may do less."""
SUFFICIENT = 0.5
"""Part of the excess that named tokens must bring about in clean text to count as sufficient."""
COVERED = 0.5
"""Part of the flagged tokens that must be an ID's places or near after them, before a pass is spent
on the ID: what an explanation leaves is measured by the pass, and may not be much."""
SURE = 0.1
"""Residual up to which an explanation by IDs is taken without looking for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """By how much the batch is out of the band."""

    loss: float
    """Mean loss."""
    grad_norm: float
    """Gradient norm."""
    count: int
    """Targets."""
    calibration: Calibration

    @classmethod
    def of(cls, m: Measurement, calibration: Calibration) -> Excess:
        """Compare a measurement with the controls."""
        count = int(m.live_BS.sum())
        return cls(loss=m.loss, grad_norm=m.grad_norm or 0.0, count=count, calibration=calibration)

    @property
    def in_loss(self) -> bool:
        """Whether the loss is out of the band."""
        return not self.loss <= self.calibration.loss.limit

    @property
    def in_norm(self) -> bool:
        """Whether the gradient norm is out of the band."""
        return not self.grad_norm <= self.calibration.grad_norm.limit

    @property
    def any(self) -> bool:
        """Whether there is anything to explain."""
        return self.in_loss or self.in_norm

    def explained(self, fixed: Repaired) -> float:
        """Part of the excess that a repair takes away, at most 1; the smaller where both are out.

        The norm of fewer targets is brought to the noise of as many as the batch has.
        """
        parts = []
        if self.in_loss:
            parts.append((self.loss - fixed.loss) / (self.loss - self.calibration.loss.high))
        if self.in_norm and fixed.grad_norm is not None:
            norm = fixed.grad_norm / noise_factor(self.count, fixed.targets)
            high = self.calibration.grad_norm.high
            parts.append((self.grad_norm - norm) / (self.grad_norm - high))
        return min([1.0, *parts]) if parts else 0.0

    def settled(self, fixed: Repaired) -> bool:
        """Whether a repair makes the batch normal."""
        loss_fine = fixed.loss <= self.calibration.loss.limit
        norm_fine = True
        if fixed.grad_norm is not None:
            norm = fixed.grad_norm / noise_factor(self.count, fixed.targets)
            norm_fine = norm <= self.calibration.grad_norm.limit
        return (loss_fine and norm_fine) or self.explained(fixed) >= ENOUGH


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A set of tokens that, cut out, makes the batch normal."""

    unit: Unit
    ids: tuple[int, ...] = ()
    places: Places
    bits: float
    """Length of saying it."""
    residual: float
    """Part of what was flagged that stays flagged."""


class Race:
    """Explanations of one batch, tried in turn."""

    def __init__(
        self, grid: Grid, found: Screened, excess: Excess, repairs: Repairs, rows_V: int
    ) -> None:
        self.grid, self.found, self.excess, self.repairs = grid, found, excess, repairs
        self.bits_an_id = math.log2(rows_V)
        self.calibration = excess.calibration

    def run(self, leads: Iterable[int], row_norms_V: torch.Tensor | None) -> Explanation | None:
        """The best explanation there is.

        Args:
            leads: IDs that something else points to: odd embedding rows, repeated n-grams.
            row_norms_V: Gradient norm of each embedding row.
        """
        if not self.found.segments and not self.found.after_ids:
            return None
        by_ids = None
        for ids in self._candidates(leads, row_norms_V):
            if by_ids is not None and len(ids) > len(by_ids.ids):
                continue
            rival = self._by_ids(ids)
            if rival is not None and (by_ids is None or rival.bits < by_ids.bits):
                by_ids = rival
                if self._faults(rival) == 0 and rival.residual <= SURE:
                    sharpen(self.calibration, self.found, self.grid)
                    return rival
        acquit(self.calibration, self.found, self.repairs)
        sharpen(self.calibration, self.found, self.grid)
        rivals = [e for e in (by_ids, self._segments()) if e is not None]
        return min(rivals, key=lambda e: (self._faults(e), e.bits), default=None)

    def fixed(self, places: Places, way: Way = "cut") -> Repaired:
        """The batch after a repair, with a backward only where the gradient norm is in question."""
        again = self.repairs.effect if self.excess.in_norm else self.repairs.losses
        return again(places, way)

    def sufficient(self, places: Places) -> float | None:
        """Part of what the tokens do here that they do in clean sequences they are carried into.

        None where no control has the shape of the batch.
        """
        rows = sorted({row for row, _ in places})
        hosts = clean_rows(self.calibration.grids, len(rows), self.grid)
        if hosts is None:
            return None
        without = self.fixed(places)
        again = self.repairs.carried(
            rows, carried(self.grid, places, rows, hosts), backward=self.excess.in_norm
        )
        parts = []
        if self.excess.in_loss:
            own = self.repairs.measured.loss_BS[rows].double().sum()
            change = float(self.calibration.loss_R[: len(rows)].double().sum() - own)
            clean = (self.excess.loss * self.excess.count + change) / max(1, again.targets)
            parts.append((again.loss - clean) / (self.excess.loss - without.loss))
        if self.excess.in_norm and again.grad_norm is not None and without.grad_norm is not None:
            before = without.grad_norm / noise_factor(self.excess.count, without.targets)
            parts.append((again.grad_norm - before) / (self.excess.grad_norm - before))
        return min(parts, default=0.0)

    def _faults(self, explanation: Explanation) -> int:
        """How many of the tests of a good explanation it fails."""
        if not self.excess.any:
            return 0
        weak = self.excess.explained(self.fixed(explanation.places)) < ENOUGH
        brought = self.sufficient(explanation.places)
        return int(weak) + int(brought is not None and brought < SUFFICIENT)

    def _segments(self) -> Explanation | None:
        places = self.found.places
        if not places or (self.excess.any and not self.necessary(places)):
            return None
        tokens, width = self.grid.tokens_BS.numel(), self.grid.tokens_BS.shape[1]
        segments = self.found.segments
        if self.excess.any:
            segments = self._pruned()
            places = places_of(segments)
        bits = len(segments) * (math.log2(tokens) + math.log2(width))
        bits += BITS_A_TOKEN * len(places)
        return Explanation(unit="segments", places=places, bits=bits, residual=0.0)

    def _pruned(self) -> list[Segment]:
        """The main stretches alone, where they do as much as all."""

        def height(segment: Segment) -> float:
            row, first, last = segment
            return float(self.found.strength_BS[row, first : last + 1].clamp_min(0).sum())

        segments = self.found.segments
        highest = max(map(height, segments))
        main = [s for s in segments if height(s) >= MINOR * highest]
        if len(main) < len(segments):
            whole = self.excess.explained(self.fixed(places_of(segments)))
            if self.excess.explained(self.fixed(places_of(main))) >= whole - NO_WORSE:
                return main
        return segments

    def necessary(self, places: Places) -> bool:
        """Whether the batch is normal without these."""
        return self.excess.settled(self.fixed(places))

    def _by_ids(self, ids: tuple[int, ...]) -> Explanation | None:
        is_one_BS = torch.isin(self.grid.tokens_BS, torch.tensor(ids))
        is_one_BS[:, -1] &= self.grid.live_BS[:, -1]
        places = self._dense(frozenset((b, c) for b, c in is_one_BS.nonzero().tolist()))
        if not places or len(places) > MAX_PART * self.excess.count or not self._near(places):
            return None
        residual = self._residual(places) if self.found.segments else self._harm_left(places)
        if residual > MAX_RESIDUAL or (self.excess.any and not self.necessary(places)):
            return None
        bits = len(ids) * self.bits_an_id + BITS_A_TOKEN * len(places)
        return Explanation(unit="ids", ids=ids, places=places, bits=bits, residual=residual)

    def _dense(self, places: Places) -> Places:
        """Only the places in the stretches that the IDs fill, where most of them are.

        A common ID that one stretch repeats stands elsewhere too, innocently.
        """
        filled = [
            set(stretch) & places
            for segment in self.found.segments
            if len(stretch := places_of([segment])) >= ENDS_FROM
            and len(stretch & places) >= DENSE * len(stretch)
        ]
        inside = frozenset[tuple[int, int]]().union(*filled)
        return inside if len(inside) >= MOSTLY * len(places) else places

    def _near(self, places: Places) -> bool:
        """Whether enough of what is flagged are these places or follows them closely."""
        flagged = self.found.places
        columns: defaultdict[int, list[int]] = defaultdict(list)
        for row, column in places:
            columns[row].append(column)
        near = sum(
            any(0 <= column - c <= HARM_REACH for c in columns[row]) for row, column in flagged
        )
        return near >= COVERED * len(flagged)

    def _residual(self, places: Places) -> float:
        """Part of what was flagged, in tokens or in loss above the usual, that a repair leaves."""
        score_BS = rescored(self.calibration, self.found, self.repairs, places)
        flagged = self.found.places
        still = sum(bool(score_BS[place] > 1) for place in flagged - places)
        fixed = self.repairs.losses(places)
        where = {row: i for i, row in enumerate(fixed.rows)}
        before = after = 0.0
        high, loss_BS = self.calibration.high_loss, self.repairs.measured.loss_BS
        for row, column in flagged:
            extra = max(0.0, float(loss_BS[row, column]) - high)
            before += extra
            if (row, column) in places:
                continue
            left = float(fixed.loss_RS[where[row], column]) if row in where else None
            after += extra if left is None else max(0.0, left - high)
        return max(
            still / max(1, len(flagged)), after / max(before, LEAST_RAISED * len(flagged), 1e-6)
        )

    def _harm_left(self, places: Places) -> float:
        """Part of the surprise of what follows these places that cutting them out leaves.

        Where nothing is flagged but an ID after which the text is badly predicted: text that is
        hard by itself stays so without the ID.
        """
        fixed = self.repairs.losses(places)
        rows = list(fixed.rows)
        where = {row: i for i, row in enumerate(rows)}
        follows_RS = torch.zeros_like(fixed.live_RS)
        for row, column in places:
            follows_RS[where[row], column + 1 : column + 1 + FOLLOWERS] = True
        for row, column in places:
            follows_RS[where[row], column] = False
        before_RS = self.repairs.measured.surprise_BS[rows]
        judged_RS = follows_RS & fixed.live_RS
        others_RS = ~follows_RS & fixed.live_RS
        if not judged_RS.any() or not others_RS.any():
            return 1.0
        usual = before_RS[others_RS].mean()
        before = float(before_RS[judged_RS].mean() - usual)
        after = float(fixed.surprise_RS[judged_RS].mean() - usual)
        return max(0.0, after / before) if before > 0 else 1.0

    def _candidates(
        self, leads: Iterable[int], row_norms_V: torch.Tensor | None
    ) -> list[tuple[int, ...]]:
        """Sets of IDs worth trying: by the strength they hold, by what follows them, by leads."""
        tokens_BS, strength_BS = self.grid.tokens_BS, self.found.strength_BS
        total = Counter(tokens_BS.flatten().tolist())
        mass: defaultdict[int, float] = defaultdict(float)
        inside: Counter[int] = Counter()
        calm_BS = strength_BS[self.found.score_BS < 0.5]
        usual = float(calm_BS.median()) if len(calm_BS) else 0.0
        for place in self.found.places:
            i = int(tokens_BS[place])
            mass[i] += max(0.0, float(strength_BS[place]) - usual)
            inside[i] += 1
        ranked = sorted(mass, key=lambda i: mass[i] * (inside[i] / total[i]) ** 2, reverse=True)
        all_mass = sum(mass.values()) + 1e-9
        joined = [
            i
            for i in ranked
            if mass[i] >= MIN_MASS * all_mass and inside[i] >= MIN_INSIDE * total[i]
        ]
        sets = [tuple(joined[:n]) for n in SET_SIZES if len(joined) >= n] or [
            (i,) for i in ranked[:1]
        ]
        singles = [e.token_id for e in sorted(self.found.after_ids, key=lambda e: -e.after)[:3]]
        if row_norms_V is not None and self.excess.any:
            used = torch.tensor(sorted(total))
            steep = row_norms_V[used] / torch.tensor([total[int(i)] for i in used]).float().sqrt()
            singles += used[steep.topk(min(3, len(used))).indices].tolist()
        singles += list(leads)[:6]
        sets += [(i,) for i in dict.fromkeys(singles) if (i,) not in sets]
        return sets

    def sequences(self, order: list[int]) -> Explanation | None:
        """The fewest whole rows, taken in this order, without which the batch is normal."""

        def places_of_rows(count: int) -> Places:
            width = self.grid.tokens_BS.shape[1]
            return frozenset((row, c) for row in order[:count] for c in range(width))

        most = len(order) // 2
        enough, short = 1, 0
        while enough <= most and not self.necessary(places_of_rows(enough)):
            short, enough = enough, enough * 2
        if enough > most:
            if not most or short >= most or not self.necessary(places_of_rows(most)):
                return None
            enough = most
        while enough - short > 1:
            middle = (enough + short) // 2
            if self.necessary(places_of_rows(middle)):
                enough = middle
            else:
                short = middle
        bits = enough * math.log2(len(order))
        places = places_of_rows(enough)
        return Explanation(unit="sequences", places=places, bits=bits, residual=0.0)
