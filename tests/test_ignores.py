"""Ignores: exactly what they name, with a reason, and not a day longer."""

import datetime as dt

import numpy as np
import pytest

from stabcli.errors import SettingError
from stabcli.ignores import ignored, in_force, parse, unused
from tests.report.diagnoses import diagnosis, finding, incident
from tests.rules.runs import make_run

KNOWN = ("loss-spike", "grad-norm-spike", "nonfinite")
DAY = dt.date(2026, 5, 1)


def ignore(**table):
    """An ignore of a loss spike, unless said otherwise."""
    return parse({"rule": "loss-spike", "reason": "known", **table}, "stabcli.toml", KNOWN)


@pytest.mark.parametrize(
    ("steps", "covered"),
    [
        ("300-302", True),
        ("300..302", True),
        ("0-1,000", True),
        ("301-302", False),
        ("300-301", False),
        ("303-400", False),
        (300, False),
    ],
)
def test_a_finding_is_covered_whole_or_not_at_all(steps, covered):
    """A finding that reaches beyond the steps named is news."""
    d = diagnosis(incident(finding(first=300, last=302)))

    assert bool(ignored(d, [ignore(steps=steps)])) == covered


def test_without_steps_all_of_a_rule_is_covered_and_nothing_else():
    """Another rule's findings of the same incident still count."""
    spike, norm = finding(), finding("grad-norm-spike", metric="grad_norm")
    d = diagnosis(incident(norm, spike))

    assert list(ignored(d, [ignore()])) == [spike]
    assert list(ignored(d, [ignore(rule=["loss-spike", "grad-norm-spike"])])) == [norm, spike]


def test_run_is_a_pattern_for_its_name_or_source():
    """An ignore of one run does not touch another."""
    d = diagnosis(incident(), run=make_run(loss=np.full(500, 2.0), name="lora-3"))

    assert ignored(d, [ignore(run="lora-*")])
    assert ignored(d, [ignore(run="*.jsonl")])
    assert not ignored(d, [ignore(run="full-*")])


def test_expires_after_its_last_day():
    """On the day it still holds, the day after it is an error line and holds no more."""
    last = ignore(until="2026-05-01")

    assert in_force([last], DAY) == ([last], [])
    holding, lines = in_force([last], DAY + dt.timedelta(days=1))
    assert holding == []
    assert "expired on 2026-05-01" in lines[0]
    assert "known" in lines[0]


def test_days_as_toml_writes_them():
    """A date, a date and time, or text."""
    for day in (DAY, dt.datetime(2026, 5, 1, 12, 0, tzinfo=dt.UTC), "2026-05-01"):
        assert ignore(until=day).until == DAY


def test_unused_ones_are_told():
    """What covers nothing is named."""
    used, idle = ignore(), ignore(steps="9-9")

    assert len(unused([used, idle], [used])) == 1
    assert "in steps 9..9" in unused([used, idle], [used])[0]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"rule": "loss-spik"}, "did you mean loss-spike?"),
        ({"rule": []}, "takes the name of a rule"),
        ({"rule": 3}, "takes the name of a rule"),
        ({"reason": " "}, "no reason given"),
        ({"reason": 3}, "no reason given"),
        ({"steps": "later"}, "takes '12000-12100'"),
        ({"steps": True}, "takes '12000-12100'"),
        ({"steps": "20-10"}, "ends before it begins"),
        ({"until": "soon"}, "takes a day"),
        ({"until": 3}, "takes a day"),
        ({"run": 3}, "takes a name or a pattern"),
        ({"step": "1-2"}, "did you mean steps?"),
    ],
)
def test_what_is_wrong_is_said(table, said):
    """A wrong ignore is one line that names the file."""
    with pytest.raises(SettingError) as error:
        ignore(**table)

    assert said in str(error.value)
    assert str(error.value).startswith("stabcli.toml: ignore")
    assert "\n" not in str(error.value)
