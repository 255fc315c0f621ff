"""Reader ``tensorboard``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from stabcli.assembly import FILE, LINE, WALL, Reading
from stabcli.attempts import PART
from stabcli.errors import LogError
from stabcli.eventfile import (
    HELD_OUT,
    TRAINING,
    Plan,
    Stream,
    Table,
    build,
    event_files,
    is_event_name,
    plans,
    single,
    starts_like_events,
)
from stabcli.facts import find_facts
from stabcli.metrics import normalise, resolve
from stabcli.readers import BAD_SHOWN, reader
from stabcli.run import BadLines, Fact
from stabcli.sources import Source
from stabcli.units import plural

STEP: Final = "step"
"""Column of the steps that TensorBoard itself keeps of every value."""

_TWIN = " vs samples"
"""End of the tags in which Megatron writes a value again, over samples in place of steps."""
_TEXT = "/text_summary"
"""End of the tags of texts."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    "loss": ("train/samples/train_loss", "train/epoch_loss", "epoch_loss", "train/batch_loss"),
    "val_loss": (
        "loss/test",
        "test/loss",
        "validation/epoch_loss",
        "val/epoch_loss",
        "eval/epoch_loss",
    ),
    "learning_rate": (
        "lr/train",
        "learning_rate/train",
        "train/samples/lr",
        "train/lr_actor",
        "train/epoch_learning_rate",
        "epoch_learning_rate",
    ),
    "step_seconds": ("misc/step_time",),
    "batch_tokens": ("perf/total_num_tokens",),
}
"""Canonical name -> tags of frameworks, normalised: DeepSpeed, Keras, verl, ColossalAI, NeMo."""

_MEGATRON = ("lm loss", "iteration-time", "lm loss validation")
"""Tags by which Megatron-LM is told."""
_AUX_LOSSES = ("load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss")
"""Load-balancing losses of Megatron-LM; those that are switched off are logged as 0."""
_VERL_SCORE = re.compile(r"val-core/.+/(reward|acc|score)/mean@\d+")
_SHORT = 64


def matches(source: Source) -> bool:
    """Claim event files, folders of them, and folders of nothing but such folders."""
    if not source.is_folder:
        named = is_event_name(source.name) and b"\0" in source.head
        return named or starts_like_events(source.head)
    entries = _entries(source.path)
    if any(p.name.endswith(".wandb") for p in entries):
        return False
    if _holds_events(source.path):
        return True
    inner = [p for p in entries if p.is_dir() and _holds_events(p)]
    pair = [p for p in inner if p.name.lower() in TRAINING | HELD_OUT]
    return len(pair) > 1 or (bool(inner) and len(inner) == len(entries))


def _entries(folder: Path) -> list[Path]:
    """Return what lies in a folder, hidden things apart; nothing where it cannot be looked into."""
    try:
        return [p for p in folder.iterdir() if not p.name.startswith(".")]
    except OSError:
        return []


def _holds_events(folder: Path) -> bool:
    return any(is_event_name(p.name) and p.is_file() for p in _entries(folder))


def takes(folder: Path) -> Iterable[Path]:
    """Return the event files in a folder and below it."""
    return (path for paths in event_files(folder).values() for path in paths)


@reader(
    matches,
    writes="TensorBoard, and all that log to it (torch, TensorFlow, Megatron, HF, …)",
    takes=takes,
)
def tensorboard(source: Source) -> Iterator[Reading]:
    """Read TensorBoard event files, or folders of them.

    Every scalar is read, none is sampled. A row is a step; a tag is a column. A record that is
    damaged costs itself, not the rest of the file. The files of one folder are one run where
    each goes on from the one before, and several where they start over; sub-folders are runs of
    their own, except those that ``add_scalars`` makes and pairs of ``train`` and ``validation``.

    Raises:
        LogError: There is no scalar in it.
    """
    try:
        if not source.is_folder:
            yield _read_file(source)
            return
        found = 0
        for plan in plans(source.path):
            found += 1
            yield _reading(plan, source)
    except OSError as error:
        raise LogError(
            f"{source.shown}: cannot be read: {error.strerror or error}: check its permissions"
        ) from error
    if not found:
        raise LogError(
            f"{source.shown}: no scalar in any of its event files: give the folder of a run that"
            " logged some"
        )


def _read_file(source: Source) -> Reading:
    plan = single(source.path)
    events = plan.files[0].events
    if not events.points:
        damaged = f", {len(events.damaged):,} of them damaged" if events.damaged else ""
        others = f", {events.others:,} values that are no scalars" if events.others else ""
        torn = ", the last one cut short" if events.torn else ""
        raise LogError(
            f"{source.shown}: no scalar in its {events.records:,} records{damaged}{others}{torn}:"
            " give a run that logged some"
        )
    return _reading(plan, source)


def _reading(plan: Plan, source: Source) -> Reading:
    notes = list(plan.notes)
    twins = 0
    streams: list[Stream] = []
    for writer in plan.writers:
        columns = {}
        for tag in writer.tags:
            if tag.endswith(_TWIN):
                twins += 1
            else:
                columns[tag] = _column_name(writer.rename(tag))
        files = [file.events for file in writer.files]
        streams.append(Stream(files=files, columns=columns, anew=writer.anew))
    streams = [s for s in streams if s.columns]
    if not streams:
        raise LogError(f"{source.shown}: no scalar over steps in it: give a run that logged some")
    table = build(streams)
    if twins:
        notes.append(f"{twins} tags that repeat others over samples ({_TWIN.strip()}) left out")
    names, more = _names(table)
    notes += more + _notes(plan, table)
    return Reading(
        name=_name(plan, source),
        table=_frame(plan, source, table),
        names=names,
        facts=_facts(plan),
        notes=tuple(notes),
        bad=_bad(plan),
        files=tuple(file.path for file in plan.files) if source.is_folder else (),
    )


def _column_name(tag: str) -> str:
    """Return the tag, unless a column of that name has a meaning of its own."""
    return f"tag {tag}" if not tag or tag == STEP or tag.startswith("@") else tag


def _name(plan: Plan, source: Source) -> str:
    if not source.is_folder:
        return source.name
    inner = plan.folder.relative_to(source.path).parts
    name = "/".join((source.path.resolve().name, *inner))
    return name if plan.alone else f"{name}/{plan.files[0].path.name}"


def _frame(plan: Plan, source: Source, table: Table) -> pl.DataFrame:
    columns = [
        pl.Series(STEP, table.steps, dtype=pl.Int64),
        pl.Series(LINE, table.records, dtype=pl.Int64),
        pl.Series(WALL, table.walls, dtype=pl.Float64),
        pl.Series(PART, table.passes, dtype=pl.Int64),
    ]
    if len(plan.files) > 1:
        shown = [str(file.path.relative_to(source.path)) for file in plan.files]
        columns.append(pl.Series(FILE, shown)[pl.Series(table.files)])
    return pl.DataFrame([*columns, *table.columns.values()])


def _names(table: Table) -> tuple[dict[str, str], list[str]]:
    """Return the canonical names that only the framework's own words tell, and what they mean."""
    tags = list(table.columns)
    known = resolve([STEP, *tags], {"step": STEP})
    names = {"step": STEP}
    notes: list[str] = []
    free = {normalise(tag): tag for tag in reversed(tags) if tag not in known.values()}
    for canonical, words in _NAMES.items():
        tag = next((free[word] for word in words if word in free), None)
        if canonical not in known and tag is not None:
            names[canonical] = tag
    if any(tag.lower().startswith("train/samples/") for tag in tags):
        notes.append("steps are counted in samples, as DeepSpeed logs them")
    if any(tag in table.columns for tag in _MEGATRON):
        if "throughput" in table.columns and "tflops_per_gpu" not in known:
            names["tflops_per_gpu"] = "throughput"
        on = [n for n in _AUX_LOSSES if n in table.columns and (table.columns[n] != 0).any()]
        if on:
            names["aux_loss"] = on[0]
    scores = [tag for tag in tags if _VERL_SCORE.fullmatch(tag)]
    if scores and "val_reward" not in known:
        names["val_reward"] = scores[0]
    return names, notes


def _notes(plan: Plan, table: Table) -> list[str]:
    notes: list[str] = []
    for file in plan.files:
        events = file.events
        where = f" of {file.path.name}" if len(plan.files) > 1 else ""
        if events.torn:
            notes.append(f"the last record{where} is cut short: {events.torn:,} bytes left out")
    others = sum(file.events.others for file in plan.files)
    if others:
        notes.append(
            f"{others:,} values that are no single numbers (texts, histograms, …) left out"
        )
    if table.late:
        notes.append(f"put in order: {plural(table.late, 'value')} that came out of order")
    if table.disordered:
        notes.append("steps go back so often that no restarts are told apart: put in order")
    return notes


def _bad(plan: Plan) -> BadLines:
    several = len(plan.files) > 1
    first: list[tuple[int, str]] = []
    count = 0
    for file in plan.files:
        where = f"{file.path.name}, " if several else ""
        count += len(file.events.damaged)
        for damage in file.events.damaged[: BAD_SHOWN - len(first)]:
            first.append((damage.record, f"{where}byte {damage.at:,}: {damage.why}"))
    return BadLines(count=count, first=tuple(first))


def _facts(plan: Plan) -> dict[str, Fact]:
    """Read facts off the texts that frameworks log their arguments as.

    transformers writes all of them as one JSON object, Megatron-LM a text each.
    """
    found: dict[str, Fact] = {}
    single_words: dict[str, str] = {}
    for file in plan.files:
        for tag, content in file.events.texts.items():
            name = tag.removesuffix(_TEXT)
            config = _json_object(content)
            if config is not None:
                found = {**find_facts(_saved(config), f"text {name!r}"), **found}
            elif 0 < len(content) <= _SHORT and content.strip() not in ("", "None", "False"):
                single_words.setdefault(name, content.strip())
    return {**find_facts(single_words, "text"), **found}


def _json_object(content: str) -> dict[str, Any] | None:
    if not content.lstrip().startswith("{"):
        return None
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _saved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the steps between checkpoints where they are saved by another clock."""
    keep = config.get("save_strategy", "steps") == "steps"
    return {k: v for k, v in config.items() if keep or k != "save_steps"}
