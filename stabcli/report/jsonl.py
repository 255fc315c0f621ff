"""Report ``jsonl``."""

from __future__ import annotations

import json
from typing import Any

from stabcli.report import Outcome, Screen, report
from stabcli.report.json import FORMAT, as_json, check_in_json, incident_in_json, run_in_json


@report(mark='{"format":')
def jsonl(outcome: Outcome, screen: Screen) -> str:
    """One JSON object a line: a run, then its incidents.

    ``kind`` says what a line is: ``run`` with what was checked and what could not be,
    ``incident`` as in ``json``, ``unread`` for a log that could not be read. A run without
    incidents still has its line, so that nothing looks clean by being absent.
    """
    del screen
    lines: list[dict[str, Any]] = []
    for index, d in enumerate(outcome.diagnoses):
        verdict = outcome.verdicts[index] if outcome.verdicts else None
        names = {"run": d.run.name, "source": d.run.source}
        told = {"kind": "run", **run_in_json(d.run), "checked": list(d.checked)}
        told["cannot_judge"] = d.cannot_judge
        told["skipped"] = [{"rule": s.rule, "why": s.why} for s in d.skipped]
        if verdict is not None:
            told["check"] = check_in_json(verdict)
        lines.append(told)
        lines += [{"kind": "incident", **names, **told} for told in incident_in_json(d)]
    lines += [{"kind": "unread", "why": why} for why in outcome.unread]
    return "".join(
        json.dumps(as_json({"format": FORMAT, **line}), allow_nan=False, ensure_ascii=False) + "\n"
        for line in lines
    )
