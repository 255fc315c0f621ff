"""A log too long for memory: numbers lie in a mapped file, and all that was read is the same."""

import json
import math
from pathlib import Path

import polars as pl
import pytest

from stabcli import ndjson
from stabcli.ndjson import columns
from stabcli.ndjson.spilling import Spill
from stabcli.readers import read_runs

LINES = 30_000


@pytest.fixture
def spilt(monkeypatch) -> list[int]:
    """Let little be held in memory; return how many columns each move was of."""
    moves: list[int] = []
    moved = Spill.moved

    def counted(self, runs):
        moves.append(len(runs))
        return moved(self, runs)

    monkeypatch.setattr(columns, "HELD", 100_000)
    monkeypatch.setattr(columns, "_MORE", 30_000)
    monkeypatch.setattr(Spill, "moved", counted)
    return moves


def _write(folder: Path) -> Path:
    """Write rows with NaN, late, rare and widening columns, text of several kinds, and a bad line."""
    path = folder / "log.jsonl"
    with path.open("w") as file:
        for i in range(LINES):
            row = {"step": i, "loss": 2 + 1 / (i + 1), "n": 1 if i < LINES // 2 else 1.5}
            row["loss"] = math.nan if i % 777 == 0 else row["loss"]
            if i > LINES // 3:
                row["late"] = i / 7
            if i % 500 == 0:
                row |= {"val_loss": i / 9, "note": f"saved {i}", "gpu": "H100"}
            if 7000 < i < 7005:
                row |= {"once": math.inf, "seldom a number": "n/a" if i % 2 else "3"}
            file.write(json.dumps(row) + "\n" + ("broken {\n" if i == 9000 else ""))
    return path


def test_what_was_moved_out_of_memory_reads_the_same(tmp_path: Path, spilt, monkeypatch) -> None:
    """Every cell, type, line number and bad line is as of a log that is held in memory."""
    path = _write(tmp_path)
    found = ndjson.read_lines(path, size=50_000)
    assert len(spilt) > 10
    assert max(spilt) >= 3
    monkeypatch.setattr(columns, "HELD", 1 << 30)
    expected = ndjson.read_lines(path, size=50_000)

    assert found.frame.equals(expected.frame)
    assert found.frame.schema == expected.frame.schema
    assert (found.notes, found.bad) == (expected.notes, expected.bad)
    assert max(s.n_chunks() for s in found.frame) == 1


def test_a_full_disk_costs_memory_and_nothing_else(tmp_path: Path, spilt, monkeypatch) -> None:
    """Where there is no room for the file, a log is held in memory."""
    path = _write(tmp_path)
    expected = ndjson.read_lines(path, size=50_000).frame
    moves = iter([True, True, False])
    moved = Spill.moved

    def full(self, runs):
        if next(moves):
            return moved(self, runs)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Spill, "moved", full)
    assert ndjson.read_lines(path, size=50_000).frame.equals(expected)


def test_a_log_of_nothing_but_gaps_and_text(tmp_path: Path, spilt) -> None:
    """Where no column is full of numbers there is nothing to move but line numbers."""
    path = tmp_path / "log.jsonl"
    rows = ({f"m{i % 3}": i / 7, "said": f"text {i}"} for i in range(LINES))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    frame = ndjson.read_lines(path, size=50_000).frame

    assert len(spilt) > 1
    assert frame["m1"].drop_nulls().to_list() == [i / 7 for i in range(1, LINES, 3)]
    assert frame["said"].to_list() == [f"text {i}" for i in range(LINES)]


def test_stray_text_is_left_out_of_a_long_log_and_named(tmp_path: Path, spilt) -> None:
    """Remarks in a few rows are not laid out over all of them; text that tells something is."""
    path = _write(tmp_path)
    [run], _ = read_runs([str(path)], format_name="jsonl")

    assert len(spilt) > 1
    told = [note for note in run.notes if "left out of a log so long" in note]
    assert [note.count("'note'") for note in told] == [1]
    assert run.facts["gpu"].value == "H100"
    assert run.bad.count == 1
    assert run.frame.height == LINES
    assert run.frame["val_loss"].count() == LINES // 500
    assert run.frame["loss"].is_nan().sum() == math.ceil(LINES / 777)
    assert run.frame.schema["n"] == pl.Float64
