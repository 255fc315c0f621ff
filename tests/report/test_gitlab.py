"""The GitLab report: every field that GitLab requires, and nothing that is not known."""

import json
import re
from typing import Any

from stabcli.report import Outcome, Screen
from stabcli.report.gitlab import gitlab
from tests.cli.commands import Stabcli
from tests.report.decided import decided, many
from tests.report.diagnoses import diagnosis, outcome
from tests.samples import samples

SEVERITIES = {"info", "minor", "major", "critical", "blocker"}


def issues(text: str) -> list[dict[str, Any]]:
    """The issues of a report, each of which has what GitLab's documentation requires."""
    assert not text.startswith("\ufeff")
    found = json.loads(text)
    for issue in found:
        assert issue["description"]
        assert issue["check_name"].startswith("stabcli/")
        assert re.fullmatch(r"[0-9a-f]{32}", issue["fingerprint"])
        assert issue["severity"] in SEVERITIES
        assert issue["location"]["path"]
        assert not issue["location"]["path"].startswith(("/", "./"))
        assert issue["location"]["lines"]["begin"] >= 1
    assert len({i["fingerprint"] for i in found}) == len(found)
    return found


def written(told: Outcome) -> list[dict[str, Any]]:
    """The issues of an outcome."""
    return issues(gitlab(told, Screen()))


def test_clean_is_an_empty_list():
    """A healthy run has no issue."""
    assert written(outcome(diagnosis())) == []


def test_issues(tmp_path):
    """Incidents and missed criteria, without what is ignored; what is unknown blocks."""
    found = written(decided(tmp_path, unknown=True, unread=("b.jsonl: no such file",)))

    assert [(i["check_name"], i["severity"]) for i in found] == [
        ("stabcli/unread", "blocker"),
        ("stabcli/max-final-loss", "major"),
        ("stabcli/min-mfu", "blocker"),
        ("stabcli/loss-spike", "critical"),
        ("stabcli/grad-norm-high", "info"),
    ]
    assert found[3]["location"] == {"path": "run.jsonl", "lines": {"begin": 302}}


def test_many_are_told_apart(tmp_path):
    """Fifty-one incidents have fifty-one fingerprints."""
    assert len(written(many(tmp_path, 50))) == 51


def test_blind_run_is_no_empty_list():
    """A run that no rule could look at is an issue."""
    assert [i["severity"] for i in written(outcome(diagnosis(checked=())))] == ["blocker"]


def test_samples(stabcli: Stabcli):
    """Every sample's report has what GitLab requires."""
    for sample in samples():
        issues(stabcli("check", sample, "--format", "gitlab").out)
