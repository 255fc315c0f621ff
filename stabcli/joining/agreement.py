"""Agreement: whether two logs tell of one run, shown by values that only that run had.

A loss or a gradient norm is as good as a fingerprint: where two logs give the same, step for step
and as exactly as each was rounded, they are of one run. A learning rate is not, for every run of a
sweep may have it. Logs may count steps from 0 or from 1: a distance of one step is found out by
the same values, and taken only where no other fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from stabcli.joining.rounding import Rounding, Values, rounding, same
from stabcli.metrics import METRICS
from stabcli.run import Run
from stabcli.units import Step

OFFSETS = (0, 1, -1)
"""Distances between two ways of counting steps that are looked for."""
LEAST_VALUES = 5
"""Different values that must agree."""
LEAST_SHARE = 0.95
"""Share of a metric's common values that must agree."""
CONTRARY = 0.5
"""Share of a metric's common values below which it speaks against the two being one."""
CLEARLY = 0.2
"""By how much of that share the right distance must be better than the others."""
WHOLE = 0.9
"""Share of an attempt's rows that must agree with another for all that do to be of it."""
RESTLESS = 0.2
"""Share of its moves after which a column turns round, from which it is no schedule."""
ANCHOR = 0.5
"""Share of a row's values that must agree with another row for the two to be one."""

_PLANNED = frozenset(
    {
        "epoch", "elapsed_seconds", "tokens_seen", "samples_seen", "learning_rate", "loss_scale",
        "skipped_steps", "gpus", "batch_tokens", "batch_sequences", "response_length",
    }
)  # fmt: skip
"""Metrics that other runs may share step for step."""
_SPEED = frozenset(
    {"step_seconds", "tokens_per_second", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu"}
)
"""Metrics of the machine: two runs on it may be as fast to the digit that is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How the rows of one run lie in another."""

    offset: int
    """What to add to the other's steps."""
    attempts: Values
    """For each row of the other, the attempt of the base it belongs to."""
    metric: str
    """The metric that proves it best."""
    agreeing: int
    """Rows in which that metric agrees."""
    compared: int
    """Rows in which both have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why two runs that might be one are not taken for one."""

    why: str


def columns_of(run: Run) -> dict[str, Rounding]:
    """Return the measured columns of a run, and how each was rounded."""
    return {
        name: rounding(run.frame[name].drop_nulls().to_numpy())
        for name in run.measurements
        if run.frame[name].dtype == pl.Float64
    }


def align(
    base: Run, other: Run, one: Mapping[str, Rounding], two: Mapping[str, Rounding]
) -> Alignment | Doubt:
    """Say how the rows of ``other`` lie in ``base``, or why they cannot be shown to.

    Args:
        base: A run.
        other: Another, of which the rows may be the same.
        one: Columns of ``base``, as of ``columns_of``.
        two: Columns of ``other``.
    """
    common = [m for m in one if m in two and m not in _PLANNED | _SPEED and _tells(base, other, m)]
    shared = [m for m in common if _resolved(base, other, m, one[m], two[m])]
    if common and not shared:
        word = base.word(common[0])
        return Doubt(why=f"{word!r} is rounded so far that other runs would agree as well")
    if not shared:
        return Doubt(why="they have no metric in common that would tell runs apart")
    fits = [_fit(base, other, offset, shared, one, two) for offset in OFFSETS]
    best = max(fits, key=lambda fit: fit.share)
    if best.compared == 0:
        return Doubt(why="no step is in both")
    word = base.word(best.metric)
    if best.share < LEAST_SHARE or best.different < LEAST_VALUES:
        return Doubt(
            why=f"{word!r} agrees in {best.agreeing:,} of the {best.compared:,} steps both have"
        )
    if any(best.share - f.of(best.metric) < CLEARLY for f in fits if f is not best):
        return Doubt(why=f"{word!r} agrees as well when the steps are shifted by one")
    against = [m for m in shared if best.counts[m] >= LEAST_VALUES and best.of(m) < CONTRARY]
    if len(against) > sum(best.of(m) >= LEAST_SHARE for m in shared):
        return Doubt(why=f"{word!r} agrees, but {base.word(against[0])!r} does not")
    attempts = _attempts(other.frame["attempt"].to_numpy(), best.anchors)
    if np.isnan(attempts).any():
        return Doubt(why=f"{word!r} agrees, but in no row does most of what both have")
    return Alignment(
        offset=best.offset,
        attempts=attempts,
        metric=best.metric,
        agreeing=best.agreeing,
        compared=best.compared,
    )


def _tells(base: Run, other: Run, metric: str) -> bool:
    """Say whether a metric is one of those that only one run has: known to be, or restless.

    Of the columns that no name explains, counters and schedules go one way for long.
    """
    if metric in METRICS:
        return True
    for run in (base, other):
        values = run.frame[metric].drop_nulls().to_numpy()
        moves = np.diff(values[np.isfinite(values)])
        moves = moves[moves != 0]
        turns = int((np.sign(moves[1:]) != np.sign(moves[:-1])).sum())
        if turns < RESTLESS * len(moves):
            return False
    return True


def _resolved(base: Run, other: Run, metric: str, one: Rounding, two: Rounding) -> bool:
    """Say whether the noise of a metric shows in the more coarsely rounded of two columns.

    Of a smooth curve rounded to its trend, nothing is left that would tell one run from the next.
    Noise is what second differences leave of a curve.
    """
    finer, coarser = (base, two) if one.fineness >= two.fineness else (other, one)
    values = finer.frame[metric].drop_nulls().to_numpy()
    values = values[np.isfinite(values)]
    bends = np.diff(values, 2)
    if not len(bends):
        return True
    noise = float(np.median(np.abs(bends))) * _OF_BENDS
    return bool(noise >= float(np.median(coarser.tolerance(values))))


_OF_BENDS = 1.4826 / np.sqrt(6.0)
"""Standard deviation of white noise over the median size of its second differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """How well two runs agree at one distance of their steps."""

    offset: int
    metric: str
    share: float
    agreeing: int
    compared: int
    different: int
    shares: Mapping[str, float]
    counts: Mapping[str, int]
    """Rows in which both have each metric."""
    anchors: Values
    """For each row of the other, the attempt of the row of the base that agrees; NaN where none."""

    def of(self, metric: str) -> float:
        return self.shares.get(metric, 0.0)


def _fit(
    base: Run,
    other: Run,
    offset: Step,
    shared: list[str],
    one: Mapping[str, Rounding],
    two: Mapping[str, Rounding],
) -> _Fit:
    theirs = other.frame.select(
        pl.col("step") + offset, *[pl.col(m).alias(f"{m}>") for m in shared]
    ).with_row_index("row")
    ours = base.frame.select("step", pl.col("attempt").alias("@attempt"), *shared)
    pairs = theirs.join(ours, on="step", how="inner", maintain_order="left_right")
    agree: dict[str, np.ndarray] = {}
    both: dict[str, np.ndarray] = {}
    for metric in shared:
        a, b = pairs[metric], pairs[f"{metric}>"]
        x, y = (s.fill_null(float("nan")).to_numpy() for s in (a, b))
        # a trainer that hides a NaN from one of its logs does not speak against the other
        alike = np.isfinite(x) == np.isfinite(y)
        both[metric] = (a.is_not_null() & b.is_not_null()).to_numpy() & alike
        agree[metric] = same(x, y, one[metric], two[metric]) & both[metric]
    agreed = np.sum(list(agree.values()), axis=0)
    compared = np.sum(list(both.values()), axis=0)
    score = np.divide(agreed, compared, out=np.zeros(len(agreed)), where=compared > 0)
    ranked = pairs.select("row", "@attempt", score=pl.Series(score), at=pl.int_range(pl.len()))
    ranked = ranked.with_columns(
        own=other.frame["attempt"].gather(ranked["row"]), sure=pl.col("score") >= ANCHOR
    )
    usual = (pl.col("sure").mean() >= WHOLE) & pl.col("sure")
    ranked = ranked.with_columns(usual=usual.over("own", "@attempt"))
    chosen = (
        ranked.sort("row", "usual", "score", "@attempt", maintain_order=True)
        .group_by("row", maintain_order=True)
        .last()
    )
    at = chosen["at"].to_numpy()
    anchors = np.full(other.frame.height, np.nan)
    sure = (score[at] >= ANCHOR) & (compared[at] > 0)
    anchors[chosen["row"].to_numpy()[sure]] = chosen["@attempt"].to_numpy()[sure]
    shares = {}
    counts: dict[str, tuple[int, int, int]] = {}
    for metric in shared:
        rows = at[both[metric][at]]
        agreeing = rows[agree[metric][rows]]
        values = pairs[f"{metric}>"].to_numpy()[agreeing] if len(agreeing) else np.zeros(0)
        different = len(np.unique(values[np.isfinite(values)]))
        counts[metric] = len(agreeing), len(rows), different
        shares[metric] = len(agreeing) / len(rows) if len(rows) else 0.0
    telling = [m for m in shared if counts[m][2] >= LEAST_VALUES] or shared
    best = max(telling, key=lambda m: (shares[m], counts[m][2], m in METRICS))
    agreeing_rows, compared_rows, different = counts[best]
    return _Fit(
        offset=offset,
        metric=best,
        share=shares[best],
        agreeing=agreeing_rows,
        compared=compared_rows,
        different=different,
        shares=shares,
        counts={metric: counts[metric][1] for metric in shared},
        anchors=anchors,
    )


def _attempts(own: np.ndarray, anchors: Values) -> Values:
    """Fill in the attempts of rows that agree with none: those of the rows around them.

    Within an attempt of the log itself: rows after its last agreeing one go on with that.
    """
    frame = pl.DataFrame({"own": own, "found": anchors}).with_columns(
        pl.col("found").fill_nan(None)
    )
    filled = frame.select(
        pl.col("found")
        .forward_fill()
        .over("own")
        .fill_null(pl.col("found").backward_fill().over("own"))
    )["found"]
    return filled.fill_null(strategy="forward").fill_null(strategy="backward").to_numpy()
