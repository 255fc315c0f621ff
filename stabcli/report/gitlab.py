"""Report ``gitlab``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stabcli.report import Outcome, Screen, report
from stabcli.report._places import Place, place, relative
from stabcli.report._told import fingerprint, told
from stabcli.units import printable

LEVELS = {"critical": "critical", "error": "major", "warning": "minor", "notice": "info"}


@report(mark='"check_name": "stabcli/')
def gitlab(outcome: Outcome, screen: Screen) -> str:
    """Code quality report of GitLab: one issue an incident and a missed criterion.

    The format has no word for what could not be looked at: it is an issue as well. What is
    ignored is left out.

    Source: https://docs.gitlab.com/ci/testing/code_quality/, «Code Quality report format».
    """
    del screen
    issues: list[dict[str, Any]] = []
    for why in outcome.unread:
        path = relative(Path(why.partition(": ")[0]), outcome.base)
        mark = hashlib.sha256(f"unread {path}".encode("utf-8", "replace")).hexdigest()[:32]
        issues.append(
            _issue("unread", "blocker", why, Place(path=printable(path), line=None), mark)
        )
    for index, d in enumerate(outcome.diagnoses):
        where = place(d.run, None, outcome.base)
        criteria = outcome.verdicts[index].criteria if outcome.verdicts else ()
        for c in criteria:
            if c.status in ("fail", "unknown") and not c.name.startswith("fail-on"):
                said = f"{d.run.name}: {c.name}: {c.text}"
                level = "blocker" if c.status == "unknown" else "major"
                issues.append(
                    _issue(c.name, level, said, where, fingerprint(d, c.name, outcome.base))
                )
        if not criteria and d.cannot_judge:
            said = f"{d.run.name}: {d.cannot_judge}"
            issues.append(
                _issue("rules", "blocker", said, where, fingerprint(d, "rules", outcome.base))
            )
    for t in told(outcome):
        if t.ignore is None:
            level = LEVELS[t.severity]
            issues.append(_issue(t.incident.rule, level, t.message, t.place, t.fingerprint))
    return json.dumps(issues, indent=2, ensure_ascii=False) + "\n"


def _issue(name: str, level: str, said: str, where: Place, mark: str) -> dict[str, Any]:
    return {
        "check_name": f"stabcli/{name}",
        "description": printable(said),
        "severity": level,
        "fingerprint": mark,
        "location": {"path": where.path or "-", "lines": {"begin": where.line or 1}},
    }
