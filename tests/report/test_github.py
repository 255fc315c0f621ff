"""The GitHub report: ten commands at most, the worst of all, and no log can speak to the runner."""

import re

from stabcli.report import Outcome, Screen
from stabcli.report.github import github
from tests.report.decided import decided, many
from tests.report.diagnoses import diagnosis, outcome

COMMAND = re.compile(r"::(error|warning|notice) ([^:\n]*)::([^\n]*)")


def commands(told: Outcome) -> list[tuple[str, dict[str, str], str]]:
    """The commands of a report, as the runner parses them."""
    found = []
    for line in github(told, Screen()).splitlines():
        match = COMMAND.fullmatch(line)
        assert match, line
        properties = dict(p.split("=", 1) for p in match[2].split(","))
        found.append((match[1], properties, match[3]))
    return found


def test_missed_criteria_then_the_gravest(tmp_path):
    """What was asked and missed comes first; notices, passes and what is ignored do not come."""
    found = commands(decided(tmp_path, unknown=True))

    assert [(level, p["title"]) for level, p, _ in found] == [
        ("error", "stabcli%3A max-final-loss"),
        ("error", "stabcli%3A min-mfu cannot be told"),
        ("error", "stabcli%3A loss-spike"),
    ]
    assert found[2][1]["file"] == "run.jsonl"
    assert found[2][1]["line"] == "302"


def test_ten_at_most_with_the_worst_among_them(tmp_path):
    """Of 51 the error is first, nine are shown, and the rest is counted."""
    found = commands(many(tmp_path, 50))

    assert len(found) == 10
    assert found[0][0] == "error"
    assert found[-1][0] == "notice"
    assert found[-1][2].startswith("42 more")
    assert len(commands(many(tmp_path, 9))) == 10


def test_unread_and_blind_are_errors():
    """Nothing that could not be looked at is silent."""
    found = commands(Outcome(diagnoses=(), exit_status=2, unread=("a.jsonl: no such file",)))
    assert found[0][0] == "error"
    assert "no such file" in found[0][2]

    assert "no rule could look" in commands(outcome(diagnosis(checked=())))[0][2]


def test_clean_says_nothing(tmp_path):
    """A healthy run has no annotation."""
    assert github(outcome(diagnosis()), Screen()) == ""


def test_text_of_logs_is_no_command(tmp_path):
    """Line breaks, percent signs, colons and commas of names cannot begin another command."""
    text = github(decided(tmp_path), Screen())

    assert len(text.splitlines()) == len(re.findall("^::", text, re.MULTILINE))
    assert "%250A" in text
    assert "\x1b" not in text
