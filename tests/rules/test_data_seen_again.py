"""A data loader that starts over: the loss is too good after a restart until it runs out."""

import numpy as np
import pytest

from tests.rules.runs import findings, healthy, make_run, skipped

RESUME = 600
"""Steps that the weights had seen when the run went on from a checkpoint."""


def resumed(seed=0, n=2000, fall=0.94, until=2 * RESUME, back=120):
    """Columns of a run that went back ``back`` steps to step ``RESUME`` + 1, and on to its end.

    Its loss is ``fall`` times what it should be from there to step ``until``.
    """
    columns = healthy(n, seed)
    order = np.r_[0 : RESUME + back, RESUME:n]
    columns = {k: v[order] for k, v in columns.items()}
    again = np.arange(len(order)) >= RESUME + back
    columns["loss"][again & (columns["step"] <= until)] *= fall
    columns["wall_time"] = 1.75e9 + 2.0 * np.arange(len(order)) + 3000.0 * again
    return columns


def told(columns):
    """What is said of data that ran out."""
    run = make_run(**columns)
    assert len(run.attempts) == 2
    return [f for f in findings(run, "repeated-data") if "unseen-again" in f.tags]


@pytest.mark.parametrize("seed", range(20, 32))
@pytest.mark.parametrize("back", [5, 120])
def test_a_loss_that_steps_up_when_the_seen_data_runs_out_is_an_error(seed, back):
    (found,) = told(resumed(seed, back=back))
    assert found.severity == "error"
    assert found.first == RESUME + 1
    assert abs(found.last - 2 * RESUME) <= 40
    assert found.value < found.expected


@pytest.mark.parametrize("seed", range(20, 32))
@pytest.mark.parametrize(
    ("fall", "until"),
    [(1.0, 1), (0.94, 2000), (0.94, 900), (0.94, 1600), (1.06, 1200), (0.999, 1200)],
    ids=["healthy", "stays low", "too early", "too late", "a bump", "next to nothing"],
)
def test_anything_else_is_not(seed, fall, until):
    """A restart as such, a lower loss for good, a step at another date."""
    assert told(resumed(seed, fall=fall, until=until, back=120)) == []


@pytest.mark.parametrize("seed", range(20, 26))
def test_a_step_up_alone_is_a_shift(seed):
    """At the very step, with no fall before."""
    columns = resumed(seed, fall=1.0, back=120)
    columns["loss"][(columns["step"] > 2 * RESUME)] *= 1.06
    assert told(columns) == []


def test_a_run_that_ends_before_the_date_is_not_looked_at():
    columns = healthy(1000)
    order = np.r_[0:610, 600:1000]
    run = make_run(**{k: v[order] for k, v in columns.items()})
    assert "run out" in skipped(run, "repeated-data")
    assert "no restart" in skipped(make_run(**healthy(1000)), "repeated-data")


@pytest.mark.parametrize("value", [0.0, 2.0, float("nan"), float("inf"), 1e308])
def test_degenerate_losses_say_nothing(value):
    columns = resumed()
    columns["loss"] = np.full(len(columns["loss"]), value)
    run = make_run(**columns)
    with np.errstate(all="ignore"):
        assert skipped(run, "repeated-data") or findings(run, "repeated-data") == []
