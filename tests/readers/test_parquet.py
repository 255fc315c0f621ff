"""Reader parquet: tables with a step, first of all those that stabcli exports."""

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs, readers
from stabcli.report.table import write_table
from stabcli.sources import open_source
from tests.conftest import SAMPLES


def _claimed(path: Path) -> list[str]:
    return [r.name for r in readers if r.matches(open_source(path))]


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize("sample", ["bad_batch.jsonl", "restart.jsonl"])
def test_an_exported_run_is_read_back(tmp_path: Path, sample: str, ending: str) -> None:
    """``export`` and back: the same attempts, rows and lines."""
    [run], _ = read_runs([str(SAMPLES / "jsonl" / sample)])
    path = tmp_path / f"out.{ending}"
    write_table([run], path)
    [back], _ = read_runs([str(path)])

    assert back.attempts == run.attempts
    assert back.frame.columns == run.frame.columns
    assert back.frame.equals(run.frame)


def test_several_runs_in_one_table_stay_several(tmp_path: Path) -> None:
    """The column ``run`` parts a table; each run has only the columns it logged."""
    runs, _ = read_runs([str(SAMPLES / "jsonl" / n) for n in ("bad_batch.jsonl", "restart.jsonl")])
    path = tmp_path / "out.parquet"
    write_table(runs, path)
    back, _ = read_runs([str(path)])

    assert [r.name for r in back] == ["out.parquet: bad_batch.jsonl", "out.parquet: restart.jsonl"]
    assert [r.attempts for r in back] == [r.attempts for r in runs]


def test_any_table_with_a_step(tmp_path: Path) -> None:
    """Nested fields are joined by ``/``, lists left out, any width of number taken."""
    path = tmp_path / "t.parquet"
    pl.DataFrame(
        {
            "step": pl.Series([1, 2, 3], dtype=pl.UInt32),
            "train": [{"loss": 3.0}, {"loss": float("nan")}, {"loss": None}],
            "lists": [[1], [2], [3]],
            "timestamp": [datetime(2026, 1, 1, 0, 0, i, tzinfo=UTC) for i in range(3)],
        }
    ).write_parquet(path)
    [run], _ = read_runs([str(path)])

    assert _claimed(path) == ["parquet"]
    assert run.columns["loss"] == "train/loss"
    assert run.frame["loss"].is_nan().to_list() == [False, True, None]
    assert run.frame["wall_time"].diff().to_list() == [None, 1.0, 1.0]


def test_a_table_that_is_no_log_is_an_error_of_one_line(tmp_path: Path) -> None:
    """No step, no row, or a folder by force: a message that says what to do."""
    stepless, empty = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pl.DataFrame({"a": [1.0]}).write_parquet(stepless)
    pl.DataFrame({"step": [], "loss": []}).write_parquet(empty)
    with pytest.raises(LogError, match="--map step=NAME"):
        read_runs([str(stepless)])
    with pytest.raises(LogError, match="no logged step"):
        read_runs([str(empty)])
    with pytest.raises(LogError, match="a folder"):
        read_runs([str(tmp_path)], format_name="parquet")


def test_a_panic_of_polars_is_a_broken_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some damage makes Polars panic, which is no Exception: still one line that names the file."""
    path = tmp_path / "metrics.parquet"
    pl.DataFrame({"step": [1, 2], "loss": [2.0, 1.9]}).write_parquet(path)

    def panic(*_: object, **__: object) -> None:
        raise pl.exceptions.PanicException("Thrift out of range")

    monkeypatch.setattr(pl, "read_parquet", panic)
    monkeypatch.setattr(pl, "read_parquet_schema", panic)
    with pytest.raises(
        LogError, match=r"metrics\.parquet: a broken parquet file: damaged inside: Thrift"
    ):
        read_runs([str(path)])


def test_a_list_of_one_number_is_that_number(tmp_path: Path):
    """Other lists are left out, and named."""
    rows = {"step": [1, 2, 3], "loss": [[2.0], [1.9], []], "hist": [[1.0, 2.0]] * 3}
    pl.DataFrame(rows).write_parquet(tmp_path / "log.parquet")
    (run,), _ = read_runs([str(tmp_path / "log.parquet")])

    assert run.frame["loss"].to_list() == [2.0, 1.9, None]
    assert "lists are no single value, left out: hist" in run.notes
