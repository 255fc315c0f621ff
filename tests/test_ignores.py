"""Ignores: exactly what they name, with a reason, and not a day longer."""

import datetime as dt
import tomllib

import numpy as np
import pytest

from stabcli.errors import SettingError
from stabcli.ignores import ignored, in_force, left_over, parse, unused
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


def hint(d, *ignores):
    """What is said of the one incident of a diagnosis."""
    findings = d.incidents[0].findings
    return left_over(d, findings, ignored(d, ignores), ignores)


@pytest.mark.parametrize(
    ("given", "rest", "written"),
    [
        ({}, {"rule": "nonfinite"}, 'rule = ["loss-spike", "nonfinite"] in stabcli.toml'),
        (
            {"steps": "300-302"},
            {"rule": "nonfinite", "first": 301, "last": 1400},
            'rule = ["loss-spike", "nonfinite"] and steps = "300-1400" in stabcli.toml',
        ),
        (
            {"steps": "300-302"},
            {"rule": "loss-spike", "first": 310, "last": 312},
            'rule = "loss-spike" and steps = "300-312" in stabcli.toml',
        ),
    ],
)
def test_what_else_counts_of_an_ignored_incident_is_named_with_what_to_write(given, rest, written):
    """What is written instead covers all of it: nothing is left of the incident then."""
    d = diagnosis(incident(finding(), finding(**rest)))
    said = hint(d, ignore(**given))

    assert f"does not cover {rest['rule']} at step" in said
    assert "of the same incident" in said
    assert said.endswith(written)
    table = tomllib.loads(written.removesuffix(" in stabcli.toml").replace(" and ", "\n"))
    assert hint(d, ignore(**table)) is None
    assert set(ignored(d, [ignore(**table)])) == set(d.incidents[0].findings)


def test_a_finding_that_reaches_beyond_the_steps_named_is_told():
    """Nothing of it is ignored, though somebody meant it."""
    said = hint(diagnosis(incident(finding(first=300, last=310))), ignore(steps="300-302"))

    assert "does not cover loss-spike at steps 300..310: if that is known" in said
    assert 'steps = "300-310"' in said


@pytest.mark.parametrize(
    "table", [{"steps": "1-20"}, {"rule": "nonfinite"}, {"run": "another"}, {}]
)
def test_an_ignore_that_is_not_about_an_incident_is_not_told(table):
    """Other steps, another rule, another run; nor one that covers all of it."""
    assert hint(diagnosis(incident()), ignore(**table)) is None
