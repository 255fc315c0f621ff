"""What published detectors have in common, held against plain loops."""

import numpy as np
import pytest

from stabcli.published import (
    above_average,
    all_so_far,
    finite_only,
    in_a_row,
    not_within_deviations,
    runs_above,
    window,
)
from tests.rules.runs import findings, make_run

NAN = np.nan


@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("broken", [(), (40,), (40, 41, 90)])
def test_window_is_the_values_before(sample, broken):
    """Mean and deviation of the 16 before; NaN where one of those is, as in a running sum."""
    x = np.random.default_rng(0).normal(3, 1, 120)
    x[list(broken)] = NAN
    mean, sigma = window(x, 16, 8, sample=sample)
    for i in range(len(x)):
        before = x[max(0, i - 16) : i]
        if len(before) < 8:
            assert np.isnan(mean[i])
            continue
        assert mean[i] == pytest.approx(before.mean(), nan_ok=True)
        assert sigma[i] == pytest.approx(before.std(ddof=int(sample)), nan_ok=True)


def test_one_nan_stops_all_updates_for_a_window():
    """A NaN is not at most anything, and neither is what follows until it has left the window."""
    x = np.random.default_rng(1).normal(3, 0.1, 400)
    x[200] = NAN
    said = not_within_deviations(x, width=128, least=64, sigmas=6.0, floor=0.0, sample=True)
    assert np.flatnonzero(said.fired).tolist() == list(range(200, 329))
    inner = finite_only(
        lambda v: not_within_deviations(v, width=128, least=64, sigmas=6, floor=0, sample=True)
    )
    assert np.flatnonzero(inner(x).fired).tolist() == [200]


def test_rows_in_a_row():
    assert in_a_row(np.array([1, 1, 0, 1, 1, 1, 0], bool)).tolist() == [1, 2, 0, 1, 2, 3, 0]
    fired = runs_above(np.array([6.0, 6, NAN, 6, 6, 6, 6]), 5.0, 3).fired
    assert np.flatnonzero(fired).tolist() == [5, 6], "a value that is not finite begins anew"


def test_average_learns_from_quiet_values_or_from_clipped_ones():
    """A level that doubles for good: one average never learns it, the other does."""
    x = np.concatenate([np.ones(50), np.full(400, 4.0)])
    quiet = above_average(x, keep=0.9, ratio=2.0, warm=10)
    clipped = above_average(x, keep=0.9, ratio=2.0, warm=10, learns="clipped")
    assert quiet.fired[50:].all()
    assert clipped.fired[50]
    assert not clipped.fired[-100:].any()


def test_all_so_far_against_a_loop():
    x = np.random.default_rng(2).normal(1e6, 1, 300)
    x[200] += 9
    said = all_so_far(x, warm=30, sigmas=3.5)
    for i in range(30, 300):
        before = x[:i]
        away = abs(x[i] - before.mean()) > 3.5 * before.std(ddof=1)
        assert said.fired[i] == away


@pytest.mark.parametrize(
    "rule", ["arc", "lightning-spike", "olmo-stability", "llmfoundry-killlossspike"]
)
def test_ratio_and_deviation_rules_miss_a_published_divergence(rule):
    """tr8-104B went from 6.44 to 11.4 for good, 1.77 times its level, once every ten steps."""
    random = np.random.default_rng(3)
    level = np.concatenate([np.full(150, 6.44), np.full(10, 11.4)])
    run = make_run(loss=level * random.lognormal(0, 0.01, 160), step=10 * np.arange(1, 161))
    found = findings(run, rule)
    assert bool(found) is (rule == "olmo-stability")


def test_a_spike_hides_the_next_from_windows_that_keep_it():
    """After a spike to three times the level a cluster 15 % up is lost on OLMo's window."""
    x = np.random.default_rng(4).normal(2.0, 0.02, 500)
    x[300] *= 3
    x[340:346] *= 1.15
    assert {f.first for f in findings(make_run(loss=x), "olmo-stability")} == {301}
    assert {f.first for f in findings(make_run(loss=x), "loss-spike")} >= {301, 341}


def test_a_nan_in_the_window_blinds_a_mean():
    """Five rows after a NaN no mean of five is there to compare with."""
    x = np.full(40, 2.0) + np.random.default_rng(5).normal(0, 0.01, 40)
    x[20], x[23] = NAN, 50.0
    assert findings(make_run(loss=x), "arc") == []
    assert findings(make_run(loss=x), "arc", faithful=False)


def test_a_stale_line_is_looked_at_in_every_step():
    """axolotl looks each step: with a row in three steps one high row is three violations."""
    loss = np.full(60, 2.0)
    loss[30] = 9.0
    sparse = make_run(loss=loss, step=3 * np.arange(1, 61))
    assert [f.first for f in findings(sparse, "axolotl-watchdog")] == [93]
    assert findings(sparse, "axolotl-watchdog", faithful=False) == []
    assert findings(make_run(loss=loss), "axolotl-watchdog") == []
