"""An audit as JSON: every technique with its evidence, its sources and the findings it bears on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stabcli import __version__
from stabcli.audit import Audit, Line
from stabcli.techniques import STATUSES

FORMAT = 1
"""Raised when a field changes its meaning; new fields may come at any time."""


def audit_json(audits: Sequence[Audit]) -> str:
    """Write everything."""
    document = {
        "format": FORMAT,
        "tool": {"name": "stabcli", "version": __version__},
        "audits": [_audit(a) for a in audits],
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _audit(a: Audit) -> dict[str, Any]:
    return {
        "name": a.name,
        "source": a.source,
        "kind": a.kind,
        "kind_source": a.why,
        "counts": {status.replace(" ", "_"): len(a.of(status)) for status in STATUSES},
        "techniques": [_line(line) for line in a.lines],
        "notes": list(a.notes),
    }


def _line(line: Line) -> dict[str, Any]:
    technique = line.technique
    return {
        "technique": technique.name,
        "summary": technique.summary,
        "status": line.judgement.status.replace(" ", "_"),
        "evidence": line.judgement.evidence,
        "why": technique.section("Why it matters"),
        "what_to_do": technique.section("What to do"),
        "how_to_log": technique.section("How to log it"),
        "sources": list(technique.sources),
        "effect": technique.effect or None,
        "findings": [
            {
                "rule": f.rule,
                "metric": f.metric,
                "severity": f.severity,
                "attempt": f.attempt,
                "first": f.first,
                "last": f.last,
            }
            for f in line.bears_on
        ],
    }
