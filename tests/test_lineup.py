"""Presets side by side: who speaks of an event, when, and who keeps silent."""

import json

import numpy as np
import pytest

from stabcli.errors import SettingError
from stabcli.lineup import line_up
from stabcli.presets import PRESETS
from stabcli.rules import rules
from tests.cli.commands import Stabcli
from tests.cli.conftest import stabcli as stabcli_fixture
from tests.conftest import SAMPLES
from tests.rules.cases import N, pretraining
from tests.rules.runs import make_run

stabcli = stabcli_fixture


def test_every_preset_has_rules_and_every_rule_a_preset():
    assert {p for r in rules for p in r.presets} == set(PRESETS)


def test_a_clean_run_has_no_event():
    """No published alarm goes off on a run that nothing is wrong with; statistics stand apart."""
    lineup = line_up(make_run(**pretraining()), [p for p in PRESETS if p != "trainscope-cusum"])
    assert lineup.events == ()
    assert {p for p, _ in lineup.statistics} == {"adagc", "goodput", "zclip"}


def test_who_speaks_and_how_much_later():
    """A loss that is five times as high for ten rows: most see it at once, patience takes longer."""
    columns = pretraining()
    columns["loss"][599:609] *= 5
    lineup = line_up(make_run(**columns))
    (event,) = (e for e in lineup.events if e.first >= 500)
    late = {v.preset: v.late for v in event.voices}
    assert (event.first, event.attempt, event.severity) == (600, 0, "critical")
    assert late["default"] == late["seed"] == late["olmo-stability"] == 0
    assert late["llmfoundry-killlossspike"] == late["soup"] == 4
    assert late["axolotl-watchdog"] == 2
    assert set(event.silent) >= {"arc", "megatron-rerun"}
    assert not set(event.silent) & set(late)
    assert not set(event.silent) & {"nvrx-straggler", "trl-skywork"}, "they look at other things"
    assert "trl-skywork" in lineup.blind


def test_a_nan_blinds_windows():
    """One NaN, and a spike 80 rows later: windows with a NaN in them have no mean."""
    columns = pretraining()
    columns["loss"][499] = np.nan
    columns["loss"][579:583] *= 4
    late = line_up(make_run(**columns), ["default", "olmo-stability", "olmo-skipstep"])
    said = {v.preset: v.finding for e in late.events for v in e.voices if e.first >= 579}
    assert "default" in {v.preset for e in late.events for v in e.voices}
    assert "olmo-stability" not in said
    storm = [v.finding for e in late.events for v in e.voices if v.preset == "olmo-skipstep"]
    assert max(f.last for f in storm) >= 600, "every step of the window is skipped"
    plain = {p: {"faithful": False} for p in ("olmo-stability",)}
    fixed = line_up(make_run(**columns), ["olmo-stability"], plain)
    assert any(v.finding.first <= 580 <= v.finding.last for e in fixed.events for v in e.voices)


def test_what_is_true_of_most_of_the_run_is_no_event():
    columns = pretraining()
    columns["grad_norm"] *= 10
    lineup = line_up(make_run(**columns), ["seed"])
    assert lineup.events == ()
    assert [(p, f.rule) for p, f in lineup.throughout] == [("seed", "seed-grad-norm-high")]


def test_distant_events_are_two_and_kinds_stay_apart():
    columns = pretraining()
    columns["loss"][299:302] *= 4
    columns["loss"][899:902] *= 4
    columns["tokens_per_second"][299:420] *= 0.5
    lineup = line_up(make_run(**columns), ["default", "seed"])
    assert [(e.kind, e.first) for e in lineup.events] == [
        ("numerics", 300),
        ("speed", 300),
        ("numerics", 900),
    ]


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_short_runs(rows):
    lineup = line_up(make_run(loss=np.ones(rows), step=np.arange(N, N + rows)))
    assert set(lineup.presets) | set(lineup.blind) == set(PRESETS)


def test_unknown_preset():
    with pytest.raises(SettingError, match="did you mean soup"):
        line_up(make_run(loss=np.ones(30)), ["soupe"])


def test_command(stabcli: Stabcli):
    """The screen names event, delay and silence; JSON has the same; presets can be chosen."""
    log = SAMPLES / "jsonl/bad_batch.jsonl"
    shown = stabcli("compare-presets", log)
    assert shown.status == 0
    assert "steps 600..603  numerics: " in shown.out
    assert "step 602, 2 steps later: error" in shown.out
    assert "silent" in shown.out

    two = stabcli(
        "compare-presets", log, "--preset", "seed", "--preset", "default", "--format", "json"
    )
    (run,) = json.loads(two.out)["runs"]
    assert run["presets"] == ["seed", "default"]
    assert [
        e["first"]
        for e in run["events"]
        if {"seed", "default"} <= {v["preset"] for v in e["voices"]}
    ] == [600]


def test_command_cannot_judge(stabcli: Stabcli):
    """No preset could look, a rule in place of a preset, no log: 2 and one line why."""
    log = SAMPLES / "jsonl/bad_batch.jsonl"
    blind = stabcli("compare-presets", log, "--preset", "trl-skywork")
    assert blind.status == 2
    assert "no preset could look" in blind.err
    assert stabcli("compare-presets", log, "--rule", "arc").status == 2
    assert stabcli("compare-presets", "none.jsonl").status == 2
