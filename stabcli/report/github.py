"""Report ``github``."""

from __future__ import annotations

from stabcli.report import Outcome, Screen, report
from stabcli.report._places import Place, place
from stabcli.report._told import gravest
from stabcli.units import printable

MOST = 10
"""Annotations shown of each kind in one step of a job; GitHub drops the others in silence.

Source: https://docs.github.com/en/actions/reference/limits, «annotations».
"""
LEVELS = {"critical": "error", "error": "error", "warning": "warning", "notice": "notice"}


@report
def github(outcome: Outcome, screen: Screen) -> str:
    """Annotations of GitHub Actions: what was not met, then the gravest incidents, ten in all.

    They are commands that the runner reads off the output of a step. The command line adds the
    Markdown report to the job's summary, where there is one, so that nothing is lost.
    """
    del screen
    lines = [_command("error", None, "stabcli", f"cannot be read: {w}") for w in outcome.unread]
    for d, verdict in zip(outcome.diagnoses, outcome.verdicts, strict=False):
        where = place(d.run, None, outcome.base)
        for c in verdict.criteria:
            if c.status in ("fail", "unknown") and not c.name.startswith("fail-on"):
                title = f"stabcli: {c.name}" + (" cannot be told" if c.status == "unknown" else "")
                lines.append(_command("error", where, title, f"{d.run.name}: {c.text}"))
    if not outcome.verdicts:
        lines += [
            _command("error", None, "stabcli", f"{d.run.name}: {d.cannot_judge}")
            for d in outcome.diagnoses
            if d.cannot_judge
        ]
    for t in gravest(outcome):
        title = f"stabcli: {t.incident.rule}"
        lines.append(_command(LEVELS[t.severity], t.place, title, t.message))
    shown = lines[:MOST]
    if len(lines) > MOST:
        more = f"{len(lines) - MOST + 1:,} more: see the summary of the job, or another report"
        shown = [*lines[: MOST - 1], _command("notice", None, "stabcli", more)]
    return "".join(line + "\n" for line in shown)


def _command(level: str, where: Place | None, title: str, message: str) -> str:
    """Return one workflow command.

    Source: https://github.com/actions/toolkit, packages/core/src/command.ts
    """
    properties = {"file": where.path if where else "", "title": title}
    if where and where.line is not None:
        properties["line"] = str(where.line)
    said = ",".join(f"{k}={_property(v)}" for k, v in sorted(properties.items()) if v)
    return f"::{level} {said}::{_data(printable(message))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")
