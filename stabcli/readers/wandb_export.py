"""Reader ``wandb-export``: the history of a W&B run as its API hands it out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from stabcli.assembly import FILE, LINE, Reading
from stabcli.errors import LogError
from stabcli.ndjson import Table, read_array, read_lines, settled, sniff
from stabcli.parts import checked_parquet, flattened
from stabcli.readers import reader
from stabcli.run import BadLines
from stabcli.sources import Source
from stabcli.units import does, plural

CALLS = "_step"
"""What W&B counts by itself: calls of ``wandb.log``."""
STEPS = ("train/global_step", "trainer/global_step", "global_step")
"""What trainers log as the optimizer step, the most trusted first."""
SAMPLED = 500
"""Rows that ``run.history()`` draws from a longer history unless told otherwise."""

_MAGIC = b"PAR1"
_NAMES = {"elapsed_seconds": "_runtime", "wall_time": "_timestamp"}


def matches(source: Source) -> bool:
    """Claim parquet files and JSON objects that count W&B's ``_step``.

    A folder is one log where it holds nothing but parts of one history: parquet files whose
    steps do not overlap.
    """
    if source.is_folder:
        return len(_parts(source.path)) > 1
    if source.head.startswith(_MAGIC):
        return _has_calls(source.path)
    sniffed = sniff(source)
    return sniffed is not None and sniffed.counts(CALLS)


@reader(matches, writes="the history of a W&B run, downloaded as parquet or JSON lines")
def wandb_export(source: Source) -> Iterator[Reading]:
    """Read a history that was downloaded from Weights & Biases.

    Steps are the trainer's own (``train/global_step``) where most rows have them, else W&B's
    ``_step``, which counts calls of ``wandb.log``. ``run.history()`` hands out a random sample
    of 500 rows; what looks like one is noted.

    Raises:
        LogError: A parquet file is broken.
    """
    table = _read(source)
    if not table.frame.height:
        return
    notes = list(table.notes)
    if _looks_sampled(table.frame):
        notes.append(
            f"exactly {SAMPLED} rows at uneven steps: run.history() draws so many at random, and"
            " spikes between them are missing; download all with run.scan_history()"
        )
    frame, step = _with_steps(table.frame, notes)
    names = {c: own for c, own in _NAMES.items() if own in frame.columns}
    yield Reading(
        name=source.name,
        table=frame,
        names={**step, **names},
        notes=tuple(notes),
        bad=table.bad,
    )


def _read(source: Source) -> Table:
    if source.is_folder or source.head.startswith(_MAGIC):
        notes: list[str] = []
        paths = _parts(source.path) if source.is_folder else [source.path]
        if not paths:
            raise LogError(
                f"{source.shown}: not the parts of one history: wandb-export reads a folder of"
                " nothing but parquet files whose _step do not overlap; give its files one by one"
            )
        table = _parquet(paths, source.shown)
        made = {s.name: settled(s, notes) if s.dtype == pl.String else s for s in table}
        return Table(frame=pl.DataFrame(made), notes=tuple(notes), bad=BadLines())
    sniffed = sniff(source)
    is_array = sniffed is not None and sniffed.kind == "array"
    return read_array(source.path) if is_array else read_lines(source.path)


def _parquet(paths: list[Path], shown: str) -> pl.DataFrame:
    tables: list[pl.DataFrame] = []
    for path in paths:
        try:
            with checked_parquet(path):
                part = flattened(pl.read_parquet(path))
        except (PolarsError, OSError) as error:
            where = shown if len(paths) == 1 else f"{shown}/{path.name}"
            why = str(error).partition("\n")[0]
            raise LogError(f"{where}: a broken parquet file: {why}: download it again") from None
        part = part.with_row_index(LINE, 1).with_columns(pl.col(LINE).cast(pl.Int64))
        tables.append(part.with_columns(pl.lit(path.name).alias(FILE)) if paths[1:] else part)
    return pl.concat(tables, how="diagonal_relaxed")


def _spellings() -> Iterator[str]:
    """Return names of the optimizer step as they are and as parquet exports write them."""
    for name in STEPS:
        yield name
        if "/" in name:
            yield name.replace("/", ".")


def _with_steps(frame: pl.DataFrame, notes: list[str]) -> tuple[pl.DataFrame, dict[str, str]]:
    """Give every row a step of one kind; return its name too."""
    named = [s for s in _spellings() if s in frame.columns and frame[s].dtype.is_numeric()]
    chosen = next((s for s in named if 2 * frame[s].count() > frame.height), None)
    if chosen is None:
        return frame, {"step": CALLS} if CALLS in frame.columns else {}
    without = frame[chosen].null_count()
    if without:
        frame = frame.with_columns(pl.col(chosen).forward_fill())
        notes.append(
            f"{plural(without, 'row')} without {chosen!r} {does(without, 'take')} that of the row before"
        )
    return frame.drop(CALLS, strict=False), {"step": chosen}


def _looks_sampled(frame: pl.DataFrame) -> bool:
    if frame.height != SAMPLED or CALLS not in frame.columns:
        return False
    gaps = frame[CALLS].cast(pl.Float64, strict=False).drop_nulls().diff().drop_nulls()
    return gaps.n_unique() > 1


def _has_calls(path: Path) -> bool:
    try:
        with checked_parquet(path):
            return CALLS in pl.read_parquet_schema(path)
    except (PolarsError, OSError):
        return False


def _parts(folder: Path) -> list[Path]:
    """Return the parts of one history in the order of their steps; none where it is not one."""
    names = [p for p in folder.iterdir() if not p.name.startswith(".")]
    parts = [p for p in names if p.suffix == ".parquet"]
    if not parts or len(parts) < len(names) or not all(p.is_file() for p in parts):
        return []
    spans: list[tuple[float, float, Path]] = []
    for path in sorted(parts):
        if not _has_calls(path):
            return []
        calls = pl.scan_parquet(path).select(
            first=pl.col(CALLS).min().cast(pl.Float64), last=pl.col(CALLS).max().cast(pl.Float64)
        )
        try:
            with checked_parquet(path):
                first, last = calls.collect().row(0)
        except (PolarsError, OSError):
            return []
        if first is not None:
            spans.append((first, last, path))
    spans.sort()
    if any(later[0] <= sooner[1] for sooner, later in pairwise(spans)):
        return []
    return [path for _, _, path in spans]
