"""A replay as Markdown, for an issue or a report of an incident."""

from __future__ import annotations

from stabcli.report import _replay
from stabcli.report._replay import Account
from stabcli.report.cost_markdown import _escaped
from stabcli.units import printable


def replay_markdown(account: Account) -> str:
    """Write the verdicts, what they rest on, and what to skip."""
    out = [f"# Replay on {_escaped(account['checkpoint']['path'])}", ""]
    out += _bullets(_replay.header(account))
    for verdict in account["verdicts"]:
        out += ["", f"## {verdict['kind']} ({verdict['confidence']} confidence)", ""]
        out += [f"{_escaped(_replay.title(verdict))}.", ""]
        if verdict["culprits"]:
            out += ["| culprit | what it did |", "|---|---|"]
            for culprit in verdict["culprits"][: _replay.CULPRITS]:
                named, told = _replay.name(culprit, verdict), _replay.told(culprit)
                out.append(f"| {_escaped(named)} | {_escaped(told)} |")
            out.append("")
        rows = [("batch", _replay.batch(verdict)), *_replay.why(verdict)]
        out += _bullets([*rows, ("spent", _replay.cost(verdict))])
    rows = _replay.skip(account)
    if rows:
        out += ["", "## Leave out", "", *_bullets(rows)]
    return "\n".join(out) + "\n"


def _bullets(rows: list[tuple[str, str]]) -> list[str]:
    """Rows as a list; a row without a label goes on with the last one's."""
    out, label = [], ""
    for named, text in rows:
        label = named or label
        out.append(f"- **{_escaped(label)}** {_escaped(printable(text))}")
    return out
