"""A line-up of presets as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stabcli import __version__
from stabcli.lineup import Lineup
from stabcli.report.json import as_json, finding_in_json

FORMAT = 1
"""Raised when a field changes its meaning; new fields may come at any time."""


def presets_json(lineups: Sequence[Lineup]) -> str:
    """Write everything."""
    document = {
        "format": FORMAT,
        "tool": {"name": "stabcli", "version": __version__},
        "runs": [
            {
                "name": lineup.run.name,
                "source": lineup.run.source,
                "presets": list(lineup.presets),
                "blind": list(lineup.blind),
                "events": [
                    {
                        "kind": e.kind,
                        "severity": e.severity,
                        "attempt": e.attempt,
                        "first": e.first,
                        "last": e.last,
                        "voices": [
                            {
                                "preset": v.preset,
                                "delay": v.late,
                                "finding": finding_in_json(v.finding),
                            }
                            for v in e.voices
                        ],
                        "silent": list(e.silent),
                    }
                    for e in lineup.events
                ],
                "throughout": [
                    {"preset": p, "finding": finding_in_json(f)} for p, f in lineup.throughout
                ],
                "statistics": [
                    {"preset": p, "finding": finding_in_json(f)} for p, f in lineup.statistics
                ],
                "notices": dict(lineup.notices),
                "skipped": {
                    p: [{"rule": s.rule, "why": s.why} for s in left]
                    for p, left in lineup.skipped.items()
                },
            }
            for lineup in lineups
        ],
    }
    return json.dumps(as_json(document), indent=2, allow_nan=False)
