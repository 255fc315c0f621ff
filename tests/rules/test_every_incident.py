"""What holds of the incidents of every rule: their endings, tags, causes and costs keep to laws."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from stabcli.cost import CLASSES, row_classes
from stabcli.diagnosis import Diagnosis, diagnose
from stabcli.evidence import STANDINGS
from stabcli.presets import PRESETS
from stabcli.readers import read_runs
from stabcli.report import Outcome, Screen, reports
from stabcli.rules import Rule
from stabcli.run import Run
from tests.conftest import ROOT
from tests.rules.cases import CASES, N
from tests.rules.runs import healthy
from tests.rules.test_every_rule import DEGENERATE, WHOLE, every_rule, lengthened

SCHEMA = json.loads((ROOT / "stabcli" / "schema.json").read_text(encoding="utf-8"))


def look(rule: Rule, run: Run) -> Diagnosis:
    """Diagnose a run by one rule, with the settings of its case."""
    return diagnose(run, only=(rule.name,), settings={rule.name: dict(CASES[rule.name].settings)})


def told(d: Diagnosis, step: int = 0) -> list[object]:
    """What is said of each incident, its steps counted from ``step``."""
    return [
        (
            i.severity,
            i.lead.rule,
            i.first - step,
            i.last - step,
            i.ending,
            None if i.recovered is None else i.recovered - step,
            i.tags,
            [(c.name, c.standing, [(r.metric, r.step - step) for r in c.rows]) for c in causes],
        )
        for i, causes in zip(d.incidents, d.causes, strict=True)
    ]


@every_rule
@pytest.mark.parametrize("shift", [1000, 123_456])
def test_shifting_steps_shifts_incidents_and_the_rows_of_their_causes(rule: Rule, shift: int):
    case = CASES[rule.name]
    assert told(look(rule, case.spoilt(step=shift)), shift) == told(look(rule, case.spoilt()))


@every_rule
def test_quiet_rows_after_it_change_no_incident_that_was_over(rule: Rule):
    """What had recovered long before the end has the same ending, tags and causes in a longer log."""
    if rule.name in WHOLE:
        pytest.skip(f"it speaks of {WHOLE[rule.name]}")
    case = CASES[rule.name]
    d = look(rule, case.spoilt())
    over = [
        said
        for said, i in zip(told(d), d.incidents, strict=True)
        if i.severity != "notice" and i.recovered is not None and i.recovered < N - 200
    ]
    longer = told(look(rule, case.run_of(lengthened(case, 500))))
    assert [said for said in over if said not in longer] == []


@every_rule
def test_every_row_is_paid_for_once(rule: Rule):
    """Whatever was found, the classes of rows and gaps add up to the whole, in steps and tokens."""
    case = CASES[rule.name]
    run = case.spoilt()
    d = look(rule, run)
    classes = [cost for _, cost in d.cost.classes]
    wasted = [cost for name, cost in d.cost.classes if name != "productive"]
    for whole, parts in ((d.cost.all, classes), (d.cost.total, wasted)):
        assert sum(c.steps for c in parts) == pytest.approx(whole.steps)
        for figure in ("tokens", "gpu_hours"):
            if getattr(whole, figure) is not None:
                added = sum(getattr(c, figure) for c in parts)
                assert added == pytest.approx(getattr(whole, figure), rel=1e-6, abs=1e-9)
    each = row_classes(run, d.incidents)
    assert len(each) == run.frame.height
    assert ((each >= 0) & (each < len(CLASSES))).all()


@every_rule
def test_every_cause_has_its_rows_and_is_in_order(rule: Rule):
    """Each is named once, the surest first; what is observed or supported shows where."""
    d = look(rule, CASES[rule.name].spoilt())
    for causes in d.causes:
        assert [STANDINGS.index(c.standing) for c in causes] == sorted(
            STANDINGS.index(c.standing) for c in causes
        )
        assert len({c.name for c in causes}) == len(causes)
        assert all(c.rows or c.standing == "hypothesis" for c in causes)


@pytest.mark.parametrize("name", list(DEGENERATE))
@pytest.mark.parametrize("preset", ["default", "all"])
def test_degenerate_runs_are_diagnosed_and_reported(name: str, preset: str):
    """All rules at once, grouped, priced, planned, and written as the JSON that the schema knows."""
    presets = list(PRESETS) if preset == "all" else [preset]
    d = diagnose(DEGENERATE[name], presets=presets)
    text = next(r for r in reports if r.name == "json").write(
        Outcome(diagnoses=(d,), exit_status=0), Screen()
    )
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("seed", range(4))
def test_a_text_log_cut_at_any_byte_never_loses_its_fault_in_silence(seed: int, tmp_path: Path):
    """With the line on hardware gone, the log ends before it; else the line is found."""
    columns = healthy(300, seed)
    fault = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    rows = [
        f"step {s}, loss={x:.4f}, grad_norm={g:.3f}\n"
        for s, x, g in zip(columns["step"], columns["loss"], columns["grad_norm"], strict=True)
    ]
    data = "".join([*rows[:270], fault, *rows[270:]]).encode()
    at = data.index(b"NVRM")
    path = tmp_path / "train.log"
    random = np.random.default_rng(seed)
    for cut in random.integers(len(data) // 2, len(data), 8).tolist():
        path.write_bytes(data[:cut])
        (run,), _ = read_runs([str(path)])
        found = look_for_hardware(run)
        if cut >= at + len("NVRM: Xid (PCI:0000:3b:00): 79,"):
            assert found == [270], cut
        elif cut < at:
            assert found == []
        last = int(run.frame["step"].max())  # type: ignore[arg-type]
        assert last == 300 or cut < len(data) - len(rows[-1])


def look_for_hardware(run: Run) -> list[int]:
    """Return the steps after which the text tells of hardware."""
    d = diagnose(replace(run, facts={}), only=("hardware-fault",))
    assert not d.skipped
    return [i.first for i in d.incidents]
