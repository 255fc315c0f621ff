"""The robust score and its helpers, against plain reference code."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.series import (
    MINIMUM,
    SHORT,
    SIGMA_PER_MAD,
    WINDOW,
    planned_changes,
    robust,
    signals,
    slope,
    stretches,
    warmup_end,
)
from tests.rules.runs import healthy, make_run


def reference(x, *, floor, z, effect):
    """The definition of the score, one value after the other."""
    flags, history, streak = [], [], 0
    for value in np.log(x):
        hit = False
        if len(history) >= MINIMUM:
            w = np.array(history[-WINDOW:])
            base = np.median(w[-SHORT:])
            half = len(w) // 2
            trend = (np.median(w[half:]) - np.median(w[:half])) / (len(w) / 2)
            rest = w - trend * np.arange(len(w))
            gaps = np.diff(np.unique(w))
            gaps = gaps[gaps > 1e-9]
            quantum = min(gaps.min(), 0.02) if len(gaps) else 0.0
            spread = max(SIGMA_PER_MAD * np.median(np.abs(rest - np.median(rest))), floor, quantum)
            hit = (value - base) / spread >= z and value - base >= math.log1p(effect)
        flags.append(hit)
        if hit:
            streak += 1
            if streak >= WINDOW:
                history, streak = [], 0
        else:
            streak = 0
            history.append(value)
    return np.array(flags)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 90), st.floats(1.06, 4.0))
def test_fast_score_is_the_defined_one(seed, width, factor):
    """Whole stretches at once give what one value after the other gives."""
    random = np.random.default_rng(seed)
    x = 2.0 + 5.0 * (np.arange(900) + 20.0) ** -0.4 + random.normal(0, 0.03, 900)
    for at in random.integers(70, 800, 5):
        x[at : at + width] *= factor
    got = robust(x, floor=0.005, z=6.0, effect=0.05)
    assert (got.flagged == reference(x, floor=0.005, z=6.0, effect=0.05)).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 1000.0))
def test_scores_do_not_depend_on_the_scale(seed, factor):
    """A loss in other units stands out by as much."""
    random = np.random.default_rng(seed)
    x = 2.0 + random.normal(0, 0.03, 400)
    x[300] = 3.0
    one, other = (robust(v, floor=0.005, z=6.0, effect=0.05) for v in (x, x * factor))
    assert (one.flagged == other.flagged).all()
    assert one.z == pytest.approx(other.z, abs=1e-6)


def test_negative_values_are_scored_too():
    """Rewards and policy losses cross zero: they are scored without a logarithm."""
    x = np.random.default_rng(0).normal(0, 1.0, 300)
    x[200] = 500.0
    assert np.flatnonzero(robust(x, floor=0.005, z=6.0, effect=0.05).flagged).tolist() == [200]


def test_history_can_be_inherited():
    """With the history of an earlier attempt the very first value can be judged."""
    before = 2.0 + np.random.default_rng(0).normal(0, 0.02, 64)
    got = robust(np.array([4.0, 2.0]), inherited=before, floor=0.005, z=6.0, effect=0.05)
    assert got.flagged.tolist() == [True, False]


def test_a_new_level_is_accepted_after_a_window():
    """After WINDOW flagged values in a row the new level is the level."""
    x = np.concatenate([np.full(100, 2.0), np.full(200, 3.0)])
    flagged = robust(x, floor=0.005, z=6.0, effect=0.05).flagged
    assert flagged.sum() == WINDOW


def test_restarts_of_the_history():
    """What comes after a planned change is not compared with what came before."""
    x = np.concatenate([np.full(100, 2.0), np.full(100, 3.0)])
    assert not robust(x, floor=0.005, z=6.0, effect=0.05, restarts=[100]).flagged.any()


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 5))
def test_stretches_cover_what_is_true(mask, gap):
    """Every True lies in one stretch, ends are True, and stretches are further apart than gap."""
    spans = stretches(np.array(mask, dtype=bool), gap=gap)
    covered = {i for a, b in spans for i in range(a, b + 1)}
    assert {i for i, m in enumerate(mask) if m} <= covered
    assert all(mask[a] and mask[b] for a, b in spans)
    assert all(later[0] - earlier[1] > gap + 1 for earlier, later in pairwise(spans))


def test_slope_ignores_an_outlier():
    """The median of the slopes of all pairs is not bent by one wild value."""
    x = np.arange(50.0)
    y = 2 * x
    y[25] = 1e6
    assert slope(x, y) == pytest.approx(2.0)
    assert math.isnan(slope(np.array([1.0]), np.array([1.0])))


def test_signals_inherit_only_what_was_not_overwritten():
    """An attempt goes on from the rows below its start, of the last attempt that wrote them."""
    step = [1, 2, 3, 4, 5, 3, 4, 4, 5]
    loss = [1.0, 2.0, 3.0, 4.0, 5.0, 30.0, 40.0, 400.0, 500.0]
    part = [0, 0, 0, 0, 0, 1, 1, 2, 2]
    run = make_run(step=step, loss=loss, **{"@part": part})
    assert [s.inherited.tolist() for s in signals(run, "loss")] == [
        [],
        [1.0, 2.0],
        [1.0, 2.0, 30.0],
    ]


def test_end_of_warm_up():
    """The top of the rising learning rate, or a hundredth of the run where it is not logged."""
    assert warmup_end(make_run(**healthy(2000))) == 100
    assert warmup_end(make_run(loss=healthy(2000)["loss"])) == 20
    assert warmup_end(make_run(loss=healthy(2000)["loss"], facts={"warmup_steps": 300})) == 300
    raised = np.where(np.arange(2000) < 1000, 1e-3, 3e-3)
    assert warmup_end(make_run(loss=healthy(2000)["loss"], learning_rate=raised)) == 20


def test_planned_changes_are_seen():
    """A larger batch and a leaping learning rate begin new segments."""
    columns = healthy(1000)
    columns["global_batch_size"] = np.where(np.arange(1000) < 400, 256, 512)
    columns["learning_rate"][700:] *= 3
    run = make_run(**columns)
    assert planned_changes(run, signals(run, "loss")[0]) == [400, 700]
