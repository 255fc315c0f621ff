"""Report ``junit``."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from xml.etree import ElementTree as ET

from stabcli.diagnosis import Diagnosis
from stabcli.report import Outcome, Screen, _words, report
from stabcli.report._places import place
from stabcli.report._told import verdict_of
from stabcli.rules import SEVERITIES, Finding, Severity
from stabcli.units import printable, span

FAIL_ON: Severity = "error"
"""Severity from which a finding is a failure, where nothing was asked."""


@report(mark='<testsuites name="stabcli"')
def junit(outcome: Outcome, screen: Screen) -> str:
    """JUnit XML: a suite a run, a case a rule and a criterion.

    A rule that found something bad enough is a failure, one that could not look is skipped with
    the reason; what cannot be told, and a log that cannot be read, is an error.
    """
    del screen
    suites = [_suite(outcome, index) for index in range(len(outcome.diagnoses))]
    suites += [_unread(line) for line in outcome.unread]
    root = ET.Element("testsuites", name="stabcli")
    for kind in ("tests", "failures", "errors", "skipped"):
        root.set(kind, str(sum(int(s.get(kind, "0")) for s in suites)))
    root.extend(suites)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(outcome: Outcome, index: int) -> ET.Element:
    d, verdict = outcome.diagnoses[index], verdict_of(outcome, index)
    twins = sum(other.run.name == d.run.name for other in outcome.diagnoses)
    name = printable(d.run.name if twins == 1 else d.run.source)
    fail_on = FAIL_ON if verdict is None else verdict.fail_on
    found: dict[str, list[Finding]] = defaultdict(list)
    gravity: dict[Finding, tuple[int, int]] = {}
    for incident in d.incidents:
        for f in incident.findings:
            found[f.rule].append(f)
            gravity[f] = (SEVERITIES.index(f.severity), incident.gravity[1])
    cases: list[ET.Element] = []
    for c in verdict.criteria if verdict else ():
        if c.name.startswith("fail-on"):
            continue
        case = _case("stabcli.check", c.name)
        if c.status != "pass":
            kind = {"fail": "failure", "unknown": "error", "skipped": "skipped"}[c.status]
            _tell(case, kind, c.text, c.name)
        cases.append(case)
    if verdict is None and d.cannot_judge:
        _tell(blind := _case("stabcli.check", "rules"), "error", d.cannot_judge, "rules")
        cases.append(blind)
    skipped = {s.rule: s.why for s in d.skipped}
    for rule in sorted({*d.checked, *skipped, *found}):
        case = _case(f"stabcli.{name}", rule)
        if rule in skipped:
            _tell(case, "skipped", skipped[rule], "")
        ignored = verdict.ignored if verdict else {}
        counted = [f for f in found[rule] if f not in ignored]
        bad = [f for f in counted if _as_bad(f, fail_on)]
        if bad:
            worst = max(bad, key=lambda f: gravity[f])
            text = "\n".join(_line(d, f, outcome.base) for f in bad)
            said = f"{rule} at {span(worst.first, worst.last)}"
            _tell(case, "failure", said, worst.severity, text)
        rest = [_line(d, f, outcome.base) for f in counted if not _as_bad(f, fail_on)]
        rest += [
            f"{_line(d, f, outcome.base)}; ignored: {printable(ignored[f].why)}"
            for f in found[rule]
            if f in ignored
        ]
        if rest:
            ET.SubElement(case, "system-out").text = "\n".join(rest)
        cases.append(case)
    suite = ET.Element("testsuite", name=name)
    _count(suite, cases)
    properties = ET.SubElement(suite, "properties")
    for key, value in (("source", d.run.source), ("reader", d.run.reader)):
        ET.SubElement(properties, "property", name=key, value=printable(value))
    suite.extend(cases)
    return suite


def _as_bad(f: Finding, fail_on: Severity | None) -> bool:
    """Say whether a finding is bad enough to fail."""
    return fail_on is not None and SEVERITIES.index(f.severity) >= SEVERITIES.index(fail_on)


def _line(d: Diagnosis, f: Finding, base: str) -> str:
    """Return a finding on one line, its file and line in front."""
    where = place(d.run, f, base)
    at = printable(where.path) + (f":{where.line}" if where.line is not None else "")
    seen = _words.measured(d.run, replace(f, line=None) if where.line is not None else f)
    return f"{at}: {f.severity}: {span(f.first, f.last)}: {seen}"


def _case(group: str, name: str) -> ET.Element:
    return ET.Element("testcase", classname=group, name=printable(name))


def _tell(case: ET.Element, kind: str, message: str, type_: str, text: str = "") -> None:
    told = ET.SubElement(case, kind, message=printable(message))
    if type_:
        told.set("type", type_)
    if text:
        told.text = text


def _unread(line: str) -> ET.Element:
    """Return a suite for a log that could not be read: it must not look as if it had passed."""
    suite = ET.Element("testsuite", name=printable(line.partition(": ")[0]))
    case = _case("stabcli.check", "read")
    _tell(case, "error", line, "unread")
    _count(suite, [case])
    suite.append(case)
    return suite


def _count(suite: ET.Element, cases: list[ET.Element]) -> None:
    suite.set("tests", str(len(cases)))
    for plural, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural, str(sum(case.find(kind) is not None for case in cases)))
