"""What is told of an event must be what the rows say: its ending, its cause, and no more."""

import json

import numpy as np
import pytest

from stabcli.diagnosis import diagnose
from stabcli.readers import read_runs
from tests.rules.runs import findings, grave, healthy, make_run


def changed(n=1500, seed=5, **changes):
    """Diagnose a healthy run in which parts of columns were changed."""
    columns = healthy(n, seed=seed)
    for metric, (where, change) in changes.items():
        columns[metric][where] = change(columns[metric][where])
    return diagnose(make_run(**columns))


def told(d):
    """What is told above notice: rule, first step, and whether it is over."""
    return [
        (i.rule, i.first, i.recovered is not None) for i in d.incidents if i.severity == "error"
    ]


@pytest.mark.parametrize("times", [10, 30])
def test_what_has_not_come_back_is_not_recovered(times):
    """A gradient norm that stays up is not over because the loss never moved."""
    d = changed(grad_norm=(slice(1000, None), lambda x: x * times))
    assert told(d) == [("grad-norm-spike", 1001, False)]
    at = next(n for n, i in enumerate(d.incidents) if i.severity == "error")
    assert "stays-grad_norm" in d.incidents[at].tags
    assert d.plans[at][0].name == "watch"


def test_what_has_come_back_is_recovered():
    """One that comes down again is over, also where it stays a little above."""
    for after in (1.0, 1.2):
        columns = healthy(1500, seed=5)
        columns["grad_norm"][1000:1020] *= 30
        columns["grad_norm"][1020:] *= after
        d = diagnose(make_run(**columns))
        assert told(d) == [("grad-norm-spike", 1001, True)]


@pytest.mark.parametrize("rows", [20, 100])
def test_losses_missing_in_the_middle_are_told(rows):
    """The norms go on: it is a notice, and a warning where they leap."""
    columns = healthy(1500)
    missing = slice(500, 500 + rows)
    loss = [None if 500 <= i < 500 + rows else float(x) for i, x in enumerate(columns["loss"])]
    found = findings(make_run(**columns | {"loss": loss}), "hidden-nonfinite")
    assert [(f.severity, f.first, f.last) for f in found] == [("notice", 501, 500 + rows)]
    assert {f"{rows}-rows", "beside-grad_norm"} <= set(found[0].tags)
    columns["grad_norm"][missing][:3] *= 20
    found = findings(make_run(**columns | {"loss": loss}), "hidden-nonfinite")
    assert [f.severity for f in found] == ["warning"]


@pytest.mark.parametrize(
    "keep",
    [lambda i: i % 50 == 0, lambda i: i < 500 or i % 40 == 0, lambda i: i < 500 or i >= 510],
    ids=["logged now and then", "more rarely from some row on", "ten rows"],
)
def test_losses_logged_otherwise_are_not_missing(keep):
    """Another interval than that of the norms hides nothing."""
    columns = healthy(1500)
    loss = [float(x) if keep(i) else None for i, x in enumerate(columns["loss"])]
    assert findings(make_run(**columns | {"loss": loss}), "hidden-nonfinite") == []


@pytest.mark.parametrize("times", [2, 8, 16, 1 / 8, 1 / 3])
def test_a_loss_that_is_counted_otherwise_is_no_divergence(times):
    """Everything but its unit is as before: a warning that says so, and nothing to roll back."""
    d = changed(loss=(slice(700, None), lambda x: x * times))
    loud = [n for n, i in enumerate(d.incidents) if i.severity != "notice"]
    assert [(d.incidents[n].rule, d.incidents[n].severity) for n in loud] == [
        ("loss-rescaled", "warning")
    ]
    assert d.causes[loud[0]][0].name == "reporting-change"
    assert [p.roll_back_to for p in d.plans[loud[0]]] == [None]


@pytest.mark.parametrize(
    "change",
    [
        {"loss": lambda x: x * 3.5},
        {"loss": lambda x: x + 3.0},
        {"loss": lambda x: x * 8, "grad_norm": lambda x: x * 5},
        {"loss": lambda x: x * 8 * (1 + 0.001 * np.arange(len(x)))},
        {"loss": lambda x: np.full(len(x), 10.8)},
    ],
    ids=["no whole number", "other noise", "the norm too", "goes on climbing", "flat"],
)
def test_a_loss_that_leaps_otherwise_stays_an_alarm(change):
    """Evidence of a divergence outweighs a ratio."""
    d = changed(**{metric: (slice(700, None), what) for metric, what in change.items()})
    assert any(i.severity in ("error", "critical") for i in d.incidents)
    assert not any(f.rule == "loss-rescaled" for i in d.incidents for f in i.findings)


def test_a_gap_in_the_steps_is_no_drop():
    """The loss went on falling where no row was kept; beside the gap a drop is still told."""
    for seed in range(5):
        step = np.arange(1, 1501)
        columns = healthy(1500, seed=seed) | {"loss": 2 + 7 * np.exp(-step / 200)}
        columns["loss"] += np.random.default_rng(seed).normal(0, 0.03, 1500)
        keep = (step < 500) | (step >= 900)
        held = {key: values[keep] for key, values in columns.items()}
        assert findings(make_run(**held), "loss-drop") == []
        held["loss"][750:] *= 0.7
        assert [f.first for f in grave(make_run(**held), "loss-drop")] == [1151]


def collapse(constant):
    """A policy whose rewards fall; all to 0, or to where they began."""
    random = np.random.default_rng(4)
    reward = 0.2 + 0.5 * (1 - np.exp(-np.arange(400) / 80)) + random.normal(0, 0.02, 400)
    dead = np.clip(random.normal(0.1, 0.03, 400), 0, 1)
    reward[250:] = 0.0 if constant else reward[250:] - 0.5
    dead[250:] = 1.0 if constant else dead[250:]
    return diagnose(make_run(reward=reward, dead_group_fraction=dead, entropy=np.full(400, 0.4)))


@pytest.mark.parametrize("constant", [True, False])
def test_rewards_all_alike_point_at_what_gives_them(constant):
    """A constant reward is no policy's doing; one that falls with its noise may be."""
    d = collapse(constant)
    at = next(n for n, i in enumerate(d.incidents) if i.rule == "reward-drop")
    assert [(c.name, c.standing) for c in d.causes[at]] == [
        ("reward-function", "supported")
    ] * constant
    assert (d.plans[at][0].name == "mend-the-reward") is constant


def processes(tmp_path, broken, together):
    """Write the logs of four processes, or one log with a column of their rank; diagnose it."""
    columns, random = healthy(600), np.random.default_rng(1)
    logs = {}
    for i in range(600):
        for rank in range(4):
            loss = float(columns["loss"][i] + random.normal(0, 0.03))
            row = {"step": i + 1, "loss": float("nan") if broken(rank, i) else loss}
            row |= {"grad_norm": float(columns["grad_norm"][i]), "rank": rank}
            logs.setdefault(0 if together else rank, []).append(json.dumps(row))
    folder = tmp_path / "run"
    folder.mkdir()
    for rank, lines in logs.items():
        name = "log.jsonl" if together else f"rank_{rank}.jsonl"
        (folder / name).write_text("\n".join(lines) + "\n")
    (run,), _ = read_runs([str(folder)])
    d = diagnose(run)
    at = next(n for n, i in enumerate(d.incidents) if i.severity == "critical")
    return d.incidents[at], d.causes[at], d.plans[at]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("last", [401, 600])
def test_one_process_alone_points_at_its_device(tmp_path, together, last):
    """The others stay finite: its device or data, and no word of void checkpoints."""
    incident, causes, plans = processes(
        tmp_path, lambda rank, i: rank == 2 and 400 <= i < last, together
    )
    assert "one-process" in incident.tags
    assert causes[0].name == "hardware"
    assert "process 2 of 4" in causes[0].why
    assert "learning-rate" not in [c.name for c in causes]
    assert "not proven" in plans[0].text
    assert not any("void" in p.text for p in plans)


@pytest.mark.parametrize("together", [True, False])
def test_where_the_others_follow_all_checkpoints_are_void(tmp_path, together):
    """A NaN that spreads has reached the weights, wherever it came from."""
    incident, causes, plans = processes(
        tmp_path, lambda rank, i: i > 400 or (i == 400 and rank == 2), together
    )
    assert "one-process" not in incident.tags
    assert causes[0].name == "hardware"
    assert "followed at step 402" in causes[0].why
    assert all("void" in p.text for p in plans)
