"""Steps out of what a log counts with: epochs and fractions."""

import json

import pytest

from stabcli.errors import LogError, UnknownFormat
from stabcli.readers import read_runs


def run_of(tmp_path, rows, name="log.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run,), _ = read_runs([str(path)])
    return run


def said(run, text):
    return any(text in note for note in run.notes)


def test_whole_epochs_are_the_steps_where_nothing_else_counts(tmp_path):
    run = run_of(tmp_path, [{"epoch": i, "loss": 3 - i / 99} for i in range(40)])

    assert run.frame["step"].to_list() == list(range(40))
    assert said(run, "'epoch' was taken as the step; --map step=NAME")


def test_fractions_of_epochs_do_not_fall_into_one_step(tmp_path):
    """Numbered in order; an evaluation at the same epoch shares the step of its row."""
    rows = [{"epoch": i / 50, "loss": 3 - i / 99} for i in range(1, 101)]
    rows.insert(50, {"epoch": 1.0, "val_loss": 2.5})
    run = run_of(tmp_path, rows)

    assert run.frame["step"].to_list() == list(range(1, 101))
    assert run.frame["epoch"].to_list() == [i / 50 for i in range(1, 101)]
    assert run.frame.row(49, named=True)["val_loss"] == 2.5
    assert said(run, "0.02 to 2, were numbered in order as steps 1 to 100")


def test_a_restart_goes_back_by_epochs_too(tmp_path):
    """The same epoch is the same step in both attempts."""
    rows = [{"epoch": i / 10, "loss": 3.0} for i in [*range(1, 30), *range(21, 50)]]
    run = run_of(tmp_path, rows)

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(1, 29), (21, 49)]


def test_many_rows_of_an_epoch_are_counted(tmp_path):
    """200 rows of 4 epochs are 200 steps, not 4."""
    run = run_of(tmp_path, [{"epoch": i // 50, "loss": 3 - i / 999} for i in range(200)])

    assert run.frame["step"].to_list() == list(range(1, 201))
    assert said(run, "has 4 values in 200 rows: the rows were counted")


def test_a_column_of_steps_goes_before_epochs(tmp_path):
    run = run_of(tmp_path, [{"step": 10 * i, "epoch": i / 9, "loss": 3.0} for i in range(30)])

    assert run.frame["step"].to_list() == list(range(0, 300, 10))
    assert not said(run, "epoch")


def test_fractional_steps_are_numbered(tmp_path):
    """Trackers may count in parts of a step; rounding would make one of many."""
    run = run_of(tmp_path, [{"step": i / 4, "loss": 3 - i / 999} for i in range(80)])

    assert run.frame.height == 80
    assert said(run, "the steps are fractions, 0 to 19.75")


def test_an_epoch_that_never_changes_counts_nothing(tmp_path):
    with pytest.raises(LogError, match="no step in the log"):
        run_of(tmp_path, [{"epoch": 0, "loss": 3.0} for _ in range(30)])


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), None])
def test_rows_without_an_epoch_are_left_out_and_counted(tmp_path, broken):
    rows = [{"epoch": i, "loss": 3.0} for i in range(30)]
    rows[7]["epoch"] = broken
    run = run_of(tmp_path, rows)

    assert run.frame.height == 29
    assert said(run, "1 row without a step left out")


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("Epoch {i}/30 | train_loss: {loss} | val_loss: 2.5", list(range(1, 31))),
        ("[INFO] epoch: {part} loss={loss} grad_norm=0.5", list(range(1, 31))),
        ("epoch {ten} loss: {loss}", list(range(1, 31))),
    ],
)
def test_lines_that_count_epochs_only(tmp_path, line, steps):
    """What loops print; whole, in parts, and many lines an epoch."""
    path = tmp_path / "train.log"
    said_lines = [
        line.format(i=i, part=f"{i / 50:.2f}", ten=i // 10, loss=f"{3 - i / 99:.4f}")
        for i in range(1, 31)
    ]
    path.write_text("\n".join(said_lines) + "\n")
    (run,), _ = read_runs([str(path)])

    assert run.frame["step"].to_list() == steps
    assert run.frame["loss"].to_list() == [round(3 - i / 99, 4) for i in range(1, 31)]
    assert said(run, "nothing counts steps")
    assert said(run, "lines with an epoch and a loss were taken")


@pytest.mark.parametrize(
    "text",
    [
        "We trained for epoch 3 and the loss: 2.5 was fine.\n" + "And so on.\n" * 40,
        "Epoch 1 batch 10 loss: 2.5\n" * 30,
    ],
)
def test_prose_and_batches_without_steps_are_no_epochs(tmp_path, text):
    """One line of many that mentions both, and lines that count something else too."""
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(UnknownFormat):
        read_runs([str(path)])


def test_a_step_that_never_moves_is_no_step(tmp_path):
    """Every row is kept, in its order, and a leap among them is found where it was."""
    rows = [{"step": 1, "loss": 2 - i / 999 + (5 if i == 150 else 0)} for i in range(200)]
    run = run_of(tmp_path, rows)

    assert run.frame["step"].to_list() == list(range(1, 201))
    assert run.frame["loss"].to_list() == [row["loss"] for row in rows]
    assert said(run, "all 200 rows say that they are step 1: they were counted instead")


def test_a_few_rows_may_share_the_only_step(tmp_path):
    """A training row, an evaluation and a summary of a run of one step are one row."""
    run = run_of(tmp_path, [{"step": 1, "loss": 2.0}, {"step": 1, "val_loss": 2.1}])

    assert run.frame["step"].to_list() == [1]
    assert not said(run, "counted instead")
