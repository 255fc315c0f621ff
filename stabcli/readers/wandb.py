"""Reader ``wandb``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stabcli.assembly import FILE, LINE, Reading
from stabcli.attempts import PART
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.metrics import resolve
from stabcli.readers import BAD_SHOWN, reader
from stabcli.run import BadLines, Fact
from stabcli.sources import Source
from stabcli.units import does, plural
from stabcli.wandbfile import (
    Opened,
    Plan,
    WandbFile,
    holds_runs,
    host_facts,
    plans,
    run_files,
    single,
    starts_like_wandb,
)

CALLS = "_step"
"""What W&B counts by itself: calls of ``wandb.log``."""
STEPS = (
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "train/step",
    "step",
    "iter",
    "iteration",
)
"""What trainers log as the optimizer step, the most trusted first."""

BESIDE = ("config.yaml", "wandb-metadata.json")
"""What is read in the folder ``files`` beside a file of W&B."""
_CLOCKS = {"elapsed_seconds": "_runtime", "wall_time": "_timestamp"}
_MOST_CELLS = 1 << 28
"""Rows times columns of a table; beyond it the columns with the fewest values are left out."""


def matches(source: Source) -> bool:
    """Claim W&B's own files, the folders of its runs, and folders of those."""
    if source.is_folder:
        return holds_runs(source.path)
    named = source.name.endswith(".wandb") and b"\0" in source.head
    return named or starts_like_wandb(source.head)


def takes(folder: Path) -> Iterator[Path]:
    """Return the files of runs in a folder, and what W&B says of each beside it."""
    for path in run_files(folder):
        yield path
        yield from (path.parent / "files" / name for name in BESIDE)


@reader(
    matches,
    writes="Weights & Biases: run-*.wandb files, wandb/run-* and offline-run-* folders",
    takes=takes,
)
def wandb(source: Source) -> Iterator[Reading]:
    """Read the files that W&B keeps on disk, or folders of them.

    Every logged number is read. Steps are the trainer's own (``train/global_step``, ``iter``, …)
    where at least half of the rows have them, else W&B's ``_step``. Nested values are named by
    path, joined with dots. A damaged record costs itself, not the rest of the file. All files of
    one run id are attempts of one run; a folder of several ids is several runs.

    Raises:
        LogError: Nothing was logged in it.
    """
    try:
        found = plans(source.path) if source.is_folder else [single(source.path, source.shown)]
    except OSError as error:
        raise LogError(
            f"{source.shown}: cannot be read: {error.strerror or error}: check its permissions"
        ) from error
    if not found:
        raise LogError(
            f"{source.shown}: nothing logged in any of its .wandb files: give the folder of a run"
            " that logged something"
        )
    for plan in found:
        yield _reading(plan, source)


def _reading(plan: Plan, source: Source) -> Reading:
    if not any(opened.file.columns for opened in plan.files):
        file = plan.files[0].file
        damaged = f", {len(file.damaged):,} of them damaged" if file.damaged else ""
        torn = ", the last one cut short" if file.torn else ""
        raise LogError(
            f"{source.shown}: no number logged in its {file.records:,} records{damaged}{torn}:"
            " give a run that logged some"
        )
    notes = list(plan.notes)
    if len(plan.files) > 1:
        notes.append(f"{len(plan.files)} files of run {plan.files[0].key[1]}: attempts of one run")
    step = _step_name([opened.file for opened in plan.files])
    tables = []
    for part, opened in enumerate(plan.files):
        table = _table(opened, step, notes)
        if len(plan.files) > 1:
            table = table.with_columns(pl.lit(part).alias(PART), pl.lit(opened.shown).alias(FILE))
        tables.append(table)
    frame = pl.concat(tables, how="diagonal_relaxed") if len(tables) > 1 else tables[0]
    names = {"step": step, **_CLOCKS}
    return Reading(
        name=source.name if source.shown == "-" else plan.name,
        table=frame,
        names={**_dotted(frame.columns), **{c: o for c, o in names.items() if o in frame.columns}},
        facts=_facts(plan.files),
        notes=tuple(notes + _notes(plan.files)),
        bad=_bad(plan.files),
        files=tuple(source.path / f.shown for f in plan.files) if source.is_folder else (),
    )


def _step_name(files: list[WandbFile]) -> str:
    """Return the column that counts optimizer steps: one that half of the rows have."""
    measured = [_measured(file) for file in files]
    rows = sum(int(m.sum()) for m in measured)
    for name in STEPS:
        with_it = 0
        for file, m in zip(files, measured, strict=True):
            if name in file.columns:
                has = np.zeros(file.height, bool)
                has[file.columns[name].rows] = True
                with_it += int((has & m).sum())
        if with_it and 2 * with_it >= rows:
            return name
    return CALLS


def _measured(file: WandbFile) -> npt.NDArray[np.bool_]:
    """Say of every row whether it holds a number that is no step and no clock."""
    held = np.zeros(file.height, bool)
    for name, column in file.columns.items():
        if not name.startswith("_") and name not in STEPS:
            held[column.rows] = True
            if held.all():
                break
    return held


def _table(opened: Opened, step: str, notes: list[str]) -> pl.DataFrame:
    """Return the rows of a file, all with a step of one kind."""
    file = opened.file
    made = {LINE: pl.Series(LINE, file.numbers)}
    for name in _kept(file, step, notes):
        made[_free(name)] = _series(_free(name), file, name)
    for name, found in file.texts.items():
        if name not in file.columns:
            rows, texts = zip(*found, strict=True)
            empty = pl.Series(name, [None], pl.String).new_from_index(0, file.height)
            made[_free(name)] = empty.scatter(rows, texts)
        else:
            notes.append(
                f"column {name!r} holds text in {len(found):,} of its rows, such as"
                f" {found[0][1][:40]!r}: left out there"
            )
    if CALLS not in file.columns and (file.steps >= 0).any():
        calls = pl.Series(CALLS, file.steps)
        made[CALLS] = calls.set(calls < 0, None)
    held = _measured(file)
    table = pl.DataFrame(made)
    if held.any() and not held.all():
        table = table.filter(pl.Series(held))
    if step == CALLS or step not in table.columns:
        return table
    without = table[step].null_count()
    if without:
        table = table.with_columns(pl.col(step).forward_fill())
        notes.append(
            f"{plural(without, 'row')} without {step!r} {does(without, 'take')} that of the row before"
        )
    return table.drop(CALLS, strict=False)


def _free(name: str) -> str:
    """Return the name, unless columns of such names have a meaning of their own."""
    return f"key {name}" if not name or name.startswith("@") else name


def _kept(file: WandbFile, step: str, notes: list[str]) -> list[str]:
    """Return the columns that a table has room for."""
    names = list(file.columns)
    most = max(16, _MOST_CELLS // max(1, file.height))
    if len(names) <= most:
        return names
    always = {step, CALLS, *_CLOCKS.values()}
    ranked = sorted(names, key=lambda n: (n not in always, -len(file.columns[n].rows)))
    left = ranked[most:]
    broken = [n for n in left if not np.isfinite(file.columns[n].values).all()]
    found = f"; non-finite values in {len(broken):,}, such as {broken[0]!r}" if broken else ""
    notes.append(f"{len(left):,} of {len(names):,} columns with few values left out{found}")
    kept = set(ranked[:most])
    return [n for n in names if n in kept]


def _series(shown: str, file: WandbFile, name: str) -> pl.Series:
    column = file.columns[name]
    values = np.zeros(file.height)
    values[column.rows] = column.values
    logged = np.zeros(file.height, bool)
    logged[column.rows] = True
    series = pl.Series(shown, values)
    return series if logged.all() else series.set(pl.Series(~logged), None)


def _dotted(columns: list[str]) -> dict[str, str]:
    """Return the canonical names of nested values: ``actor.pg_loss`` is ``actor/pg_loss``."""
    known = resolve(columns)
    spelt = {c.replace(".", "/"): c for c in columns if "." in c and c not in known.values()}
    return {c: spelt[own] for c, own in resolve(spelt).items() if c not in known}


def _facts(files: list[Opened]) -> dict[str, Fact]:
    """Read facts off configurations and what is said of the host; the newest file is believed."""
    found: dict[str, Fact] = {}
    for opened in files:
        own = find_facts(_saved(opened.file.about.config), "config of the run")
        own = {**find_facts(_saved(opened.config()), "config.yaml"), **own}
        found = {**found, **_host(opened), **own}
    return found


def _saved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the steps between checkpoints where they are saved by another clock."""
    keep = config.get("save_strategy", "steps") == "steps"
    return {k: v for k, v in config.items() if keep or k != "save_steps"}


def _host(opened: Opened) -> dict[str, Fact]:
    about = opened.file.about
    source = "environment of the run" if about.gpu or about.gpu_count else "wandb-metadata.json"
    return host_facts(
        opened.metadata(), source, gpu=about.gpu, gpu_count=about.gpu_count, nodes=about.nodes
    )


def _notes(files: list[Opened]) -> list[str]:
    notes: list[str] = []
    for opened in files:
        file = opened.file
        where = f" of {opened.shown}" if len(files) > 1 else ""
        if file.torn:
            notes.append(f"the last record{where} is cut short: {file.torn:,} bytes left out")
        if file.about.exit_code is None:
            notes.append(
                f"no exit record at the end{where}: the run crashed, was killed or goes on"
            )
        elif file.about.exit_code:
            notes.append(f"the process{where} ended with exit code {file.about.exit_code}")
    objects = sum(opened.file.objects for opened in files)
    if objects:
        notes.append(f"{objects:,} values that are no numbers (tables, media, …) left out")
    unreadable = sum(opened.file.unreadable for opened in files)
    if unreadable:
        notes.append(f"{unreadable:,} values could not be read: left out")
    return notes


def _bad(files: list[Opened]) -> BadLines:
    first: list[tuple[int, str]] = []
    count = 0
    for opened in files:
        where = f"{Path(opened.shown).name}, " if len(files) > 1 else ""
        damaged = opened.file.damaged
        count += len(damaged)
        for one in damaged[: BAD_SHOWN - len(first)]:
            span = f"byte {one.at:,}"
            if one.stop > one.at:
                span += f", {one.stop - one.at:,} bytes"
            first.append((one.record, f"{where}{span}: {one.why}"))
    return BadLines(count=count, first=tuple(first))
