"""The fatal incident stands before healed ones of its severity, wherever incidents are ranked or cut."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from stabcli.comparison import compare
from stabcli.diagnosis import Diagnosis
from stabcli.incidents import Ending, Incident, by_gravity
from stabcli.report import Outcome, Screen
from stabcli.report._compare_rows import result
from stabcli.report.console import console
from stabcli.report.github import github
from stabcli.report.html import html
from stabcli.report.junit import junit
from stabcli.report.markdown import markdown
from stabcli.report.verdict import verdict
from stabcli.rules import RESCALED, STATISTIC
from stabcli.verdicts import Gate, judge
from tests.report.diagnoses import PLAN, diagnosis, finding, incident

HEALED = 30
"""More than any list shows."""


def spike(step: int, ending: Ending, tags: tuple[str, ...] = (), **changes) -> Incident:
    """A critical incident of one step."""
    recovered = step + 8 if ending in ("fast-recovery", "slow-recovery") else None
    given = {"severity": "critical", "first": step, "last": step, "peak": step, **changes}
    return Incident(findings=(finding(**given),), ending=ending, recovered=recovered, tags=tags)


def run(ending: Ending) -> Diagnosis:
    """Thirty spikes that healed, then one at step 400 that ended so."""
    found = [*(spike(10 * n, "fast-recovery") for n in range(1, HEALED + 1)), spike(400, ending)]
    ways = [(replace(PLAN, text=f"Plan of {i.first}."),) for i in found]
    return diagnosis(*found, plans=ways)


def asked(d: Diagnosis) -> Outcome:
    """The outcome of a check of it."""
    return Outcome(diagnoses=(d,), exit_status=1, verdicts=(judge(d, Gate()),))


def in_console(d: Diagnosis) -> list[str]:
    """Headline, then the plan shown first, as steps."""
    text = console(Outcome(diagnoses=(d,), exit_status=1), Screen(width=200))
    return [
        re.search(r"^CRITICAL .*? at step (\d+)", text, re.MULTILINE)[1],
        re.search(r"^to do .*Plan of (\d+)", text, re.MULTILINE)[1],
    ]


def in_html(d: Diagnosis) -> list[str]:
    """The sentence of the header, and what to do."""
    text = html(Outcome(diagnoses=(d,), exit_status=1), Screen())
    head = re.search(r'class="verdict">.*?at step (\d+)', text, re.DOTALL)[1]
    return [head, re.search(r"To do: .*?Plan of (\d+)", text, re.DOTALL)[1]]


def in_check(d: Diagnosis) -> list[str]:
    """The criterion, and the first of the list."""
    text = verdict(asked(d), Screen(width=200))
    assert "and 26 more" in text
    return [
        re.search(r"fail-on error: .*? at step (\d+)", text)[1],
        re.search(r"^critical +step (\d+)", text, re.MULTILINE)[1],
    ]


def in_github(d: Diagnosis) -> list[str]:
    """The first annotation."""
    return re.findall(r"::loss-spike at step (\d+)", github(asked(d), Screen()))[:1]


def in_markdown(d: Diagnosis) -> list[str]:
    """The first line of the table, and the first plan."""
    text = markdown(asked(d), Screen())
    return [
        re.search(r"\| critical \|.*?\| step (\d+)", text)[1],
        re.search(r"Plan of (\d+)", text)[1],
    ]


def in_junit(d: Diagnosis) -> list[str]:
    """The message of the failure."""
    (failure,) = ET.fromstring(junit(asked(d), Screen()).encode()).iter("failure")
    return re.findall(r"at step (\d+)", failure.get("message", ""))


@pytest.mark.parametrize("first", [in_console, in_html, in_check, in_github, in_markdown, in_junit])
def test_fatal_one_is_told_before_healed_ones(first):
    """Where the last of 31 never recovered it comes first; where it healed too, the first does."""
    for ending in ("diverged", "new-basin", "unresolved"):
        assert set(first(run(ending))) == {"400"}, ending
    for ending in ("fast-recovery", "slow-recovery", "rolled-back"):
        assert set(first(run(ending))) == {"10"}, ending


def test_fatal_one_has_a_line_of_its_own():
    """Where a screen cannot hold all of a rule, the fatal one is not among those only counted."""
    lines = {
        ending: console(Outcome(diagnoses=(run(ending),), exit_status=1), Screen(width=200))
        for ending in ("diverged", "fast-recovery")
    }

    assert (
        "step 400  loss-spike: loss 9.1 (line 302), expected 2; never recovered"
        in lines["diverged"]
    )
    assert "step 400  " not in lines["fast-recovery"]


def test_comparison_tells_the_fatal_one():
    """The line on how a run ended names what never healed, not the first spike."""
    both = compare([run("new-basin"), run("fast-recovery")])

    assert "loss-spike at step 400, settled higher" in result(both.sides[0])
    assert "loss-spike at step 10, recovered" in result(both.sides[1])


def test_graver_severity_still_comes_first():
    """A critical spike that healed stands before a warning that never did."""
    lasting = spike(10, "diverged", severity="warning")

    assert [i.first for i in by_gravity([lasting, spike(20, "fast-recovery")])] == [20, 10]


def test_lost_for_good_comes_before_what_is_open():
    """Diverged, or ended by what killed it; then settled elsewhere or open; then all the rest."""
    found = [
        spike(1, "slow-recovery"),
        spike(2, "unresolved", (STATISTIC,)),
        incident(
            finding(severity="critical", first=3, last=3, peak=3, tags=(RESCALED,)),
            ending="new-basin",
        ),
        spike(4, "new-basin"),
        spike(5, "unresolved"),
        spike(6, "diverged"),
        spike(7, "unresolved", ("unfinished",), metric="out-of-memory"),
        spike(8, "unresolved", ("died",), metric="gpu-fault"),
        spike(9, "unresolved", ("restarted",), metric="gpu-fault"),
        spike(11, "rolled-back"),
    ]

    assert [i.first for i in by_gravity(found)] == [6, 7, 8, 4, 5, 1, 2, 3, 9, 11]
    assert by_gravity([]) == []
