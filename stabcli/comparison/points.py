"""Points: where runs stood at the same step, or after the same tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stabcli.comparison.sides import Side
from stabcli.tails import FEWEST, Level, level
from stabcli.units import Step, count

Unit = Literal["steps", "tokens"]
DEFAULT = 4
"""Points that are taken where none are asked for."""
APART = 0.01
"""Relative difference in tokens per step from which runs are compared by tokens."""
WINDOW = 0.05
"""Share of the way whose rows tell the level at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one run's curve was at a point."""

    value: float | None
    """As logged; NaN where the run was not finite, None where there is no row."""
    step: Step | None
    """Step of that row."""
    why: str = ""
    """Why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point on the way of all runs."""

    at: float
    """Steps or tokens."""
    unit: Unit
    cells: tuple[Cell, ...]
    """One a run, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The last point that all curves reached, and their levels there."""

    at: float
    unit: Unit
    levels: tuple[Level | None, ...]
    """Medians over the last rows before it; None where a run has no curve."""


def unit_of(sides: Sequence[Side]) -> tuple[Unit, str]:
    """Return what the runs are compared by, and why."""
    rates = []
    for side in sides:
        if side.trained is None:
            return "steps", f"compared by steps: tokens of {side.key} are unknown"
        rates.append(side.trained / max(1, side.last_step))
    if max(rates) - min(rates) <= APART * max(rates):
        return "steps", f"compared by steps, {count(rates[0])} tokens each in all runs"
    shown = ", ".join(f"{s.key} {count(r)}" for s, r in zip(sides, rates, strict=True))
    return "tokens", f"compared by tokens: a step has {shown} of them"


def points(sides: Sequence[Side], asked: Sequence[Step], unit: Unit) -> tuple[Point, ...]:
    """Return the runs at the steps asked for, or at evenly chosen points that all reached."""
    if asked:
        return tuple(_point(sides, float(step), "steps") for step in sorted(set(asked)))
    span = _span(sides, unit)
    if span is None:
        return ()
    low, high = span
    base = 0.0 if low <= WINDOW * high else low
    wanted = [base + (high - base) * (i + 1) / DEFAULT for i in range(DEFAULT)]
    if unit == "steps":
        wanted = _logged(sides, wanted)
    return tuple(_point(sides, at, unit) for at in dict.fromkeys(wanted))


def common(sides: Sequence[Side], unit: Unit) -> Common | None:
    """Return the levels at the last point that all runs reached; None where there is none."""
    span = _span(sides, unit)
    if span is None:
        return None
    end = span[1]
    levels: list[Level | None] = []
    for side in sides:
        x = _way(side, unit)
        if side.curve is None or x is None:
            levels.append(None)
            continue
        stop = int(np.searchsorted(x, end * (1 + 1e-9), side="right"))
        start = int(np.searchsorted(x, end * (1 - WINDOW), side="right"))
        rows = slice(max(0, min(start, stop - FEWEST)), stop)
        levels.append(level(side.curve, rows) if stop else None)
    return Common(at=end, unit=unit, levels=tuple(levels))


def _way(side: Side, unit: Unit) -> np.ndarray | None:
    """Return how far a run had come at each row of its curve."""
    if side.curve is None:
        return None
    return side.curve.steps.astype(float) if unit == "steps" else side.tokens


def _span(sides: Sequence[Side], unit: Unit) -> tuple[float, float] | None:
    """Return the stretch that all runs with a curve went through."""
    ways = [x for x in (_way(side, unit) for side in sides) if x is not None and len(x)]
    if not ways:
        return None
    low, high = max(float(x[0]) for x in ways), min(float(x[-1]) for x in ways)
    return (low, high) if high >= low else None


def _logged(sides: Sequence[Side], wanted: Sequence[float]) -> list[float]:
    """Return, for each step wanted, the nearest that all runs logged, or else the sparsest did."""
    curves = [set(s.curve.steps.tolist()) for s in sides if s.curve is not None]
    steps = np.array(sorted(set.intersection(*curves) or min(curves, key=len)), dtype=float)
    return [float(steps[int(np.abs(steps - at).argmin())]) for at in wanted]


def _point(sides: Sequence[Side], at: float, unit: Unit) -> Point:
    return Point(at=at, unit=unit, cells=tuple(_cell(side, at, unit) for side in sides))


def _cell(side: Side, at: float, unit: Unit) -> Cell:
    """Return the last row of a curve up to a point."""
    x = _way(side, unit)
    if side.curve is None or x is None:
        return Cell(value=None, step=None, why="not logged")
    row = int(np.searchsorted(x, at * (1 + 1e-9), side="right")) - 1
    steps = side.curve.steps
    if row < 0:
        return Cell(value=None, step=None, why=f"begins at step {int(steps[0]):,}")
    if row == len(x) - 1:
        usual = float(np.median(np.diff(x))) if len(x) > 1 else math.inf
        if at > x[-1] + usual:
            return Cell(value=None, step=None, why=f"ends at step {int(steps[-1]):,}")
    return Cell(value=float(side.curve.values[row]), step=int(steps[row]))
