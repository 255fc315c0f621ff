"""Shifts, drops, drifts, vanished gradients, policy losses, logits: quiet twins first."""

import numpy as np
import pytest

from stabcli.shifts import rises, slides, trimeans
from tests.rules.runs import findings, healthy, make_run, skipped

LOSS = ("loss-shift", "loss-drop", "loss-divergence")
NORM = ("grad-norm-vanishing", "grad-norm-drift", "spike-rate")


def changed(metric, where, change, n=2000, seed=0, noise=0.035):
    """A healthy run with ``change`` applied to some rows of a metric."""
    columns = healthy(n, seed=seed, noise=noise)
    columns[metric][where] = change(columns[metric][where])
    return make_run(**columns)


def told(run, rule, **settings):
    """First step, last step and severity of what a rule finds."""
    return [(f.first, f.last, f.severity) for f in findings(run, rule, **settings)]


# --- quiet ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*LOSS, *NORM])
@pytest.mark.parametrize("noise", [0.005, 0.035, 0.15])
def test_healthy_run_is_silent(rule, noise):
    """Ten clean runs at each of three noise levels give nothing at all."""
    for seed in range(10):
        run = make_run(**healthy(2000, seed=seed, noise=noise))
        assert findings(run, rule) == [], seed


@pytest.mark.parametrize("rule", LOSS)
def test_correlated_noise_is_silent(rule):
    """A loss that wanders, as uneven data makes it, does not shift."""
    for seed in range(10):
        random = np.random.default_rng(seed)
        wander = np.convolve(random.normal(0, 0.03, 2063), np.ones(64) / 8, "valid")
        columns = healthy(2000, seed=seed)
        columns["loss"] += wander
        assert findings(make_run(**columns), rule) == [], seed


def test_epochs_are_silent():
    """The loss falls where an epoch ends, logged or not, as a model learns its data by heart."""
    columns = healthy(1500)
    epoch = np.arange(1500) // 500
    columns["loss"] = 0.9 * 0.6**epoch + np.random.default_rng(0).normal(0, 0.02, 1500)

    assert findings(make_run(**columns, epoch=np.arange(1500) / 500), "loss-drop") == []
    assert all(f.severity == "notice" for f in findings(make_run(**columns), "loss-drop"))


def test_short_spike_is_no_shift():
    """Ten rows at three times the level leave the level where it was."""
    assert told(changed("loss", slice(1000, 1010), lambda x: 3 * x), "loss-shift") == []


def test_planned_change_is_no_shift():
    """A larger batch begins anew."""
    columns = healthy()
    columns["loss"][1200:] *= 1.15
    batch = np.where(np.arange(2000) < 1200, 256.0, 512.0)

    assert findings(make_run(**columns, global_batch_size=batch), "loss-shift") == []


def test_gradient_norm_that_was_always_zero_is_a_placeholder():
    """It says nothing, and the rule says that it could not look."""
    run = make_run(loss=np.full(100, 2.0), grad_norm=np.zeros(100))
    assert skipped(run, "grad-norm-vanishing").startswith("fewer than 16")


def test_two_rows_without_gradient_are_silent():
    """A loss scaler may skip that many."""
    run = changed("grad_norm", slice(1000, 1002), lambda x: 0 * x)
    assert told(run, "grad-norm-vanishing") == []


def test_policy_loss_around_zero_is_silent():
    """It changes its sign, has no level, and now and then a row is far out."""
    random = np.random.default_rng(0)
    loss = random.standard_t(4, 800) * 0.05
    assert (
        findings(make_run(reward=np.zeros(800), policy_loss=loss), "objective-loss-explosion") == []
    )


def test_logits_of_a_healthy_run_are_silent():
    """They settle at some ten."""
    logits = 12 * (1 - np.exp(-np.arange(1000) / 100)) + np.random.default_rng(0).normal(0, 1, 1000)
    assert findings(make_run(max_attention_logit=logits), "attention-logits") == []


def test_clip_below_the_usual_norm_is_a_choice():
    """All rows were cut from the start."""
    run = make_run(**healthy(), facts={"grad_clip": 0.1})
    assert findings(run, "clip-saturation") == []


# --- loud -----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.08, 1.15, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_shift_is_found_where_it_is(factor, seed):
    """From the row at which the level rose to the last before it fell, within three rows."""
    run = changed("loss", slice(1200, 1500), lambda x: factor * x, seed=seed, noise=0.02)
    ((first, last, severity),) = told(run, "loss-shift")

    assert abs(first - 1201) <= 3
    assert abs(last - 1500) <= 3
    assert severity == "warning"


def test_shift_of_15_percent_needs_64_rows():
    """It is found in a log that ends 64 rows after it, though rows differ by 7 %."""
    columns = {k: v[:1264] for k, v in healthy(2000, noise=0.15).items()}
    columns["loss"][1200:] *= 1.15
    assert [f for f, *_ in told(make_run(**columns), "loss-shift") if abs(f - 1201) <= 8]


def test_drop_is_found():
    """A quarter less within one row, at no edge of an epoch."""
    ((first, _, severity),) = told(
        changed("loss", slice(1130, None), lambda x: 0.75 * x, 1600), "loss-drop"
    )
    assert (abs(first - 1131) <= 2, severity) == (True, "warning")


def test_slow_drift_is_found():
    """10 % within a twentieth of the run, no row of which leaps."""
    n = 4000
    ramp = 1 + 0.1 * np.clip((np.arange(n) - 2400) / 200, 0, 1)
    columns = healthy(n)
    columns["loss"] *= ramp
    (found,) = findings(make_run(**columns), "loss-divergence")

    assert 2350 < found.first < 2600
    assert "gradual-onset" in found.tags


@pytest.mark.parametrize(("rows", "severity"), [(5, "warning"), (800, "error")])
def test_vanished_gradient_is_found(rows, severity):
    """A warning where it comes back, an error where it does not."""
    run = changed("grad_norm", slice(1200, 1200 + rows), lambda x: 1e-9 * x)
    assert told(run, "grad-norm-vanishing") == [(1201, 1200 + rows, severity)]


def test_policy_loss_that_explodes_is_found():
    """From a tenth to tens: at its first rows, though it swings about zero."""
    loss = np.random.default_rng(0).normal(0, 0.05, 600)
    loss[400:] *= 200
    ((first, _, severity),) = told(
        make_run(reward=np.zeros(600), policy_loss=loss), "objective-loss-explosion"
    )
    assert (abs(first - 401) <= 3, severity) == (True, "error")


def test_logits_above_100_are_found():
    """Three rows in a row."""
    logits = np.full(500, 20.0)
    logits[300:310] = 140
    assert told(make_run(max_attention_logit=logits), "attention-logits") == [(301, 310, "warning")]


def test_growing_gradients_are_found():
    """To eight times what they were, past the clip."""
    columns = healthy(3000)
    columns["grad_norm"] *= np.exp(2.1 * np.clip((np.arange(3000) - 1200) / 1500, 0, 1))
    run = make_run(**columns, facts={"grad_clip": 1.0})

    assert [s for *_, s in told(run, "grad-norm-drift")] == ["warning"]
    assert [s for *_, s in told(run, "clip-saturation")] == ["warning"]


def test_frequent_spikes_are_counted():
    """One notice with the share of rows."""
    run = changed("loss", slice(300, None, 150), lambda x: 2 * x)
    (found,) = findings(run, "spike-rate")
    assert found.severity == "notice"
    ours, theirs = (
        [float(t.rpartition("-")[2].rstrip("%")) for t in found.tags if t.startswith(start)]
        for start in ("rate-", "olmo2-rate-")
    )
    assert ours == pytest.approx([0.6], abs=0.1)
    assert theirs == pytest.approx([0.7], abs=0.2)


def test_short_runs_have_the_rate_of_short_windows_only():
    """1,000 rows and not one more."""
    columns = {k: v[:1000] for k, v in healthy(2000).items()}
    columns["loss"][300::150] *= 2
    (found,) = findings(make_run(**columns), "spike-rate")
    assert not any(t.startswith("olmo2-rate-") for t in found.tags)


# --- degenerate -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", [*LOSS, *NORM, "clip-saturation", "objective-loss-explosion", "attention-logits"]
)
@pytest.mark.parametrize(
    "values",
    [[], [2.0], [float("nan")] * 200, [0.0] * 200, [2.0] * 1500, [-1.0, 1.0] * 100, [1e308] * 200],
    ids=["empty", "one row", "NaN", "zero", "constant", "signs", "huge"],
)
def test_degenerate_series_neither_fire_nor_break(rule, values):
    """Nothing can be said of them, or nothing is wrong with them."""
    if not values:
        run = make_run(step=[1], loss=[None], grad_norm=[None], other=[1.0])
    else:
        run = make_run(
            loss=values,
            grad_norm=values,
            max_attention_logit=np.minimum(values, 50),
            facts={"grad_clip": 1e309},
        )
    if skipped(run, rule) is None:
        assert findings(run, rule) == []


def test_scale_of_the_loss_does_not_matter():
    """Shifts are found alike in nats and in bits."""
    columns = healthy(2000)
    columns["loss"][1200:] *= 1.2
    nats = told(make_run(**columns), "loss-shift")
    columns["loss"] = columns["loss"] / np.log(2)

    assert told(make_run(**columns), "loss-shift") == nats != []


def test_later_rows_change_no_shift():
    """What is told of the past stays so when the log grows."""
    columns = healthy(3000)
    columns["loss"][1200:1400] *= 1.2
    short = {k: v[:2500] for k, v in columns.items()}
    assert told(make_run(**short), "loss-shift") == told(make_run(**columns), "loss-shift") != []


def test_rises_of_short_series():
    """Fewer values than two windows hold no rise."""
    assert rises(np.arange(40.0), rows=32, least=0.1, sigmas=5) == []
    assert trimeans(np.arange(5.0), 32, 8)[0].size == 0


# --- drifts that a falling loss takes back ----------------------------------------------------


def falling(n=2000, noise=0.01, seed=0):
    """A loss that falls by a tenth while it drifts up by a tenth: no row lies above those before."""
    random = np.random.default_rng(seed)
    step = np.arange(1, n + 1)
    return 40.0 * step**-0.5 * np.exp(random.normal(0, noise, n))


def drifted(loss, first, rows, rise=0.10):
    """The same with a drift up by ``rise`` over some rows, for good."""
    return loss * (1 + rise * np.clip((np.arange(len(loss)) - first + 1) / rows, 0, 1))


def test_a_drift_that_the_fall_takes_back_is_a_slide():
    """Told where it was, a warning; the loss never rose above its lowest level by much."""
    loss = drifted(falling(), 500, 100)
    (found,) = findings(make_run(loss=loss), "loss-divergence")

    assert found.severity == "warning"
    assert "gradual-onset" in found.tags
    assert abs(found.first - 501) <= 40
    assert abs(found.last - 600) <= 40
    assert found.value / found.expected == pytest.approx(1.10, abs=0.03)


@pytest.mark.parametrize(
    "course",
    [
        lambda s: 12.0 * s**-0.3,
        lambda s: 2.0 + 8.0 * np.exp(-s / 300),
        lambda s: np.where(s < 1000, 12.0 * s**-0.3, 12.0 * 1000**-0.3),
        lambda s: 2.0 * 0.75 ** (s // 400),
        lambda s: 3.0 - s / 1500 - 0.4 * (s > 900),
    ],
    ids=["power", "exponential", "plateau", "epochs", "easier data"],
)
def test_healthy_falls_do_not_slide(course):
    """Neither a fall that ends, nor a staircase, nor a step down is a slide."""
    for seed in range(5):
        random = np.random.default_rng(seed)
        loss = course(np.arange(1.0, 2001.0)) * np.exp(random.normal(0, 0.01, 2000))
        assert findings(make_run(loss=loss), "loss-divergence") == [], seed


def test_a_small_climb_must_be_sure():
    """Four percent over a twentieth of the run are told in noise of 1 %, not in noise of 15 %."""
    for noise, told in ((0.01, True), (0.15, False)):
        random = np.random.default_rng(1)
        loss = 2.5 * np.exp(random.normal(0, noise, 3000))
        loss[1500:1640] *= 1.04
        assert bool(findings(make_run(loss=loss), "loss-divergence")) == told, noise


def test_slides_need_rows_for_their_lines():
    """Too short a series holds none, and neither does one that rises throughout."""
    assert slides(np.arange(30.0), np.arange(30.0), rows=8, least=0.1) == []
    assert slides(np.linspace(0, 1, 500), np.arange(500.0), rows=8, least=0.01) == []


@pytest.mark.parametrize("seed", range(6))
def test_fine_tune_that_memorises_is_silent(seed):
    """From 2 down to 1e-4, with single batches a hundred times that: never worse than 0.01."""
    random = np.random.default_rng(seed)
    loss = np.maximum(2 * np.exp(-np.arange(1200) / 60), 1e-4) * random.lognormal(0, 0.25, 1200)
    loss[random.integers(600, 1200, 20)] *= 80
    loss[900:] *= 4
    for rule in ("loss-spike", "loss-shift", "loss-divergence"):
        assert all(f.severity == "notice" for f in findings(make_run(loss=loss), rule)), rule


def test_fine_tune_that_unlearns_is_found():
    """The same run thrown back to half of where it began: no floor hides that."""
    random = np.random.default_rng(0)
    loss = np.maximum(2 * np.exp(-np.arange(1200) / 60), 1e-4) * random.lognormal(0, 0.25, 1200)
    loss[900:905] = 1.0
    (found,) = findings(make_run(loss=loss), "loss-spike")
    assert (found.severity, found.first) == ("critical", 901)


@pytest.mark.parametrize("factor", [0.7, 0.85])
@pytest.mark.parametrize("rows", [40, 90])
def test_the_end_of_a_dip_is_no_divergence(factor, rows):
    """Data seen before, or masked, for a while: what follows is the level of before."""
    for seed in range(6):
        run = changed("loss", slice(1230, 1230 + rows), lambda x: x * factor, seed=seed)
        grave = [f for f in findings(run, "loss-divergence") if f.severity != "notice"]
        assert grave == [], seed


def test_a_divergence_after_a_dip_is_one():
    """What rises beyond where the loss was before the dip is no return."""
    for seed in range(6):
        columns = healthy(2000, seed=seed)
        columns["loss"][1230:1270] *= 0.8
        columns["loss"][1400:] += np.linspace(0, 1.0, 600)
        found = findings(make_run(**columns), "loss-divergence")
        assert [f.severity for f in found if f.severity in ("error", "critical")], seed


def test_a_divergence_soon_after_a_steep_fall_is_one():
    """Early in a run the loss falls fast by itself: that is no dip."""
    for seed in range(6):
        columns = healthy(2000, seed=seed)
        columns["loss"][200:] = columns["loss"][200] + np.minimum(np.arange(1800) * 0.01, 1.5)
        found = findings(make_run(**columns), "loss-divergence")
        assert [f.severity for f in found if f.severity in ("error", "critical")], seed
