"""Reader ``swanlab``: the files that SwanLab keeps on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stabcli.assembly import Reading
from stabcli.configs import plain
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.trackers.points import STEP
from stabcli.trackers.swanfile import MAGIC, START, SwanRun, read_swanlab
from stabcli.trackers.values import settings, told_apart

_ENDING = ".swanlab"
_RUN_FOLDER = re.compile(r"run-")
_CONFIG = 1 << 20
"""Bytes of a configuration up to which it is read."""


def matches(source: Source) -> bool:
    """Claim a ``.swanlab`` file, the folder of a run, and a folder of those."""
    if source.is_folder:
        return bool(_files(source.path))
    return source.head.startswith(MAGIC)


@reader(matches, writes="SwanLab: run-*.swanlab files, swanlog/ folders (SDK 0.10)")
def swanlab(source: Source) -> Iterator[Reading]:
    """Read the files of SwanLab's SDK, or folders of them: a run each.

    A damaged record costs itself, not the rest of the file. ``config.yaml`` beside a file gives
    facts. What SwanLab measures of the machine is not read, nor is what is no number.

    Raises:
        LogError: No number was logged in it, or the file is of a version that is not known.
    """
    paths = _files(source.path) if source.is_folder else [source.path]
    try:
        runs = [(path, read_swanlab(path)) for path in paths]
    except (OSError, ValueError) as error:
        raise LogError(f"{source.shown}: cannot be read: {error}: check the file") from error
    filled = [(path, run) for path, run in runs if len(run.points)]
    if not filled:
        raise LogError(_nothing(source, [run for _, run in runs]))
    names = told_apart((run.name or run.run_id or path.stem, run.run_id) for path, run in filled)
    left = len(runs) - len(filled)
    for name, (path, run) in zip(names, filled, strict=True):
        notes = [f"files without a number left out: {left:,}"] if left else []
        left = 0
        table = run.points.table(notes)
        beside = (
            path.parent if source.is_folder or source.shown == "-" else Path(source.shown).parent
        )
        yield Reading(
            name=name,
            table=table,
            names={"step": STEP},
            facts=_facts(beside) if source.shown != "-" else {},
            notes=(*notes, *_notes(run)),
            bad=run.faults.bad(),
        )


def _nothing(source: Source, runs: list[SwanRun]) -> str:
    other = next((run.version for run in runs if run.version != START[-1]), None)
    if other is not None:
        return (
            f"{source.shown}: version {other} of SwanLab's files, of which only {START[-1]} is known:"
            " export its metrics as CSV with a column step"
        )
    records = sum(run.records for run in runs)
    damaged = sum(run.faults.count for run in runs)
    told = f", {damaged:,} of them damaged" if damaged else ""
    return f"{source.shown}: no number logged in its {records:,} records{told}: give a run that did"


def _files(folder: Path) -> list[Path]:
    """Return the files of runs in a folder and in folders of runs below it, each once."""
    found: dict[str, Path] = {}
    try:
        for entry in sorted(folder.iterdir()):
            inner = [entry]
            if _RUN_FOLDER.match(entry.name) and entry.is_dir():
                inner = sorted(entry.iterdir())
            for path in inner:
                if path.name.endswith(_ENDING) and path.is_file() and path.stat().st_size:
                    found.setdefault(os.path.realpath(path), path)
    except OSError:
        return []
    return list(found.values())


def _notes(run: SwanRun) -> list[str]:
    notes: list[str] = []
    if run.torn:
        notes.append(f"the last record is cut short: {run.torn:,} bytes left out")
    if run.state is None or run.state == "running":
        notes.append("no end was recorded: the run crashed, was killed or goes on")
    elif run.state != "finished":
        why = f": {run.error[:200]}" if run.error else ""
        notes.append(f"SwanLab says that the run {run.state}{why}")
    if run.machine:
        notes.append(f"values of the machine not read: {run.machine:,}")
    if run.media:
        notes.append(f"values that are no numbers (images, texts, …) left out: {run.media:,}")
    return notes


def _facts(folder: Path) -> dict[str, Fact]:
    """Read ``files/config.yaml``, in which each setting has a table with its value."""
    try:
        with (folder / "files" / "config.yaml").open("rb") as file:
            held = plain(file.read(_CONFIG).decode("utf-8", "replace"), [])
    except OSError:
        return {}
    said: dict[str, Any] = {
        key: value["value"]
        for key, value in held.items()
        if isinstance(value, dict) and "value" in value
    }
    return find_facts(settings(said), "config.yaml")
