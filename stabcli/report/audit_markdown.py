"""An audit as Markdown, for a review or a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from stabcli.audit import Audit
from stabcli.report._escaping import code, prose
from stabcli.report.audit_console import advice, findings


def audit_markdown(audits: Sequence[Audit]) -> str:
    """Write a table an audit, and under it why each technique not in place matters."""
    out: list[str] = []
    for audit in audits:
        out += [f"### {code(audit.name)}", "", f"{audit.kind}: {prose(audit.why)}", ""]
        out += ["| technique | status | evidence |", "| --- | --- | --- |"]
        for line in audit.lines:
            judged = line.judgement
            out.append(f"| {line.technique.name} | {judged.status} | {prose(judged.evidence)} |")
        out.append("")
        for line in audit.lines:
            if line.judgement.status == "in place":
                continue
            technique = line.technique
            said = [findings(line), technique.section("Why it matters"), advice(line)]
            text = " ".join(prose(s) for s in said if s)
            where = "; ".join(technique.sources)
            out.append(f"- **{technique.name}**: {text} Sources: {prose(where)}")
        out += [f"- {prose(note)}" for note in audit.notes]
        out.append("")
    return "\n".join(out).rstrip("\n") + "\n"
