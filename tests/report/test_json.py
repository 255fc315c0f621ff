"""The JSON report: exactly what the schema says, with NaN and infinities as strings."""

import json
import math
from typing import Any

import numpy as np
import pytest

from stabcli.cli.schema import SCHEMA
from stabcli.cost import Cost, CostReport
from stabcli.report import Screen
from stabcli.report.json import json as write
from stabcli.rules import Skipped
from stabcli.run import Fact
from tests.report.decided import decided
from tests.report.diagnoses import PLAN, at, diagnosis, finding, incident, outcome
from tests.rules.runs import make_run

jsonschema = pytest.importorskip("jsonschema")


def strict(schema: Any) -> Any:
    """The schema with every object closed: a new field without a description is an error."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {k: strict(v) for k, v in schema.items()}
    if "properties" in schema and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def check(document: dict[str, Any]) -> None:
    """Hold a document against the schema."""
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, strict(schema), cls=jsonschema.Draft202012Validator)


def parsed(*diagnoses, exit_status: int = 0) -> dict[str, Any]:
    """The JSON report, read by a parser that knows no bare NaN."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    text = write(outcome(*diagnoses, exit_status=exit_status), Screen())
    document = json.loads(text, parse_constant=refuse)
    check(document)
    return document


def test_empty_outcome():
    """Nothing read is still a document, with its exit status."""
    document = parsed(exit_status=2)

    assert document["runs"] == []
    assert document["summary"] == {"runs": 0, "incidents": 0, "worst": None, "exit": 2}


def test_everything_is_there():
    """Incident, findings, plan, cost, facts and what could not look."""
    run = make_run(loss=np.full(500, 2.0), facts={"gpus": Fact(value=8, source="--gpus")})
    cost = CostReport(
        incidents=(Cost(steps=3, tokens=1e6),),
        total=Cost(steps=3, tokens=1e6, gpu_hours=2.5, usd=5.0),
        all=Cost(steps=500, tokens=1e8),
        goodput=0.99,
        classes=(("recovering", Cost(steps=3)), ("productive", Cost(steps=497))),
        assumptions=("none",),
    )
    norm = finding("grad-norm-spike", metric="grad_norm", first=298, severity="warning")
    d = diagnosis(
        incident(norm, finding(), tags=("instant",)),
        run=run,
        cost=cost,
        plans=[(PLAN,)],
        skipped=[Skipped(rule="mfu-low", why="the log has no mfu")],
    )
    document = parsed(d, exit_status=1)
    told = document["runs"][0]
    found = told["incidents"][0]

    assert (found["rule"], found["lead"], found["first"], found["peak"]) == (
        "loss-spike",
        "grad-norm-spike",
        298,
        301,
    )
    assert found["plan"]["lr_factor"] == [0.5, 0.9]
    assert found["cost"] == {"steps": 3, "tokens": 1e6, "gpu_hours": None, "usd": None}
    assert [f["line"] for f in found["findings"]] == [302, 302]
    assert told["run"]["facts"] == {"gpus": {"value": 8, "source": "--gpus"}}
    assert told["skipped"] == [{"rule": "mfu-low", "why": "the log has no mfu"}]
    assert told["cost"]["classes"][0]["class"] == "recovering"
    assert document["summary"] == {"runs": 1, "incidents": 1, "worst": "error", "exit": 1}


def test_non_finite_numbers_are_strings():
    """NaN and infinities are strings: JSON has no numbers for them."""
    odd = [
        finding(value=math.nan, expected=math.inf, score=-math.inf),
        finding(value=-math.inf, expected=None, score=None),
    ]
    found = parsed(diagnosis(incident(*odd)))["runs"][0]["incidents"][0]["findings"]

    assert [(f["value"], f["expected"], f["score"]) for f in found] == [
        ("NaN", "Infinity", "-Infinity"),
        ("-Infinity", None, None),
    ]


def test_incidents_keep_their_order():
    """Incidents stand as the diagnosis has them: by attempt and first step."""
    d = diagnosis(at(100, "notice"), at(200, "critical"), at(300, "warning"))

    assert [i["first"] for i in parsed(d)["runs"][0]["incidents"]] == [100, 200, 300]


def test_schema_refuses_what_is_not_in_it():
    """The schema is a guard: a field nobody described, or a bare NaN's null, does not pass."""
    document = parsed(diagnosis(at(100)))
    document["runs"][0]["incidents"][0]["mood"] = "bad"
    with pytest.raises(jsonschema.ValidationError):
        check(document)
    document = parsed(diagnosis(at(100)))
    document["runs"][0]["incidents"][0]["findings"][0]["value"] = None

    with pytest.raises(jsonschema.ValidationError):
        check(document)


@pytest.mark.parametrize("unknown", [False, True])
def test_what_was_decided_is_told(tmp_path, unknown: bool):
    """Criteria with their figures, what is ignored and why, and what could not be read."""
    told = decided(tmp_path, unknown=unknown, unread=("b.jsonl: no such file",))
    document = json.loads(write(told, Screen()))
    check(document)
    found = document["runs"][0]["check"]

    assert found["status"] == ("unknown" if unknown else "fail")
    assert [c["status"] for c in found["criteria"]][:4] == ["fail", "pass", "fail", "skipped"]
    assert (found["criteria"][2]["value"], found["criteria"][2]["limit"]) == (2.0, "Infinity")
    assert found["ignored"][0]["until"] == "2099-01-01"
    assert document["unread"] == ["b.jsonl: no such file"]
