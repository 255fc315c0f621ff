"""Reader neptune: the tables of neptune-exporter."""

from decimal import Decimal

import polars as pl
import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs
from tests.conftest import SAMPLES
from tests.readers.tracker_runs import assert_written, claimed, column, runs_of, the_run
from tests.tracker_writing import ROWS, clock, neptune_table


def test_a_file_is_read(tmp_path):
    path = tmp_path / "SAM-1_part_0.parquet"
    neptune_table().write_parquet(path)
    run = the_run(path)

    assert claimed(path) == ["neptune"]
    assert_written(run)
    assert run.name == "run"
    assert run.frame["wall_time"].to_list() == [clock(s) for s, _ in ROWS]
    assert (run.facts["gpus"].value, run.facts["gpus"].source) == (
        8,
        "attributes of the run, config/gpus",
    )


def test_the_parts_of_runs_are_joined(tmp_path):
    """Ten parts and more, in the order of their numbers; two runs stay two."""
    table = neptune_table()
    size = table.height // 11 + 1
    for part in range(11):
        table[part * size : (part + 1) * size].write_parquet(
            tmp_path / f"SAM-1_part_{part}.parquet"
        )
    neptune_table(ROWS[:5], run_id="SAM-2").write_parquet(tmp_path / "SAM-2_part_0.parquet")
    assert claimed(tmp_path) == ["neptune"]
    first, second = runs_of(tmp_path)

    assert [r.name for r in (first, second)] == ["run (SAM-1)", "run (SAM-2)"]
    assert_written(first)
    assert second.frame.height == 5
    assert set(first.frame["file"]) <= {f"SAM-1_part_{n}.parquet" for n in range(11)}


def test_parts_without_a_clock_go_by_their_numbers(tmp_path):
    """Part 10 comes after part 9: a run that went on in it was not started anew there."""
    logged = [(s, {"train/loss": 2.0 + s}) for s in range(12)]
    table = neptune_table(logged).with_columns(timestamp=pl.lit(None, pl.Datetime("ms", "UTC")))
    series = table.filter(pl.col("attribute_type") == "float_series")
    for part in range(12):
        series[part : part + 1].write_parquet(tmp_path / f"SAM-1_part_{part}.parquet")
    run = the_run(tmp_path)

    assert len(run.attempts) == 1
    assert_written(run, logged)


def test_a_folder_with_anything_else_is_gone_through(tmp_path):
    neptune_table().write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"step": [1, 2], "loss": [2.0, 1.0]}).write_parquet(tmp_path / "b.parquet")
    runs = runs_of(tmp_path)

    assert [(r.name, r.reader) for r in runs] == [("run", "neptune"), ("b.parquet", "parquet")]


def test_fractional_steps_are_counted(tmp_path):
    path = tmp_path / "a.parquet"
    neptune_table(scale=Decimal("0.25")).write_parquet(path)
    run = the_run(path)

    assert run.frame["step"].to_list() == list(range(1, 21))
    assert run.notes == ("steps are fractions: counted in order; 1 stands for 0 and 20 for 4.75",)


def test_a_fork_that_goes_back_is_a_restart(tmp_path):
    rows = [*ROWS[:15], *ROWS[8:]]
    table = neptune_table(rows)
    series = table["attribute_type"] == "float_series"
    counts = pl.int_range(pl.len()).over("attribute_path")
    later = (clock(0) * 1e3 + 2000 * counts).cast(pl.Int64).cast(pl.Datetime("ms", "UTC"))
    dense = table.filter(~series | (table["attribute_path"] != "eval/loss")).with_columns(
        timestamp=later
    )
    path = tmp_path / "a.parquet"
    dense.write_parquet(path)
    run = the_run(path)

    assert [(a.first_step, a.last_step) for a in run.attempts] == [(0, 14), (8, 19)]


def test_the_machine_stays_apart_and_failures_are_told(tmp_path):
    table = neptune_table([(s, {**v, "monitoring/abc/gpu": 9.0}) for s, v in ROWS])
    failed = pl.DataFrame(
        {
            "project_id": ["user/samples"],
            "run_id": ["SAM-1"],
            "attribute_path": ["sys/failed"],
            "attribute_type": ["bool"],
            "bool_value": [True],
        }
    )
    path = tmp_path / "a.parquet"
    pl.concat([table, failed], how="diagonal").write_parquet(path)
    run = the_run(path)

    assert_written(run)
    assert "monitoring/abc/gpu" not in run.frame.columns
    assert run.notes == (
        "values of the machine (monitoring) not read: 20",
        "Neptune says that the run failed",
    )


def test_rows_without_their_parts_are_told_of(tmp_path):
    table = neptune_table()
    series = pl.col("attribute_type") == "float_series"
    first = table.with_row_index("n")
    broken = first.with_columns(
        step=pl.when(series & (pl.col("n") == first.height - 1))
        .then(None)
        .otherwise(pl.col("step")),
        float_value=pl.when(pl.col("n") == first.height - 2)
        .then(None)
        .otherwise(pl.col("float_value")),
    ).drop("n")
    path = tmp_path / "a.parquet"
    broken.write_parquet(path)
    run = the_run(path)

    assert run.bad.count == 2
    assert run.bad.first[0] == (first.height - 1, "a value without its path, its step or itself")
    assert column(run, "eval/loss") == {s: v["eval/loss"] for s, v in ROWS if "eval/loss" in v}


def test_what_cannot_be_read_is_one_line(tmp_path):
    path = tmp_path / "a.parquet"
    neptune_table([]).write_parquet(path)
    with pytest.raises(LogError, match=r"a.parquet: no float_series in it"):
        read_runs([str(path)])
    neptune_table().write_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LogError, match=r"a broken parquet file"):
        read_runs([str(path)], format_name="neptune")
    pl.DataFrame({"step": [1], "loss": [1.0]}).write_parquet(path)
    with pytest.raises(LogError, match=r"columns are missing"):
        read_runs([str(path)], format_name="neptune")
    with pytest.raises(LogError, match="not a folder of the exporter's parquet files alone"):
        read_runs([str(tmp_path)], format_name="neptune")
    neptune_table().with_columns(pl.lit("x").alias("float_value")).write_parquet(path)
    with pytest.raises(LogError, match=r"no table of neptune-exporter: "):
        read_runs([str(path)])


def test_the_sample_is_what_was_logged():
    run = the_run(SAMPLES / "neptune/samples")
    lines = the_run(SAMPLES / "jsonl/bad_batch.jsonl")
    for metric in ("loss", "grad_norm", "learning_rate", "val_loss", "tokens_per_second"):
        part = lines.frame.filter(pl.col("step").is_between(501, 700)).select("step", metric)
        assert run.frame.select("step", metric).drop_nulls().equals(part.drop_nulls()), metric
