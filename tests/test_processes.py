"""Processes: rows of several that tell of the same steps."""

import json
import math
from pathlib import Path

import pytest

from stabcli.readers import read_runs


@pytest.mark.parametrize("name", ["rank", "local_rank", "process"])
def test_the_median_of_processes_is_taken(name: str, tmp_path: Path):
    """Rows that differ by the process that wrote them are no corrections of one another."""
    rows = [
        {"step": s, name: r, "loss": 2.0 + 0.1 * r + (50 if r == 2 and s == 7 else 0)}
        for s in range(1, 21)
        for r in range(3)
    ]
    rows[-1]["loss"] = float("nan")
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run,), _ = read_runs([str(path)])

    assert run.frame["loss"].to_list()[:-1] == pytest.approx([2.1] * 19)
    assert math.isnan(run.frame["loss"][-1])
    assert any("3 processes" in note for note in run.notes)
