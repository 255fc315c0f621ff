"""What holds of every rule there is: it finds its fault, is silent on its twin, and keeps to laws."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stabcli.diagnosis import diagnose
from stabcli.readers import read_runs
from stabcli.rules import Finding, Rule, rules, run_rules
from stabcli.run import Run
from tests.rules.cases import CASES, Case, Columns, N
from tests.rules.runs import make_run

every_rule = pytest.mark.parametrize("rule", list(rules), ids=lambda r: r.name)


def look(rule: Rule, run: Run) -> list[Finding]:
    """Return what a rule finds with the settings of its case; fail where it could not look."""
    found, left = run_rules(run, [rule], {rule.name: dict(CASES[rule.name].settings)})
    assert not left, left[0].why
    return found


def grave(rule: Rule, run: Run) -> list[Finding]:
    """Return its findings, without notices where the rule says more than notices."""
    found = look(rule, run)
    return found if CASES[rule.name].notice else [f for f in found if f.severity != "notice"]


def on_fault(case: Case, found: list[Finding], step: int = 0) -> list[Finding]:
    """Return the findings that overlap the fault; medians look a little to both sides."""
    first, last = case.first + step - 40, case.last + step + 40
    return [f for f in found if f.first <= last and f.last >= first]


def test_every_rule_has_a_case():
    """No fault and no twin, no rule."""
    assert set(CASES) == {r.name for r in rules}


@every_rule
def test_fault_is_found(rule: Rule):
    case = CASES[rule.name]
    found = on_fault(case, grave(rule, case.spoilt()))
    assert found
    assert all(f.first <= f.peak <= f.last and f.line is not None for f in found)
    assert all(f.rule == rule.name for f in found)


ALWAYS = {
    "adagc": "clips rows of any run",
    "goodput": "counts the upper half of its rows",
    "levanter-clipupdate": "three deviations are passed by chance",
    "smdebug-loss-not-decreasing": "knows no noise",
    "zclip": "clips rows of any run",
}
"""Published rules that tell of healthy runs as well, and why: notices, all of them."""


@every_rule
def test_twin_is_silent(rule: Rule):
    found = look(rule, CASES[rule.name].quiet())
    if rule.name in ALWAYS:
        found = [f for f in found if f.severity != "notice"]
    assert found == []


# Degenerate


def degenerate() -> dict[str, Run]:
    """Runs with every column any rule may look at, none of which tells anything."""
    columns = {**CASES["nonfinite"].base(), **CASES["reward-drop"].base()}
    n = N
    measured = [c for c in columns if c not in ("step", "wall_time")]

    def all_of(value: float | None, rows: int = n) -> Run:
        clock = {"wall_time": 1.75e9 + 2.0 * np.arange(rows)}
        values = {c: pl.Series(c, [value] * rows, dtype=pl.Float64) for c in measured}
        return make_run(step=np.arange(1, rows + 1), **clock, **values)

    zeros = all_of(0.0)
    return {
        "one row": all_of(2.0, 1),
        "two rows": all_of(2.0, 2),
        "constant": all_of(0.5),
        "all zero": zeros,
        "all NaN": all_of(float("nan")),
        "all infinite": all_of(float("inf")),
        "shorter than any window": all_of(2.0, 9),
        "one value, then nothing": make_run(
            step=np.arange(1, n + 1), **{c: [1.0] + [None] * (n - 1) for c in measured}
        ),
        "nothing logged": make_run(
            step=np.arange(1, n + 1),
            other=np.arange(n) * 1.0,
            **{c: pl.Series(c, [None] * n, dtype=pl.Float64) for c in measured},
        ),
        "repeated steps": make_run(
            step=np.repeat(np.arange(1, n // 2 + 1), 2), **{c: np.full(n, 0.5) for c in measured}
        ),
        "huge": all_of(1e308),
        "tiny": all_of(1e-308),
        "negative": all_of(-3.0),
    }


DEGENERATE = degenerate()
CONSTANT = {
    "frozen-values": "a loss that never moves is its fault",
    "smdebug-loss-not-decreasing": "a loss that never moves is its fault",
    "smdebug-overtraining": "a loss that never falls is its fault",
    "smdebug-overfit": "equal values are no gap",
    "lightning-earlystop": "a loss that never falls is its fault",
    "dead-groups": "half of all groups dead is below its limit",
    "clip-fraction-high": "half of all tokens clipped is above its limit",
    "router-hacking": "a level below balance from the start is its fault",
    "seed-moe-aux-loss": "above its limit",
}
"""Rules for which some constant is a fault, and why."""


@every_rule
@pytest.mark.parametrize("name", list(DEGENERATE))
def test_degenerate_runs_never_break(rule: Rule, name: str):
    """It finds nothing to break over: findings or a reason, and each finding is within the run."""
    run = DEGENERATE[name]
    with np.errstate(all="ignore"):
        found, left = run_rules(run, [rule], {rule.name: dict(CASES[rule.name].settings)})
    assert all(s.why for s in left)
    assert all(1 <= f.first <= f.peak <= f.last <= N for f in found)


@every_rule
def test_constant_is_quiet(rule: Rule):
    with np.errstate(all="ignore"):
        found, _ = run_rules(
            DEGENERATE["constant"], [rule], {rule.name: dict(CASES[rule.name].settings)}
        )
    if rule.name not in CONSTANT:
        assert [f for f in found if f.severity != "notice"] == []


@every_rule
def test_nothing_logged_is_never_clean(rule: Rule):
    """Without a single value it says that it could not look; those that look at rows do look."""
    run = DEGENERATE["nothing logged"]
    if rule.name in ("nonfinite", "seed-nonfinite", "discarded-steps"):
        return
    _, left = run_rules(run, [rule])
    assert left


# Laws


@every_rule
@pytest.mark.parametrize("shift", [1000, 77_000])
def test_shifting_steps_shifts_findings(rule: Rule, shift: int):
    case = CASES[rule.name]
    here = [(f.metric, f.severity, f.first, f.last, f.peak) for f in look(rule, case.spoilt())]
    there = look(rule, case.spoilt(step=shift))
    assert [
        (f.metric, f.severity, f.first - shift, f.last - shift, f.peak - shift) for f in there
    ] == here


SCALED = {
    "axolotl-watchdog": "an absolute threshold",
    "soup": "an absolute threshold",
    "llmfoundry-killlossspike": "a cap of 10",
    "loss-broken": "nats",
    "perplexity-jump": "nats",
    "perplexity-rise": "nats",
    "seed-perplexity-jump": "nats",
    "seed-perplexity-rise": "nats",
    "smdebug-overtraining": "an absolute gain",
}
"""Rules that know the unit of a loss, and by what."""


@every_rule
@pytest.mark.parametrize("factor", [0.25, 8.0])
def test_scaling_losses_keeps_findings(rule: Rule, factor: float):
    """Losses in bits, or summed over eight tokens: the same findings at the same steps."""
    if rule.name in SCALED:
        pytest.skip(f"it knows {SCALED[rule.name]}")
    case = CASES[rule.name]
    columns = case.columns()
    for name in ("loss", "val_loss", "actor/pg_loss"):
        if name in columns:
            old = columns[name]
            columns[name] = (
                [None if v is None else v * factor for v in old]
                if isinstance(old, list)
                else old * factor
            )
    scaled = case.run_of(columns)
    said = [(f.metric, f.severity, f.first, f.last) for f in look(rule, scaled)]
    assert said == [(f.metric, f.severity, f.first, f.last) for f in look(rule, case.spoilt())]


WHOLE = {
    "adagc": "a share of all rows",
    "goodput": "a share of all rows, about the median of all",
    "grad-norm-high": "a share of all rows",
    "spike-rate": "a share of all rows",
    "zclip": "a share of all rows",
    "loss-broken": "whether the loss ever came down",
    "loss-plateau": "twentieths of the run",
    "llmfoundry-killlossspike": "a window of 5 % of the run",
    "smdebug-step-outlier": "the deviation of all rows",
    "mfu-impossible": "a statement on all rows",
    "grad-norm-drift": "the last tenth of the run against its first",
    "mfu-low": "the best level of all",
    "clip-saturation": "the share of the last rows",
}
"""Rules that speak of the whole run, so that more rows change what they say, and of what."""


def lengthened(case: Case, rows: int) -> Columns:
    """The columns of a spoilt run that goes on quietly."""
    columns, more = case.columns(), case.base(N + rows)
    for name, values in columns.items():
        late = more[name][N:]
        if name == "wall_time":
            late = late - late[0] + values[-1] + 2.0
        columns[name] = (
            [*values, *late] if isinstance(values, list) else np.concatenate([values, late])
        )
    return columns


@every_rule
def test_quiet_rows_after_it_change_no_earlier_finding(rule: Rule):
    """Five hundred healthy rows more: what was found, and was over, stays what it was."""
    case = CASES[rule.name]
    columns = lengthened(case, 500)
    before = [f for f in grave(rule, case.spoilt()) if f.last <= N - 100]
    after = grave(rule, case.run_of(columns))
    if rule.name in WHOLE:
        assert on_fault(case, after) or case.notice or not before
        return
    said = [(f.metric, f.severity, f.first, f.last) for f in after]
    assert [(f.metric, f.severity, f.first, f.last) for f in before] == said[: len(before)]


@every_rule
def test_a_log_cut_at_any_byte_is_not_clean(rule: Rule, tmp_path: Path):
    """Cut anywhere in its last tenth, the run is found bad still, or it is said what is missing."""
    case = CASES[rule.name]
    columns = case.columns()
    lines = []
    for i in range(len(columns["step"])):
        row = {
            name: float(values[i]) if name != "step" else int(values[i])
            for name, values in columns.items()
            if values[i] is not None
        }
        lines.append(json.dumps(row))
    data = "\n".join([json.dumps({"config": dict(case.facts)}), *lines]).encode()
    random = np.random.default_rng(len(data))
    path = tmp_path / "cut.jsonl"
    for cut in sorted(random.integers(int(0.9 * len(data)), len(data), 4).tolist()):
        path.write_bytes(data[:cut])
        (run,), unread = read_runs([str(path)])
        run = replace(run, facts={**run.facts, **make_run(loss=[1.0], facts=case.facts).facts})
        d = diagnose(run, only=(rule.name,), settings={rule.name: dict(case.settings)})
        found = [f for i in d.incidents for f in i.findings]
        assert on_fault(case, found) or d.skipped or unread, cut
