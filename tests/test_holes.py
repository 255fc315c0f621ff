"""Holes: steps that a log does not tell of are neither productive nor wasted, and are named."""

import numpy as np
import pytest

from stabcli.cost import price
from stabcli.diagnosis import diagnose
from stabcli.report._sampling import blind_spots
from tests.ledgers import incident, make_run, steady


def joined(*parts):
    """Columns of several stretches, one after another."""
    return {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}


def holed(before=10_000, after=60_000, last=70_000, every=10):
    """A run logged every ten steps, of which a stretch is missing."""
    rows = joined(steady(every, before, every=every), steady(after, last, every=every))
    rows["wall"] = 1.7e9 + 2.0 * rows["step"]
    return rows


@pytest.mark.parametrize("clock", [True, False])
def test_steps_in_a_hole_are_unseen(clock):
    """The 50,000 steps between two rows are a class of their own, with tokens and time."""
    rows = holed()
    if not clock:
        del rows["wall"]
    report = price(make_run(rows, flags={"gpus": 8, "tokens_per_step": 1000}), ())
    classes = dict(report.classes)

    assert classes["unseen"].steps == 49_990
    assert classes["unseen"].tokens == 49_990_000
    assert classes["productive"].steps == 70_000 - 49_990
    if clock:
        assert classes["unseen"].gpu_hours == pytest.approx(49_990 * 2 * 8 / 3600)
    assert report.all.steps == 70_000
    assert report.total.steps == 0  # not wasted either
    assert report.goodput == 1.0
    assert any("49,990 steps between 10,000 and 60,000" in a for a in report.assumptions)


def test_a_hole_is_named_by_the_scan():
    """Nobody can know what happened there."""
    assert blind_spots(make_run(holed()))[0].startswith("steps 10,000..60,000: no row between them")


def test_a_hole_within_what_was_lost_is_lost():
    """A stretch after a divergence was lost whether it was logged or not."""
    report = price(make_run(holed()), [incident(9000, 70_000)])

    assert "unseen" not in dict(report.classes)
    assert dict(report.classes)["lost"].steps == 61_000


def test_a_hole_between_two_attempts_is_named():
    """A run that was resumed at a later step than it had reached."""
    rows = joined(steady(10, 10_000, every=10), steady(60_000, 70_000, every=10))
    part = [0] * 1000 + [1] * 1001
    said = blind_spots(make_run(rows, part=part))

    assert said[0].startswith("steps 10,000..60,000, before attempt 1: no row between them")


@pytest.mark.parametrize(
    "step",
    [
        np.arange(1, 2001),
        np.concatenate([np.arange(1, 101), np.arange(200, 20_001, 100)]),  # logged less often later
        np.concatenate([np.arange(1, 500), np.arange(505, 2001)]),  # a few rows lost
        np.array([1, 1000]),
        np.array([1, 2, 3, 1000]),
        np.arange(1, 1001) ** 2,
    ],
)
def test_logs_without_a_hole(step):
    """An interval that changes, a few lost rows and a handful of rows are no holes."""
    run = make_run({"step": step, "loss": np.full(len(step), 2.0)})

    assert run.holes == []
    assert "unseen" not in dict(diagnose(run).cost.classes)


def test_holes_without_end_are_counted():
    """Ten holes in one log: the first are named, the others counted."""
    step = np.concatenate([np.arange(i * 10_000, i * 10_000 + 1000) for i in range(11)])
    run = make_run({"step": step, "loss": 2 + 1 / (step + 1.0)})
    said = [line for line in blind_spots(run) if "no row" in line or "more such" in line]

    assert len(run.holes) == 10
    assert len(said) == 4
    assert said[-1] == "7 more such stretches"
