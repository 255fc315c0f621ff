"""The JUnit report, read by a parser that others use: no rule passes that found or saw nothing."""

from dataclasses import replace

import pytest

from stabcli.report import Outcome, Screen
from stabcli.report.junit import junit
from tests.report.decided import NASTY, decided
from tests.report.diagnoses import at, diagnosis, outcome

junitparser = pytest.importorskip("junitparser")


def suites(told: Outcome):
    """The suites of a report, as junitparser reads them."""
    xml = junitparser.JUnitXml.fromstring(junit(told, Screen()).encode())
    found = list(xml)
    assert [xml.tests, xml.failures, xml.errors, xml.skipped] == [
        sum(getattr(s, kind) for s in found) for kind in ("tests", "failures", "errors", "skipped")
    ]
    for suite in found:
        before = (suite.tests, suite.failures, suite.errors, suite.skipped)
        suite.update_statistics()
        assert before == (suite.tests, suite.failures, suite.errors, suite.skipped)
    return found


def results(suite) -> dict[str, list[str]]:
    """Case -> what it holds: nothing, Failure, Error, Skipped."""
    return {case.name: [type(r).__name__ for r in case.result] for case in suite}


def test_a_case_a_rule(tmp_path):
    """Found is a failure, ignored and noticed are not, not looked is skipped with the reason."""
    (suite,) = suites(decided(tmp_path))
    found = results(suite)

    assert found == {
        "require loss": [],
        "max-final-loss": ["Failure"],
        "baseline mfu": ["Skipped"],
        "grad-norm-high": [],
        "grad-norm-spike": ["Failure"],
        "loss-spike": ["Failure"],
        "mfu-low": ["Skipped"],
        "nonfinite": [],
    }
    cases = {case.name: case for case in suite}
    assert cases["mfu-low"].result[0].message.startswith("the log has no mfu")
    assert "ignored: known" in cases["grad-norm-spike"].system_out
    assert "run.jsonl:302: critical:" in cases["loss-spike"].result[0].text


def test_what_cannot_be_told_is_an_error(tmp_path):
    """Unknown is no pass, and neither is a log that could not be read."""
    found = suites(decided(tmp_path, unknown=True, unread=("b.jsonl: no such file: check it",)))

    assert results(found[0])["min-mfu"] == ["Error"]
    assert results(found[1]) == {"read": ["Error"]}
    assert found[1].name == "b.jsonl"


def test_without_a_verdict_errors_fail():
    """A scan fails from error on; a run that no rule could look at is an error."""
    (suite,) = suites(outcome(diagnosis(at(7, "warning"), at(9, "error", "nonfinite"))))
    assert results(suite) == {"loss-spike": [], "nonfinite": ["Failure"]}
    (blind,) = suites(outcome(diagnosis(checked=())))

    assert results(blind) == {"rules": ["Error"]}


def test_rule_that_is_not_the_worst_of_an_incident_fails_too(tmp_path):
    """Every rule that found something bad enough fails, whichever names the incident."""
    (suite,) = suites(decided(tmp_path))
    case = next(c for c in suite if c.name == "grad-norm-spike")

    assert "steps 298..301" in case.result[0].text


def test_runs_of_one_name_have_suites_of_their_own(tmp_path):
    """Three logs called trainer_state.json are told apart by where they lie."""
    d = decided(tmp_path).diagnoses[0]
    twins = [replace(d, run=replace(d.run, source=f"{n}/state.json")) for n in "ab"]

    assert [s.name for s in suites(outcome(*twins))] == ["a/state.json", "b/state.json"]


def test_nothing_read_is_valid():
    """A report without suites is XML all the same."""
    assert suites(Outcome(diagnoses=(), exit_status=2)) == []


def test_text_of_logs_is_text(tmp_path):
    """Markup and control characters in names come back as what they were."""
    xml = junit(decided(tmp_path), Screen())
    (suite,) = suites(decided(tmp_path))

    assert "<script>" not in xml
    assert "\x1b" not in xml
    assert suite.name == NASTY.replace("\x1b", "\\x1b")
