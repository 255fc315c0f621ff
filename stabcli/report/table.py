"""Tables: a run's frame as a file, for other programs."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from stabcli.run import Run


def write_table(runs: Sequence[Run], path: Path) -> None:
    """Write runs as one table, a row per step and attempt, with the run's name in front.

    NaN and infinities stay what they are: as themselves in Parquet, as ``NaN`` and ``inf`` in
    CSV, as the strings "NaN", "Infinity" and "-Infinity" in JSON lines. What was not logged
    is null: an empty field in CSV, absent from a JSON line.
    """
    frames = [r.frame.select(pl.lit(r.name).alias("run"), pl.all()) for r in runs]
    table = frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    os.close(handle)
    unfinished = Path(name)
    try:
        if path.suffix == ".parquet":
            table.write_parquet(unfinished)
        elif path.suffix == ".csv":
            table.write_csv(unfinished)
        else:
            _write_json_lines(table, unfinished)
        unfinished.chmod(0o644)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _write_json_lines(table: pl.DataFrame, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in table.iter_rows(named=True):
            said = {
                k: _NON_FINITE.get(repr(v), v) if isinstance(v, float) else v
                for k, v in row.items()
                if v is not None
            }
            file.write(json.dumps(said, allow_nan=False) + "\n")
