"""Diagnoses made by hand, for the tests of reports."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stabcli.cost import Cost, CostReport
from stabcli.diagnosis import Diagnosis
from stabcli.incidents import Ending, Incident
from stabcli.report import Outcome
from stabcli.rules import Finding, Severity, Skipped
from stabcli.run import Run
from stabcli.ways import Plan
from tests.rules.runs import make_run


def finding(rule: str = "loss-spike", **changes: Any) -> Finding:
    """A finding at step 300, unless said otherwise."""
    given: dict[str, Any] = {
        "rule": rule,
        "metric": "loss",
        "severity": "error",
        "attempt": 0,
        "first": 300,
        "last": 302,
        "peak": 301,
        "value": 9.1,
        "expected": 2.0,
        "score": 12.5,
        "line": 302,
    }
    return Finding(**{**given, **changes})


def incident(*findings: Finding, ending: Ending = "fast-recovery", **changes: Any) -> Incident:
    """An incident of these findings."""
    return Incident(findings=findings or (finding(),), ending=ending, recovered=310, **changes)


def at(step: int, severity: Severity = "error", rule: str = "loss-spike") -> Incident:
    """An incident of one step."""
    return incident(finding(rule, severity=severity, first=step, last=step, peak=step))


PLAN = Plan(
    name="skip-batches",
    roll_back_to=200,
    known_checkpoint=True,
    skip_first=300,
    skip_last=302,
    lr_factor=(0.5, 0.9),
    text="Roll back to the checkpoint at step 200 and skip the batches of steps 300 to 302.",
    why="PaLM skipped 200-500 batches",
    redo=Cost(steps=100, tokens=4e8),
)


def diagnosis(
    *incidents: Incident,
    run: Run | None = None,
    skipped: Sequence[Skipped] = (),
    checked: Sequence[str] = ("loss-spike", "nonfinite"),
    cost: CostReport | None = None,
    plans: Sequence[tuple[Plan, ...]] | None = None,
) -> Diagnosis:
    """A diagnosis of these incidents."""
    return Diagnosis(
        run=run or make_run(loss=np.full(500, 2.0), name="run"),
        incidents=incidents,
        plans=tuple(plans) if plans else tuple(() for _ in incidents),
        cost=cost or CostReport(incidents=tuple(Cost() for _ in incidents)),
        checked=tuple(checked),
        skipped=tuple(skipped),
        presets=("default",),
    )


def outcome(*diagnoses: Diagnosis, exit_status: int = 0) -> Outcome:
    """The outcome of these diagnoses."""
    return Outcome(diagnoses=diagnoses, exit_status=exit_status)
