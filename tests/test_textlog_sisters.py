"""Sisters: where lines are no longer held against those that were read, that is told."""

from pathlib import Path

import pytest

from stabcli.textlog import sisters
from tests.textlogs import read


@pytest.mark.parametrize(
    ("most", "said"),
    [(40, "40 unread lines from line 82 on"), (79, "1 unread line from line 160 on"), (80, None)],
)
def test_lines_that_are_not_looked_at_any_more_are_told_of(most, said, monkeypatch, tmp_path: Path):
    """Where so many lines look like rows that the rest is left, it is said how many and from where.

    Every second line begins and ends like a row, and holds nothing that could be read.
    """
    monkeypatch.setattr(sisters, "_LOOKED", most)
    monkeypatch.setattr(sisters, "_WAITING", 1)
    path = tmp_path / "run.log"
    path.write_text(
        "".join(
            f"step {i} | loss {2 + 1 / i:.4f} | lr 3e-4 |\n"
            f"step of rank {i % 8} is over and all its data is loaded, lr |\n"
            for i in range(1, 81)
        )
    )
    run = read(path, path.read_text())
    notes = [n for n in run.notes if "not held against" in n]

    assert [n.split(" that begin")[0] for n in notes] == ([said] if said else [])
