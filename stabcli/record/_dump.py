"""What a dump looks like: a line of JSON a step, token IDs and figures, nothing else."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Final, Literal

Labels = Literal["next", "own"]
"""``labels[t]`` is the token after ``t`` (nanoGPT's y, Megatron), or token ``t`` itself (HF)."""

FORMAT = 1
"""Raised when a field of a dump changes its meaning."""

IGNORED = -100
"""Label that is not trained on."""

_FIELDS: Final = {
    "sample_ids": 0,
    "input_ids": 0,
    "labels": IGNORED,
    "attention_mask": 0,
    "position_ids": 0,
}
"""Fields of a dump with a value a sequence, and what short sequences are filled up with."""


def line_of(
    parts: list[dict[str, Any]], most: int | None, about: dict[str, Any]
) -> dict[str, Any] | None:
    """One step as it is written; None where it had no batch.

    Args:
        parts: Its micro-batches; short sequences are filled up to the longest and masked.
        most: Most sequences to write; None = all.
        about: What else to say of the step.

    Raises:
        ValueError: The parts of a micro-batch do not fit one another.
    """
    columns: dict[str, list[Any]] = {name: [] for name in _FIELDS}
    for part in parts:
        for name, rows in _rows(part).items():
            columns[name] += rows
    ids = columns["input_ids"]
    if not ids:
        return None
    width = max(len(row) for row in ids)
    ragged = any(len(row) < width for row in ids)
    line = {"format": FORMAT, **about, "sequences_in_step": len(ids)}
    for name, filling in _FIELDS.items():
        rows = columns[name]
        if name == "attention_mask":
            # beside positions a mask of ones has a meaning: that documents see one another
            told = all(any(row is not None for row in columns[n]) for n in (name, "position_ids"))
            rows = [[1] * len(i) if row is None else row for row, i in zip(rows, ids, strict=True)]
            if not ragged and not told and all(all(row) for row in rows):
                continue
        elif all(row is None for row in rows):
            continue
        elif name == "position_ids":
            rows = [list(range(len(i))) if r is None else r for r, i in zip(rows, ids, strict=True)]
        elif name == "labels":
            rows = [[filling] * len(i) if r is None else r for r, i in zip(rows, ids, strict=True)]
        if name != "sample_ids":
            rows = [[*row, *[filling] * (width - len(row))] for row in rows]
        line[name] = rows[:most]
    return line


def _rows(part: dict[str, Any]) -> dict[str, list[Any]]:
    """A micro-batch as lists of rows, None for what it does not have."""
    ids = _listed(part["input_ids"])
    if ids and not isinstance(ids[0], list):
        ids = [ids]
    rows: dict[str, list[Any]] = {"input_ids": ids}
    for name in ("labels", "attention_mask", "position_ids", "sample_ids"):
        value = _listed(part[name])
        if value is None:
            rows[name] = [None] * len(ids)
            continue
        if name != "sample_ids" and value and not isinstance(value[0], list):
            value = [value]
        rows[name] = [str(v) for v in value] if name == "sample_ids" else value
        if len(value) != len(ids):
            raise ValueError(f"{len(value)} {name} for {len(ids)} sequences: left out")
    return rows


def _listed(value: Any) -> Any:
    """Lists of numbers, whatever the value is made of."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [_listed(inner) for inner in value]
    return value


def plain(value: float | None) -> float | str | None:
    """A number as the project writes it in JSON: NaN and infinities in words."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
