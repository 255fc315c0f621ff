"""The points of a chart: whatever is left out, no smallest or largest value is, and no NaN."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabcli.report._html_points import MOST_STRETCHES, beside, broken, thinned

values = st.floats(min_value=-1e300, max_value=1e300)


def one(n: int) -> np.ndarray:
    """The attempts of rows that are all of one attempt."""
    return np.zeros(n, np.int32)


def test_few_rows_are_all_kept():
    """Nothing is left out where there is room; nothing is made of nothing."""
    assert thinned(np.arange(9), one(9), np.ones(9), most=9).tolist() == list(range(9))
    assert thinned(np.arange(0), one(0), np.ones(0), most=9).tolist() == []


@given(st.lists(values, min_size=1, max_size=300), st.integers(8, 60))
def test_every_row_has_a_point_as_high_and_one_as_low_beside_it(given_values, most):
    """Within a bucket's width of each row stands a point not below it and one not above it."""
    high = np.array(given_values)
    steps = np.arange(len(high)) * 10
    kept = thinned(steps, one(len(high)), high, most=most)
    width = (steps[-1] + 1) / max(1, most // 4)

    assert len(kept) <= most
    assert (np.diff(kept) > 0).all()
    for step, value in zip(steps, high, strict=True):
        near = high[kept[np.abs(steps[kept] - step) <= width]]
        assert near.max() >= value
        assert near.min() <= value


@given(st.data())
def test_spike_is_kept_wherever_it_stands(data):
    """One row in twenty thousand, up or down, in sparse or dense stretches, is drawn."""
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    steps = np.cumsum(np.where(np.arange(20_000) < 15_000, 1, 1000))
    series = random.normal(0, 1, 20_000)
    at = data.draw(st.integers(0, 19_999))
    series[at] = data.draw(st.sampled_from([50.0, -50.0]))
    near = np.arange(100, 400)

    assert at in thinned(steps, one(20_000), series, most=400, near=near)


@given(
    st.lists(st.tuples(st.integers(1, 30), values), min_size=1, max_size=120), st.integers(8, 99)
)
def test_many_attempts_stay_within_the_bound(lengths, most):
    """However many restarts, there are no more points than asked for, and the extremes are there."""
    attempts = np.concatenate([np.full(n, i) for i, (n, _) in enumerate(lengths)])
    steps = np.concatenate([np.arange(n) for n, _ in lengths])
    series = np.concatenate([np.full(n, v) + np.arange(n) for n, v in lengths])
    kept = thinned(steps, attempts, series, most=most)

    assert len(kept) <= most
    assert series.min() in series[kept]
    assert series.max() in series[kept]


def test_late_steps_do_not_overflow():
    """Steps near the largest that an integer holds are cut into buckets like any others."""
    steps = 2**61 + np.arange(10_000) * 2**40
    series = np.sin(np.arange(10_000))
    series[7777] = 9.0

    assert 7777 in thinned(steps, one(10_000), series, most=100)


def test_rows_beside_incidents_are_kept_while_there_is_room():
    """The rows around each span, the first span's first, up to a quarter of the points."""
    steps = np.arange(10_000)
    near = beside(steps, one(10_000), [(0, 5000, 5009), (0, 100, 100)], margin=5)

    assert near[:20].tolist() == list(range(4995, 5015))
    assert near[20:].tolist() == list(range(95, 106))
    kept = thinned(steps, one(10_000), np.zeros(10_000), most=80, near=near)
    assert set(range(4995, 5015)) <= set(kept.tolist())
    assert len(kept) <= 80


def test_spans_stay_in_their_attempt():
    """Rows of another attempt are not beside an incident, nor is an attempt that is not there."""
    steps, attempts = np.tile(np.arange(100), 2), np.repeat([0, 1], 100)

    assert beside(steps, attempts, [(1, 0, 2)], margin=5).tolist() == list(range(100, 108))
    assert beside(steps, attempts, [(7, 0, 2)], margin=5).tolist() == []


def test_finite_values_are_not_broken():
    """A series that is finite has no broken stretch, nor has an empty one."""
    assert broken(np.arange(9), one(9), np.ones(9)) == []
    assert broken(np.arange(0), one(0), np.ones(0)) == []


def test_stretches_are_told_apart():
    """A stretch ends with its attempt, and says what was in it."""
    series = np.array([1, np.nan, np.inf, np.nan, 1, -np.inf])
    found = broken(np.array([1, 2, 3, 1, 2, 3]), np.array([0, 0, 0, 1, 1, 1]), series)
    told = [(b.first, b.last, b.count, b.what) for b in found]

    assert told == [(1, 2, 2, "NaN, Inf"), (3, 3, 1, "NaN"), (5, 5, 1, "-Inf")]


@pytest.mark.parametrize("every", [2, 3, 50])
def test_every_nonfinite_row_is_counted(every: int):
    """Thousands of scattered NaN are drawn as few marks that count them all."""
    series = np.ones(20_000)
    series[::every] = np.nan
    found = broken(np.arange(20_000), np.repeat([0, 1], 10_000), series)

    assert len(found) <= MOST_STRETCHES + 1
    assert sum(b.count for b in found) == np.isnan(series).sum()
    assert all(a.last < b.first for a, b in pairwise(found))
