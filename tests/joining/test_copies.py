"""Copies: the same log twice in one folder is one run; what only looks alike stays two."""

import gzip
import shutil
from pathlib import Path

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
