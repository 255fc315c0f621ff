"""The brief report: one stable line a finding."""

from stabcli.report import Screen
from stabcli.report.brief import brief
from stabcli.rules import Skipped
from tests.report.diagnoses import at, diagnosis, finding, incident, outcome


def told(*diagnoses) -> list[str]:
    """The lines of the brief report."""
    return brief(outcome(*diagnoses), Screen()).splitlines()


def test_finding_is_a_line():
    """Severity, rule, attempt, steps, value and what was expected."""
    d = diagnosis(incident(finding(), finding("nonfinite", value=float("nan"), expected=None)))

    assert told(d) == [
        "error     loss-spike           attempt 0  step 300..302  loss 9.1, expected 2",
        "error     nonfinite            attempt 0  step 300..302  loss NaN",
    ]


def test_nothing_found_says_who_looked():
    """A clean run names the number of rules that looked, and those that could not."""
    d = diagnosis(skipped=[Skipped(rule="mfu-low", why="the log has no mfu")])

    assert told(d) == [
        "nothing found by 2 rules",
        "skipped   mfu-low              the log has no mfu",
    ]


def test_blind_run_is_not_clean():
    """Where no rule looked, nothing is said to be fine."""
    assert told(diagnosis(checked=())) == ["cannot judge: no rule could look"]


def test_several_runs_are_told_apart():
    """With more than one run each line begins with the run's name."""
    assert told(diagnosis(at(7)), diagnosis()) == [
        "run: error     loss-spike           attempt 0  step 7  loss 9.1, expected 2",
        "run: nothing found by 2 rules",
    ]
