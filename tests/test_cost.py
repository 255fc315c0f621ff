"""Where tokens and GPU-hours went: classes, sources, what is unknown and what contradicts."""

import numpy as np
import pytest

from stabcli.cost import Cost, price
from stabcli.diagnosis import diagnose
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.ledgers import START, incident, make_run, steady


def cost_of(report, name):
    return dict(report.classes).get(name, Cost())


def said(report, *words):
    return [a for a in report.assumptions if all(w in a for w in words)]


# healthy runs first


def test_healthy_run_wastes_nothing():
    """A steady run is productive from its first row to its last."""
    report = price(make_run(steady(1, 500), flags={"gpus": 8, "tokens_per_step": 1000}), ())

    assert [name for name, _ in report.classes] == ["productive"]
    assert report.total == Cost(steps=0, tokens=0.0, gpu_hours=0.0)
    assert report.goodput == 1.0
    assert report.all.steps == 500
    assert report.all.tokens == 500_000
    assert report.all.gpu_hours == pytest.approx(500 * 8 / 3600)


def test_noise_in_step_time_is_not_slowness():
    """Step times that scatter by 3 % leave the run all but productive."""
    run = steady(1, 2000)
    run["wall"] = START + np.cumsum(np.random.default_rng(0).normal(1, 0.03, 2000))
    report = price(make_run(run, flags={"gpus": 8}), ())

    assert report.goodput > 0.999


@pytest.mark.parametrize("column", ["loss", "nothing"])
def test_one_row(column):
    """A log of one row has no clock and no pace: GPU-hours are unknown, never 0."""
    row = {"step": [10], "loss": [2.0], "wall": [START]}
    report = price(make_run(row, flags={"gpus": 8}), ())

    assert report.all.gpu_hours is None
    assert report.all.tokens is None
    assert said(report, "tokens: unknown: add --tokens-per-step N")


def test_rates_that_are_all_the_same_time_are_no_clock():
    """Rows written all at once carry the time of the writing, which times nothing."""
    run = steady(1, 50)
    run["wall"] = np.full(50, START)
    report = price(make_run(run, flags={"gpus": 8}), ())

    assert report.all.gpu_hours is None


# the field's cases


def test_spike_nobody_acts_on_costs_808_gpu_hours():
    """7B, 512 GPUs, 4M tokens a step, spike at 120,000, run on to 125,000, 40,400 GPU-hours/1T."""
    run = steady(100_000, 125_000, every=25)
    run["loss"] = np.where(run["step"] >= 120_000, 3.4, 2.0)
    del run["wall"]
    flags = {"tokens_per_step": "4M", "gpus": 512, "gpu_hours_per_trillion": 40_400}
    report = price(make_run(run, flags=flags), [incident(120_000, 125_000)])

    lost = cost_of(report, "lost")
    assert lost.steps == 5000
    assert lost.tokens == 20e9
    assert lost.gpu_hours == pytest.approx(808)
    assert report.incidents == (lost,)
    assert report.total == lost


@pytest.mark.parametrize("every", [1, 5, 10, 25, 100])
def test_steps_lost_do_not_depend_on_how_often_was_logged(every):
    """From a spike at step 1,000 to a stop at step 3,000 are 2,000 steps."""
    run = steady(every, 3000, every=every)
    report = price(make_run(run), [incident(1000, 3000)])

    assert report.incidents[0].steps == 2000


@pytest.mark.parametrize(
    ("rule", "metric", "value"),
    [("grad-norm-vanishing", "grad_norm", 0.0), ("frozen-values", "loss", 2.123)],
)
def test_step_that_taught_nothing_is_lost_itself(rule, metric, value):
    """Steps 701 to 1,500 without an update are 800; up to step 900, which is well again, 199."""
    run = make_run(steady(1, 1500))
    never = incident(701, 1500, rule=rule, metric=metric, value=value)
    healed = incident(701, 899, rule=rule, metric=metric, value=value, recovered=900)

    assert price(run, [never]).incidents[0].steps == 800
    assert price(run, [healed]).incidents[0].steps == 199


def test_sample_of_the_synthetic_spike():
    """The sample's spike costs 5,000 steps, 20B tokens and 808 GPU-hours by its own clock."""
    runs, _ = read_runs([SAMPLES / "jsonl" / "synthetic_7b_spike.jsonl"])
    cost = diagnose(runs[0]).cost

    assert cost.total.steps == 5000
    assert cost.total.tokens == 20e9
    assert round(cost.total.gpu_hours) == 808


def test_fine_tune_that_is_nan_at_once_is_wasted_whole():
    """A LoRA budget of 6 GPU-hours, NaN from the first row: all of it is poisoned."""
    step = np.arange(10, 1010, 10)
    run = {"step": step, "loss": np.full(100, np.nan), "wall": START + step * 21.6}
    run = make_run(run, flags={"gpus": 1})
    report = diagnose(run).cost

    assert [name for name, _ in report.classes] == ["poisoned"]
    assert report.goodput == 0
    assert report.total.gpu_hours == pytest.approx(6)


def test_policy_run_after_collapse_from_the_logs_own_counter():
    """100M generated tokens after entropy collapse: those tokens and their GPU-hours."""
    step = np.arange(1, 1001)
    tokens = np.cumsum(np.where(step <= 500, 150_000, 200_000))
    run = make_run(
        {"step": step, "reward": step / 1000, "entropy": np.where(step <= 500, 0.9, 0.01),
         "num_tokens": tokens, "wall": START + step * 36.0},
        flags={"gpus": 10},
    )  # fmt: skip
    collapse = incident(500, 1000, metric="entropy", ending="diverged", rule="entropy-collapse")
    report = price(run, [collapse])

    lost = cost_of(report, "lost")
    assert lost.tokens == pytest.approx(100e6)
    assert lost.gpu_hours == pytest.approx(500 * 36 * 10 / 3600)
    assert dict(report.sources)["tokens"] == "column num_tokens"


# classes


def test_three_attempts_two_rollbacks_and_a_node_change_add_up_to_the_second():
    """Classes add up to wall clock x GPUs, whatever happened in between."""
    parts = [
        (1, 300, 0.0, 16), (201, 500, 1000.0, 16), (451, 800, 2000.0, 8),
    ]  # fmt: skip
    rows = {"step": [], "loss": [], "wall": [], "gpus": []}
    for first, last, start, gpus in parts:
        part = steady(first, last, start=START + start)
        for name in ("step", "loss", "wall"):
            rows[name] += part[name].tolist()
        rows["gpus"] += [gpus] * (last - first + 1)
    report = price(make_run(rows), ())

    first_row, gap, other_gap = 1.0, 1000 - 299 - 1.0, 2000 - 1299 - 1.0
    expected = (first_row + 299 + gap + 300 + other_gap) * 16 + 350 * 8
    assert report.all.gpu_hours * 3600 == pytest.approx(expected, abs=1e-3)
    assert cost_of(report, "rolled-back").steps == 100 + 50
    assert cost_of(report, "downtime").gpu_hours * 3600 == pytest.approx((gap + other_gap) * 16)
    assert sum(c.gpu_hours for _, c in report.classes) == pytest.approx(report.all.gpu_hours)


def test_poisoned_comes_before_rolled_back():
    """Rows after a NaN are poisoned even where a later attempt overwrote them."""
    run = make_run(
        {"step": [*range(1, 101), *range(51, 151)],
         "loss": [2.0] * 80 + [float("nan")] * 20 + [2.0] * 100}
    )  # fmt: skip
    report = price(run, ())

    assert cost_of(report, "poisoned").steps == 20
    assert cost_of(report, "rolled-back").steps == 30
    assert cost_of(report, "productive").steps == 150


def test_nan_that_healed_is_not_poison():
    """A skipped step with an infinite gradient norm spoils nothing."""
    run = steady(1, 200)
    run["grad_norm"] = np.where(run["step"] == 100, np.inf, 0.5)
    report = diagnose(make_run(run)).cost

    assert cost_of(report, "poisoned").steps == 0


def test_recovery_costs_the_steps_until_it_healed():
    """Onset at 100, recovered at 130: 30 steps are lost, and no more."""
    healed = incident(100, 110, ending="fast-recovery", recovered=130)
    report = price(make_run(steady(1, 500)), [healed])

    assert cost_of(report, "recovering").steps == 30
    assert report.total.steps == 30


def test_higher_basin_costs_the_way_back_not_the_rest_of_the_run():
    """Where a falling loss reaches its old level again, later rows are productive."""
    run = steady(1, 3000)
    run["loss"] = 3 - run["step"] / 2000 + np.where(run["step"] > 1000, 0.5, 0.0)
    report = price(make_run(run), [incident(1001, 1500)])

    assert 990 <= cost_of(report, "lost").steps <= 1010


def test_warnings_and_statistics_cost_nothing():
    """What is below an error, or describes the whole run, loses no steps."""
    found = [incident(100, 200, severity="warning"), incident(1, 500, tags=("statistic",))]
    report = price(make_run(steady(1, 500)), found)

    assert report.total.steps == 0
    assert report.incidents == (Cost(), Cost())


def test_warning_that_never_recovered_is_priced_beside_the_totals():
    """What a warning would have cost, had it been an error, is at stake, not wasted."""
    found = [
        incident(100, 200, severity="warning", metric="entropy"),
        incident(100, 200, severity="warning", ending="fast-recovery", recovered=250),
        incident(400, 500),
    ]
    report = price(make_run(steady(1, 500)), found)

    assert [c.steps for c in report.at_stake] == [400, 0, 0]
    assert report.total.steps == 100


def test_nan_in_an_unknown_column_poisons_nothing():
    """A NaN outside of loss and gradient norm says nothing of the weights."""
    odd = incident(100, 500, metric="reward_std_of_one", value=float("nan"), ending="diverged")

    assert price(make_run(steady(1, 500)), [odd]).total.steps == 0


def test_overlapping_incidents_count_once():
    """Two incidents over the same rows cost each alone its own, together the union."""
    two = [incident(100, 500), incident(200, 500)]
    report = price(make_run(steady(1, 500)), two)

    assert [c.steps for c in report.incidents] == [400, 300]
    assert report.total.steps == 400


def test_skipped_steps_are_a_share_of_their_row():
    """Three of ten steps skipped by the loss scaler: three steps, 30 % of the row."""
    run = steady(10, 1000, every=10)
    run["skipped_steps"] = np.where(run["step"] == 500, 3.0, 0.0)
    report = price(make_run(run, flags={"gpus": 1, "tokens_per_step": 10}), ())

    skipped = cost_of(report, "skipped")
    assert (skipped.steps, skipped.tokens) == (3, 30)
    assert skipped.gpu_hours * 3600 == pytest.approx(3)
    assert sum(c.steps for _, c in report.classes) == 1000


def test_a_pause_is_a_stall_of_its_excess_only():
    """A row that takes 61 s instead of 1 s stalls for 60 s; no step is lost."""
    run = steady(1, 500)
    run["wall"] = run["wall"] + np.where(run["step"] >= 250, 60.0, 0.0)
    report = price(make_run(run, flags={"gpus": 4}), ())

    assert cost_of(report, "stall").gpu_hours * 3600 == pytest.approx(60 * 4)
    assert cost_of(report, "stall").steps == 0


def test_a_slow_stretch_is_slow_not_stalled():
    """A hundred rows at 1.5 s instead of 1 s are slow by 50 s."""
    run = steady(1, 1000)
    run["wall"] = START + np.cumsum(np.where((run["step"] > 500) & (run["step"] <= 600), 1.5, 1.0))
    report = price(make_run(run, flags={"gpus": 4}), ())

    assert cost_of(report, "slow").gpu_hours * 3600 == pytest.approx(50 * 4)
    assert cost_of(report, "stall").steps == 0


def test_a_slowdown_of_six_percent_is_seen():
    """A sick node that costs 6 % for 300 rows is within the noise of a row, not of 300."""
    seconds = np.random.default_rng(1).normal(1, 0.03, 2000)
    seconds[1200:1500] *= 1.07
    run = steady(1, 2000)
    run["wall"] = START + np.cumsum(seconds)
    report = price(make_run(run, flags={"gpus": 1}), ())

    assert 14 < cost_of(report, "slow").gpu_hours * 3600 < 28
