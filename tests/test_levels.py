"""Levels: medians of windows, lasting falls, what recurs at a fixed distance."""

import numpy as np
import pytest

from stabcli import levels
from stabcli.levels import (
    balanced_aux_loss,
    centred,
    falls,
    lasting,
    leading,
    noise,
    on_a_grid,
    trailing,
)

NOTHING = np.empty(0)


def wandering(n, seed, scale=0.01):
    """Noise that stays near its level but wanders: white noise and its running mean."""
    random = np.random.default_rng(seed)
    slow = np.convolve(random.normal(0, 1, n + 99), np.ones(100) / 10, "valid")
    return scale * (random.normal(0, 1, n) + 0.3 * slow)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("best", [False, True])
def test_wandering_speed_has_no_falls(seed, best):
    """A series that wanders about one level falls nowhere."""
    assert falls(wandering(3000, seed), history=NOTHING, depth=0.05, rows=20, best=best) == []


@pytest.mark.parametrize("n", [0, 1, 5, 39])
def test_short_series_has_no_falls(n):
    """Fewer values than twice the rows asked for are not judged."""
    assert falls(np.zeros(n), history=NOTHING, depth=0.05, rows=20) == []


def test_constant_series_has_no_falls():
    """A spread of zero makes no fall of nothing."""
    assert falls(np.zeros(500), history=NOTHING, depth=0.05, rows=20) == []


@pytest.mark.parametrize("seed", range(10))
def test_planted_fall_is_found_to_the_row(seed):
    """A fall of 6 % over 200 rows is one fall, its ends within three rows."""
    x = wandering(2000, seed, 0.005)
    x[1000:1200] -= 0.06

    found = falls(x, history=NOTHING, depth=0.05, rows=20)

    assert len(found) == 1
    assert abs(found[0].first - 1000) <= 3
    assert abs(found[0].last - 1199) <= 3
    assert found[0].depth == pytest.approx(0.06, abs=0.01)


def test_fall_that_lasts_to_the_end_ends_there():
    """Without a recovery the fall lasts as long as the series."""
    x = wandering(1000, 1, 0.005)
    x[600:] -= 0.5

    found = falls(x, history=NOTHING, depth=0.05, rows=20)

    assert [f.last for f in found] == [999]


def test_slow_slide_is_seen_against_the_best():
    """A slide of 20 % over the whole series is no step, but a fall from the best level."""
    x = wandering(3000, 2, 0.003) - np.linspace(0, 0.2, 3000)

    assert falls(x, history=NOTHING, depth=0.05, rows=20, sigmas=6) == []
    assert len(falls(x, history=NOTHING, depth=0.1, rows=40, before=100, best=True)) == 1


def test_history_counts_as_the_level_before():
    """A series lower than its history from its first value on has fallen at 0."""
    x = wandering(300, 3, 0.005)

    found = falls(x[100:] - 0.2, history=x[:100], depth=0.05, rows=20)

    assert [f.first for f in found] == [0]


def test_numbers_at_a_fixed_distance_are_on_a_grid():
    """Evaluations every 50 rows and checkpoints every 170 are both explained, a stall is not."""
    evals = np.arange(50, 1000, 50)
    saves = np.arange(85, 1000, 170)
    at = np.unique(np.concatenate([evals, saves, [333, 777]]))

    assert set(at[~on_a_grid(at, 1000)].tolist()) == {333, 777}


@pytest.mark.parametrize("seed", range(20))
def test_numbers_at_random_are_on_no_grid(seed):
    """Eight stalls at random rows of five thousand are not taken for a schedule."""
    at = np.sort(np.random.default_rng(seed).choice(5000, 8, replace=False))

    assert on_a_grid(at, 5000).sum() <= 2


@pytest.mark.parametrize("at", [[], [7], [7, 20]])
def test_few_numbers_are_on_no_grid(at):
    """One or two dips tell of no schedule."""
    assert not on_a_grid(np.array(at, np.int64), 100).any()


def test_windows_align():
    """``trailing`` looks back, ``leading`` ahead, ``centred`` both ways; short ends are NaN."""
    x = np.arange(6.0)

    np.testing.assert_array_equal(trailing(x, 3), [np.nan, np.nan, 1, 2, 3, 4])
    np.testing.assert_array_equal(trailing(x, 3, 1), [0, 0.5, 1, 2, 3, 4])
    np.testing.assert_array_equal(leading(x, 3), [1, 2, 3, 4, np.nan, np.nan])
    np.testing.assert_array_equal(centred(x, 3), [0.5, 1, 2, 3, 4, 4.5])
    assert len(centred(NOTHING, 3)) == len(trailing(NOTHING, 3)) == 0


def test_noise_ignores_trend():
    """Second differences see the noise, not the line under it."""
    x = np.random.default_rng(0).normal(0, 0.1, 2000)

    assert noise(x + np.linspace(0, 50, 2000)) == pytest.approx(0.1, rel=0.1)
    assert noise(np.ones(2)) == 0.0


def test_lasting_joins_and_drops():
    """Runs closer than the gap are one, runs that are too short are none."""
    mask = np.array([1, 1, 0, 1, 0, 0, 0, 1], bool)

    assert lasting(mask, 2) == [(0, 1)]
    assert lasting(mask, 3, gap=1) == [(0, 3)]
    assert lasting(np.zeros(3, bool), 1) == []


@pytest.mark.parametrize(
    ("early", "coefficient", "top_k", "expected"),
    [
        (1.02, None, None, (1.0, True)),
        (0.9, None, None, (1.0, True)),
        (2.05, None, None, (2.05, False)),
        (2.05, None, 2.0, (2.0, True)),
        (0.0102, 0.01, None, (0.01, True)),
        (0.0204, 0.01, 2.0, (0.02, True)),
        (2.3, 0.01, None, (1.0, True)),
        (17.0, None, None, (17.0, False)),
    ],
)
def test_balanced_aux_loss(early, coefficient, top_k, expected):
    """The start of the run decides between the conventions that its facts allow."""
    assert balanced_aux_loss(early, coefficient, top_k) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(300))
def test_what_counting_rules_out_no_median_shows(seed, monkeypatch):
    """The quick proof that nothing fell never hides a fall."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(20, 900))
    x = wandering(n, seed, scale=float(draw.uniform(0.001, 0.05)))
    start, length = int(draw.integers(0, n)), int(draw.integers(1, 80))
    x[start : start + length] -= draw.uniform(0, 0.4)
    x[: int(draw.integers(0, 12))] += draw.uniform(0, 0.4)
    asked = {
        "history": x[: int(draw.integers(0, 30))],
        "depth": float(draw.uniform(0.02, 0.2)),
        "rows": int(draw.integers(2, 40)),
        "before": int(draw.integers(40, 200)),
        "best": bool(draw.integers(0, 2)),
        "sigmas": float(draw.uniform(0, 6)),
    }
    quick = falls(x, **asked)
    monkeypatch.setattr(levels, "_may_fall", lambda *_: True)
    assert quick == falls(x, **asked)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("depth", [0.1, 0.3])
def test_a_fall_begins_where_it_does_and_not_at_a_low_row_before(seed, depth):
    """Of rows that scatter by 2 % one may be low by itself shortly before all are."""
    draw = np.random.default_rng(seed)
    x, at = draw.normal(0, 0.02, 900), int(draw.integers(250, 600))
    x[at : at + 200] += np.log(1 - depth)

    (fall,) = falls(x, history=NOTHING, depth=0.05, rows=20)

    assert abs(fall.first - at) <= 3
