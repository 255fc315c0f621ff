"""What holds of the bill of any run, however odd its clock and its counters."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabcli.cost import CLASSES, price, row_classes
from stabcli.ledger import ledger
from tests.ledgers import START, incident, make_run, steady

attempts = st.lists(
    st.tuples(
        st.integers(1, 40),  # rows
        st.integers(0, 60),  # steps to go back
        st.integers(0, 2000),  # seconds of downtime
        st.integers(1, 64),  # GPUs
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def odd_runs(draw):
    """Runs of several attempts, with holes and leaps in their clock, NaN and skipped steps."""
    every = draw(st.integers(1, 10))
    step, clock = 0, START
    rows = []
    part = []
    for number, (count, back, down, gpus) in enumerate(draw(attempts)):
        if number:
            step, clock = max(0, step - back), clock + down
        for _ in range(count):
            step += every
            clock += draw(st.sampled_from([1.0, 1.0, 1.0, 1.3, 50.0, 0.0, -3600.0, 3600.0]))
            rows.append(
                {
                    "step": step,
                    "loss": draw(st.sampled_from([2.0, 2.0, 2.0, 9.0, float("nan")])),
                    "wall": draw(st.sampled_from([clock, clock, clock, None])),
                    "gpus": draw(st.sampled_from([gpus, gpus, gpus + 8, None])),
                    "skipped_steps": draw(st.sampled_from([0.0, 0.0, 2.0, None])),
                    "tokens_seen": draw(st.sampled_from([step * 100.0, None])),
                }
            )
            part.append(number)
    flags = draw(st.sampled_from([{}, {"gpus": 8}, {"tokens_per_step": 100, "gpus": 8}]))
    run = make_run(rows, flags=flags, part=part)
    first = draw(st.integers(0, step + 5))
    found = [
        incident(
            first,
            first + draw(st.integers(0, 50)),
            value=draw(st.sampled_from([9.0, float("nan")])),
            ending=ending,
            recovered=first + 20 if "recovery" in ending else None,
            attempt=draw(st.integers(0, 3)),
        )
        for ending in draw(st.lists(st.sampled_from(["diverged", "slow-recovery", "rolled-back"]),
                                    max_size=3))
    ]  # fmt: skip
    return run, found


@given(odd_runs())
@settings(max_examples=150, deadline=None)
def test_classes_are_disjoint_and_add_up(case):
    """Whatever the log: classes add up to the whole, nothing is negative, waste is a part."""
    run, found = case
    report = price(run, found)
    book = ledger(run)

    assert sum(c.steps for _, c in report.classes) == report.all.steps == int(book.steps.sum())
    assert report.total.steps <= report.all.steps
    for field in ("tokens", "gpu_hours"):
        whole = getattr(report.all, field)
        parts = [getattr(c, field) for _, c in report.classes]
        if whole is None:
            assert all(p is None for p in parts)
            continue
        assert all(p >= -1e-9 for p in parts)
        assert sum(parts) == pytest.approx(whole)
        assert getattr(report.total, field) <= whole * (1 + 1e-9)
        for cost in report.incidents:
            assert 0 <= getattr(cost, field) <= whole * (1 + 1e-9)
    assert report.goodput is None or -1e-9 <= report.goodput <= 1 + 1e-9
    if book.gpu_seconds is not None:
        spent = float(book.gpu_seconds.sum() + book.gap_gpu_seconds.sum())
        assert report.all.gpu_hours * 3600 == pytest.approx(spent)


@given(
    st.lists(st.tuples(st.integers(2, 60), st.integers(1, 30), st.floats(0, 5000)), min_size=1,
             max_size=5),
    st.integers(1, 1000),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_sum_is_the_wall_clock_times_gpus(parts, gpus):
    """With a sound clock all GPU-seconds are (last - first row + the first row's own) x GPUs."""
    step, clock = 0, START
    rows, part = [], []
    for number, (count, back, down) in enumerate(parts):
        step = max(0, step - back) if number else 0
        clock += down if number else 0.0
        for _ in range(count):
            step, clock = step + 1, clock + 2.0
            rows.append({"step": step, "loss": 2.0, "wall": clock})
            part.append(number)
    report = price(make_run(rows, flags={"gpus": gpus}, part=part), ())

    expected = (rows[-1]["wall"] - rows[0]["wall"] + 2.0) * gpus
    assert report.all.gpu_hours * 3600 == pytest.approx(expected, abs=1)
    assert sum(c.gpu_hours for _, c in report.classes) * 3600 == pytest.approx(expected, abs=1)


def test_each_row_has_one_class():
    """The class of a row is one index into CLASSES."""
    run = make_run(steady(1, 100))
    state = row_classes(run, [incident(10, 50), incident(60, 70, value=float("nan"))])

    assert state.shape == (100,)
    assert set(state.tolist()) <= set(range(len(CLASSES)))
    assert isinstance(run.frame, pl.DataFrame)
