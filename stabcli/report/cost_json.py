"""A bill as JSON: every figure with its source; null is unknown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stabcli import __version__
from stabcli.bill import Bill
from stabcli.cost import Cost
from stabcli.policy import Bounded, Outcome, Trip
from stabcli.report.cost_tables import By, Line, lines
from stabcli.report.json import as_json, cost_in_json
from stabcli.ways import Plan

FORMAT = 1
"""Raised when a field changes its meaning; new fields may come at any time."""


def cost_json(bills: Sequence[Bill], by: By) -> str:
    """Write everything."""
    document = {
        "format": FORMAT,
        "tool": {"name": "stabcli", "version": __version__},
        "by": by,
        "lines": [_line(line) for line in lines(bills, by)],
        "runs": [_bill(b) for b in bills],
    }
    return json.dumps(as_json(document), indent=2, allow_nan=False)


def _bill(b: Bill) -> dict[str, Any]:
    d, cost = b.diagnosis, b.diagnosis.cost
    return {
        "run": {
            "name": d.run.name,
            "source": d.run.source,
            "reader": d.run.reader,
            "facts": {k: {"value": f.value, "source": f.source} for k, f in d.run.facts.items()},
            "notes": list(d.run.notes),
        },
        "cost": {
            "total": cost_in_json(cost.total),
            "all": cost_in_json(cost.all),
            "goodput": cost.goodput,
            "classes": [{"class": name, **cost_in_json(c)} for name, c in cost.classes],
            "sources": dict(cost.sources),
            "assumptions": list(cost.assumptions),
        },
        "mfu": {
            "computed": cost.efficiency.mfu,
            "source": cost.efficiency.source or None,
            "logged": cost.efficiency.logged,
            "target": cost.efficiency.target,
            "shortfall_gpu_hours": cost.efficiency.shortfall_gpu_hours,
        },
        "energy": _energy(b),
        "incidents": [
            {
                "rule": i.rule,
                "severity": i.severity,
                "ending": i.ending,
                "attempt": i.attempt,
                "first": i.first,
                "last": i.last,
                "recovered": i.recovered,
                "cost": cost_in_json(c),
                "at_stake": cost_in_json(stake),
                "plans": [_plan(p) for p in ways],
            }
            for i, c, stake, ways in zip(
                d.incidents, cost.incidents, cost.at_stake, d.plans, strict=True
            )
        ],
        "what_if": [_outcome(o) for o in b.what_if],
        "breakers": [_outcome(o) for o in b.breakers],
        "checkpointing": {
            "failures": b.checkpointing.failures,
            "steps_between_failures": b.checkpointing.steps_between,
            "save_seconds": b.checkpointing.save_seconds,
            "save_seconds_source": b.checkpointing.save_source,
            "step_seconds": b.checkpointing.step_seconds,
            "used": b.checkpointing.used,
            "best": b.checkpointing.best,
            "curve": [
                {"checkpoint_every": t, "expected_loss": x} for t, x in b.checkpointing.curve
            ],
        },
        "skipped": [{"rule": s.rule, "why": s.why} for s in d.skipped],
    }


def _energy(b: Bill) -> dict[str, Any] | None:
    if b.power is None:
        return None
    hours, wasted = b.diagnosis.cost.all.gpu_hours, b.diagnosis.cost.total.gpu_hours
    return {
        "kwh": None if hours is None else b.power.kilowatt_hours(hours),
        "kwh_wasted": None if wasted is None else b.power.kilowatt_hours(wasted),
        "kg_co2e": None if hours is None else b.power.kilograms(hours),
        "kg_co2e_wasted": None if wasted is None else b.power.kilograms(wasted),
        "source": b.power.assumption,
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "run": line.run,
        "name": line.name,
        **cost_in_json(line.cost),
        "share": line.share,
        "remark": line.remark,
    }


def _known(cost: Cost | None) -> dict[str, Any] | None:
    return None if cost is None else cost_in_json(cost)


def _plan(p: Plan) -> dict[str, Any]:
    return {
        "name": p.name,
        "roll_back_to": p.roll_back_to,
        "known_checkpoint": p.known_checkpoint,
        "skip_first": p.skip_first,
        "skip_last": p.skip_last,
        "lr_factor": p.lr_factor,
        "text": p.text,
        "why": p.why,
        "recipe": list(p.recipe),
        "redo": cost_in_json(p.redo),
    }


def _trip(trip: Trip | None) -> dict[str, Any] | None:
    if trip is None:
        return None
    return {"attempt": trip.attempt, "step": trip.step, "rule": trip.rule}


def _bounded(b: Bounded) -> dict[str, Any]:
    return {
        "incident": b.incident,
        "trip": _trip(b.trip),
        "actual": cost_in_json(b.actual),
        "at_most": _known(b.at_most),
        "here": _known(b.here),
        "saved": _known(b.saved),
    }


def _outcome(o: Outcome) -> dict[str, Any]:
    return {
        "policy": o.policy.name,
        "stop_on": list(o.policy.stop_on),
        "checkpoint_every": o.policy.checkpoint_every,
        "delay": o.policy.delay,
        "action": o.policy.action,
        "could_not_look": o.why_not or None,
        "trips": [_trip(t) for t in o.trips],
        "needless": [_trip(t) for t in o.needless],
        "incidents": [_bounded(b) for b in o.incidents],
        "actual": cost_in_json(o.actual),
        "at_most": _known(o.at_most),
        "saved": _known(o.saved),
        "after_first_trip": _known(o.after_first),
    }
