"""Reader wandb-export: histories as the API of W&B hands them out."""

import json
import math
from pathlib import Path

import polars as pl
import pytest

from stabcli.errors import LogError
from stabcli.readers import read_runs, readers
from stabcli.sources import open_source
from tests.conftest import SAMPLES


def _history(number: int, **more) -> list[dict]:
    return [
        {
            "_step": i,
            "_runtime": 2.0 * i,
            "_timestamp": 1.7e9 + 2.0 * i,
            "train/loss": 3.0 - i / number,
            **{name: value(i) for name, value in more.items()},
        }
        for i in range(number)
    ]


def _lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _run(path: Path):
    [run], unread = read_runs([str(path)])

    assert not unread
    assert run.reader == "wandb-export"
    return run


def test_calls_are_steps_where_there_is_nothing_better(tmp_path: Path) -> None:
    """Without the trainer's own step ``_step`` counts, and a note says so; clocks are mapped."""
    run = _run(_lines(tmp_path / "h.jsonl", _history(10)))

    assert run.columns["step"] == "_step"
    assert run.frame["step"].to_list() == list(range(10))
    assert run.frame["elapsed_seconds"].to_list() == [2.0 * i for i in range(10)]
    assert run.frame["wall_time"][1] == 1.7e9 + 2.0
    assert any("_step" in note for note in run.notes)


@pytest.mark.parametrize("name", ["train/global_step", "trainer/global_step", "train.global_step"])
def test_the_trainers_step_is_preferred(tmp_path: Path, name: str) -> None:
    """A step that most rows have is taken, and the rows without it take that of the row before."""
    rows = _history(12, **{name: lambda i: 100 + 10 * (i // 2)})
    del rows[5][name]
    run = _run(_lines(tmp_path / "h.jsonl", rows))

    assert run.columns["step"] == name
    assert run.frame["step"].to_list() == [100, 110, 120, 130, 140, 150]
    assert any("1 row without" in note for note in run.notes)


def test_a_step_that_few_rows_have_is_not_taken(tmp_path: Path) -> None:
    """Only 3 of 10 rows count optimizer steps: W&B's own count is used."""
    rows = _history(10)
    for row in rows[:3]:
        row["global_step"] = 5
    run = _run(_lines(tmp_path / "h.jsonl", rows))

    assert run.columns["step"] == "_step"


def test_nan_as_text_in_lines_array_and_parquet(tmp_path: Path) -> None:
    """ "NaN" and "Infinity" are values in every form of the export."""
    odd = {3: "NaN", 4: "Infinity", 5: "-Infinity"}
    rows = _history(9, **{"train/grad_norm": lambda i: odd.get(i, 1.0)})
    text = [{**row, "train/grad_norm": str(row["train/grad_norm"])} for row in rows]
    pl.DataFrame(text).write_parquet(tmp_path / "h.parquet")
    (tmp_path / "h.json").write_text(json.dumps(rows, indent=1))
    _lines(tmp_path / "h.jsonl", rows)
    for ending in ("jsonl", "json", "parquet"):
        norm = _run(tmp_path / f"h.{ending}").frame["grad_norm"].to_list()
        assert math.isnan(norm[3])
        assert norm[4:6] == [math.inf, -math.inf]
        assert norm[:3] == [1.0, 1.0, 1.0]


def test_sampled_history_is_noted(tmp_path: Path) -> None:
    """500 rows at uneven steps look like ``run.history()``; at even steps, or 501, they do not."""

    def noted(calls: list[int]) -> bool:
        rows = [{**row, "_step": c} for row, c in zip(_history(len(calls)), calls, strict=True)]
        return any("scan_history" in n for n in _run(_lines(tmp_path / "h.jsonl", rows)).notes)

    assert not noted(list(range(500)))
    assert not noted([2 * i + i // 7 for i in range(501)])
    assert noted([2 * i + i // 7 for i in range(500)])


def test_a_folder_of_parts_is_one_run(tmp_path: Path) -> None:
    """Parquet parts of one history are put in the order of their steps, whatever their names."""
    folder = tmp_path / "run-history"
    folder.mkdir()
    frame = pl.DataFrame(_history(30))
    frame[20:].write_parquet(folder / "a.parquet")
    frame[:20].with_columns(pl.col("_step").cast(pl.Float64)).write_parquet(folder / "b.parquet")
    run = _run(folder)

    assert run.frame["step"].to_list() == list(range(30))
    assert run.frame["file"].to_list() == ["b.parquet"] * 20 + ["a.parquet"] * 10
    assert run.frame["line"].to_list() == [*range(1, 21), *range(1, 11)]
    assert len(run.attempts) == 1


def test_a_folder_of_runs_is_not_one(tmp_path: Path) -> None:
    """Histories whose steps overlap are runs of their own."""
    for seed, name in enumerate(("a", "b")):
        rows = _history(30, **{"train/grad_norm": lambda i, seed=seed: 1.0 + seed + i})
        pl.DataFrame(rows).write_parquet(tmp_path / f"{name}.parquet")
    runs, _ = read_runs([str(tmp_path)])

    assert [r.name for r in runs] == ["a.parquet", "b.parquet"]
    with pytest.raises(LogError, match="not the parts of one history"):
        read_runs([str(tmp_path)], format_name="wandb-export")


def test_nested_and_empty(tmp_path: Path) -> None:
    """Histograms are left out, nested numbers kept; one row is a run."""
    row = {**_history(1)[0], "h": {"_type": "histogram", "values": [1], "packed": {"min": 0.5}}}
    run = _run(_lines(tmp_path / "h.jsonl", [row]))

    assert run.frame["h/packed/min"].to_list() == [0.5]
    assert run.frame.height == 1


def test_a_summary_is_not_a_history(tmp_path: Path) -> None:
    """``wandb-summary.json`` has a ``_step`` too, and no reader takes it for a log."""
    path = _lines(tmp_path / "wandb-summary.json", _history(1))

    assert [r.name for r in readers if r.matches(open_source(path))] == []


def test_a_broken_parquet_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    """Cut anywhere, a parquet file is refused with a message."""
    whole = tmp_path / "h.parquet"
    pl.DataFrame(_history(50)).write_parquet(whole)
    data = whole.read_bytes()
    for cut in (4, 100, len(data) - 1):
        (tmp_path / "cut.parquet").write_bytes(data[:cut])
        with pytest.raises(LogError, match="a broken parquet file"):
            read_runs([str(tmp_path / "cut.parquet")])
    with pytest.raises(LogError, match="a broken parquet file"):
        read_runs([str(tmp_path / "cut.parquet")], format_name="wandb-export")


def test_any_reader_by_force_gives_a_message(tmp_path: Path) -> None:
    """Lines without ``_step`` read by force: their own step is found."""
    path = _lines(tmp_path / "a.jsonl", [{"step": i, "loss": 1.0} for i in range(3)])
    [run], _ = read_runs([str(path)], format_name="wandb-export")

    assert run.frame["step"].to_list() == [0, 1, 2]


def test_samples_agree_with_one_another() -> None:
    """The same history as lines and as parquet is the same run."""
    lines, table = (_run(SAMPLES / "wandb-export" / f"bad_batch.{e}") for e in ("jsonl", "parquet"))

    assert lines.columns == table.columns
    assert lines.frame.select(list(lines.columns)).equals(table.frame.select(list(lines.columns)))
