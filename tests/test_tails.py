"""Tails: what a series reached, how surely that is known, and what never counts as reached."""

import math

import numpy as np
import pytest

from stabcli.tails import Kept, kept, level, tail
from tests.ledgers import make_run as run_with_restarts
from tests.rules.runs import make_run


def series(values) -> Kept:
    """A series at steps 0, 1, 2, …"""
    values = np.asarray(values, float)
    return Kept(rows=np.arange(len(values)), steps=np.arange(len(values)), values=values)


def test_level_is_the_median_and_its_error_shrinks_with_the_rows():
    """A hundred times the rows know the level ten times as well."""
    noise = np.random.default_rng(0).normal(2.0, 0.1, 10_000)
    few, many = level(series(noise[:100]), slice(None)), level(series(noise), slice(None))

    assert few.value == pytest.approx(2.0, abs=0.05)
    assert few.error == pytest.approx(1.2533 * 0.1 / 10, rel=0.5)
    assert many.error < few.error / 5


def test_neighbours_that_move_together_know_less():
    """A wandering series is not as well known as independent noise of the same spread."""
    white = np.random.default_rng(1).normal(0, 1, 2000)
    slow = np.repeat(white[:20], 100)

    assert level(series(slow), slice(None)).error > 3 * level(series(white), slice(None)).error


def test_a_trend_is_no_noise():
    """A straight line is known exactly."""
    assert level(series(np.linspace(3, 2, 200)), slice(None)).error < 1e-6


@pytest.mark.parametrize("n", [1, 2, 3, 16, 17, 400, 20_000])
def test_tail_is_one_in_twenty_within_bounds(n):
    """At least 16 rows, at most 500, and never more than there are."""
    assert tail(series(np.full(n, 2.0))).rows == min(n, 500, max(16, n // 20))


@pytest.mark.parametrize(
    "values",
    [
        [math.nan],
        [2.0] * 30 + [math.nan],
        [2.0] * 30 + [math.inf],
        [2.0] * 10 + [math.nan] * 40 + [2.0],
    ],
)
def test_a_run_that_ends_non_finite_reached_nothing(values):
    """A last value, or most of the tail, that is not finite is no level, whatever came before."""
    assert math.isnan(tail(series(values)).value)


def test_a_lone_nan_in_the_tail_is_left_out():
    """One NaN among finite values does not hide the level."""
    assert tail(series([2.0] * 30 + [math.nan] + [2.0] * 5)).value == 2.0


def test_steps_taken_back_are_not_kept():
    """Of a step that was redone only the last attempt counts."""
    rows = {"step": [*range(100), *range(60, 120)], "loss": [9.0] * 100 + [2.0] * 60}
    found = kept(run_with_restarts(rows), "loss")

    assert found.steps.tolist() == list(range(120))
    assert found.values[60:].tolist() == [2.0] * 60


def test_what_was_not_logged_is_not_kept():
    """An absent metric is None; so is one that was never logged."""
    assert kept(make_run(loss=[1.0, 2.0]), "grad_norm") is None
