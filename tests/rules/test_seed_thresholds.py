"""Preset ``seed`` to the letter: each rule of thumb at, just below and just above its threshold."""

import math

import numpy as np
import pytest

from tests.rules.runs import findings, fires, make_run, skipped

NAN, INF = math.nan, math.inf


def above(x):
    return math.nextafter(x, INF)


def below(x):
    return math.nextafter(x, -INF)


def clear_of(x, side):
    """A value just beside ``x``, by more than the slack for rounding."""
    return x * (1 + side * 1e-9)


TOKENS = [1e6, 2e6, 3e6, 4e6, 5e6]
"""Counted tokens, which make a run one of a language model."""


@pytest.mark.parametrize(
    ("value", "expected"), [(4.0, False), (clear_of(4.0, -1), False), (clear_of(4.0, 1), True)]
)
def test_loss_spike_is_above_twice_the_mean_of_a_hundred(value, expected):
    """2.0 is the mean of the hundred before; the 50 before those stood at 100 and do not count."""
    assert fires("seed-loss-spike", loss=[100.0] * 50 + [1.0, 3.0] * 50 + [value]) is expected


def test_loss_spike_compares_with_a_mean_not_with_a_median():
    """Nineteen 1s and one 21 have mean 2: 3.9 is not above twice that, 4.1 is."""
    history = [1.0] * 19 + [21.0]
    assert not fires("seed-loss-spike", loss=[*history, 3.9])
    assert fires("seed-loss-spike", loss=[*history, 4.1])


@pytest.mark.parametrize(("rows", "expected"), [(19, False), (20, True)])
def test_loss_spike_needs_twenty_rows_of_history(rows, expected):
    """The row after 20 rows is compared; the row after 19 is not, though the next one would be."""
    assert fires("seed-loss-spike", loss=[2.0] * rows + [9.0, 2.0, 2.0]) is expected


def test_loss_spike_at_the_threshold_is_quiet_whatever_the_rounding():
    """Sums of 0.1 are not exact; twice 0.1 is not above twice the mean all the same."""
    for level in (0.1, 0.3, 1.7, 2.2):
        assert not fires("seed-loss-spike", loss=[level] * 100 + [2 * level])


@pytest.mark.parametrize("value", [1.0, below(1.0), above(1.0)])
def test_grad_norm_high_is_above_one(value):
    assert fires("seed-grad-norm-high", grad_norm=[0.5, value, 0.5]) is (value > 1.0)


@pytest.mark.parametrize("metric", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nonfinite_is_any_nan_or_infinity(metric, value):
    found = findings(make_run(**{metric: [1.0, value, 1.0]}), "seed-nonfinite")
    assert [(f.metric, f.first, f.last, f.severity) for f in found] == [(metric, 2, 2, "critical")]
    assert not fires("seed-nonfinite", **{metric: [1.0, None, 1.7e308]})


@pytest.mark.parametrize(
    ("value", "expected"), [(12.0, False), (clear_of(12.0, -1), False), (clear_of(12.0, 1), True)]
)
def test_perplexity_rise_is_above_the_best_before_by_a_fifth(value, expected):
    """The best is 10, two evaluations before; against the evaluation just before it is no rise."""
    assert fires("seed-perplexity-rise", val_perplexity=[30.0, 10.0, 11.9, value]) is expected


def test_perplexity_rise_at_the_threshold_is_quiet_whatever_the_rounding():
    """1.2 times 3 is 3.5999999999999996 in floating point; 3.6 is not above it."""
    assert not fires("seed-perplexity-rise", val_perplexity=[3.0, 3.6])
    assert not fires("seed-perplexity-jump", val_perplexity=[3.0, 3.45])


@pytest.mark.parametrize(
    ("value", "expected"), [(23.0, False), (clear_of(23.0, -1), False), (clear_of(23.0, 1), True)]
)
def test_perplexity_jump_is_above_the_point_before_by_15_percent(value, expected):
    """20 is the point before; against the best, 10, all three would be a jump."""
    base = [10.0, 11.0, 12.5, 14.3, 16.4, 18.0, 20.0]
    assert fires("seed-perplexity-jump", val_perplexity=[*base, value]) is expected


def test_perplexity_is_computed_from_the_validation_loss_where_there_is_none():
    """0.19 nats are 20.9 %; the finding holds perplexities, and says where they come from."""
    run = make_run(val_loss=[3.0, None, 2.0, None, 2.19], tokens_seen=TOKENS)
    for rule in ("seed-perplexity-rise", "seed-perplexity-jump"):
        (found,) = findings(run, rule)
        assert (found.metric, found.first, found.tags) == ("val_perplexity", 5, ("from-val-loss",))
        assert found.value == pytest.approx(math.exp(2.19))
        assert found.expected == pytest.approx(math.exp(2.0))
    assert not fires("seed-perplexity-rise", val_loss=[3.0, 2.0, 2.18], tokens_seen=TOKENS[:3])
    assert not fires("seed-perplexity-jump", val_loss=[3.0, 2.0, 2.139], tokens_seen=TOKENS[:3])


def test_perplexity_as_logged_is_believed_before_the_validation_loss():
    """The loss rises by 1 nat, the perplexity logged beside it does not."""
    columns = {"val_loss": [2.0, 2.0, 3.0], "val_perplexity": [7.4, 7.4, 7.4]}
    assert not fires("seed-perplexity-rise", **columns)
    assert not fires("seed-perplexity-jump", **columns)


def test_an_attempt_without_perplexity_is_judged_by_its_loss():
    """The second attempt logged only val_loss: it is looked at all the same."""
    run = make_run(
        step=[10, 20, 30, 30, 40, 50],
        loss=[3.0, 3.0, 3.0, 3.0, 3.0, 3.0],
        val_perplexity=[8.0, 8.0, 8.0, None, None, None],
        val_loss=[None, None, None, 2.0, 2.0, 2.5],
        **{"@part": np.array([0, 0, 0, 1, 1, 1])},
    )
    assert len(run.attempts) == 2
    for rule in ("seed-perplexity-rise", "seed-perplexity-jump"):
        assert [f.first for f in findings(run, rule)] == [50]


def test_placeholders_are_no_perplexities():
    """0 and -1 mean that nothing was measured; Megatron's cap of exp(20) is the best of nothing."""
    for rule in ("seed-perplexity-rise", "seed-perplexity-jump"):
        assert not fires(rule, val_perplexity=[0.0, 12.0, -1.0, 12.0, 0.0, 11.0])
        assert not fires(rule, val_perplexity=[4.85e8, 4.85e8, 12.0])
        assert fires(rule, val_perplexity=[12.0, 4.85e8])
        assert fires(rule, val_perplexity=[12.0, NAN, 40.0])
        assert fires(
            rule, val_loss=[2.0, 800.0], tokens_seen=TOKENS[:2]
        )  # e to the 800 is infinite


@pytest.mark.parametrize("value", [0.1, below(0.1), above(0.1)])
def test_moe_aux_loss_is_above_a_tenth(value):
    assert fires("seed-moe-aux-loss", aux_loss=[0.01, value, 0.01]) is (value > 0.1)


@pytest.mark.parametrize("value", [10.0, below(10.0), above(10.0)])
def test_grad_norm_run_is_above_ten_for_three_rows(value):
    assert fires("seed-grad-norm-run", grad_norm=[1.0, 50.0, value, 50.0, 1.0]) is (value > 10.0)


@pytest.mark.parametrize(("rows", "expected"), [(2, False), (3, True), (4, True)])
def test_grad_norm_run_is_three_consecutive_logged_rows(rows, expected):
    """Rows that did not log the norm do not interrupt it; a row at 1 does."""
    high = [v for _ in range(rows) for v in (50.0, None)]
    assert fires("seed-grad-norm-run", grad_norm=[1.0, *high, 1.0, 50.0, 50.0]) is expected


def test_grad_norm_run_counts_infinity_and_not_nan():
    assert fires("seed-grad-norm-run", grad_norm=[1.0, 50.0, INF, 50.0])
    assert not fires("seed-grad-norm-run", grad_norm=[1.0, 50.0, 50.0, NAN, 50.0, 50.0])


@pytest.mark.parametrize(
    ("value", "expected"), [(70.0, False), (clear_of(70.0, 1), False), (clear_of(70.0, -1), True)]
)
def test_throughput_drop_is_below_70_percent_of_the_median_of_fifty(value, expected):
    """The median of the 50 rows before is 100; of the 49 or the 51 before it would be 110."""
    speed = [200.0] + [90.0] * 25 + [110.0] * 25 + [value]
    assert fires("seed-throughput-drop", tokens_per_second=speed) is expected


@pytest.mark.parametrize("value", [0.25, below(0.25), above(0.25)])
def test_mfu_low_is_below_a_quarter(value):
    assert fires("seed-mfu-low", mfu=[0.4, value, 0.4]) is (value < 0.25)


def test_mfu_low_reads_percentages():
    assert not fires("seed-mfu-low", **{"mfu(%)": [40.0, 25.0, 40.0]})
    assert fires("seed-mfu-low", **{"mfu(%)": [40.0, 24.9, 40.0]})


@pytest.mark.parametrize("value", [1.0, below(1.0), above(1.0)])
def test_entropy_collapse_is_below_one(value):
    entropy = [2.0] * 24 + [value]
    rising = fires("seed-entropy-collapse", entropy=entropy, reward=np.arange(25.0))
    assert rising is (value < 1.0)


@pytest.mark.parametrize(("slope", "expected"), [(1e-9, True), (0.0, False), (-1e-9, False)])
def test_entropy_collapse_wants_the_reward_to_rise(slope, expected):
    """The slope is that of the last 20 rewards: the steep fall of the 30 before counts for none."""
    reward = np.concatenate([np.linspace(9, 3, 30), 1.0 + slope * np.arange(20)])
    entropy = [2.0] * 49 + [0.5]
    assert fires("seed-entropy-collapse", entropy=entropy, reward=reward) is expected


def test_entropy_collapse_takes_the_median_of_slopes_not_a_regression():
    """Two rewards that crash at the end tip a regression, not the median of all pairs."""
    reward = np.concatenate([np.arange(18.0), [-500.0, -500.0]])
    assert np.polyfit(np.arange(20), reward, 1)[0] < 0
    assert fires("seed-entropy-collapse", entropy=[2.0] * 19 + [0.5], reward=reward)


@pytest.mark.parametrize(("train", "expected"), [(-1e-9, True), (0.0, False), (1e-9, False)])
def test_overfitting_wants_the_training_loss_to_fall(train, expected):
    steps = np.arange(5.0)
    columns = {"loss": 1.0 + train * steps, "val_loss": 2.0 + 0.1 * steps}
    assert fires("seed-overfitting", **columns) is expected


@pytest.mark.parametrize(("held_out", "expected"), [(1e-9, True), (0.0, False), (-1e-9, False)])
def test_overfitting_wants_the_validation_loss_to_rise(held_out, expected):
    steps = np.arange(5.0)
    columns = {"loss": 1.0 - 0.1 * steps, "val_loss": 2.0 + held_out * steps}
    assert fires("seed-overfitting", **columns) is expected


def test_overfitting_looks_at_five_evaluations():
    """The training loss of an evaluation is the median of the rows since the one before."""
    loss = [3.0, 3.0, 5.0, 2.9, 2.9, 6.0, 2.8, 2.8, 7.0, 2.7, 2.7, 8.0, 2.6, 2.6, 9.0]
    held_out = [None, None, 5.0, None, None, 2.0, None, None, 2.1, None, None, 2.2, None, None, 2.3]
    (found,) = findings(make_run(loss=loss, val_loss=held_out), "seed-overfitting")
    assert (found.first, found.last, found.value, found.expected) == (15, 15, 2.3, 2.0)
    assert skipped(make_run(loss=loss[:12], val_loss=held_out[:12]), "seed-overfitting")
