"""Evidence: where a finding begins, and a row that shows what it claims."""

import numpy as np
import pytest

from stabcli.rules import run_rules, select
from tests.rules.runs import findings, healthy, make_run


def climbing(n, seed, *, at, times, early, noise=0.15):
    """Gradient norms that fall from ``early`` times their level at first, and climb from a row on."""
    random = np.random.default_rng(seed)
    row = np.arange(n)
    level = 0.3 * (1 + early * np.exp(-row / (0.04 * n)))
    climb = times ** np.clip((row - at) / (n - at), 0, 1)
    return level * climb * random.lognormal(0, noise, n)


@pytest.mark.parametrize("early", [0, 5, 40])
@pytest.mark.parametrize("seed", range(3))
def test_a_drift_of_the_gradient_norm_begins_where_it_climbs(early, seed):
    """However high the norm was in the first steps, which are no part of the climb."""
    norms = climbing(3000, seed, at=1500, times=6, early=early)
    (found,) = findings(make_run(loss=healthy(3000)["loss"], grad_norm=norms), "grad-norm-drift")

    assert 1400 <= found.first <= 1650


@pytest.mark.parametrize("seed", range(3))
def test_a_steep_climb_of_the_gradient_norm_begins_at_its_first_rows(seed):
    """Thirty times its level within 340 rows, in a run whose tenth is longer than that."""
    random = np.random.default_rng(seed)
    norms = 0.3 * random.lognormal(0, 0.15, 4000)
    norms[2500:] *= np.minimum(30, np.exp(np.arange(1500) / 100))
    (found,) = findings(make_run(loss=healthy(4000)["loss"], grad_norm=norms), "grad-norm-drift")

    assert 2480 <= found.first <= 2540


@pytest.mark.parametrize("interval", [1, 10])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_an_abrupt_divergence_begins_at_its_first_rows(interval, rows, seed):
    """A leap by a quarter, within a row or three, however noisy the rows before it are."""
    random = np.random.default_rng([seed, 7])
    n, at = 6000, 4000
    step = np.arange(1, n + 1) * interval
    loss = 1.9 + 8.5 * (step + 20.0) ** -0.42
    loss += 0.25 * loss[at] * np.clip((np.arange(n) - at + 1) / rows, 0, 1)
    loss += random.normal(0, 0.16, n)
    told = findings(make_run(step=step, loss=loss), "loss-divergence")
    (found,) = [f for f in told if f.severity != "notice"]

    assert abs(found.first / interval - (at + 1)) <= 3


def changed(metric, rows, change, n=3000):
    columns = healthy(n)
    columns[metric][rows] = change(columns[metric][rows])
    return columns


LEVELS = {
    "loss-broken": changed("loss", slice(None), lambda x: x + 20 + 9 * (np.arange(3000) == 0)),
    "loss-shift": changed("loss", slice(2000, None), lambda x: x * 1.3),
    "loss-divergence": changed("loss", slice(2000, None), lambda x: x * 1.3),
    "loss-drop": changed("loss", slice(2130, None), lambda x: x * 0.7),
    "grad-norm-drift": {
        **healthy(3000),
        "grad_norm": climbing(3000, 1, at=1500, times=6, early=40),
    },
    "throughput-drop": changed("tokens_per_second", slice(2000, None), lambda x: x * 0.8),
}
"""Columns in which a rule finds a level, whose value it tells."""


@pytest.mark.parametrize("rule", LEVELS)
def test_a_level_is_cited_by_a_row_that_shows_it(rule):
    """Whoever opens the log at that line sees about the value that is told, not an outlier."""
    run = make_run(**LEVELS[rule])
    told = [f for f in findings(run, rule) if f.severity != "notice"]

    assert told
    for found in told:
        assert found.line is not None
        row = run.frame.row(found.line - 1, named=True)
        assert (row["step"], row["attempt"]) == (found.peak, found.attempt)
        assert found.first <= found.peak <= found.last
        assert row[found.metric] == pytest.approx(found.value, rel=0.01)


def test_a_level_between_all_rows_is_cited_by_the_nearest():
    """Losses of 20 and 30 by turns have a median of neither."""
    loss = np.where(np.arange(400) % 2, 20.0, 30.0)
    found, _ = run_rules(make_run(loss=loss), select((), ("loss-broken",)))

    assert [(f.value, f.line) for f in found] == [(25.0, 1)]
