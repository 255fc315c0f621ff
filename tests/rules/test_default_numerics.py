"""Losses, gradient norms and non-finite values: what the default rules say of them."""

import numpy as np
import pytest

from stabcli.incidents import group
from stabcli.rules import run_rules, select
from tests.rules.runs import findings, healthy, make_run, skipped

NUMERICS = (
    "nonfinite",
    "hidden-nonfinite",
    "loss-spike",
    "loss-divergence",
    "loss-broken",
    "grad-norm-spike",
    "grad-norm-run",
    "grad-norm-high",
)


def grave(run, *names):
    """Findings above notice of the named rules, or of all that this page is about."""
    found, _ = run_rules(run, select((), names or NUMERICS))
    return [f for f in found if f.severity != "notice"]


def quantised(x: np.ndarray) -> np.ndarray:
    """Values as bf16 keeps them: 8 bits of significand."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).view(np.float32).astype(float)


# --- quiet ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("noise", [0.005, 0.035, 0.1])
def test_healthy_run_is_silent(seed, noise):
    """Twenty clean runs at three noise levels give nothing above notice."""
    assert grave(make_run(**healthy(1500, seed=seed + 500, noise=noise))) == []


@pytest.mark.parametrize("seed", range(10))
def test_heavy_tailed_batches_are_silent(seed):
    """Noise with Student's t of 4 degrees, as uneven batches have, gives nothing above notice."""
    columns = healthy(2000, seed=seed)
    columns["loss"] += np.random.default_rng(seed).standard_t(4, 2000) * 0.02
    assert grave(make_run(**columns)) == []


@pytest.mark.parametrize("seed", range(10))
def test_bf16_losses_are_silent(seed):
    """500 healthy losses that take only a dozen distinct values (MAD 0) give nothing."""
    random = np.random.default_rng(seed)
    loss = quantised(1.9 + random.normal(0, 0.004, 500))
    assert len(np.unique(loss)) < 15

    assert grave(make_run(loss=loss)) == []


def test_step_down_is_silent():
    """An easier data mix lowers the loss on purpose."""
    columns = healthy()
    columns["loss"][1200:] -= 0.25
    assert grave(make_run(**columns)) == []


def test_constant_series_is_silent():
    """A constant loss and gradient norm have no spread at all, and nothing stands out of them."""
    assert grave(make_run(loss=np.full(300, 2.0), grad_norm=np.full(300, 0.5))) == []


def test_warm_up_of_fp16_loss_scaling_is_silent():
    """Flat losses and missing gradient norms while a loss scaler settles are no fault."""
    columns = healthy(600)
    columns["loss"][:20] = 11.07
    gradient = columns["grad_norm"].tolist()
    gradient[:15] = [None] * 15
    columns["grad_norm"] = gradient
    assert grave(make_run(**columns)) == []


def test_unscaled_fp16_gradient_norms_are_silent():
    """Norms of 1e5, as tr8-104B logged them all along, are neither high nor a run."""
    columns = healthy()
    columns["grad_norm"] *= 3e5
    assert grave(make_run(**columns), "grad-norm-run", "grad-norm-spike") == []


def test_policy_losses_of_zero_are_silent():
    """GRPO logs a loss of exactly 0 beside a finite gradient norm: nothing hidden."""
    n = 200
    run = make_run(loss=np.zeros(n), grad_norm=np.full(n, 0.09), reward=np.linspace(1.0, 1.7, n))
    assert grave(run, "nonfinite") == []
    assert skipped(run, "hidden-nonfinite") is not None


# --- degenerate -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", NUMERICS)
@pytest.mark.parametrize(
    "loss",
    [[2.0], [2.0, 2.1], [float("nan")] * 40, [0.0] * 40, [-1.0] * 40, [2.0] * 15 + [1e300]],
    ids=["one", "two", "all-nan", "all-zero", "negative", "huge"],
)
def test_degenerate_runs_never_raise(rule, loss):
    """Whatever the series, a rule finds something, finds nothing, or says why it cannot look."""
    run = make_run(loss=loss, grad_norm=loss)
    run_rules(run, select((), (rule,)))


@pytest.mark.parametrize("rule", ["loss-spike", "grad-norm-spike", "grad-norm-run"])
def test_too_short_is_skipped(rule):
    """With fewer rows than a baseline needs, a rule says so instead of calling the run clean."""
    why = skipped(make_run(loss=[2.0] * 10, grad_norm=[0.5] * 10), rule)
    assert why is not None
    assert "fewer than" in why


# --- planted --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0])
def test_single_row_spike_is_found(seed, factor):
    """One row at one and a half times the level or more is found, at its step."""
    columns = healthy(seed=seed)
    columns["loss"][1400] *= factor
    (found,) = grave(make_run(**columns), "loss-spike")

    assert (found.first, found.last, found.peak) == (1401, 1401, 1401)
    assert found.severity in (("critical",) if factor > 2 else ("error", "critical"))


@pytest.mark.parametrize("seed", range(5))
def test_small_spike_that_lasts_is_found(seed):
    """A bump of 0.3 nats that decays over 20 rows is found within its first rows."""
    columns = healthy(seed=seed)
    columns["loss"][1400:1460] += 0.3 * np.exp(-np.arange(60) / 20)
    (found,) = grave(make_run(**columns), "loss-spike")
    assert 1401 <= found.first <= 1403


def test_spike_after_nan_is_found_too():
    """One NaN blinds no window: a spike 60 rows later is found."""
    columns = healthy()
    columns["loss"][1000] = np.nan
    columns["loss"][1060] *= 2.7
    run = make_run(**columns)

    assert [f.first for f in grave(run, "nonfinite")] == [1001]
    assert [f.first for f in grave(run, "loss-spike")] == [1061]


def test_spike_does_not_hide_the_next():
    """After a spike of three times the level, a cluster of +15 % rows is still found."""
    columns = healthy(noise=0.01)
    columns["loss"][1000] *= 3
    columns["loss"][1020:1032] *= 1.15
    found = grave(make_run(**columns), "loss-spike")
    assert [(f.first, f.last) for f in found] == [(1001, 1001), (1021, 1032)]


def test_bloom_gradient_leads_and_loss_follows():
    """BLOOM-176B, 2022-04-12: gradient norms and losses of iterations 31214 to 31222.

    The gradient leaves its level one iteration before the loss and four before the loss doubles;
    the incident is one, is led by the gradient, and ends in a fast recovery.
    """
    random = np.random.default_rng(0)
    n = 600
    step = np.arange(31000, 31000 + n)
    loss = 2.2 + random.normal(0, 0.015, n)
    gradient = random.lognormal(np.log(0.24), 0.05, n)
    at = 214
    gradient[at : at + 6] = [0.242, 0.947, 2.39, 15.9, 145.0, 960.351]
    loss[at : at + 6] = [2.199, 2.220, 2.595, 2.242, 2.345, 5.098]
    loss[at + 6 : at + 30] = 2.2 + 2.0 * np.exp(-np.arange(24) / 5)
    gradient[at + 6 : at + 12] = [100.0, 40.0, 10.0, 4.0, 2.0, 1.0]
    run = make_run(step=step, loss=loss, grad_norm=gradient)
    found, _ = run_rules(run, select((), NUMERICS))
    (incident,) = [i for i in group(run, found) if i.severity != "notice"]

    assert incident.lead.metric == "grad_norm"
    assert incident.first == 31215
    assert min(f.first for f in incident.findings if f.metric == "loss") == 31216
    assert {(f.metric, f.value) for f in incident.findings} >= {
        ("loss", 5.098),
        ("grad_norm", 960.351),
    }
    assert incident.severity == "critical"
    assert incident.ending == "fast-recovery"
    assert incident.recovered is not None
    assert incident.recovered <= 31215 + 40
    assert "grad-norm-first" in incident.tags


@pytest.mark.parametrize(
    ("onset", "before", "after"), [(7010, 6.44, 11.4), (6920, 6.37, 10.2)], ids=["exp1", "exp2"]
)
def test_tr8_divergence_is_found_at_its_first_line(onset, before, after):
    """BigScience tr8-104B diverged by ratios of 1.77 and 1.6, logged every 10 iterations.

    The rule of thumb (twice the moving average) never fires there; the robust one fires at the
    first bad line, and the loss does not come back.
    """
    random = np.random.default_rng(1)
    step = np.arange(5000, 7500, 10)
    loss = before + random.normal(0, 0.05, len(step))
    bad = step >= onset
    loss[bad] = after + random.normal(0, 0.1, int(bad.sum()))
    run = make_run(step=step, loss=loss)
    found, _ = run_rules(run, select((), ("loss-spike", "loss-divergence")))
    (incident,) = [i for i in group(run, found) if i.severity != "notice"]

    assert incident.first == onset
    assert incident.ending in ("new-basin", "diverged", "unresolved")
    assert incident.recovered is None
    assert findings(run, "seed-loss-spike") == []


def test_slow_drift_is_found():
    """A rise of 0.3 thousandths of a nat a step never leaps; it is a divergence all the same."""
    columns = healthy(4000)
    columns["loss"][2500:] += np.arange(1500) * 0.0003
    (found,) = grave(make_run(**columns), "loss-divergence")

    assert 2501 <= found.first <= 3100
    assert found.last == 4000
    assert "gradual-onset" in found.tags


def test_level_shift_begins_where_it_does():
    """A shift of +0.3 nats for good begins at its first row."""
    columns = healthy(4000)
    columns["loss"][2500:] += 0.3
    run = make_run(**columns)
    (found,) = grave(run, "loss-divergence")
    assert abs(found.first - 2501) <= 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_loss_is_critical(value):
    """A loss that is not finite is critical from its first row to its last."""
    columns = healthy(300)
    columns["loss"][200:] = value
    (found,) = grave(make_run(**columns), "nonfinite")
    assert (found.severity, found.metric, found.first, found.last) == ("critical", "loss", 201, 300)


def test_nan_in_an_unknown_column_is_not_passed_by():
    """A NaN in a column no table knows is a warning under the log's own name."""
    columns = healthy(300)
    columns["my/own"] = np.where(np.arange(300) == 250, np.nan, 1.0)
    (found,) = grave(make_run(**columns), "nonfinite")
    assert (found.severity, found.metric, found.first) == ("warning", "my/own", 251)


def test_nan_all_over_a_column_is_one_finding():
    """A column that is NaN every fiftieth row is told of once, not forty times."""
    columns = healthy(2000)
    columns["mine"] = np.where(np.arange(2000) % 50 == 7, np.nan, 1.0)
    (found,) = grave(make_run(**columns), "nonfinite")
    assert (found.first, found.last) == (8, 1958)
    assert found.tags == ("scattered", "40-rows")


@pytest.mark.parametrize(("rows", "severity"), [(1, "warning"), (2, "warning"), (3, "error")])
def test_gradient_that_overflows_for_a_step_or_two_is_a_skip(rows, severity):
    """A loss scaler skips one or two steps with an infinite gradient norm; three are a fault."""
    columns = healthy(300)
    columns["grad_norm"][200 : 200 + rows] = np.inf
    (found,) = grave(make_run(**columns), "nonfinite")
    assert found.severity == severity


def test_hidden_nan_of_the_hf_trainer_is_critical():
    """A loss of exactly 0 beside a gradient norm of NaN is a NaN that the trainer hid."""
    columns = healthy(300)
    columns["loss"][200:] = 0.0
    columns["grad_norm"][200:] = np.nan
    run = make_run(**columns)

    (found,) = grave(run, "hidden-nonfinite")
    assert (found.severity, found.first, found.last) == ("critical", 201, 300)
    assert run.frame["loss"].is_nan().sum() == 100


def test_loss_left_out_beside_a_nan_gradient_is_hidden_too():
    """Megatron prints no loss where it is NaN; the gradient norm of that line tells."""
    columns = healthy(300)
    loss = columns["loss"].tolist()
    loss[200] = None
    columns["loss"] = loss
    columns["grad_norm"][200] = np.nan
    run = make_run(**columns)

    assert [f.first for f in grave(run, "hidden-nonfinite")] == [201]
    assert [(f.metric, f.first) for f in grave(run, "nonfinite")] == [("grad_norm", 201)]


def test_loss_of_zero_without_gradient_norm_is_an_error():
    """Losses of exactly 0 on end, with nothing to tell why, are no perfection."""
    loss = healthy(300)["loss"]
    loss[200:] = 0.0
    (found,) = grave(make_run(loss=loss), "hidden-nonfinite")
    assert (found.severity, found.first, found.last) == ("error", 201, 300)


def test_gradient_run_without_the_loss_is_found():
    """Eighty rows at fifteen times the level are an error though the loss does not move."""
    columns = healthy()
    columns["grad_norm"][1200:1280] *= 15
    (found,) = grave(make_run(**columns), "grad-norm-spike")
    assert (found.severity, found.first) == ("error", 1201)


@pytest.mark.parametrize(("rows", "fires"), [(2, False), (3, True)])
def test_gradient_run_takes_three_rows(rows, fires):
    """Above 10 and five times the level for three rows in a row, not for two."""
    columns = healthy()
    columns["grad_norm"][1200 : 1200 + rows] = 11.0
    assert bool(grave(make_run(**columns), "grad-norm-run")) is fires


def test_share_of_high_gradients_is_a_statistic():
    """A gradient norm above 1 on half the rows is one notice for the run."""
    columns = healthy()
    columns["grad_norm"] = np.where(np.arange(2000) % 2, 0.8, 1.2)
    (found,) = findings(make_run(**columns), "grad-norm-high")
    assert found.severity == "notice"
    assert "statistic" in found.tags


def test_loss_broken_from_the_start_is_found():
    """Losses of hundreds of nats all along have no healthy baseline to stand out of."""
    random = np.random.default_rng(0)
    run = make_run(loss=random.lognormal(3.5, 1.0, 160), grad_norm=np.full(160, 1e4))
    (found,) = grave(run, "loss-broken")
    assert (found.first, found.last) == (1, 160)


def test_loss_stuck_at_a_random_guess_is_found():
    """A loss that stays at ln(vocabulary) learns nothing."""
    loss = np.log(35000) + np.random.default_rng(0).normal(0, 0.01, 200)
    assert [f.rule for f in grave(make_run(loss=loss), "loss-broken")] == ["loss-broken"]


def test_late_divergence_is_not_broken_from_the_start():
    """A run that learnt first and blew up later was not broken from the start."""
    columns = healthy()
    columns["loss"][1000:] += 20
    assert grave(make_run(**columns), "loss-broken") == []


def test_uneven_batches_are_a_notice_but_not_the_one_that_stands_out():
    """Many single rows of +25 % are usual in a run; one of +100 % among them is not."""
    random = np.random.default_rng(3)
    columns = healthy(3000, noise=0.06)
    for at in random.choice(np.arange(400, 2900), 25, replace=False):
        columns["loss"][at] *= 1.25
    columns["loss"][1500] = 2.0 * columns["loss"][1499]
    found = grave(make_run(**columns), "loss-spike")
    assert [f.peak for f in found] == [1501]


def test_resumed_attempt_inherits_its_history():
    """A spike right after a restart is judged by the rows before it, and marked as a resume."""
    columns = healthy(1200)
    step = np.concatenate([np.arange(1, 1001), np.arange(901, 1101)])
    loss = np.concatenate([columns["loss"][:1000], columns["loss"][900:1100]])
    loss[1100] *= 1.5
    loss[1005] *= 1.6
    found = findings(make_run(step=step, loss=loss), "loss-spike")

    assert [(f.attempt, f.first, f.severity) for f in found] == [
        (1, 906, "warning"),
        (1, 1001, "error"),
    ]
    assert "resume" in found[0].tags


@pytest.mark.parametrize(
    ("keep", "told"),
    [
        (lambda i: i < 2500, [("error", 2501, 3000)]),
        (lambda i: i < 2980, []),
        (lambda i: i % 5 == 0 and i < 2500, [("error", 2497, 3000)]),
        (lambda i: i < 1000 or i >= 1500, [("notice", 1001, 1500)]),
    ],
    ids=["gone", "too late to tell", "logged now and then, then gone", "back again"],
)
def test_a_loss_that_is_no_longer_logged_is_not_healthy(keep, told):
    """From then on nothing says how the run went, while its gradients go on."""
    columns = healthy(3000)
    columns["loss"] = [float(x) if keep(i) else None for i, x in enumerate(columns["loss"])]
    found = findings(make_run(**columns), "hidden-nonfinite")
    assert [(f.severity, f.first, f.last) for f in found] == told
