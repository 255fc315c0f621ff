"""A comparison as JSON: every figure with its measure; null is unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from stabcli import __version__
from stabcli.comparison import Comparison
from stabcli.comparison.likeness import Likeness
from stabcli.comparison.points import Point
from stabcli.comparison.sides import HELD_OUT, At, Side
from stabcli.report._compare_rows import result
from stabcli.run import Fact
from stabcli.tails import Level

FORMAT = 1
"""Raised when a field changes its meaning; new fields may come at any time."""


def compare_json(c: Comparison) -> str:
    """Write everything."""
    document = {
        "format": FORMAT,
        "tool": {"name": "stabcli", "version": __version__},
        "metric": c.metric,
        "keep": list(c.choice.keep),
        "why": list(c.choice.why),
        "unfit": [{"key": key, "why": why} for key, why in c.choice.unfit],
        "runs": [_side(s, c) for s in c.sides],
        "differences": [
            {
                "setting": d.setting,
                "certain": d.certain,
                "values": {s.key: _fact(v) for s, v in zip(c.sides, d.values, strict=True)},
            }
            for d in c.differences
        ],
        "shared": list(c.shared),
        "points": [_point(p, c) for p in c.points],
        "common": None
        if c.common is None
        else {
            "at": c.common.at,
            "unit": c.common.unit,
            "levels": {s.key: _level(v) for s, v in zip(c.sides, c.common.levels, strict=True)},
        },
        "pairs": [{**_pair(p), "same_recipe": p.keys in c.twins} for p in c.pairs],
        "notes": list(c.notes),
    }
    return json.dumps(_finite(document), indent=2, allow_nan=False)


def _side(s: Side, c: Comparison) -> dict[str, Any]:
    cost, d = s.diagnosis.cost, s.diagnosis
    held = {m: s.held_out(m) for m in HELD_OUT}
    return {
        "key": s.key,
        "name": s.name,
        "source": s.run.source,
        "last_step": s.last_step,
        "tokens": s.trained,
        "best": _at(s.best(higher=c.higher)),
        "final": _level(s.final()),
        "held_out": {
            m: {"best": _at(v[0]), "last": _at(v[1])} for m, v in held.items() if v is not None
        },
        "result": result(s),
        "incidents": [
            {
                "rule": i.rule,
                "severity": i.severity,
                "ending": i.ending,
                "attempt": i.attempt,
                "first": i.first,
                "last": i.last,
                "recovered": i.recovered,
            }
            for i in d.incidents
        ],
        "wasted": {
            "steps": cost.total.steps,
            "tokens": cost.total.tokens,
            "gpu_hours": cost.total.gpu_hours,
            "usd": cost.total.usd,
        },
        "goodput": cost.goodput,
        "assumptions": list(cost.assumptions),
        "checked": list(d.checked),
        "skipped": [{"rule": k.rule, "why": k.why} for k in d.skipped],
    }


def _fact(fact: Fact | None) -> dict[str, Any] | None:
    return None if fact is None else {"value": fact.value, "source": fact.source}


def _at(at: At | None) -> dict[str, Any] | None:
    return None if at is None else {"value": at.value, "step": at.step}


def _level(level: Level | None) -> dict[str, Any] | None:
    if level is None:
        return None
    return {
        "value": level.value,
        "error": level.error,
        "rows": level.rows,
        "first": level.first,
        "last": level.last,
    }


def _point(p: Point, c: Comparison) -> dict[str, Any]:
    cells = {
        s.key: {"value": cell.value, "step": cell.step, "why": cell.why or None}
        for s, cell in zip(c.sides, p.cells, strict=True)
    }
    return {"at": p.at, "unit": p.unit, "values": cells}


def _pair(x: Likeness) -> dict[str, Any]:
    parting = x.parting
    return {
        "runs": list(x.keys),
        "verdict": x.verdict,
        "rows": x.rows,
        "compared": list(x.compared),
        "first_difference": None
        if parting is None
        else {"step": parting.step, "metric": parting.metric, "values": list(parting.values)},
        "relative_difference": {
            "first": x.first,
            "largest": x.largest,
            "largest_step": x.largest_step,
            "early": x.early,
            "late": x.late,
        },
        "shape": {"within_noise": x.within, "apart": x.apart},
        "noise_correlation": x.together,
        "outliers_in_both": list(x.outliers),
    }


def _finite(value: Any) -> Any:
    """Return ``value`` with non-finite numbers as strings and tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
