"""Sides: the runs of a comparison, each with its letter and the curve they are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stabcli.damage import went_nonfinite
from stabcli.diagnosis import Diagnosis
from stabcli.incidents import Incident
from stabcli.ledger import Ledger, ledger
from stabcli.levels import trailing
from stabcli.progress import tokens_reached
from stabcli.run import Run
from stabcli.tails import Kept, Level, gone, kept, tail
from stabcli.units import Step, Tokens

CURVES = ("loss", "reward", "objective_loss", "val_loss", "grad_norm")
"""What runs can be compared by, the best first."""
HIGHER = ("reward", "val_reward")
"""Metrics of which more is better."""
HELD_OUT = ("val_loss", "val_perplexity", "val_reward")
UNSEEN = 20
"""A curve missing from more than one in so many of a run's rows at its end does not show the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """A value and the step it was reached at."""

    value: float
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One run of a comparison."""

    key: str
    """Its letter."""
    name: str
    """Name of the run, or its source where another run has the same name."""
    diagnosis: Diagnosis
    book: Ledger
    curve: Kept | None
    """The metric that the runs are compared by, over the rows no restart took back."""
    tokens: np.ndarray | None
    """Tokens trained up to each row of the curve; None where unknown."""

    @property
    def run(self) -> Run:
        """The run."""
        return self.diagnosis.run

    @property
    def grave(self) -> tuple[Incident, ...]:
        """Incidents above notice."""
        return tuple(i for i in self.diagnosis.incidents if i.severity != "notice")

    @property
    def last_step(self) -> Step:
        """The last step that was logged."""
        return int(self.run.frame["step"].to_numpy()[~self.run.frame["discarded"].to_numpy()].max())

    @property
    def trained(self) -> Tokens | None:
        """Tokens trained in all, rows that restarts took back left out."""
        return None if self.tokens is None or not len(self.tokens) else float(self.tokens[-1])

    @property
    def spoilt(self) -> Step | None:
        """Step from which on the loss was never finite again; None where it ended finite."""
        rows = went_nonfinite(self.run) & ~self.run.frame["discarded"].to_numpy()
        return int(self.run.frame["step"].to_numpy()[rows].min()) if rows.any() else None

    @property
    def lost(self) -> Incident | None:
        """The incident that broke the run for good; None where it goes well."""
        broken = (
            i
            for i in self.grave
            if i.ending == "diverged"
            and i.severity in ("error", "critical")
            and i.family in ("numerics", "policy", "routing")
            and not self.run.frame["discarded"].to_numpy()[_row(self.run, i)]
        )
        return next(broken, None)

    def final(self) -> Level | None:
        """Return the level that the curve ended at."""
        return None if self.curve is None else tail(self.curve)

    def gone(self, metric: str) -> str | None:
        """Say where a metric was logged last, if the run went on for long without it."""
        series = kept(self.run, metric)
        return None if series is None else gone(self.run, series)

    @property
    def blind(self) -> Step | None:
        """Step after which the curve tells nothing of the rest of the run; None where it does.

        Where the run went on without it for more than one in ``UNSEEN`` of its rows.
        """
        if self.curve is None or gone(self.run, self.curve) is None:
            return None
        kept_rows = self.run.frame.filter(~pl.col("discarded"))["step"]
        ended = int(self.curve.steps[-1])
        unseen = int((kept_rows > ended).sum())
        return ended if unseen * UNSEEN > len(kept_rows) else None

    def best(self, *, higher: bool) -> At | None:
        """Return the best level of the curve, a median of as many rows as the final one."""
        if self.curve is None:
            return None
        good = np.isfinite(self.curve.values)
        values, steps = self.curve.values[good], self.curve.steps[good]
        if not len(values):
            return None
        levels = trailing(values, min(len(values), tail(self.curve).rows))
        at = int(np.nanargmax(levels) if higher else np.nanargmin(levels))
        return At(value=float(levels[at]), step=int(steps[at]))

    def held_out(self, metric: str) -> tuple[At, At] | None:
        """Return the best and the last value of a held-out figure; None where it has none."""
        series = kept(self.run, metric)
        if series is None:
            return None
        last = At(value=float(series.values[-1]), step=int(series.steps[-1]))
        good = np.flatnonzero(np.isfinite(series.values))
        if not len(good):
            return last, last
        values = series.values[good]
        at = good[int(values.argmax() if metric in HIGHER else values.argmin())]
        return At(value=float(series.values[at]), step=int(series.steps[at])), last


def _row(run: Run, incident: Incident) -> int:
    """Return the row at which an incident began."""
    frame = run.frame
    rows = np.flatnonzero(
        (frame["attempt"].to_numpy() == incident.attempt)
        & (frame["step"].to_numpy() >= incident.first)
    )
    return int(rows[0]) if len(rows) else 0


def common_curve(runs: Sequence[Run]) -> str | None:
    """Return the metric that most of the runs have, the best one of those; None where none."""
    counts = {m: sum(run.has(m) for run in runs) for m in CURVES}
    most = max(counts.values())
    return next(m for m in CURVES if counts[m] == most) if most else None


def sides(diagnoses: Sequence[Diagnosis]) -> tuple[tuple[Side, ...], str | None]:
    """Return the runs with their letters, and the metric that they are compared by."""
    metric = common_curve([d.run for d in diagnoses])
    names = [d.run.name for d in diagnoses]
    made = []
    for index, d in enumerate(diagnoses):
        book = ledger(d.run)
        curve = None if metric is None else kept(d.run, metric)
        name = d.run.name if names.count(d.run.name) == 1 else d.run.source
        made.append(
            Side(
                key=letter(index),
                name=name,
                diagnosis=d,
                book=book,
                curve=curve,
                tokens=None if curve is None else tokens_reached(d.run, book, curve),
            )
        )
    return tuple(made), metric


def letter(index: int) -> str:
    """Return the letter of a run: A to Z, then AA, AB and on."""
    high, low = divmod(index, 26)
    return (letter(high - 1) if high else "") + chr(ord("A") + low)
