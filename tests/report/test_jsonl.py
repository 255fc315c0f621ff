"""The JSON lines report: a run is a line even where nothing was found in it."""

import json
from typing import Any

import pytest

from stabcli.cli.schema import SCHEMA
from stabcli.report import Outcome, Screen
from stabcli.report.jsonl import jsonl
from tests.report.decided import decided
from tests.report.diagnoses import at, diagnosis, outcome
from tests.report.test_json import strict

jsonschema = pytest.importorskip("jsonschema")


def lines(told: Outcome) -> list[dict[str, Any]]:
    """The lines of a report; each incident as the schema of JSON describes it."""
    found = [json.loads(line) for line in jsonl(told, Screen()).splitlines()]
    schema = strict(json.loads(SCHEMA.read_text(encoding="utf-8")))
    for line in found:
        if line["kind"] == "incident":
            own = {k: v for k, v in line.items() if k not in ("format", "kind", "run", "source")}
            jsonschema.validate(own, {**schema["$defs"]["incident"], "$defs": schema["$defs"]})
    return found


def test_one_incident_a_line():
    """The run first, then its incidents in their order, each with the run's name."""
    found = lines(outcome(diagnosis(at(100), at(200)), diagnosis()))

    assert [(line["kind"], line.get("first")) for line in found] == [
        ("run", None),
        ("incident", 100),
        ("incident", 200),
        ("run", None),
    ]
    assert all(line["format"] == 1 for line in found)
    assert found[1]["run"] == "run"


def test_what_was_not_looked_at_is_told(tmp_path):
    """Skipped rules, criteria and unread logs have their place."""
    found = lines(decided(tmp_path, unknown=True, unread=("b.jsonl: no such file",)))

    assert found[0]["skipped"][0]["rule"] == "mfu-low"
    assert found[0]["check"]["status"] == "unknown"
    assert found[0]["check"]["criteria"][2]["limit"] == "Infinity"
    assert found[0]["check"]["ignored"][0]["until"] == "2099-01-01"
    assert found[-1] == {"format": 1, "kind": "unread", "why": "b.jsonl: no such file"}
