"""Verdicts: unknown outranks failed, and what is ignored does not count."""

import numpy as np
import pytest

from stabcli.criteria import Criterion
from stabcli.diagnosis import diagnose
from stabcli.ignores import parse
from stabcli.verdicts import Gate, Verdict, exit_status, judge
from tests.report.diagnoses import diagnosis, finding, incident
from tests.rules.runs import healthy, make_run


def decided(*statuses):
    """A verdict of criteria of these statuses."""
    criteria = tuple(Criterion(name=f"c{i}", status=s, text="") for i, s in enumerate(statuses))
    return Verdict(fail_on="error", criteria=criteria)


@pytest.mark.parametrize(
    ("statuses", "status", "end"),
    [
        (["pass"], "pass", 0),
        (["pass", "skipped"], "pass", 0),
        (["pass", "fail"], "fail", 1),
        (["fail", "unknown", "pass"], "unknown", 2),
    ],
)
def test_gravest_criterion_decides(statuses, status, end):
    """One missed criterion fails, one that cannot be told outranks it."""
    verdict = decided(*statuses)

    assert verdict.status == status
    assert exit_status([verdict], unread=False) == end
    assert exit_status([verdict], unread=True) == 2
    assert exit_status([verdict], unread=False, exit_zero=True) == (0 if end == 1 else end)
    assert exit_status([decided("pass"), verdict], unread=False) == end


def test_healthy_run_passes_everything_asked_of_it():
    """A healthy run meets the default gate."""
    verdict = judge(diagnose(make_run(**healthy(800))), Gate(require=("loss", "loss-spike")))

    assert verdict.status == "pass"
    assert [c.name for c in verdict.criteria] == [
        "fail-on error",
        "require loss",
        "require loss-spike",
    ]


def test_ignored_findings_leave_the_rest_of_an_incident():
    """What is ignored is taken out of its incident; what is left decides how grave it is."""
    spike = finding(severity="critical")
    norm = finding("grad-norm-spike", metric="grad_norm", severity="warning")
    d = diagnosis(incident(norm, spike))
    ignore = parse({"rule": "loss-spike", "reason": "known"}, "x.toml", ["loss-spike"])
    verdict = judge(d, Gate(fail_on="error", ignores=(ignore,)))
    left = verdict.standing(d.incidents[0])

    assert verdict.status == "pass"
    assert left.findings == (norm,)
    assert judge(d, Gate(fail_on="warning", ignores=(ignore,))).status == "fail"
    assert judge(d, Gate(fail_on="error")).status == "fail"


def test_incident_that_is_ignored_whole_is_gone():
    """Nothing stands of an incident all of whose findings are ignored; NaN values included."""
    d = diagnosis(incident(finding("nonfinite", value=np.nan, expected=None)))
    ignore = parse({"rule": "nonfinite", "reason": "known"}, "x.toml", ["nonfinite"])
    verdict = judge(d, Gate(fail_on="notice", ignores=(ignore,)))

    assert verdict.status == "pass"
    assert verdict.standing(d.incidents[0]) is None
    assert "1 ignored" in verdict.criteria[0].text


def test_blind_run_cannot_pass():
    """A run that no rule could look at is unknown, even where findings do not fail."""
    assert judge(diagnosis(checked=()), Gate(fail_on=None)).status == "unknown"
