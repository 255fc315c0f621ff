"""Likeness: bit-equal, equal within float noise, of one shape, or different, each measured."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabcli.report._compare_rows import pair
from tests.rules.runs import healthy
from tests.test_comparison import compared, curve, sample


def alike(a, b):
    """How alike the losses of two runs are."""
    return compared({"loss": a}, {"loss": b}).pairs[0]


def test_a_run_is_bit_equal_to_itself():
    """NaN included: both trainers had it."""
    loss = curve()
    loss[[7, 300]] = np.nan
    found = alike(loss, loss.copy())

    assert found.verdict == "bit-equal"
    assert found.parting is None
    assert found.largest == 0
    assert found.rows == 400


def test_one_differing_metric_is_not_bit_equal():
    """The losses are the same numbers; a gradient norm is not: equal within noise of floats only."""
    a = {"loss": curve(), "grad_norm": np.ones(400)}
    b = {"loss": curve(), "grad_norm": np.where(np.arange(400) == 100, 1.1, 1.0)}
    found = compared(a, b).pairs[0]

    assert found.verdict == "float-noise"
    assert found.parting is not None
    assert (found.parting.step, found.parting.metric) == (101, "grad_norm")


def test_speed_is_of_the_machine():
    """Another pace on another day does not make two runs differ."""
    a, b = healthy(200), healthy(200)
    b["tokens_per_second"] = b["tokens_per_second"] * 0.5

    assert compared(a, b).pairs[0].verdict == "bit-equal"


@pytest.mark.parametrize(("size", "verdict"), [(1e-7, "float-noise"), (1e-5, "same-shape")])
def test_float_noise_has_a_limit(size, verdict):
    """One part in a million of the value; beyond it the runs are only of one shape."""
    loss = curve()
    other = loss * (1 + size * np.sign(np.random.default_rng(1).normal(size=400)))

    assert alike(loss, other).verdict == verdict


def test_one_unit_of_the_last_digit_is_float_noise():
    """A log of four decimals cannot tell less than 0.0001; two units it can."""
    loss = np.round(curve(), 4)
    step = np.where(np.arange(400) % 7 == 0, 1e-4, 0)

    assert alike(loss, np.round(loss + step, 4)).verdict == "float-noise"
    assert alike(loss, np.round(loss + 2 * step, 4)).verdict == "same-shape"


def test_growing_differences_are_measured():
    """Rounding that grows: where they parted, how small, how large in the end."""
    loss = curve()
    grown = 1e-7 * np.exp(np.maximum(0, np.arange(400) - 50) / 35)
    other = loss * (1 + np.where(np.arange(400) < 50, 0, grown))
    found = alike(loss, other)

    assert found.parting is not None
    assert found.parting.step == 51
    assert found.first == pytest.approx(1e-7, rel=0.1)
    assert found.early is not None
    assert found.late is not None
    assert found.late > 100 * found.early
    assert found.verdict == "same-shape"


def test_other_seeds_are_of_one_shape_and_other_levels_are_not():
    """Two draws of noise about one curve are alike; five percent higher is another curve."""
    same, higher = alike(curve(seed=0), curve(seed=1)), alike(curve(), curve(seed=1, level=2.1))

    assert same.verdict == "same-shape"
    assert abs(same.together) < 0.3
    assert higher.verdict == "different"


def test_the_same_batches_show_in_the_noise():
    """Loss a little higher, batches alike: the row-to-row noise of both moves together."""
    assert alike(curve(), curve() * 1.05).together > 0.9


def test_one_non_finite_alone_is_different():
    """And where it is, is told."""
    broken = curve()
    broken[200] = np.nan
    found = alike(curve(), broken)

    assert found.verdict == "different"
    assert found.largest == math.inf
    assert found.largest_step == 201


@pytest.mark.parametrize(("n", "verdict"), [(1, "unknown"), (10, "unknown"), (30, "same-shape")])
def test_few_rows_tell_no_shape(n, verdict):
    """Below twenty rows in common nothing is said of it."""
    assert alike(curve(n), curve(n, seed=1)).verdict == verdict


def test_no_step_in_common():
    """Nothing to compare is not the same as alike."""
    a = {"loss": curve(50), "step": np.arange(0, 100, 2)}
    b = {"loss": curve(50), "step": np.arange(1, 101, 2)}
    found = compared(a, b).pairs[0]

    assert (found.verdict, found.rows) == ("unknown", 0)


@pytest.mark.parametrize("value", [0.0, 2.0, float("nan")])
def test_constant_runs(value):
    """No spread, no noise to correlate, and no division by zero."""
    found = alike(np.full(100, value), np.full(100, value))

    assert found.verdict == "bit-equal"
    assert found.together is None


@given(st.integers(1, 300), st.floats(1e-9, 1.0), st.integers(0, 5))
def test_likeness_is_symmetric(n, size, seed):
    """Swapping the runs swaps the values and nothing else."""
    a = curve(n, seed=seed)
    b = a * (1 + size * np.random.default_rng(seed + 1).normal(size=n))
    there, back = alike(a, b), alike(b, a)

    assert (there.verdict, there.rows, there.largest) == (back.verdict, back.rows, back.largest)
    assert (there.within, there.together) == (back.within, back.together)


def test_a_restart_from_a_checkpoint_is_bit_equal_to_no_restart():
    """Over the rows that the restart did not take back."""
    found = sample("jsonl/clean.jsonl", "jsonl/restart.jsonl")

    assert found.pairs[0].verdict == "bit-equal"
    assert found.pairs[0].rows == 1000
    assert found.choice.keep == ("A", "B")
    assert found.twins == (("A", "B"),)


def test_a_bad_batch_parts_two_equal_runs():
    """The same seed up to the batch that was corrupted."""
    found = sample("jsonl/clean.jsonl", "jsonl/bad_batch.jsonl").pairs[0]

    assert found.verdict == "same-shape"
    assert found.parting is not None
    assert found.parting.step == 600
    assert found.together > 0.9


def fed(order, own, bad=(), n=600):
    """A curve whose rows shake with their batch, by ``order``, and a little by the run itself."""
    batch = np.random.default_rng(order).normal(0, 0.02, n)
    loss = 2.0 + 3.0 * (np.arange(n) + 20.0) ** -0.5
    loss = loss * np.exp(batch + np.random.default_rng(own).normal(0, 0.005, n))
    for at in bad:
        loss[at] *= 1.4
    return loss


@pytest.mark.parametrize("seed", range(5))
def test_the_same_bad_batch_is_told_where_the_order_is_the_same(seed):
    """Steps that stand out of both; a row that leaps in one alone is none."""
    both = alike(fed(seed, 100, bad=(300, 400, 450)), fed(seed, 101, bad=(300, 450, 500)))
    assert both.outliers == (301, 451)
    assert alike(fed(seed, 100), fed(seed, 101)).outliers == ()


def test_where_batches_are_that_uneven_none_is_news():
    """A fine-tune on single documents: dozens of rows stand out of both."""
    hard = range(100, 500, 10)
    assert alike(fed(1, 100, bad=hard), fed(1, 101, bad=hard)).outliers == ()


def test_in_another_order_a_step_is_not_a_batch():
    """Two runs may leap at one step by the schedule that they share."""
    assert alike(fed(1, 100, bad=(300,)), fed(2, 101, bad=(300,))).outliers == ()


def test_one_run_twice_tells_nothing_of_its_batches():
    """Bit-equal, or too short, or not finite there."""
    loss = fed(1, 100, bad=(300,))
    assert alike(loss, loss.copy()).outliers == ()
    assert alike(loss[295:310], fed(1, 101, bad=(300,))[295:310]).outliers == ()
    broken = fed(1, 101, bad=(300,))
    broken[300] = np.nan
    assert alike(loss, broken).outliers == ()


def test_a_shared_batch_that_stands_out_is_said():
    """In the text of the pair, with its step."""
    said = pair(alike(fed(1, 100, bad=(300,)), fed(1, 101, bad=(300,))))
    assert "the same row stands out in both (step 301)" in said
