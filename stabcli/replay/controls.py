"""What is usual: clean batches measured on the same checkpoint, and the limits they give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from stabcli.errors import ReplayError
from stabcli.replay.batch import Batch
from stabcli.replay.probes import Grid, Measurement, Probe

WINDOWS = (1, 4, 16, 64)
"""Lengths of the stretches compared with the controls, tokens: isolated IDs to long runs."""
FALSE_ALARM = 1e-3
"""Chance, for each of the tests made on a clean batch, that it accuses: with 12 window tests and two
of IDs about 1 % of clean batches list something, the level asked for."""
STATISTICS = ("surprise", "loss", "share")
CLAMP = (-6.0, 40.0)
"""Standardised values are cut here, so that one token cannot carry a window of 64 on its own."""
FOLLOWERS = 8
"""Tokens after a token that are looked at for the harm it does as context."""
MOST_AFTER = 2.0
"""Deviations that what follows one place of an ID may count for."""

T_999 = (318.3, 22.33, 10.21, 7.17, 5.89, 5.21, 4.79, 4.50, 4.30, 4.14, 4.02, 3.93, 3.85, 3.79,
         3.73, 3.69, 3.65, 3.61, 3.58, 3.55)  # fmt: skip
"""99.9 % quantile of Student's t for 1, 2, … 20 degrees of freedom."""
MIN_RELATIVE_SPREAD = 0.01
"""Relative deviation below which controls are taken to agree by luck: batches of a data set do not
agree better than this, and two equal controls would make a band of no width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The usual range of one figure of a whole batch."""

    middle: float
    """Median of the controls."""
    high: float
    """Two deviations above the mean: what one clean batch in 40 reaches. The excess of a batch is
    what lies above it, for a batch is not at fault for its own variety."""
    limit: float
    """Prediction limit for one more clean batch."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Band:
        """One-sided 99.9 % prediction limit for a new draw, on logarithms (Hahn and Meeker, 1991).

        On logarithms because both loss and gradient norm vary in proportion, and skewed.
        """
        if not all(math.isfinite(v) for v in values):
            return cls(middle=math.nan, high=math.nan, limit=math.nan)
        logs = [math.log(max(v, 1e-30)) for v in values]
        drawn = torch.tensor(logs, dtype=torch.float64)
        spread = max(float(drawn.std()), MIN_RELATIVE_SPREAD) if len(logs) > 1 else 0.0
        limit = math.exp(min(prediction_limit(logs, MIN_RELATIVE_SPREAD), 700.0))
        return cls(
            middle=float(torch.tensor(values).median()),
            high=math.exp(float(drawn.mean()) + 2 * spread),
            limit=limit,
        )


def prediction_limit(
    values: Sequence[float], least_spread: float, quantiles: tuple[float, ...] = T_999
) -> float:
    """What one more draw from a normal distribution exceeds once in a thousand times.

    Args:
        values: The draws so far.
        least_spread: Standard deviation below which they are taken to agree by luck.
        quantiles: Of Student's t, for another frequency than once in a thousand.
    """
    count = len(values)
    if count < 2:
        return math.inf
    drawn = torch.tensor(values, dtype=torch.float64)
    spread = max(float(drawn.std()), least_spread)
    reach = quantiles[min(count - 1, len(quantiles)) - 1] * math.sqrt(1 + 1 / count)
    return float(drawn.mean()) + reach * spread


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Limits of one checkpoint; measure once, use for every batch of that checkpoint."""

    loss: Band
    grad_norm: Band
    centre: dict[str, float]
    """Median of each statistic over the tokens of the controls."""
    spread: dict[str, float]
    """Robust deviation of each statistic."""
    limit: dict[tuple[str, int], float]
    """Largest usual mean of a stretch, times the root of its length, in deviations."""
    own_limit: float
    """Largest usual score of an ID by the surprise at its own places."""
    after_limit: float
    """Largest usual score of an ID by the surprise of what follows it."""
    high_loss: float
    """Loss that nine of ten tokens of the controls stay below, nats."""
    counts_V: Tensor
    """How often each ID stands in the controls."""
    targets: float
    """Targets of a control batch, on average."""
    batches: int
    """Number of controls."""
    length: int
    """Columns of a control."""
    loss_R: Tensor
    """Summed loss of each sequence of the controls, in order."""
    grids: tuple[Grid, ...] = field(repr=False)
    """The controls themselves: clean text to carry suspects into."""

    def standard(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values in robust deviations from what is usual."""
        return {
            name: ((value - self.centre[name]) / self.spread[name]).clamp(*CLAMP)
            for name, value in values.items()
            if name in self.centre
        }


def calibrate(probe: Probe, references: Sequence[Batch], rows: int) -> Calibration:
    """Measure the controls.

    Args:
        probe: The checkpoint.
        references: Clean batches, two or more.
        rows: Sequences of the batch that will be judged.

    Raises:
        ReplayError: There are fewer than two controls.
    """
    if len(references) < 2:
        raise ReplayError(
            f"references: {len(references)} given: at least 2 clean batches are needed to know "
            "what is usual (8 are better)"
        )
    grids = tuple(Grid.of(batch) for batch in references)
    measured = [probe.measure(grid, backward=True, shares=True) for grid in grids]
    probe.clear()
    norms = [m.grad_norm or 0.0 for m in measured]
    loss, grad_norm = Band.of([m.loss for m in measured]), Band.of(norms)
    counts_V = torch.zeros(probe.rows_V, dtype=torch.long)
    for grid in grids:
        counts_V += torch.bincount(grid.tokens_BS.flatten(), minlength=probe.rows_V)
    values = [
        statistics(m, norm, grad_norm.middle) for m, norm in zip(measured, norms, strict=True)
    ]
    centre, spread = {}, {}
    for name in STATISTICS:
        live = torch.cat([v[name][m.live_BS] for v, m in zip(values, measured, strict=True)])
        centre[name] = float(live.median())
        spread[name] = 1.4826 * float((live - centre[name]).abs().median()) + 1e-6
    losses = torch.cat([m.loss_BS[m.live_BS] for m in measured])
    draft = Calibration(
        loss=loss, grad_norm=grad_norm, centre=centre, spread=spread, limit={}, own_limit=math.inf,
        after_limit=math.inf, high_loss=float(losses.kthvalue(max(1, int(0.9 * len(losses)))).values),
        counts_V=counts_V, targets=sum(g.count for g in grids) / len(grids), batches=len(grids),
        length=grids[0].tokens_BS.shape[1],
        loss_R=torch.cat([m.loss_BS.sum(1) for m in measured]), grids=grids,
    )  # fmt: skip
    return _with_limits(draft, measured, values, rows)


def _with_limits(
    draft: Calibration, measured: list[Measurement], values: list[dict[str, Tensor]], rows: int
) -> Calibration:
    standard = [draft.standard(value) for value in values]
    limit = {}
    for name in STATISTICS:
        for window in WINDOWS:
            highest = torch.cat(
                [
                    windowed(torch.where(m.live_BS, s[name], 0.0), window).amax(1)
                    for s, m in zip(standard, measured, strict=True)
                ]
            )
            limit[name, window] = max(tail_limit(highest, 0.5, rows, doubt=1.0), 1e-6)
    own, after = [], []
    for grid, s, m in zip(draft.grids, standard, measured, strict=True):
        scores = id_scores(grid, s["surprise"], m.live_BS)
        own.append(torch.tensor([score.own for score in scores if score.times > 1]))
        after.append(torch.tensor([score.after for score in scores]))
    per_batch = sum(map(len, own)) / len(own), sum(map(len, after)) / len(after)
    return replace(
        draft,
        limit=limit,
        own_limit=tail_limit(torch.cat(own), 0.98, per_batch[0]),
        after_limit=tail_limit(torch.cat(after), 0.98, per_batch[1]),
    )


def statistics(m: Measurement, norm: float, usual_norm: float) -> dict[str, Tensor]:
    """The per-token statistics that are compared with the controls.

    ``share``, the product of a token's gradient with the whole, is in units of the usual norm times
    the actual one: the share of an innocent token grows with the norm of the batch, that of the one
    which made the norm with its square.
    """
    values = {"surprise": m.surprise_BS, "loss": m.loss_BS}
    if m.share_BS is not None:
        # without a finite norm above 0 there are no shares: NaN is beyond no limit
        unit = usual_norm * norm if norm > 0 and usual_norm > 0 else math.nan
        values["share"] = m.share_BS * (int(m.live_BS.sum()) / unit)
    return values


def windowed(value_BS: Tensor, window: int) -> Tensor:
    """Mean of the stretch around each column, times the root of its length: 1 deviation stays 1."""
    if window == 1:
        return value_BS
    padded = torch.nn.functional.pad(value_BS, (window // 2, window - 1 - window // 2))
    total_BS = padded.double().cumsum(1)
    total_BS = torch.nn.functional.pad(total_BS, (1, 0))
    return ((total_BS[:, window:] - total_BS[:, :-window]) / math.sqrt(window)).float()


def tail_limit(values: Tensor, quantile: float, per_batch: float, doubt: float = 0.0) -> float:
    """Value that one clean batch exceeds with a chance of ``FALSE_ALARM``.

    Peaks over a threshold with an exponential tail (Pickands 1975): above the quantile ``u`` the
    excess has the mean ``b``, so ``P(max of n > u + b x) = n (1 - q) exp(-x)``. Never below the
    largest value that was seen in a control.

    Args:
        values: What the controls gave.
        quantile: Where the tail begins.
        per_batch: Values one batch gives.
        doubt: Standard errors added to ``b``, which a mean of ``k`` excesses gives to
            ``b / sqrt(k)``.
    """
    values = values[torch.isfinite(values)]
    if len(values) < 4:
        return math.inf
    start = float(values.kthvalue(max(1, int(quantile * len(values)))).values)
    above = values[values > start] - start
    if not len(above):
        return start
    crossings = max(per_batch * (1 - quantile), 1e-9)
    mean = float(above.mean()) * (1 + doubt / math.sqrt(len(above)))
    reach = mean * math.log(max(crossings / FALSE_ALARM, 1.0))
    return max(start + reach, float(values.max()))


@dataclass(frozen=True, slots=True)
class IdScore:
    """How an ID does over the whole batch."""

    token_id: int
    times: int
    """How often it is predicted."""
    own: float
    """Sum of the surprise at its places over the root of their number."""
    after: float
    """The same for the ``FOLLOWERS`` tokens after it, their means."""


def id_scores(grid: Grid, surprise_BS: Tensor, live_BS: Tensor) -> list[IdScore]:
    """Score every ID of a grid by its own places and by what follows them."""
    value_BS = torch.where(live_BS, surprise_BS, 0.0)
    # what follows is compared with the rest of its sequence: hard text is no ID's fault
    mean_B1 = value_BS.sum(1, keepdim=True) / live_BS.sum(1, keepdim=True).clamp_min(1)
    centred_BS = torch.where(live_BS, value_BS - mean_B1, 0.0)
    total_BS = torch.nn.functional.pad(centred_BS.cumsum(1), (1, FOLLOWERS))
    total_BS[:, -FOLLOWERS:] = total_BS[:, -FOLLOWERS - 1 : -FOLLOWERS]
    columns = torch.arange(value_BS.shape[1])
    after_BS = (total_BS[:, columns + 1 + FOLLOWERS] - total_BS[:, columns + 1]) / math.sqrt(
        FOLLOWERS
    )
    # an ID is to blame for what follows it most of the time, not for one place that is very hard
    after_BS = after_BS.clamp(-MOST_AFTER, MOST_AFTER)
    ids, inverse_N = grid.tokens_BS.flatten().unique(return_inverse=True)
    live_N = live_BS.flatten()
    times = torch.zeros(len(ids)).index_add_(0, inverse_N, live_N.float())
    stands = torch.zeros(len(ids)).index_add_(0, inverse_N, torch.ones(len(inverse_N)))
    own = torch.zeros(len(ids)).index_add_(0, inverse_N, value_BS.flatten())
    after = torch.zeros(len(ids)).index_add_(0, inverse_N, after_BS.flatten())
    return [
        IdScore(int(i), int(n), float(o / max(n, 1) ** 0.5), float(a / s**0.5))
        for i, n, o, a, s in zip(ids, times, own, after, stands, strict=True)
    ]
