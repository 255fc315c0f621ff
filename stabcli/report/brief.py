"""Report ``brief``."""

from __future__ import annotations

from stabcli.diagnosis import Diagnosis
from stabcli.report import Outcome, Screen, report
from stabcli.report._words import missing
from stabcli.rules import Finding
from stabcli.units import number, printable


@report
def brief(outcome: Outcome, screen: Screen) -> str:
    """One line a finding, for grep and for examples.

    Severity, rule, attempt, first and last step, the worst value and what was expected; then
    the rules that could not look, and what was decided where something was asked. The name of the run stands in front where there are several.
    """
    del screen
    lines: list[str] = []
    for index, diagnosis in enumerate(outcome.diagnoses):
        name = f"{printable(diagnosis.run.name)}: " if len(outcome.diagnoses) > 1 else ""
        lines += [name + line for line in _lines(diagnosis)]
        for c in outcome.verdicts[index].criteria if outcome.verdicts else ():
            lines.append(f"{name}{c.status:<9} {c.name:<20} {printable(c.text)}")
    return "\n".join(lines)


def _lines(diagnosis: Diagnosis) -> list[str]:
    found = [_line(f) for i in diagnosis.incidents for f in i.findings]
    if not found:
        looked = len(diagnosis.checked)
        found = [f"nothing found by {looked} rule{'' if looked == 1 else 's'}"]
    if diagnosis.cannot_judge:
        found = [f"cannot judge: {diagnosis.cannot_judge}"]
    skipped = [f"skipped   {s.rule:<20} {printable(s.why)}" for s in diagnosis.skipped]
    return found + skipped


def _line(f: Finding) -> str:
    where = f"step {f.first}" if f.first == f.last else f"step {f.first}..{f.last}"
    expected = "" if f.expected is None else f", expected {number(f.expected)}"
    what = f"{printable(f.metric)} {number(f.value)}{expected}"
    what = missing(f, printable(f.metric)) or what
    if f.text is not None:
        what = f"{f.metric}: {printable(f.text)}"
    return f"{f.severity:<9} {f.rule:<20} attempt {f.attempt}  {where}  {what}"
