"""Runs that stand still, and log as if they did not: clock, learning rate, frozen values."""

import numpy as np
import pytest

from tests.rules.runs import findings, healthy, make_run, skipped

N = 1000


def timed(n=N, pace=2.0, seed=0):
    """A healthy run with a clock whose steps take ``pace`` seconds, give or take."""
    random = np.random.default_rng(seed)
    return healthy(n, seed) | {"wall_time": 1.75e9 + np.cumsum(pace * random.lognormal(0, 0.05, n))}


# Quiet twins


@pytest.mark.parametrize("rule", ["standstill", "lr-stuck", "frozen-values", "early-spike"])
@pytest.mark.parametrize("seed", range(6))
def test_healthy_run_is_silent(rule, seed):
    assert findings(make_run(**timed(seed=seed)), rule) == []


def test_short_pause_and_rare_rows_are_silent():
    """A checkpoint of twenty minutes; and a log with a row every hour."""
    columns = timed()
    columns["wall_time"][500:] += 1200
    assert findings(make_run(**columns), "standstill") == []
    assert findings(make_run(**timed(pace=3600.0)), "standstill") == []


def test_long_evaluations_are_a_notice():
    columns = timed(pace=20.0)
    columns["wall_time"] += np.cumsum(np.arange(N) % 100 == 99) * 4000.0
    assert {f.severity for f in findings(make_run(**columns), "standstill")} == {"notice"}


def test_clock_that_was_wrong_for_a_while_is_silent():
    """A clock that runs five hours ahead for fifty rows shows no standstill: it came back."""
    columns = timed()
    columns["wall_time"][300:350] += 18000
    assert findings(make_run(**columns), "standstill") == []


def test_stop_and_resume_with_another_rate_is_a_notice():
    columns = timed()
    columns["wall_time"][500:] += 7200
    columns["learning_rate"][500:] *= 3
    (found,) = findings(make_run(**columns), "standstill")
    assert (found.severity, found.tags) == ("notice", ("resume",))


SCHEDULES = {
    "constant": np.full(N, 3e-4),
    "warm-up, then constant": 3e-4 * np.clip(np.arange(N) / 100, 0, 1),
    "linear to 0": 3e-4 * np.linspace(1, 0, N),
    "linear to a floor": 3e-4 * np.clip(np.linspace(1.2, 0, N), 0.1, None),
    "cosine that has ended": 3e-4
    * 0.5
    * (1 + np.cos(np.pi * np.clip(np.arange(N) / (N - 30), 0, 1))),
    "warm-up, stable, decay": 3e-4
    * np.clip(np.arange(N) / 50, 0, 1)
    * np.clip((N - np.arange(N)) / 150, 0, 1),
    "stairs": 3e-4 * 0.5 ** (np.arange(N) // 120),
    "rounded cosine": np.round(3e-4 * 0.5 * (1 + np.cos(np.pi * np.arange(N) / N)), 6),
    "rounded to next to nothing": np.round(3e-4 * np.linspace(1, 0, N), 4),
    "first rows at 0": np.concatenate([np.zeros(10), np.full(N - 10, 3e-4)]),
    "always 0: a placeholder": None,
}


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_usual_schedules_are_silent(name):
    rate = SCHEDULES[name]
    run = make_run(**healthy(N) | {"learning_rate": np.zeros(N) if rate is None else rate})
    if rate is None:
        assert "placeholder" in skipped(run, "lr-stuck")
    else:
        assert findings(run, "lr-stuck") == []


@pytest.mark.parametrize("decimals", [1, 2, 3])
def test_rounded_losses_are_not_frozen(decimals):
    """Few digits repeat by themselves, also where a fine-tune has become very good."""
    random = np.random.default_rng(decimals)
    loss = 2.0 * np.exp(-np.arange(N) / 80) * random.lognormal(0, 0.05, N) + 0.01
    assert findings(make_run(loss=np.round(loss, decimals)), "frozen-values") == []
    steps = np.where(np.arange(N) < 500, 0.35, 0.02) * random.lognormal(0, 0.1, N)
    assert findings(make_run(loss=np.round(steps, decimals)), "frozen-values") == []


def test_losses_of_policies_and_placeholders_are_not_frozen():
    """GRPO logs 0.0; a norm cut at the clip is the clip; a column of -1 was never measured."""
    columns = healthy(N)
    assert findings(make_run(**columns | {"loss": np.zeros(N)}), "frozen-values") == []
    assert findings(make_run(**columns | {"loss": np.full(N, -1.0)}), "frozen-values") == []
    cut = np.minimum(columns["grad_norm"] * 4, 1.0)
    assert findings(make_run(**columns | {"grad_norm": cut}), "frozen-values") == []


def test_loss_carried_forward_into_every_row_is_not_frozen():
    loss = np.repeat(healthy(N)["loss"][::25], 25)
    assert findings(make_run(loss=loss), "frozen-values") == []


def test_steep_starts_and_single_samples_are_silent():
    """A loss that falls from 11 to 3 in 16 rows, and one of single samples."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        falling = 11 * np.arange(1, 101) ** -0.45 * random.lognormal(0, 0.05, 100)
        assert findings(make_run(loss=falling), "early-spike") == []
        uneven = 1.2 * random.lognormal(0, 0.45, 100)
        assert findings(make_run(loss=uneven), "early-spike") == []


# Planted faults


@pytest.mark.parametrize("metric", ["wall_time", "elapsed_seconds"])
def test_hang_is_an_error_though_the_speed_says_nothing(metric):
    columns = timed()
    columns["wall_time"][600:] += 5 * 3600
    columns[metric] = columns.pop("wall_time") - (0 if metric == "wall_time" else 1.75e9)
    (found,) = findings(make_run(**columns), "standstill")
    assert (found.severity, found.metric, found.first, found.last) == ("error", metric, 601, 601)
    assert 18000 < found.value < 18010
    assert 1.5 < found.expected < 2.5


@pytest.mark.parametrize(("first", "last"), [(300, 399), (0, 99), (900, 999)])
def test_rate_of_0_is_an_error(first, last):
    columns = healthy(N)
    columns["learning_rate"][first : last + 1] = 0
    (found,) = findings(make_run(**columns), "lr-stuck")
    assert (found.severity, found.first, found.last) == ("error", first + 1, last + 1)


def test_training_long_after_the_schedule_has_ended_is_a_warning():
    columns = healthy(N)
    columns["learning_rate"] = 3e-4 * np.clip(np.linspace(1.5, -0.5, N), 0, 1)
    (found,) = findings(make_run(**columns), "lr-stuck")
    assert (found.severity, found.first, found.last) == ("warning", 751, N)


def test_rate_that_stands_still_and_goes_on_is_a_warning():
    columns = healthy(N)
    rate = columns["learning_rate"]
    columns["learning_rate"] = np.concatenate([rate[:400], np.full(60, rate[400]), rate[400:-60]])
    (found,) = findings(make_run(**columns), "lr-stuck")
    assert (found.severity, found.first, found.last) == ("warning", 401, 461)


def test_scheduler_lost_in_a_resume_is_a_warning_where_the_plan_is_known():
    columns = healthy(N)
    columns["learning_rate"][400:] = columns["learning_rate"][399]
    (found,) = findings(make_run(**columns, facts={"total_steps": N}), "lr-stuck")
    assert (found.severity, found.first, found.last) == ("warning", 400, N)
    columns["learning_rate"][30:] = columns["learning_rate"][29]
    (found,) = findings(make_run(**columns, facts={"warmup_steps": 500}), "lr-stuck")
    assert (found.severity, found.first) == ("warning", 30)


@pytest.mark.parametrize(("metric", "severity"), [("loss", "error"), ("grad_norm", "warning")])
@pytest.mark.parametrize("rows", [20, 300])
def test_same_number_again_and_again(metric, severity, rows):
    columns = healthy(N)
    columns[metric][500 : 500 + rows] = columns[metric][500]
    (found,) = findings(make_run(**columns), "frozen-values")
    assert (found.severity, found.first, found.last) == (severity, 501, 500 + rows)


def test_column_that_never_changed_is_an_error():
    (found,) = findings(make_run(loss=np.full(200, 2.3145)), "frozen-values")
    assert (found.severity, found.first, found.last) == ("error", 1, 200)


@pytest.mark.parametrize("at", [2, 6, 12, 15])
@pytest.mark.parametrize(("factor", "severity"), [(2.6, "warning"), (6.0, "error")])
def test_leap_among_the_first_rows(at, factor, severity):
    columns = healthy(N, noise=0.02)
    columns["loss"][at] = columns["loss"][0] * (factor / 2 if severity == "warning" else factor)
    columns["loss"][at] = max(columns["loss"][at], columns["loss"][:at].max() * 2.1)
    (found,) = findings(make_run(**columns), "early-spike")
    assert (found.severity, found.first, found.last) == (severity, at + 1, at + 1)


def test_short_log_is_judged():
    """Twelve rows are too few for any history, and a leap in them is seen all the same."""
    loss = np.array([2.1, 2.05, 2.08, 2.0, 1.99, 9.5, 2.0, 1.97, 1.96, 1.98, 1.94, 1.95])
    (found,) = findings(make_run(loss=loss), "early-spike")
    assert (found.severity, found.first) == ("error", 6)
    assert "fewer than 8" in skipped(make_run(loss=loss[:7]), "early-spike")


# Degenerate


@pytest.mark.parametrize("rule", ["standstill", "lr-stuck", "frozen-values", "early-spike"])
def test_too_little_cannot_look(rule):
    run = make_run(loss=[1.0], learning_rate=[1e-4], elapsed_seconds=[1.0])
    assert "fewer than" in skipped(run, rule)
    nan = make_run(loss=[np.nan] * 60, learning_rate=[np.nan] * 60, elapsed_seconds=[np.nan] * 60)
    assert "fewer than" in skipped(nan, rule)


@pytest.mark.parametrize(
    ("facts", "columns", "fires"),
    [
        ({"precision": "bf16"}, {}, True),
        ({"precision": "torch.float32"}, {}, True),
        ({"precision": "fp16"}, {}, False),
        ({}, {}, False),
        ({"precision": "bf16"}, {"loss_scale": np.full(1000, 65536.0)}, False),
    ],
)
def test_norms_in_the_thousands_without_a_loss_scale_are_broken(facts, columns, fires):
    """Of fp16, or where nothing tells the format, such norms are those of a scaled loss."""
    run = healthy(1000)
    run["grad_norm"] = run["grad_norm"] * 1e5
    found = findings(make_run(**run, **columns, facts=facts), "loss-broken")
    assert [(f.metric, f.severity) for f in found] == ([("grad_norm", "error")] if fires else [])
    quiet = findings(make_run(**healthy(1000), facts=facts), "loss-broken")
    assert quiet == []
