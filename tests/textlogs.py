"""What the tests of text logs share: samples, and the run whose numbers they print."""

import json
import math
from pathlib import Path

import polars as pl

from stabcli.readers import read_runs, readers
from stabcli.run import Run
from stabcli.textlog.grammar import GRAMMARS, Grammar
from tests.conftest import SAMPLES

FIRST, LAST = 501, 700
"""Steps of the run that the samples print."""
POLICY_LAST, NAN_STEP = 120, 100
"""Last step of the policy run that the samples print, and the step of the NaN put into it."""


def grammars() -> list[str]:
    """Return the names of the text readers."""
    list(readers)  # imports them all
    return sorted(name for name in GRAMMARS if (SAMPLES / name).is_dir())


def samples() -> list[Path]:
    """Return the sample logs of the text readers."""
    return sorted(
        path
        for name in grammars()
        for path in (SAMPLES / name).iterdir()
        if path.suffix not in {".md", ".py"}
    )


def grammar_of(path: Path) -> Grammar:
    """Return the grammar of a sample."""
    others = {"two_columns.txt": "generic-text, table", "bars.log": "per-epoch, bars"}
    name = path.parent.name
    return GRAMMARS[name if name == "hf-stdout" else others.get(path.name, name)]


def truth(metric: str) -> dict[int, float]:
    """Return step -> value of the run that the samples print."""
    with (SAMPLES / "jsonl/bad_batch.jsonl").open(encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if FIRST <= row.get("step", 0) <= LAST]
    kind = metric if metric == "val_loss" else "loss"
    return {row["step"]: row[metric] for row in rows if kind in row}


def policy(metric: str) -> dict[int, float]:
    """Return step -> value of the policy run that the samples print; one norm of it is NaN there."""
    with (SAMPLES / "jsonl/entropy_collapse.jsonl").open(encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if 0 < row.get("step", 0) <= POLICY_LAST]
    found = {row["step"]: row[metric] for row in rows}
    return found | {NAN_STEP: math.nan} if metric == "grad_norm" else found


def column(run: Run, metric: str) -> dict[int, float]:
    """Return step -> value of a metric of a run, where it was logged."""
    logged = run.frame.filter(pl.col(metric).is_not_null())
    return dict(zip(logged["step"].to_list(), logged[metric].to_list(), strict=True))


def sample(name: str) -> Run:
    """Read a sample that holds one run."""
    (run,), unread = read_runs([str(SAMPLES / name)])
    assert not unread
    return run


def read(path: Path, text: str | bytes, reader: str | None = None) -> Run:
    """Write a log and read the one run in it."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    (run,), unread = read_runs([str(path)], format_name=reader)
    assert not unread
    return run
