"""Which stretches of the batch are beyond anything in the controls, and which of them are victims.

A bad token can spoil the predictions after it, and a long fault can hide a shorter one. So what is
flagged is cut out and the rest looked at again; and of several stretches in one sequence, a later
one that turns normal once the earlier ones are gone is let go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stabcli.replay.controls import (
    WINDOWS,
    Calibration,
    IdScore,
    id_scores,
    statistics,
    windowed,
)
from stabcli.replay.probes import Grid, Measurement
from stabcli.replay.repair import Places, Repairs
from stabcli.replay.static import runs

JOIN_GAP = 3
"""Flagged tokens this far apart are one stretch: junk is normal in places by luck."""
ROUNDS = 3
"""Times what is left is looked at again: more were never needed on planted faults."""
RAISED = 0.5
"""Deviations a token must be raised itself to be flagged by a short window around it."""
ENDS_FROM = 6
"""Tokens from which the ends of a stretch are looked for: shorter ones come from windows of 1 and 4,
which are as sharp as can be."""
HARM_REACH = 32
"""Tokens after a fault within which a flagged token may be its victim."""
MOST_EVIDENCE = 5.0
"""Most that one token may say for a stretch, nats: a rare ID that stands near by chance must not
bridge to it."""
REACH = 32
"""Tokens beyond a flagged stretch where its true end is looked for: half the longest window."""
STRENGTH = (-1.0, 3.0)
"""Strengths are cut here: an isolated peak must not decide where a stretch of noisy tokens ends."""

Segment = tuple[int, int, int]
"""A stretch as (row, first column, last column), inclusive."""


@dataclass(slots=True)
class Screened:
    """What the screen found."""

    score_BS: Tensor
    """Largest statistic of any window around a token over its limit: above 1 = beyond the controls."""
    strength_BS: Tensor
    """How far each token is raised by itself; 1 = a stretch of 16 such tokens is at its limit."""
    segments: list[Segment] = field(default_factory=list)
    """Stretches out of the ordinary, victims excluded."""
    victims: list[Segment] = field(default_factory=list)
    """Stretches that are normal once earlier ones are cut out."""
    own_ids: list[IdScore] = field(default_factory=list)
    """IDs that are badly predicted wherever they stand."""
    after_ids: list[IdScore] = field(default_factory=list)
    """IDs after which the text is badly predicted."""

    @property
    def places(self) -> Places:
        """Every token of the segments."""
        return places_of(self.segments)


def places_of(segments: list[Segment]) -> Places:
    """Every token of these stretches."""
    return frozenset((b, c) for b, first, last in segments for c in range(first, last + 1))


def score(
    calibration: Calibration, values: dict[str, Tensor], excluded_BS: Tensor | None = None
) -> Tensor:
    """Largest ratio of any window around each token to its limit, (B, S)."""
    best_BS = torch.zeros_like(next(iter(values.values())))
    for name, value_BS in calibration.standard(values).items():
        value_BS[:, 0] = 0.0
        if excluded_BS is not None:
            value_BS[excluded_BS] = 0.0
        for window in WINDOWS:
            ratio_BS = windowed(value_BS, window) / calibration.limit[name, window]
            if 1 < window < WINDOWS[-1]:
                ratio_BS[value_BS <= RAISED] = 0.0
            best_BS = torch.maximum(best_BS, ratio_BS)
    if excluded_BS is not None:
        best_BS[excluded_BS] = 0.0
    return best_BS


def screen(calibration: Calibration, grid: Grid, m: Measurement, repairs: Repairs) -> Screened:
    """Find the stretches out of the ordinary.

    Shares count only where the gradient norm is out of its band: in a usual norm somebody always
    holds the largest share.
    """
    norm = m.grad_norm or 0.0
    values = statistics(m, norm, calibration.grad_norm.middle)
    if norm <= calibration.grad_norm.limit:
        values.pop("share", None)
    values = _quiet_where_dead(values, m.live_BS, calibration)
    score_BS = score(calibration, values)
    found = Screened(score_BS, _strength(calibration, values))
    surprise_BS = calibration.standard({"surprise": m.surprise_BS})["surprise"]
    for each in id_scores(grid, surprise_BS, m.live_BS):
        if each.times > 1 and each.own > calibration.own_limit:
            found.own_ids.append(each)
        if each.after > calibration.after_limit:
            found.after_ids.append(each)
    flagged_BS = score_BS > 1
    for each in found.own_ids:
        flagged_BS |= (grid.tokens_BS == each.token_id) & m.live_BS & (surprise_BS > RAISED)
    found.segments = segments_of(flagged_BS)
    _peel(calibration, found, flagged_BS, repairs)
    return found


def sharpen(calibration: Calibration, found: Screened, grid: Grid) -> None:
    """Find the true ends of the stretches."""
    flagged_BS = torch.zeros_like(found.score_BS, dtype=torch.bool)
    for segment in found.segments:
        row, first, last = _ends(segment, found, grid, calibration.counts_V)
        flagged_BS[row, first : last + 1] = True
    found.segments = segments_of(flagged_BS)


def segments_of(flagged_BS: Tensor) -> list[Segment]:
    """Stretches of flagged tokens."""
    return [
        (row, first, last)
        for row, flags_S in enumerate(flagged_BS.numpy())
        for first, last in runs(flags_S, gap=JOIN_GAP)
    ]


def rescored(calibration: Calibration, found: Screened, repairs: Repairs, places: Places) -> Tensor:
    """The score of every token once these are cut out; shares, which would cost a backward, not."""
    fixed = repairs.losses(places)
    rows = list(fixed.rows)
    gone_BS = torch.zeros_like(found.score_BS, dtype=torch.bool)
    for row, column in places:
        gone_BS[row, column] = True
    values = {"surprise": fixed.surprise_RS, "loss": fixed.loss_RS}
    values = _quiet_where_dead(values, fixed.live_RS, calibration)
    score_BS = found.score_BS.clone()
    score_BS[rows] = score(calibration, values, gone_BS[rows])
    return score_BS


def _quiet_where_dead(
    values: dict[str, Tensor], live_BS: Tensor, calibration: Calibration
) -> dict[str, Tensor]:
    """Put the usual value where nothing is trained on; a share is there even without a target."""
    return {
        name: value if name == "share" else torch.where(live_BS, value, calibration.centre[name])
        for name, value in values.items()
    }


def _strength(calibration: Calibration, values: dict[str, Tensor]) -> Tensor:
    standard = calibration.standard(values)
    strengths = [
        (value / max(calibration.limit[name, 16] / 16**0.5, 1e-6)).clamp(*STRENGTH)
        for name, value in standard.items()
    ]
    return torch.stack(strengths).amax(0)


def _peel(calibration: Calibration, found: Screened, flagged_BS: Tensor, repairs: Repairs) -> None:
    """Cut out what is flagged, and flag what shows then."""
    for _ in range(ROUNDS):
        if not found.segments:
            return
        new_BS = rescored(calibration, found, repairs, found.places) > 1
        rows = sorted({row for row, _, _ in found.segments})
        untouched_B = torch.ones(len(new_BS), dtype=torch.bool)
        untouched_B[rows] = False
        new_BS[untouched_B] = False
        if not (new_BS & ~flagged_BS).any():
            return
        flagged_BS |= new_BS
        for row, first, last in found.segments:
            flagged_BS[row, first : last + 1] = True
        found.segments = segments_of(flagged_BS)


def acquit(calibration: Calibration, found: Screened, repairs: Repairs) -> None:
    """Let go of stretches that are normal once the earlier ones of their row are cut out."""

    def height(segment: Segment) -> float:
        row, first, last = segment
        return float(found.score_BS[row, first : last + 1].max())

    for segment in sorted(found.segments, key=height):
        row, first, last = segment
        earlier = [s for s in found.segments if s[0] == row and first - HARM_REACH <= s[2] < first]
        if not earlier:
            continue
        left_BS = rescored(calibration, found, repairs, places_of(earlier))
        if float(left_BS[row, first : last + 1].max()) <= 1:
            found.segments.remove(segment)
            found.victims.append(segment)


def _ends(segment: Segment, found: Screened, grid: Grid, counts_V: Tensor) -> Segment:
    """Where a stretch begins and ends: the change points, by largest likelihood.

    A stretch that has its own few IDs is told from text by them: exactly, and whatever the model
    makes of its neighbours. Others by a raised mean: with a level inside and the usual one outside,
    and the same spread, each token speaks for the inside by its height over the middle of both. In
    either case the stretch is that of the largest sum, looked for beyond the flagged part as well,
    whose windows fade before its ends.
    """
    row, first, last = segment
    if last + 1 - first < ENDS_FROM:
        return segment
    reach = min(REACH, last + 1 - first)
    begin, end = max(0, first - reach), min(found.score_BS.shape[1], last + 1 + reach)
    quarter = (last + 1 - first) // 4
    core = grid.tokens_BS[row, first + quarter : last + 1 - quarter]
    balance = _composition(core, grid.tokens_BS[row, begin:end], counts_V)
    if balance is None:
        calm_BS = found.strength_BS[found.score_BS < 0.5]
        usual = float(calm_BS.median()) if len(calm_BS) else 0.0
        inside = found.strength_BS[row, first : last + 1] - usual
        level = inside.sort().values[len(inside) // 3 :].mean()
        balance = found.strength_BS[row, begin:end] - usual - 0.5 * level
    best, best_ends, total, start = -1e9, (0, len(balance) - 1), 0.0, 0
    for i, value in enumerate(balance.tolist()):
        if total <= 0:
            total, start = 0.0, i
        total += value
        if total > best:
            best, best_ends = total, (start, i)
    return row, begin + best_ends[0], begin + best_ends[1]


def _composition(core: Tensor, tokens: Tensor, counts_V: Tensor) -> Tensor | None:
    """Log likelihood ratio of each token: IDs as in the core, or as in the controls.

    Inside, half of the tokens are taken to be as the core's and half as anywhere, so a token that
    the core has not costs no more than a factor of two. None where the core's own tokens, each
    judged by the others, do not bear out that it has IDs of its own.
    """
    usual_V = (counts_V + 0.5) / (counts_V.sum() + 0.5 * len(counts_V))
    in_core = (core[:, None] == core[None, :]).sum(1)
    others = (in_core - 1) / max(1, len(core) - 1)
    borne_out = (0.5 * others / usual_V[core] + 0.5).log().clamp(max=MOST_EVIDENCE)
    if float(borne_out.mean()) < math.log(2):
        return None
    share = (tokens[:, None] == core[None, :]).sum(1) / len(core)
    return (0.5 * share / usual_V[tokens] + 0.5).log().clamp(max=MOST_EVIDENCE)
