"""Copies: the same log twice in one folder is one run; what only looks alike stays two."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from stabcli.cost import price
from stabcli.readers import read_runs
from tests.conftest import SAMPLES

LOG = SAMPLES / "jsonl/bad_batch.jsonl"


def test_copies_are_counted_once_and_named(tmp_path: Path):
    """However the copies are packed and wherever they lie, there is one run, and one bill."""
    (tmp_path / "old").mkdir()
    shutil.copy(LOG, tmp_path / "a.jsonl")
    shutil.copy(LOG, tmp_path / "old/b.jsonl")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(LOG.read_bytes()))
    runs, unread = read_runs([str(tmp_path)])
    (alone,), _ = read_runs([str(LOG)])

    assert [run.name for run in runs] == ["a.jsonl"]
    assert unread == []
    (note,) = [note for note in runs[0].notes if "exact copies" in note]
    assert "b.jsonl" in note
    assert "c.jsonl.gz" in note
    assert price(runs[0], ()).all == price(alone, ()).all


def test_runs_that_are_only_alike_stay_apart(tmp_path: Path):
    """One other value makes another run; and so does asking for no joining."""
    shutil.copy(LOG, tmp_path / "a.jsonl")
    lines = LOG.read_text().split("\n")
    changed = [*lines[:50], lines[50].replace("1", "2", 1), *lines[51:]]
    (tmp_path / "b.jsonl").write_text("\n".join(changed))
    runs, _ = read_runs([str(tmp_path)])
    assert len(runs) == 2

    shutil.copy(LOG, tmp_path / "b.jsonl")
    runs, _ = read_runs([str(tmp_path)], join=False)
    assert len(runs) == 2


def test_one_log_a_process_is_no_copy(tmp_path: Path):
    """Processes that print the very same are the processes of one run, and count its GPUs."""
    rows = "".join(f'{{"step": {i}, "loss": {2 - i / 100}}}\n' for i in range(1, 40))
    for rank in range(4):
        (tmp_path / f"rank_{rank}.jsonl").write_text(rows)
    (run,), _ = read_runs([str(tmp_path)])

    assert run.facts["gpus"].value == 4
    assert not any("copies" in note for note in run.notes)


def test_an_older_copy_is_counted_once_and_named(tmp_path: Path):
    """What was copied while the run went on is its beginning, whatever it is called."""
    lines = LOG.read_text().splitlines(keepends=True)
    shutil.copy(LOG, tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl.bak").write_text("".join(lines[:120]))
    (tmp_path / "a_first.jsonl").write_text("".join(lines[:60]))
    (run,), unread = read_runs([str(tmp_path)])
    (alone,), _ = read_runs([str(LOG)])

    assert (run.name, unread) == ("metrics.jsonl", [])
    (note,) = [note for note in run.notes if "its beginning" in note]
    assert "metrics.jsonl.bak" in note
    assert "a_first.jsonl" in note
    assert price(run, ()).all == price(alone, ()).all


@pytest.mark.parametrize("other", ["value", "few", "schedule", "more"])
def test_what_only_begins_alike_stays_apart(tmp_path: Path, other):
    """One other value, too few rows, a mere schedule or more columns prove no older copy."""
    rows = [{"step": i, "loss": 2 + 5 / i, "lr": i / 1e4} for i in range(1, 201)]
    short = [dict(row) for row in rows[: 15 if other == "few" else 100]]
    if other == "value":
        short[-1]["loss"] += 1e-6
    if other == "more":
        short[50]["grad_norm"] = 1.0
    if other == "schedule":
        for row in (*rows, *short):
            row["loss"] = 2.0
    for name, told in (("a", rows), ("b", short)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    runs, _ = read_runs([str(tmp_path)])

    assert [run.name for run in runs] == ["a.jsonl", "b.jsonl"]
