"""The verdict: on top, with every criterion, what is ignored, and what was not looked at."""

from stabcli.report import Outcome, Screen
from stabcli.report.verdict import verdict
from tests.report.decided import decided
from tests.report.diagnoses import diagnosis, outcome


def lines(told: Outcome, width: int = 200) -> list[str]:
    """The lines of the report."""
    return verdict(told, Screen(width=width)).splitlines()


def test_every_criterion_is_told(tmp_path):
    """Title, criteria with their status, the gravest incident, the ignored, the unchecked."""
    found = lines(decided(tmp_path))

    assert found[0].startswith("FAIL  ")
    assert "2 of 4 criteria not met" in found[0]
    assert [line.split()[0] for line in found[1:]] == [
        "fail",
        "pass",
        "fail",
        "skipped",
        "critical",
        "ignored",
        "unchecked",
    ]


def test_unknown_is_told_as_such(tmp_path):
    """What cannot be told decides, and what could not be read is named."""
    found = lines(decided(tmp_path, unknown=True, unread=("b.jsonl: no such file",)))

    assert found[0].startswith("CANNOT JUDGE  ")
    assert found[-1] == "b.jsonl: no such file"


def test_without_questions_there_is_no_verdict():
    """Nothing asked is not a pass."""
    assert lines(outcome(diagnosis())) == ["nothing was asked of these runs: no verdict"]


def test_width_is_kept(tmp_path):
    """Nothing is wider than the screen, and no log repaints it."""
    text = verdict(decided(tmp_path), Screen(width=60))

    assert max(map(len, text.splitlines())) <= 60
    assert "\x1b" not in text
