"""Reader mlflow: folders and databases of MLflow."""

import math
import os
import shutil
import sqlite3

import polars as pl
import pytest

from stabcli.errors import LogError, UnknownFormat
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.readers.tracker_runs import assert_written, claimed, column, runs_of, the_run
from tests.tracker_writing import (
    CLOCK,
    ROWS,
    clock,
    mlflow_metric,
    mlflow_run,
    mlflow_store,
    write_mlflow,
)

RESTARTED = [*ROWS[:15], *ROWS[8:20]]


def insert(path, *metrics):
    database = sqlite3.connect(path)
    database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", metrics)
    database.commit()
    database.close()


def test_a_store_an_experiment_and_a_run_are_read(tmp_path):
    """``mlruns``, an experiment in it, a run in that, and the folder of the project."""
    experiment = mlflow_store(tmp_path / "mlruns", ROWS)
    (run_folder,) = (p for p in experiment.iterdir() if p.is_dir())
    (tmp_path / "mlruns/.trash").mkdir()
    (tmp_path / "mlruns/models").mkdir()
    for path in (tmp_path / "mlruns", experiment, run_folder):
        assert claimed(path) == ["mlflow"]
        run = the_run(path)
        assert run.name == "run0"
        assert_written(run)
    assert claimed(tmp_path) == []
    project = the_run(tmp_path)
    assert project.name == "run0"
    assert_written(project)


def test_a_database_is_read(tmp_path):
    """NaN and infinities are put back; all of the test's kinds of numbers are."""
    path = write_mlflow(tmp_path / "mlflow.db")
    run = the_run(path)

    assert claimed(path) == ["mlflow"]
    assert_written(run)
    assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]
    assert run.columns["loss"] == "train/loss"


def test_params_tags_and_endings_are_told(tmp_path):
    experiment = mlflow_store(tmp_path / "mlruns")
    folder = mlflow_run(experiment, status=4)
    (folder / "tags/gpu_name").write_text("H100")
    run = the_run(tmp_path / "mlruns")
    facts = {k: (f.value, f.source) for k, f in run.facts.items()}

    assert facts["gpus"] == (8, "params of the run, gpus")
    assert facts["grad_clip"] == (1.0, "params of the run, max_grad_norm")
    assert facts["gpu"] == ("H100", "tags of the run, gpu_name")
    assert facts["peak_lr"] == (3e-4, "params of the run, lr")
    assert run.notes == ("MLflow says FAILED: it ended with an error at 2026-01-01 08:03:18 UTC",)


@pytest.mark.parametrize(
    ("status", "said"), [("RUNNING", "it crashed"), ("KILLED", "stopped"), ("FINISHED", "")]
)
def test_how_a_run_of_a_database_ended(tmp_path, status, said):
    run = the_run(write_mlflow(tmp_path / "m.db", status=status))

    assert bool(run.notes) == bool(said)
    assert said in " ".join(run.notes)


def test_several_runs_stay_several(tmp_path):
    """Runs of one name carry their ids; those of several experiments the experiment's name."""
    path = write_mlflow(tmp_path / "m.db", run_id="1" * 32)
    write_mlflow(path, ROWS[:5], run_id="2" * 32)
    write_mlflow(path, ROWS[5:], run_id="3" * 32, name="other")
    runs = runs_of(path)

    assert [r.name for r in runs] == ["run (11111111)", "run (22222222)", "other"]
    assert [r.frame.height for r in runs] == [20, 5, 15]
    mlflow_store(tmp_path / "mlruns", ROWS, ROWS)
    second = mlflow_store(tmp_path / "second", ROWS, name="more")
    second.rename(tmp_path / "mlruns/2")
    assert [r.name for r in runs_of(tmp_path / "mlruns")] == [
        "samples/run0",
        "samples/run1",
        "more/run0",
    ]


def test_lines_of_every_width(tmp_path):
    """Two fields have no step, three have, five name a data set; others are told of."""
    folder = mlflow_run(mlflow_store(tmp_path / "mlruns"), ROWS[:0])
    at = int(CLOCK * 1e3)
    (folder / "metrics/loss").write_text(
        f"{at} 1.0 1\n{at} 1.5 2 pile abc\n{at} nan 3\n{at} -inf 4\nx\n{at} y 5\n{at} 2.0 6.5\n\n{at} 2"
    )
    (folder / "metrics/legacy").write_text(f"{at} 7.0\n{at + 2000} 8.0\n")
    run = the_run(tmp_path / "mlruns")

    assert column(run, "loss").keys() == {1, 2, 3, 4}
    assert math.isnan(column(run, "loss")[3])
    assert column(run, "loss")[4] == -math.inf
    assert run.bad.count == 4
    assert run.bad.first[0] == (5, f"1/{folder.name}/metrics/loss: no time, value and step")
    assert run.bad.first[-1] == (9, f"1/{folder.name}/metrics/loss: cut short")
    assert "2 values without a step left out: 'legacy'" in run.notes


def test_one_metric_of_two_data_sets_is_two_columns(tmp_path):
    folder = mlflow_run(mlflow_store(tmp_path / "mlruns"), ROWS[:0])
    at = int(CLOCK * 1e3)
    (folder / "metrics/eval").mkdir()
    (folder / "metrics/eval/loss").write_text(f"{at} 1.0 1 a x\n{at} 2.0 1 b y\n{at} 3.0 2 a x\n")
    run = the_run(tmp_path / "mlruns")

    assert column(run, "eval/loss (a)") == {1: 1.0, 2: 3.0}
    assert column(run, "eval/loss (b)") == {1: 2.0}


def test_metrics_without_steps_are_counted(tmp_path):
    """``log_metric`` without a step writes 0 every time."""
    path = write_mlflow(tmp_path / "m.db", [(0, {})])
    insert(path, *[mlflow_metric("loss", 3.0 - i, 0, "a" * 32, CLOCK + i) for i in range(5)])
    run = the_run(path)

    assert column(run, "loss") == {1: 3.0, 2: 2.0, 3: 1.0, 4: 0.0, 5: -1.0}
    assert run.notes == ("every step is 0: steps are counted by the values of 'loss'",)


def test_a_restart_is_two_attempts_in_both_places(tmp_path):
    """What both attempts logged is kept; a duplicate of the same value at a step is none."""
    rows = [(s, v) for s, v in RESTARTED]
    mlflow_store(tmp_path / "mlruns", [])
    folder = mlflow_run(tmp_path / "mlruns/1", [])
    database = write_mlflow(tmp_path / "m.db", [])
    for number, (step, values) in enumerate(rows):
        wall = CLOCK + number
        for key, value in values.items():
            path = folder / "metrics" / key
            path.parent.mkdir(exist_ok=True)
            with path.open("a") as file:
                file.write(f"{int(wall * 1e3)} {value} {step}\n")
            insert(database, mlflow_metric(key, value, step, "a" * 32, wall))
    for place in (folder, database):
        run = the_run(place)
        assert [(a.first_step, a.last_step, a.rows) for a in run.attempts] == [
            (0, 14, 15),
            (8, 19, 12),
        ]
        assert_written(run)


def test_what_mlflow_measures_of_the_machine_stays_apart(tmp_path):
    path = write_mlflow(tmp_path / "m.db", [(s, {**v, "system/gpu_0": 9.0}) for s, v in ROWS])
    run = the_run(path)

    assert "system/gpu_0" not in run.frame.columns
    assert run.notes == ("values of the machine (system/) not read: 20",)


def test_deleted_runs_are_left_out_and_said(tmp_path):
    path = write_mlflow(tmp_path / "m.db", run_id="1" * 32)
    write_mlflow(path, run_id="2" * 32, name="gone")
    write_mlflow(path, [], run_id="3" * 32, name="empty")
    database = sqlite3.connect(path)
    database.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE name = 'gone'")
    database.commit()
    run = the_run(path)
    assert run.name == "run"
    assert run.notes == ("left out, deleted runs: 1", "left out, runs without a metric: 1")
    database.execute("UPDATE runs SET lifecycle_stage = 'deleted'")
    database.commit()
    database.close()
    assert [r.name for r in runs_of(path)] == ["run", "gone"]


def test_links_that_lead_back_end(tmp_path):
    """A link to a folder above is not followed for ever, and no run is read twice."""
    experiment = mlflow_store(tmp_path / "mlruns", ROWS)
    (experiment / "again").symlink_to(experiment / ("0" * 32))
    (tmp_path / "mlruns/loop").symlink_to(tmp_path / "mlruns")
    (experiment / ("0" * 32) / "metrics/loop").symlink_to(experiment)
    (experiment / ("0" * 32) / "metrics/dangling").symlink_to(tmp_path / "nowhere")

    assert_written(the_run(tmp_path / "mlruns"))


def test_foreign_databases_are_nobodys(tmp_path):
    """A table of that name with other columns, or none: no reader claims the file."""
    for number, said in enumerate(("metrics (key TEXT, value REAL)", "t (a)")):
        path = tmp_path / f"{number}.db"
        database = sqlite3.connect(path)
        database.execute(f"CREATE TABLE {said}")
        database.close()
        with pytest.raises(UnknownFormat, match="a binary file that no reader knows"):
            read_runs([str(path)])
        with pytest.raises(LogError, match="no table of metrics of MLflow in it"):
            read_runs([str(path)], format_name="mlflow")


def test_a_database_without_its_other_tables(tmp_path):
    """Runs, params and tags may be missing or strange: the metrics are read all the same."""
    path = write_mlflow(tmp_path / "m.db")
    database = sqlite3.connect(path)
    for table in ("runs", "params", "tags", "experiments"):
        database.execute(f"DROP TABLE {table}")
    database.execute("CREATE TABLE runs (other TEXT)")
    database.commit()
    database.close()
    run = the_run(path)

    assert run.name == "a" * 32
    assert_written(run)


def test_rows_of_the_wrong_kind_are_told_of(tmp_path):
    path = write_mlflow(tmp_path / "m.db")
    insert(
        path,
        ("loss", "x", 1, "a" * 32, 1, 0),
        (b"\xff", 1.0, 1, "a" * 32, 1, 0),
        ("loss", 1.0, 1, b"\0", 1, 0),
        ("loss", 1.0, 1, "a" * 32, "later", 0),
        ("loss", 1.0, "never", "a" * 32, 50, 0),
    )
    run = the_run(path)

    assert run.bad.count == 4
    assert column(run, "loss")[50] == 1.0 if "loss" in run.frame.columns else True
    assert_written(run)


@pytest.mark.parametrize("cut", [10, 99, 100, 2000, 4096, 5000])
def test_a_torn_database_is_one_line(tmp_path, cut):
    path = write_mlflow(tmp_path / "m.db")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(LogError) as raised:
        read_runs([str(path)])

    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
    if cut >= 4096:
        assert "a broken database: database disk image is malformed" in str(raised.value)


def test_stores_without_a_metric_say_so(tmp_path):
    path = write_mlflow(tmp_path / "m.db", [])
    with pytest.raises(LogError, match=r"no metric logged in any of its 1 runs: give a store"):
        read_runs([str(path)])
    mlflow_store(tmp_path / "mlruns", [])
    with pytest.raises(LogError, match=r"no metric logged in any of its 1 runs"):
        read_runs([str(tmp_path / "mlruns")])


def test_a_folder_that_is_no_store(tmp_path):
    with pytest.raises(LogError, match="no metric logged in any of its 0 runs"):
        read_runs([str(tmp_path)], format_name="mlflow")


def test_what_mlflow_itself_wrote_is_what_was_logged():
    """The samples agree with the logs they were made of, to the bit."""
    run = the_run(SAMPLES / "mlflow/diverged.db.gz")
    csv = the_run(SAMPLES / "csv/diverged_metrics.csv")
    for metric in ("loss", "grad_norm", "learning_rate", "val_loss"):
        ours = run.frame.select("step", metric).drop_nulls()
        theirs = csv.frame.select("step", metric).drop_nulls()
        assert ours.equals(theirs), metric
    store = the_run(SAMPLES / "mlflow/mlruns")
    lines = the_run(SAMPLES / "jsonl/restart.jsonl")
    for attempt, (first, last) in enumerate(((541, 620), (501, 640))):
        ours, theirs = (
            run.frame.filter(pl.col("attempt") == attempt, pl.col("step").is_between(first, last))
            for run in (store, lines)
        )
        for metric in ("step", "loss", "grad_norm", "val_loss"):
            assert ours[metric].equals(theirs[metric]), metric


def test_a_copy_of_a_store_elsewhere_reads_the_same(tmp_path):
    """Nothing depends on where the store was written."""
    shutil.copytree(SAMPLES / "mlflow/mlruns", tmp_path / "mlruns")
    assert the_run(tmp_path / "mlruns").frame.equals(the_run(SAMPLES / "mlflow/mlruns").frame)
    assert os.listdir(tmp_path) == ["mlruns"]
