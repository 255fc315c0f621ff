"""Rows of a comparison: what every format of ``compare`` shows, a cell for each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stabcli.comparison import Comparison
from stabcli.comparison.likeness import ROUNDING, TOGETHER, Likeness
from stabcli.comparison.points import Cell, Unit
from stabcli.comparison.sides import HELD_OUT, At, Side
from stabcli.incidents import by_gravity
from stabcli.metrics import METRICS
from stabcli.report import _words
from stabcli.rules import SEVERITIES, rules
from stabcli.run import Fact
from stabcli.tails import Level
from stabcli.units import count, number, percent, steps

NOT_TOLD = "not told"
NONE = "–"
SHORT = 0.98
"""Share of the planned steps below which a run ended before its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    cells: tuple[str, ...]
    """One a run, in their order."""


def table(c: Comparison) -> list[Row]:
    """Return the table: settings, the way, where it ended, what went wrong, what it cost."""
    made = [Row(name=d.setting, cells=tuple(_value(v) for v in d.values)) for d in c.differences]
    metric = c.metric or "loss"
    for p in c.points:
        cells = tuple(_cell(cell, p.at, p.unit) for cell in p.cells)
        made.append(Row(name=f"{metric} at {_where(p.at, p.unit)}", cells=cells))
    if c.metric is not None:
        best = [s.best(higher=c.higher) for s in c.sides]
        made.append(Row(name=f"best {metric}", cells=tuple(map(_at, best))))
        ends = tuple(_final(s, metric) for s in c.sides)
        made.append(Row(name=f"final {metric}", cells=ends))
    ended = {s.last_step if s.curve is None else int(s.curve.steps[-1]) for s in c.sides}
    if c.common is not None and (
        len({s.last_step for s in c.sides}) > 1
        or (len(ended) > 1 and any(s.gone(metric) for s in c.sides))
    ):
        name = f"level at {_where(c.common.at, c.common.unit)}"
        made.append(Row(name=name, cells=tuple(map(_level, c.common.levels))))
    for held in HELD_OUT:
        if any(s.run.has(held) for s in c.sides):
            both = [s.held_out(held) for s in c.sides]
            made.append(Row(name=f"best {held}", cells=tuple(_at(b and b[0]) for b in both)))
            last = (_last(b and b[1], s, held) for b, s in zip(both, c.sides, strict=True))
            made.append(Row(name=f"last {held}", cells=tuple(last)))
    trained = tuple("unknown" if s.trained is None else count(s.trained) for s in c.sides)
    made.append(Row(name="tokens trained", cells=trained))
    made.append(Row(name="incidents", cells=tuple(map(incidents, c.sides))))
    made.append(Row(name="result", cells=tuple(map(result, c.sides))))
    made.append(Row(name="wasted", cells=tuple(map(_wasted, c.sides))))
    made.append(Row(name="GPU-hours wasted", cells=tuple(map(_hours, c.sides))))
    good = [s.diagnosis.cost.goodput for s in c.sides]
    made.append(
        Row(name="productive", cells=tuple("unknown" if g is None else percent(g) for g in good))
    )
    return made


def _value(fact: Fact | None) -> str:
    return NOT_TOLD if fact is None else _words.value(fact.value)


def _where(at: float, unit: Unit) -> str:
    return f"step {at:,.0f}" if unit == "steps" else f"{count(at)} tokens"


def _cell(cell: Cell, at: float, unit: Unit) -> str:
    if cell.value is None or cell.step is None:
        return f"{NONE} ({cell.why})"
    shown = number(cell.value)
    elsewhere = unit == "tokens" or cell.step != at
    return f"{shown} (step {cell.step:,})" if elsewhere else shown


def _at(at: At | None) -> str:
    return NONE if at is None else f"{number(at.value)} (step {at.step:,})"


def _final(side: Side, metric: str) -> str:
    """Return the level that a curve ended at, and the step if the run went on without it."""
    level = side.final()
    if level is None or side.gone(metric) is None:
        return _level(level)
    return f"{_level(level)} (step {level.last:,}, not logged since)"


def _last(at: At | None, side: Side, metric: str) -> str:
    """Return the last value of a held-out figure, and whether the run went on without it."""
    if at is None or side.gone(metric) is None:
        return _at(at)
    return f"{number(at.value)} (step {at.step:,}, not logged since)"


def _level(level: Level | None) -> str:
    if level is None:
        return NONE
    if not math.isfinite(level.value):
        return "not finite"
    return number(level.value) + (f" ± {number(level.error, 2)}" if level.error else "")


def incidents(side: Side) -> str:
    """Count the incidents of a run by severity; where there are none, say what was looked at."""
    counts = [
        f"{n} {severity}"
        for severity in reversed(SEVERITIES)
        if severity != "notice" and (n := sum(i.severity == severity for i in side.grave))
    ]
    if counts:
        return ", ".join(counts)
    looked = {m for r in rules if r.name in side.diagnosis.checked for m in r.needs}
    seen = ", ".join(m for m in METRICS if m in looked)
    return side.diagnosis.cannot_judge or (f"none in {seen}" if seen else "none")


def _wasted(side: Side) -> str:
    total = side.diagnosis.cost.total
    shown = steps(total.steps)
    return shown if total.tokens is None else f"{shown}, {count(total.tokens)} tokens"


def _hours(side: Side) -> str:
    hours = side.diagnosis.cost.total.gpu_hours
    if hours is None:
        return "unknown" if side.diagnosis.cost.total.steps else "unknown, no step lost"
    return number(hours, 3)


def result(side: Side) -> str:
    """Say in a few words how a run ended."""
    if side.spoilt is not None:
        return f"not finite from step {side.spoilt:,} on"
    if side.lost is not None:
        return f"{side.lost.rule} from step {side.lost.first:,} on, never recovered"
    planned = side.run.fact("total_steps")
    end = f"ended at step {side.last_step:,}"
    if planned is not None and side.last_step < SHORT * planned:
        end += f" of {planned:,.0f}"
    if not side.grave:
        return end
    worst = by_gravity(side.grave)[0]
    how = _words.ending(worst)
    return f"{end}; {worst.rule} at step {worst.first:,}" + (f", {how}" if how else "")


def keep(c: Comparison) -> str:
    """Say which run to keep."""
    chosen = [s for s in c.sides if s.key in c.choice.keep]
    if not chosen:
        return "none of them"
    named = [f"{s.key} {_words.short(s.name)}" for s in chosen]
    if len(named) == 1:
        return named[0]
    return f"{', '.join(named[:-1])} or {named[-1]}: nothing tells them apart"


def grounds(c: Comparison) -> list[str]:
    """Say what the costs rest on where that differs, and what would make unknown ones known."""
    lacking: dict[str, list[str]] = {}
    for side in c.sides:
        for line in side.diagnosis.cost.assumptions:
            if ": unknown" in line:
                lacking.setdefault(line, []).append(side.key)
    by_source: dict[str, list[str]] = {}
    for side in c.sides:
        source = dict(side.diagnosis.cost.sources).get("gpu_hours", "unknown")
        if source != "unknown":
            by_source.setdefault(source, []).append(side.key)
    if len(by_source) > 1:  # figures of two kinds do not add up to a comparison unsaid
        said = "; ".join(f"{', '.join(keys)} from {s}" for s, keys in by_source.items())
        found = [f"GPU-hours: {said}"]
    else:
        found = []
    return found + [f"{', '.join(keys)}: {line}" for line, keys in lacking.items()]


def pair(likeness: Likeness) -> str:
    """Say how alike two runs are, with the measure."""
    x = likeness
    both = f"{x.keys[0]} and {x.keys[1]}"
    if not x.rows:
        return f"{both}: no row in common"
    over = f"over {_words.plural(x.rows, 'row')}"
    if x.verdict == "bit-equal":
        return f"{both}: bit-equal {over}, as far as the digits logged ({', '.join(x.compared)})"
    parted = ""
    if x.parting is not None:
        a, b = x.parting.values
        parted = f"; first differ at step {x.parting.step:,}, {x.parting.metric} {number(a, 7)} against {number(b, 7)}"
    if x.verdict == "float-noise":
        said = "equal within float noise"
        limit = f"no value differs by more than {number(ROUNDING)} of itself or one digit logged"
        return f"{both}: {said} {over}: {limit}, at most {_small(x.largest)}{parted}"
    said = {
        "same-shape": "of the same shape",
        "different": "different",
        "unknown": "too few rows in common to tell the shape",
    }[x.verdict]
    measures = [_grown(x), _shape(x), _noise(x)]
    return "; ".join([f"{both}: {said} {over}{parted}", *[m for m in measures if m]])


def _small(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.1e}"


def _grown(x: Likeness) -> str:
    """Say how far two curves drifted apart."""
    if x.largest is None or not x.first:
        return ""
    if not math.isfinite(x.largest):
        return f"one of them is not finite at step {x.largest_step:,}"
    said = f"relative difference {_small(x.first)} at first"
    if x.early is not None and x.late is not None:
        said += f", {_small(x.late)} in the last tenth"
    return f"{said}, {_small(x.largest)} at most (step {x.largest_step:,})"


def _shape(x: Likeness) -> str:
    if x.within is None or x.apart is None:
        return ""
    return f"smoothed, within noise on {percent(x.within)} of the rows ({_small(x.apart)} apart)"


def _noise(x: Likeness) -> str:
    if x.together is None:
        return ""
    same = ": the same batches" if x.together >= TOGETHER else ""
    told = f"row-to-row noise correlates {x.together:.2f}{same}"
    if x.outliers:
        one = len(x.outliers) == 1
        rows, at = ("row stands", "step") if one else ("rows stand", "steps")
        where = f"{at} {_words.places(x.outliers)}"
        told += f"; the same {rows} out in both ({where}): replay what they read"
    return told


def pairs_shown(c: Comparison, most: int = 3) -> Sequence[Likeness]:
    """Return the pairs worth telling: all of few runs, of many those of one recipe."""
    if len(c.pairs) <= most:
        return c.pairs
    return [p for p in c.pairs if p.keys in c.twins and p.verdict != "unknown"]
