"""Reader ``litgpt``: micro-batches, steps, evaluations."""

import math
from pathlib import Path

import pytest

from tests.textlogs import column, read, sample, truth

LINE = "Epoch 1 | iter {} step {} | loss train: {}, val: n/a | iter time: 512.12 ms{} remaining time: 1:02:03\n"


def test_values_are_those_of_the_run():
    """The loss of a step is that of the line that ends it, not of the micro-batch after it."""
    run = sample("litgpt/bad_batch.log")

    assert column(run, "loss") == pytest.approx(truth("loss"), abs=6e-4)
    assert column(run, "val_loss") == pytest.approx(truth("val_loss"), abs=6e-5)
    assert "step_seconds" not in run.columns, "a micro-batch is half a step"
    assert (run.facts["parameters"].value, run.facts["seed"].value) == (120576, 42)


def test_one_micro_batch_a_step(tmp_path: Path):
    """Where each step has one micro-batch its time is that of the step."""
    text = "".join(LINE.format(s, s, x, " (step)") for s, x in ((1, "2.5"), (2, "nan"), (3, "2.4")))
    run = read(tmp_path / "log", text)

    assert column(run, "step_seconds")[1] == pytest.approx(0.51212)
    assert math.isnan(column(run, "loss")[2])


def test_no_line_ends_a_step(tmp_path: Path):
    """Where lines are logged off the steps the losses of micro-batches are taken, and it is said."""
    run = read(tmp_path / "log", "".join(LINE.format(4 * s + 1, s, 2.5, "") for s in range(4)))

    assert column(run, "loss") == dict.fromkeys(range(4), 2.5)
    assert any("micro-batches" in note for note in run.notes)


def test_a_step_whose_end_is_not_marked_is_told(tmp_path: Path):
    """A damaged mark of the end of a step is told with its line; the step is not made up."""
    text = "".join(LINE.format(s, s, 2.5, " (step)") for s in range(1, 9))
    broken = text.replace("(step)", "(stXp)", 4).replace("(stXp)", "(step)", 3)

    assert read(tmp_path / "log", text).bad.count == 0
    run = read(tmp_path / "log", broken)
    assert [line for line, _ in run.bad.first] == [4]
    assert run.frame["step"].to_list() == [1, 2, 3, 5, 6, 7, 8]


def test_a_step_without_its_last_micro_batch_is_told(tmp_path: Path):
    """Where the line that ends a step is not there, its loss is said to be unknown."""
    text = "".join(
        LINE.format(2 * s + last, s, 2.5, " (step)" if last else "")
        for s in range(1, 9)
        for last in (0, 1)
        if (s, last) != (4, 1)
    )

    notes = read(tmp_path / "log", text).notes
    assert "no line is marked as the end of 1 steps: their loss is unknown" in notes
