"""What a policy would have made of a log, and how often to save checkpoints."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabcli.bill import bill
from stabcli.checkpointing import checkpointing, daly, expected_loss
from stabcli.diagnosis import diagnose
from stabcli.energy import parse_power
from stabcli.errors import SettingError
from stabcli.ledger import ledger
from stabcli.policy import BREAKERS, parse
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.ledgers import START, incident, make_run, steady


def outcome_of(run, policy):
    return bill(diagnose(run), [parse(policy)]).what_if[0]


def breaker(run, name):
    return next(o for o in bill(diagnose(run)).breakers if name in o.policy.name)


def nan_from(step, last=125_000, every=25):
    run = steady(100_000, last, every=every)
    run["loss"] = np.where(run["step"] >= step, np.nan, run["loss"])
    del run["wall"]
    flags = {"tokens_per_step": "4M", "gpus": 512, "gpu_hours_per_trillion": 40_400}
    return make_run(run, flags=flags)


def test_healthy_run_is_never_stopped():
    """No breaker and no policy stops a steady run."""
    run = make_run({**steady(1, 2000), "grad_norm": np.full(2000, 0.5)})
    told = bill(diagnose(run), [parse("checkpoint-every=100,stop-on=nonfinite+loss-spike")])

    assert all(o.trips == () and o.needless == () for o in (*told.what_if, *told.breakers))
    assert told.what_if[0].saved.steps == 0


def test_checkpoint_every_2000_and_a_stop_bound_the_loss():
    """NaN at 120,000, run on to 125,000: at most 2,000 steps, 8B tokens, 323 GPU-hours."""
    outcome = outcome_of(nan_from(120_000), "checkpoint-every=2000,stop-on=nonfinite")

    assert outcome.at_most.steps == 2000
    assert outcome.at_most.tokens == 8e9
    assert round(outcome.at_most.gpu_hours) == 323
    assert [t.step for t in outcome.trips] == [120_000]
    assert outcome.needless == ()
    assert outcome.saved.steps == outcome.actual.steps - 2000


def test_sample_prints_the_same_bound():
    """The synthetic sample with a stop on its loss spike: 3,000 steps saved of 5,000."""
    runs, _ = read_runs([SAMPLES / "jsonl" / "synthetic_7b_spike.jsonl"])
    outcome = outcome_of(runs[0], "checkpoint-every=2000,stop-on=loss-spike")

    assert (outcome.actual.steps, outcome.at_most.steps, outcome.saved.steps) == (5000, 2000, 3000)
    assert round(outcome.at_most.gpu_hours) == 323


def test_delay_is_added():
    """An operator who needs 500 steps to act loses 500 steps more."""
    outcome = outcome_of(nan_from(120_000), "checkpoint-every=2000,stop-on=nonfinite,delay=500")

    assert outcome.at_most.steps == 2500
    assert outcome.incidents[0].here.steps == 2500


def test_here_counts_from_the_checkpoint_before_the_onset():
    """NaN at 119,000 with checkpoints every 2,000 steps: back to 118,000."""
    outcome = outcome_of(nan_from(119_000), "checkpoint-every=2000,stop-on=nonfinite")

    assert outcome.incidents[0].here.steps == 1000
    assert outcome.incidents[0].at_most.steps == 2000


def test_a_rule_trips_when_it_could_have_known():
    """A gradient norm above 10 three times trips at the third row, not at the first."""
    run = steady(1, 1000)
    run["grad_norm"] = np.where((run["step"] >= 500) & (run["step"] < 520), 20.0, 0.5)
    run["loss"] = np.where(run["step"] >= 500, 9.0, run["loss"])
    outcome = breaker(make_run(run), "grad norm > 10")

    assert [t.step for t in outcome.trips] == [502]


def test_stop_of_a_healthy_run_is_counted():
    """A stop where no work was being lost is needless."""
    run = steady(1, 1000)
    run["grad_norm"] = np.where((run["step"] >= 500) & (run["step"] < 510), 20.0, 9.0)
    told = bill(diagnose(make_run(run), only=("nonfinite",)))
    outcome = next(o for o in told.breakers if "grad norm" in o.policy.name)

    assert len(outcome.needless) == len(outcome.trips) == 1


def test_policy_that_stops_on_nothing_bounds_nothing():
    """More checkpoints alone do not stop a run."""
    outcome = outcome_of(nan_from(120_000), "checkpoint-every=2000")

    assert outcome.trips == ()
    assert outcome.saved.steps == 0


def test_unknown_checkpoints_leave_the_bound_unknown():
    """A stop without any known checkpoint saves nobody knows what."""
    outcome = outcome_of(nan_from(120_000), "stop-on=nonfinite")

    assert outcome.at_most is None
    assert outcome.saved is None


def test_a_stop_can_cost_more_than_a_spike_that_heals():
    """A saving may be negative: going back 2,000 steps from a spike of 30."""
    run = steady(1, 5000)
    spike = (run["step"] >= 3000) & (run["step"] < 3030)
    run["loss"] = np.where(spike, run["loss"] * 3, run["loss"])
    outcome = outcome_of(make_run(run), "checkpoint-every=2000,stop-on=loss-spike")

    assert outcome.actual.steps == 30
    assert outcome.saved.steps == -1970


def test_entropy_breaker_gives_all_that_came_after():
    """Entropy below 1 while the reward rises at step 501: 499 steps of tokens came after."""
    step = np.arange(1, 1001)
    run = make_run(
        {"step": step, "reward": step / 1000, "entropy": np.where(step <= 500, 1.5, 0.5),
         "num_tokens": step * 200_000, "wall": START + step * 36.0},
        flags={"gpus": 10},
    )  # fmt: skip
    outcome = breaker(run, "entropy")

    assert outcome.trips[0].step == 501
    assert outcome.after_first.tokens == pytest.approx(499 * 200_000)
    assert outcome.after_first.gpu_hours == pytest.approx(499 * 36 * 10 / 3600)


def test_breaker_that_cannot_look_says_why():
    """A log without validation loss has not passed the perplexity breaker."""
    outcome = breaker(make_run(steady(1, 200)), "perplexity")

    assert "val_loss" in outcome.why_not


def test_the_five_circuit_breakers_of_the_field():
    """NaN, gradient norm, throughput, perplexity, entropy: each with its action."""
    assert [p.stop_on for p in BREAKERS] == [
        ("seed-nonfinite",),
        ("seed-grad-norm-run",),
        ("seed-throughput-drop",),
        ("seed-perplexity-jump",),
        ("seed-entropy-collapse",),
    ]
    assert all(p.action for p in BREAKERS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no value"),
        ("checkpoint-every", "no value"),
        ("checkpoint-every=often", "number of steps"),
        ("checkpoint-every=0", "number of steps"),
        ("stop-on=no-such-rule", "no such rule"),
        ("stop-at=5", "no such key"),
        ("delay=-1", "number of steps"),
    ],
)
def test_bad_policy_is_one_line(text, message):
    """What is wrong with a policy is said with the flag."""
    with pytest.raises(SettingError, match=message):
        parse(text)


def test_policy_as_people_type_it():
    """Counts take k; rules are joined by plus."""
    policy = parse("checkpoint-every=2k, stop-on=nonfinite+loss-spike, delay=0")

    assert (policy.checkpoint_every, policy.delay) == (2000, 0)
    assert policy.stop_on == ("nonfinite", "loss-spike")


# checkpoints


def test_no_failure_no_interval():
    """A run that never broke says nothing of how often to save."""
    run = make_run(steady(1, 500), flags={"checkpoint_seconds": 30})
    told = checkpointing(run, (), ledger(run))

    assert (told.failures, told.best, told.curve) == (0, None, ())


def test_unknown_time_of_a_save_is_asked_for():
    """Nothing is assumed for the time that a save takes."""
    run = make_run(steady(1, 500))
    told = checkpointing(run, [incident(400, 500)], ledger(run))

    assert told.best is None
    assert "add --fact checkpoint_seconds=S" in told.save_source


def test_best_interval_from_two_restarts():
    """Young: sqrt(2 x 30 s x time between failures)."""
    step = [*range(1, 10_001), *range(9001, 20_001), *range(19_001, 30_001)]
    wall = START + np.arange(len(step)) * 1.0
    run = make_run(
        {"step": step, "loss": np.full(len(step), 2.0), "wall": wall},
        flags={"checkpoint_seconds": 30},
    )
    told = checkpointing(run, (), ledger(run))

    assert told.failures == 2
    assert told.best == pytest.approx(np.sqrt(2 * 30 * len(step) / 2), rel=0.05)
    assert min(told.curve, key=lambda point: point[1])[0] == told.best


def test_time_of_a_save_as_seen():
    """A pause of 20 s at every 100th step is the time of a save."""
    run = steady(1, 1000)
    run["wall"] = run["wall"] + 20.0 * (run["step"] // 100)
    made = make_run(run, facts={"checkpoint_every": 100})
    told = checkpointing(made, [incident(900, 1000)], ledger(made))

    assert told.save_seconds == pytest.approx(20)
    assert "10 saves" in told.save_source


@given(st.floats(0.01, 100), st.floats(1000, 1e6))
def test_daly_is_near_the_minimum(save, between):
    """No interval half or twice as long loses less, within the formula's own error."""
    best = daly(save, between)
    least = expected_loss(best, save, between)

    assert least <= expected_loss(best / 2, save, between) + 1e-9
    assert least <= expected_loss(best * 2, save, between) + 1e-9


# energy


def test_energy_of_gpu_hours():
    """100 GPU-hours at 700 W, load 0.5, PUE 1.2, 500 g/kWh: 42 kWh, 21 kg."""
    power = parse_power("watts=700,load=0.5,pue=1.2,gco2=500")

    assert power.kilowatt_hours(100) == pytest.approx(42)
    assert power.kilograms(100) == pytest.approx(21)
    assert parse_power("watts=700").kilograms(100) is None
    assert "upper bound" in parse_power("watts=700").assumption


@pytest.mark.parametrize("text", ["", "pue=1.2", "watts=a", "watts=-1", "watts=nan", "volts=3"])
def test_bad_energy_is_one_line(text):
    """Watts are never assumed."""
    with pytest.raises(SettingError, match="--energy"):
        parse_power(text)
