"""Reader aim: tables of Aim's metrics."""

import math

import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.readers.tracker_runs import assert_written, claimed, column, runs_of, the_run
from tests.tracker_writing import ROWS, clock, write_aim


def test_a_table_is_read(tmp_path):
    """Contexts tell the losses apart, and an empty value is a NaN."""
    path = write_aim(tmp_path / "a.csv")
    run = the_run(path)

    assert claimed(path) == ["aim"]
    assert_written(run)
    assert run.columns["val_loss"] == "eval/loss"
    assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]
    assert run.facts["seed"].value == 7
    assert run.notes == ("1 empty values are NaN, as pandas writes them: 'train/loss'",)


def test_the_row_number_of_pandas_is_no_metric(tmp_path):
    path = write_aim(tmp_path / "a.csv")
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join([f",{lines[0]}", *(f"{i},{x}" for i, x in enumerate(lines[1:]))]) + "\n"
    )

    assert claimed(path) == ["aim"]
    assert_written(the_run(path))


def test_several_runs_and_a_restart(tmp_path):
    """Metrics stand one after another, so that only the clock shows where the run went back."""
    path = write_aim(tmp_path / "a.csv", [*ROWS[:15], *ROWS[8:]])
    lines = path.read_text().splitlines()
    other = [line.replace("abc123", "def456") for line in lines[1:]]
    path.write_text("\n".join([*lines, *other]) + "\n")
    runs = runs_of(path)

    assert [r.name for r in runs] == ["abc123", "def456"]
    for run in runs:
        assert [(a.first_step, a.last_step) for a in run.attempts] == [(0, 14), (8, 19)]
        assert_written(run)


def test_contexts_of_any_kind(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "idx,step,value,epoch,time,metric.name,metric.context.subset,metric.context.rank\n"
        "0,1,2.0,0,2026-01-01 08:00:00,loss,train,3\n"
        "0,1,2.5,0,2026-01-01 08:00:00,loss,,\n"
        "0,1,9.0,0,2026-01-01 08:00:00,__system__cpu,,\n"
        "1,2,,0,2026-01-01 08:00:02,loss,,\n"
    )
    run = the_run(path)

    assert column(run, "train/loss (rank=3)") == {1: 2.0}
    assert column(run, "loss")[1] == 2.5
    assert math.isnan(column(run, "loss")[2])
    assert "values of the machine (__system__…) not read: 1" in run.notes


def test_a_table_without_names_is_named_after_its_file(tmp_path):
    path = tmp_path / "loss.csv"
    path.write_text(
        "idx,step,value,epoch,time\n0,1,2.0,,2026-01-01 08:00:00\n1,2,1.5,,2026-01-01 08:00:01\n"
    )
    run = the_run(path)

    assert run.columns["loss"] == "loss"
    assert run.notes[0].startswith("the table does not name its metric: 'loss', after the file")


def test_what_is_broken_is_told(tmp_path):
    path = write_aim(tmp_path / "a.csv")
    text = path.read_text()
    path.write_text(
        text + "1,2\n9,30,x,,2026-01-01 08:00:00,abc123,7,loss,train\n9,31,1.5,,,abc123,7,loss,tr"
    )
    run = the_run(path)

    assert_written(run)
    assert run.bad.count >= 2
    path.write_text(text.splitlines()[0] + "\n")
    with pytest.raises(LogError):
        read_runs([str(path)])
    path.write_text("a,b\n1,2\n")
    with pytest.raises(LogError, match="no columns idx, step, value, epoch, time"):
        read_runs([str(path)], format_name="aim")


def test_what_aim_itself_wrote_is_what_was_logged():
    run = the_run(SAMPLES / "aim/diverged.csv")
    csv = the_run(SAMPLES / "csv/diverged_metrics.csv")
    for metric in ("loss", "grad_norm", "learning_rate", "val_loss"):
        ours = run.frame.select("step", metric).drop_nulls()
        assert ours.equals(csv.frame.select("step", metric).drop_nulls()), metric
