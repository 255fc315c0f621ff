"""Report ``json``: the contract for programs. Its fields only change meaning with ``FORMAT``."""

from __future__ import annotations

import json as library
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stabcli import __version__
from stabcli.cost import Cost, CostReport
from stabcli.diagnosis import Diagnosis
from stabcli.evidence import Cause
from stabcli.incidents import Incident
from stabcli.report import Outcome, Screen, report
from stabcli.report._sampling import blind_spots, least_spike
from stabcli.rules import SEVERITIES, Finding
from stabcli.run import Run
from stabcli.segments import changes
from stabcli.verdicts import Verdict
from stabcli.ways import Plan

FORMAT = 1
"""Raised when a field changes its meaning; new fields may come at any time."""


@report(mark='"tool": {\n    "name": "stabcli"')
def json(outcome: Outcome, screen: Screen) -> str:
    """Everything, for programs; ``stabcli schema`` describes it.

    NaN and infinities are the strings "NaN", "Infinity" and "-Infinity", because JSON has no
    numbers for them.
    """
    del screen
    found = [i for d in outcome.diagnoses for i in d.incidents]
    worst = max((i.severity for i in found), key=SEVERITIES.index, default=None)
    document = {
        "format": FORMAT,
        "tool": {"name": "stabcli", "version": __version__},
        "runs": [
            _diagnosis(d, outcome.verdicts[i] if outcome.verdicts else None)
            for i, d in enumerate(outcome.diagnoses)
        ],
        "unread": list(outcome.unread),
        "left_out": list(outcome.left_out),
        "summary": {
            "runs": len(outcome.diagnoses),
            "incidents": len(found),
            "worst": worst,
            "exit": outcome.exit_status,
        },
    }
    return library.dumps(as_json(document), indent=2, allow_nan=False)


def _diagnosis(d: Diagnosis, verdict: Verdict | None) -> dict[str, Any]:
    told = {
        "run": run_in_json(d.run),
        "incidents": incident_in_json(d),
        "checked": list(d.checked),
        "cannot_judge": d.cannot_judge,
        "skipped": [{"rule": s.rule, "why": s.why} for s in d.skipped],
        "cost": _cost_report(d.cost),
    }
    return told if verdict is None else {**told, "check": check_in_json(verdict)}


def check_in_json(verdict: Verdict) -> dict[str, Any]:
    """Return what was decided of a run."""
    return {
        "status": verdict.status,
        "fail_on": verdict.fail_on,
        "criteria": [
            {
                "name": c.name,
                "status": c.status,
                "text": c.text,
                "value": c.value,
                "limit": c.limit,
            }
            for c in verdict.criteria
        ],
        "ignored": [
            {
                "rule": f.rule,
                "metric": f.metric,
                "attempt": f.attempt,
                "first": f.first,
                "last": f.last,
                "reason": ignore.reason,
                "until": None if ignore.until is None else ignore.until.isoformat(),
            }
            for f, ignore in verdict.ignored.items()
        ],
    }


def incident_in_json(d: Diagnosis) -> list[dict[str, Any]]:
    """Return the incidents of a run, in their order."""
    costs = [*d.cost.incidents, *[None] * (len(d.incidents) - len(d.cost.incidents))]
    causes = [*d.causes, *[()] * (len(d.incidents) - len(d.causes))]
    return [
        _incident(i, plans[0] if plans else None, cost, told)
        for i, plans, cost, told in zip(d.incidents, d.plans, costs, causes, strict=True)
    ]


def run_in_json(run: Run) -> dict[str, Any]:
    """Return what is known of a run as a whole."""
    steps = run.frame["step"]
    return {
        "name": run.name,
        "source": run.source,
        "reader": run.reader,
        "files": list(run.files),
        "rows": run.frame.height,
        "bad_rows": run.bad.count,
        "first_step": steps.min(),
        "last_step": steps.max(),
        "log_interval": run.log_interval,
        "least_spike": least_spike(run),
        "unseen": blind_spots(run),
        "changes": [
            {
                "metric": c.metric,
                "attempt": c.attempt,
                "step": c.step,
                "before": c.before,
                "after": c.after,
            }
            for c in changes(run)
        ],
        "columns": dict(run.columns),
        "facts": {k: {"value": f.value, "source": f.source} for k, f in run.facts.items()},
        "attempts": [
            {
                "attempt": a.attempt,
                "first_step": a.first_step,
                "last_step": a.last_step,
                "rows": a.rows,
            }
            for a in run.attempts
        ],
        "notes": list(run.notes),
        "troubles": [
            {
                "kind": t.kind,
                "file": t.file,
                "line": t.line,
                "text": t.text,
                "attempt": t.attempt,
                "step": t.step,
            }
            for t in run.troubles
        ],
    }


def _incident(
    incident: Incident, plan: Plan | None, cost: Cost | None, causes: Sequence[Cause]
) -> dict[str, Any]:
    return {
        "rule": incident.rule,
        "severity": incident.severity,
        "ending": incident.ending,
        "attempt": incident.attempt,
        "first": incident.first,
        "peak": incident.worst.peak,
        "last": incident.last,
        "recovered": incident.recovered,
        "tags": list(incident.tags),
        "lead": incident.lead.rule,
        "findings": [finding_in_json(f) for f in incident.findings],
        "plan": None if plan is None else _plan(plan),
        "cost": None if cost is None else cost_in_json(cost),
        "causes": [_cause(c) for c in causes],
    }


def _cause(c: Cause) -> dict[str, Any]:
    return {
        "cause": c.name,
        "standing": c.standing,
        "why": c.why,
        "rows": [
            {"metric": r.metric, "attempt": r.attempt, "step": r.step, "value": r.value}
            for r in c.rows
        ],
    }


def finding_in_json(f: Finding) -> dict[str, Any]:
    """Return a finding."""
    return {
        "rule": f.rule,
        "metric": f.metric,
        "severity": f.severity,
        "attempt": f.attempt,
        "first": f.first,
        "last": f.last,
        "peak": f.peak,
        "value": f.value,
        "expected": f.expected,
        "score": f.score,
        "file": f.file,
        "line": f.line,
        **({} if f.text is None else {"text": f.text}),
    }


def _plan(plan: Plan) -> dict[str, Any]:
    return {
        "roll_back_to": plan.roll_back_to,
        "skip_first": plan.skip_first,
        "skip_last": plan.skip_last,
        "lr_factor": None if plan.lr_factor is None else list(plan.lr_factor),
        "text": plan.text,
    }


def cost_in_json(cost: Cost) -> dict[str, Any]:
    """Return a price as it stands in every JSON report; null is unknown."""
    return {
        "steps": cost.steps,
        "tokens": cost.tokens,
        "gpu_hours": cost.gpu_hours,
        "usd": cost.usd,
    }


def _cost_report(cost: CostReport) -> dict[str, Any]:
    def part(name: str, c: Cost) -> dict[str, Any]:
        return {"class": name, "steps": c.steps, "tokens": c.tokens, "gpu_hours": c.gpu_hours}

    return {
        "total": cost_in_json(cost.total),
        "all": {"tokens": cost.all.tokens, "gpu_hours": cost.all.gpu_hours},
        "goodput": cost.goodput,
        "classes": [part(name, c) for name, c in cost.classes],
        "assumptions": list(cost.assumptions),
    }


def as_json(value: Any) -> Any:
    """Return ``value`` with non-finite numbers as strings and tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {k: as_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(v) for v in value]
    return value
