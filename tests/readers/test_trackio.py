"""Reader trackio: its database, its parquet files, its folder."""

import json
import sqlite3

import polars as pl
import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.readers.tracker_runs import assert_written, claimed, column, runs_of, the_run
from tests.tracker_writing import ROWS, clock, iso, write_trackio, write_trackio_parquet


@pytest.mark.parametrize("old", [False, True])
def test_a_database_of_both_generations_is_read(tmp_path, old):
    """With ids of runs and metrics as bytes, or with names and text."""
    path = write_trackio(tmp_path / "p.db", old=old)
    run = the_run(path)

    assert claimed(path) == ["trackio"]
    assert_written(run)
    assert run.name == "run"
    assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]
    assert (run.facts["grad_clip"].value, run.facts["grad_clip"].source) == (
        1.0,
        "config of the run, max_grad_norm",
    )


def test_a_parquet_file_is_read_with_the_configuration_beside_it(tmp_path):
    path = write_trackio_parquet(tmp_path / "p.parquet")
    run = the_run(path)

    assert claimed(path) == ["trackio"]
    assert_written(run)
    assert run.name == "run"
    assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]
    assert run.facts["gpus"].value == 8
    assert not {"id", "run_id"} & set(run.frame.columns)


def test_nested_values_and_what_is_no_number(tmp_path):
    path = write_trackio(tmp_path / "p.db", [(1, {"loss": 2.0})])
    database = sqlite3.connect(path)
    logged = {
        "opt": {"lr": 0.1, "deep": {"x": "NaN"}},
        "table": {"_type": "table"},
        "t": "hello",
        "n": None,
    }
    row = ("b" * 32, iso(2), "run", 2, json.dumps({"loss": 3.0, **logged}))
    insert = (
        "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)"
    )
    database.execute(insert, row)
    database.execute(insert, (*row[:3], 3, "{broken"))
    database.execute(insert, (*row[:3], 4, "[1]"))
    database.execute(
        "CREATE TABLE system_metrics (id INTEGER PRIMARY KEY, run_name TEXT, metrics TEXT)"
    )
    database.execute("INSERT INTO system_metrics (run_name, metrics) VALUES ('run', '{}')")
    database.commit()
    database.close()
    run = the_run(path)

    assert column(run, "opt/lr") == {2: 0.1}
    assert list(column(run, "opt/deep/x")) == [2]
    assert column(run, "loss") == {1: 2.0, 2: 3.0}
    assert run.notes == (
        "rows of the machine (system_metrics) not read: 1",
        "no numbers, left out: 't', 'table'",
    )
    assert [line for line, _ in run.bad.first] == [3, 4]


def test_runs_and_restarts(tmp_path):
    """Two ids of one name are two runs; one id that goes back is a restart."""
    path = write_trackio(tmp_path / "p.db", [*ROWS[:15], *ROWS[8:]])
    write_trackio(path, ROWS[:4], run_id="c" * 32)
    first, second = runs_of(path)

    assert [r.name for r in (first, second)] == ["run (bbbbbbbb)", "run (cccccccc)"]
    assert [(a.first_step, a.last_step) for a in first.attempts] == [(0, 14), (8, 19)]
    assert_written(first)
    assert second.frame.height == 4


def test_a_folder_of_projects_is_read_each_once(tmp_path):
    """The parquet file made of a database is not a second run, nor are its parts."""
    write_trackio(tmp_path / "p.db")
    write_trackio_parquet(tmp_path / "p.parquet")
    pl.DataFrame({"run_name": ["run"], "timestamp": [iso(0)], "gpu": [1.0]}).write_parquet(
        tmp_path / "p_system.parquet"
    )
    write_trackio_parquet(tmp_path / "bad_batch.parquet", ROWS[:5])
    (tmp_path / "p.lock").touch()
    (tmp_path / "media").mkdir()
    assert claimed(tmp_path) == ["trackio"]
    found = [(r.name, r.frame.height) for r in runs_of(tmp_path)]
    assert found == [("bad_batch/run", 5), ("p/run", 20)]

    (tmp_path / "other.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 2.0}\n')
    assert claimed(tmp_path) == []
    runs, unread = read_runs([str(tmp_path)])
    assert [r.name for r in runs] == ["run", "other.jsonl", "run"]
    assert any("exact copies" in note for note in runs[-1].notes), "database and its parquet file"
    parts = ("bad_batch_configs.parquet", "p_configs.parquet", "p_system.parquet")
    assert [str(line) for line in unread] == [
        f"{tmp_path}: an empty folder, left out: media",
        f"{tmp_path}: empty, left out: p.lock",
        f"{tmp_path}: not logs, left out: {', '.join(parts)}",
    ]


def test_any_other_table_is_left_to_the_reader_of_any_table(tmp_path):
    """A column of runs does not make a table trackio's."""
    path = tmp_path / "t.parquet"
    pl.DataFrame({"run_name": ["a"] * 3, "step": [1, 2, 3], "loss": [3.0, 2.0, 1.0]}).write_parquet(
        path
    )

    assert claimed(path) == ["parquet"]


def test_broken_and_empty_ones_are_one_line(tmp_path):
    whole = write_trackio_parquet(tmp_path / "p.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LogError, match=r"cut.parquet: a broken parquet file"):
        read_runs([str(tmp_path / "cut.parquet")], format_name="trackio")
    path = write_trackio(tmp_path / "p.db", [])
    with pytest.raises(LogError, match=r"p.db: no number logged in it: give a project with runs"):
        read_runs([str(path)])
    with pytest.raises(LogError, match="not a folder of trackio's files alone"):
        read_runs([str(tmp_path)], format_name="trackio")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(LogError, match=r"p.db: a broken database"):
        read_runs([str(path)])


def test_a_parquet_file_whose_configuration_is_broken(tmp_path):
    path = write_trackio_parquet(tmp_path / "p.parquet")
    (tmp_path / "p_configs.parquet").write_bytes(b"PAR1 no")

    assert_written(the_run(path))


def test_what_trackio_itself_wrote_is_what_was_logged():
    """The samples agree with the logs they were made of, to the bit."""
    run = the_run(SAMPLES / "trackio/diverged.db.gz")
    csv = the_run(SAMPLES / "csv/diverged_metrics.csv")
    table = the_run(SAMPLES / "trackio/exported")
    lines = the_run(SAMPLES / "jsonl/bad_batch.jsonl")
    for metric in ("loss", "grad_norm", "learning_rate", "val_loss"):
        ours = run.frame.select("step", metric).drop_nulls()
        assert ours.equals(csv.frame.select("step", metric).drop_nulls()), metric
        part = lines.frame.filter(pl.col("step").is_between(501, 700)).select("step", metric)
        assert table.frame.select("step", metric).drop_nulls().equals(part.drop_nulls()), metric
    assert table.facts["gpus"].source == "config of the run, parquet beside, gpus"
