"""Report ``sarif``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from stabcli import __version__
from stabcli.criteria import Criterion
from stabcli.diagnosis import Diagnosis
from stabcli.report import Outcome, Screen, report
from stabcli.report._places import Place, place
from stabcli.report._told import Told, fingerprint, told, verdict_of
from stabcli.rules import Finding, rules
from stabcli.units import printable

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
LEVELS = {"critical": "error", "error": "error", "warning": "warning", "notice": "note"}
CRITERION = "check/"
"""What the ids of criteria begin with; those of rules are their names."""


@report(mark='"driver": {\n          "name": "stabcli"')
def sarif(outcome: Outcome, screen: Screen) -> str:
    """SARIF 2.1.0, for code scanning: a result an incident and a missed criterion.

    Lines are those of the log, files are relative, fingerprints stay the same when the log goes
    on. Rules that could not look are notifications, and what is ignored is suppressed with its
    reason.

    Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/, and what GitHub reads of it:
    https://docs.github.com/en/code-security/reference/code-scanning/sarif-files
    """
    del screen
    results = [_incident(t, outcome.base) for t in told(outcome)]
    notes = [_note("error", f"cannot be read: {line}", None) for line in outcome.unread]
    for index, d in enumerate(outcome.diagnoses):
        where = place(d.run, None, outcome.base)
        notes += [
            _note("note", f"{d.run.name}: {s.rule} could not look: {s.why}", s.rule, where)
            for s in d.skipped
        ]
        verdict = verdict_of(outcome, index)
        for c in verdict.criteria if verdict else ():
            if c.status == "fail" and not c.name.startswith("fail-on"):
                results.append(_criterion(d, c, where, outcome.base))
            elif c.status == "unknown":
                said = f"{d.run.name}: {c.name} cannot be told: {c.text}"
                notes.append(_note("error", said, None, where))
        if verdict is None and d.cannot_judge:
            notes.append(_note("error", f"{d.run.name}: {d.cannot_judge}", None, where))
    ids = _ids(outcome.diagnoses, results)
    for result in results:
        result["ruleIndex"] = ids.index(result["ruleId"])
    run = {
        "tool": {
            "driver": {
                "name": "stabcli",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(name) for name in ids],
            }
        },
        "invocations": [
            {
                "executionSuccessful": outcome.exit_status != 2,
                "exitCode": outcome.exit_status,
                "toolExecutionNotifications": notes,
            }
        ],
        "columnKind": "utf16CodeUnits",
        "results": results,
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _ids(diagnoses: Iterable[Diagnosis], results: Iterable[dict[str, Any]]) -> list[str]:
    """Return the ids of all rules that were to look, and of the criteria missed."""
    looked = {r for d in diagnoses for r in (*d.checked, *(s.rule for s in d.skipped))}
    return sorted(looked | {r["ruleId"] for r in results})


def _rule(name: str) -> dict[str, Any]:
    if name.startswith(CRITERION):
        asked = name.removeprefix(CRITERION)
        said = f"The run does not meet what was asked of it: {asked}."
        return {"id": name, "shortDescription": {"text": said}}
    known = next(r for r in rules if r.name == name)
    return {
        "id": name,
        "shortDescription": {"text": known.summary},
        "fullDescription": {"text": known.section("What it finds") or known.summary},
        "help": {
            "text": known.section("What to do") or known.summary,
            "markdown": known.page,
        },
        "defaultConfiguration": {"level": "warning"},
    }


def _incident(t: Told, base: str) -> dict[str, Any]:
    run = t.diagnosis.run
    result: dict[str, Any] = {
        "ruleId": t.incident.rule,
        "level": LEVELS[t.severity],
        "message": {"text": printable(t.message)},
        "locations": _locations(t.place),
        "partialFingerprints": _fingerprints(t.fingerprint),
        "properties": {
            "run": printable(run.name),
            "severity": t.severity,
            "ending": t.incident.ending,
            "firstStep": t.incident.first,
            "lastStep": t.incident.last,
            "attempt": t.incident.attempt,
        },
    }
    others = [_related(f, place(run, f, base)) for f in t.incident.findings if f is not t.worst]
    if others and t.place.path:
        result["relatedLocations"] = others
    if t.ignore is not None:
        result["suppressions"] = [
            {
                "kind": "external",
                "status": "accepted",
                "justification": printable(t.ignore.why),
            }
        ]
    return result


def _criterion(d: Diagnosis, c: Criterion, where: Place, base: str) -> dict[str, Any]:
    return {
        "ruleId": CRITERION + c.name.replace(" ", "/"),
        "level": "error",
        "message": {"text": printable(f"{d.run.name}: {c.name}: {c.text}")},
        "locations": _locations(where),
        "partialFingerprints": _fingerprints(fingerprint(d, c.name, base)),
    }


def _fingerprints(mark: str) -> dict[str, str]:
    """Return the fingerprint under our name, and under the one name that GitHub reads."""
    return {"stabcli/v1": mark, "primaryLocationLineHash": f"{mark}:1"}


def _locations(where: Place) -> list[dict[str, Any]]:
    """Return the place as a list of one; of none for what has no file, such as stdin."""
    return [{"physicalLocation": _physical(where)}] if where.path else []


def _physical(where: Place) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": where.uri}}
    if where.line is not None:
        physical["region"] = {"startLine": where.line}
    return physical


def _related(f: Finding, where: Place) -> dict[str, Any]:
    said = printable(f"{f.rule}: {f.metric}, steps {f.first}..{f.last}")
    return {"message": {"text": said}, "physicalLocation": _physical(where)}


def _note(level: str, said: str, rule: str | None, where: Place | None = None) -> dict[str, Any]:
    note: dict[str, Any] = {"level": level, "message": {"text": printable(said)}}
    if rule is not None:
        note["associatedRule"] = {"id": rule}
    if where is not None and where.path:
        note["locations"] = _locations(where)
    return note
