"""Reader ``hf-trainer``: what transformers' Trainer keeps of a run in ``trainer_state.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

import polars as pl

from stabcli.assembly import LINE, Reading
from stabcli.errors import LogError
from stabcli.facts import find_facts
from stabcli.readers import BAD_SHOWN, is_text, reader
from stabcli.run import BadLines, Fact
from stabcli.sources import Source

STATE = "trainer_state.json"

_MEANS = {"train_tokens_per_second": "train_tokens_per_second (mean so far)"}
"""Means since the start, renamed: as the speed of a row they would slow down at every evaluation."""

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_SUMMARY = "train_runtime"
"""Stands in the row that ends a training; in every row with a loss too where tokens are counted
(``include_num_input_tokens_seen``), and is there the time since the start."""
_CONFIGS = ("config.json", "args.json", "training_args.json")
"""Configurations beside a state: the model's, and the arguments as ms-swift and others save them."""
_WORDS = {"n_routed_experts": "num_experts", "moe_topk": "top_k"}
"""Words of model configurations -> names that ``find_facts`` knows."""
_NOT_OF_TRAINING = ("precision",)
"""Facts of a model's configuration that say how it was stored, not how it was trained."""


@dataclass(slots=True)
class _State:
    """A state as far as it could be read."""

    rows: list[tuple[int, dict[str, Any]]]
    """Line of each entry of ``log_history``, and the entry."""
    rest: Mapping[str, Any]
    """Everything else."""
    bad: list[tuple[int, str]]
    torn: bool
    """Whether the file ends before the object does."""
    lines: int
    """Lines of the file."""


def matches(source: Source) -> bool:
    """Claim a JSON object with a log history, and a folder that holds such a file.

    Of a folder the names must be the Trainer's: the file itself, or ``checkpoint-*`` with it.
    """
    if source.is_folder:
        return bool(_states(source.path))
    opening = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if opening != b"{" or not is_text(source.head):
        return False
    return _HISTORY.search(source.head.decode("utf-8", "replace")) is not None


def takes(folder: Path) -> list[Path]:
    """Return the states in a folder and in its checkpoints."""
    return _states(folder)


@reader(
    matches,
    writes="transformers' Trainer, TRL, axolotl, unsloth: trainer_state.json",
    takes=takes,
)
def hf_trainer(source: Source) -> Iterator[Reading]:
    """Read the log history of a Trainer's state, from a file, a checkpoint or an output folder.

    Each checkpoint repeats the history before it, so that of a folder only the newest is read.
    The row that ends a training holds means over all of it and is no step.

    Raises:
        LogError: There is no log history in it.
    """
    notes: list[str] = []
    path, state = _newest(source, notes)
    rows = _steps(state, notes)
    if state.torn:
        notes.append(f"{STATE} breaks off: what came before was read")
    if not rows:
        return
    table = _table(rows, state).rename(_MEANS, strict=False)
    names = _names(table.columns, notes)
    beside = path if source.is_folder else Path(source.shown)
    yield Reading(
        name=source.name,
        table=table,
        names=names,
        facts=_facts(state.rest, beside, rows, notes),
        notes=tuple(notes),
        bad=BadLines(count=len(state.bad), first=tuple(state.bad[:BAD_SHOWN])),
        files=(path,) if source.is_folder else (),
    )


# ---- which file ----


def _checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints that lie in a folder, by step."""
    found = ((_CHECKPOINT.fullmatch(p.name), p) for p in folder.iterdir() if p.is_dir())
    return dict(sorted((int(m[1]), p) for m, p in found if m))


def _states(folder: Path) -> list[Path]:
    """Return the states in a folder, the one that should hold most first."""
    inside = [p / STATE for p in reversed(_checkpoints(folder).values())]
    return [p for p in (folder / STATE, *inside) if p.is_file()]


def _newest(source: Source, notes: list[str]) -> tuple[Path, _State]:
    """Return the state that tells most, and where it stands."""
    if not source.is_folder:
        return source.path, _read(source.path, source.shown)
    best: tuple[Path, _State] | None = None
    for path in _states(source.path):
        where = path.relative_to(source.path)
        try:
            state = _read(path, str(path))
        except LogError as error:
            notes.append(f"left out: {error}")
            continue
        if best is None or (best[1].torn and len(state.rows) > len(best[1].rows)):
            best = path, state
        # the folder's own state is written when a training ends: one that was resumed from it
        # and crashed is only in the newer checkpoint
        elif _goes_on(best[1], state):
            notes.append(f"{where} goes on after {STATE}")
            best = path, state
        elif _last(state) > _last(best[1]):
            notes.append(f"{where} is of another training and was left out: scan it alone")
        if path.parent != source.path and not state.torn:
            break
    if best is None:
        raise LogError(f"{source.shown}: no readable {STATE} in it: check the folder")
    if best[0].parent != source.path:
        notes.append(f"read {best[0].relative_to(source.path)}")
    return best


def _last(state: _State) -> float:
    return max(
        (s for _, r in state.rows if isinstance(s := r.get("step"), (int, float))), default=0
    )


def _goes_on(state: _State, later: _State) -> bool:
    """Say whether ``later`` repeats ``state`` and has more."""
    old, new = ([json.dumps(r) for _, r in s.rows if not _ends(r)] for s in (state, later))
    return len(new) > len(old) and new[: len(old)] == old


# ---- one file ----


def _read(path: Path, shown: str) -> _State:
    """Read a state entry by entry, so that one cut short gives all its whole entries."""
    text = path.read_bytes().decode("utf-8-sig", "replace")
    found = _HISTORY.search(text)
    if found is None:
        raise LogError(
            f"{shown}: no log_history in it: give the trainer_state.json that a Trainer wrote"
        )
    decoder = json.JSONDecoder()
    rows: list[tuple[int, dict[str, Any]]] = []
    bad: list[tuple[int, str]] = []
    at, counted, line = found.end(), 0, 1
    torn = True
    gap = re.compile(r"[\s,]*")
    while (at := _end(gap, text, at)) < len(text):
        if text[at] == "]":
            torn = False
            break
        line += text.count("\n", counted, at)
        counted = at
        try:
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            following = re.compile(r"\n\s*\{|\}\s*,\s*\{").search(text, at + 1)
            if following is None:
                bad.append((line, "the last entry is cut short"))
                break
            bad.append((line, "not JSON: this entry was left out"))
            at = following.end() - 1
            continue
        if isinstance(entry, dict):
            rows.append((line, entry))
        else:
            bad.append((line, "an entry that is no object"))
    before = text[: found.end()]
    rest = {} if torn else _object(before + text[at:])
    if not rest:
        torn, rest = True, _object(before + "]}")
    return _State(rows, rest, bad, torn, text.count("\n") + 1)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _object(text: str) -> Mapping[str, Any]:
    """Return a JSON object, empty where the text is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _steps(state: _State, notes: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows that are steps; what the others say becomes a note."""
    kept: list[tuple[int, dict[str, Any]]] = []
    for line, row in state.rows:
        if _ends(row):
            seconds, mean = _number(row[_SUMMARY]), _number(row.get("train_loss"))
            told = f"{seconds:,.0f} s" if seconds is not None else "an unknown time"
            told += f", mean loss {mean:.4g}" if mean is not None else ""
            notes.append(f"a training ended at step {row.get('step', '?')} after {told}")
        elif "step" not in row:
            state.bad.append((line, "an entry without a step"))
        else:
            kept.append((line, row))
    return kept


def _ends(row: Mapping[str, Any]) -> bool:
    """Say whether an entry ends a training: it holds means over all of it."""
    return _SUMMARY in row and "loss" not in row


def _number(value: object) -> float | None:
    """Return a number or the text of one as float; None for anything else."""
    if not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _table(rows: list[tuple[int, dict[str, Any]]], state: _State) -> pl.DataFrame:
    """Make columns of entries; numbers may be text, as transformers 5 prints them."""
    columns: dict[str, list[object]] = {}
    for i, (_, row) in enumerate(rows):
        for name, value in _flat(row):
            columns.setdefault(name, [None] * len(rows))[i] = value
    made: list[pl.Series] = []
    for name, values in columns.items():
        numbers = [_number(v) for v in values]
        wrong = [i for i, v in enumerate(values) if v is not None and numbers[i] is None]
        if len(wrong) > max(1, len(values) // 10) or len(wrong) >= sum(
            n is not None for n in numbers
        ):
            made.append(pl.Series(name, [None if v is None else str(v) for v in values]))
            continue
        for i in wrong:
            state.bad.append((rows[i][0], f"{name}: {str(values[i])[:40]!r} is not a number"))
        made.append(pl.Series(name, numbers, dtype=pl.Float64))
    if state.lines > len(rows):
        made.append(pl.Series(LINE, [line for line, _ in rows], dtype=pl.Int64))
    state.bad.sort()
    return pl.DataFrame(made)


def _flat(row: Mapping[str, Any], lead: str = "") -> Iterator[tuple[str, object]]:
    """Return names and values of an entry, the inner ones of objects and lists too."""
    for key, value in row.items():
        name = f"{lead}{key}".lstrip("@")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}/")
        elif isinstance(value, list):
            yield from _flat({str(i): v for i, v in enumerate(value)}, f"{name}/")
        else:
            yield name, value


def _names(columns: Iterable[str], notes: list[str]) -> dict[str, str]:
    """Choose the held-out loss where there are several sets and none is the main one."""
    names = {
        "learning_rate": "learning_rate/0",  # one for each parameter group
        "elapsed_seconds": _SUMMARY,
    }
    losses = [c for c in columns if re.fullmatch(r"eval_.+_loss", c)]
    if "eval_loss" in columns or not losses:
        return names
    if len(losses) > 1:
        notes.append(
            f"{len(losses)} evaluation sets: the first, {losses[0]}, is taken as val_loss;"
            " --map val_loss=NAME takes another"
        )
    return {**names, "val_loss": losses[0]}


# ---- facts ----


def _facts(
    rest: Mapping[str, Any], path: Path, rows: list[tuple[int, dict[str, Any]]], notes: list[str]
) -> dict[str, Fact]:
    """Collect what the state, the folders and the configurations around it say."""
    said = {k: v for k in ("max_steps", "save_steps") if (v := rest.get(k)) is not None}
    facts = find_facts(said, STATE)
    tokens, steps = _number(rest.get("num_input_tokens_seen")), _number(rest.get("global_step"))
    if tokens and steps:
        facts["tokens_per_step"] = Fact(
            value=round(tokens / steps), source=f"{STATE}, num_input_tokens_seen / global_step"
        )
    if path.name.startswith(STATE):
        _add_checkpoints(facts, path)
        for name in _CONFIGS:
            config = _config(path.parent / name)
            found = find_facts({_WORDS.get(k, k): v for k, v in config.items()}, name)
            facts = {**{k: f for k, f in found.items() if k not in _NOT_OF_TRAINING}, **facts}
    logged = [_number(r["step"]) or 0.0 for _, r in rows if "loss" in r]
    gaps = [b - a for a, b in pairwise(logged)]
    if gaps and (every := median_low(gaps)) > 1 and every == rest.get("logging_steps"):
        notes.append(
            f"each loss is a mean of {every:g} steps, which thins a spike of one step as much"
        )
    return facts


def _config(path: Path) -> Mapping[str, Any]:
    try:
        return _object(path.read_text("utf-8", errors="replace")) if path.is_file() else {}
    except OSError:
        return {}


def _add_checkpoints(facts: dict[str, Fact], path: Path) -> None:
    """Add the checkpoints that still lie there, and doubt an interval they do not keep."""
    folder = path.parent
    if _CHECKPOINT.fullmatch(folder.name):
        folder = folder.parent
    steps = tuple(_checkpoints(folder)) if folder.is_dir() else ()
    every = facts.get("checkpoint_every")
    if steps:
        facts["checkpoints"] = Fact(
            value=steps, source=f"folders checkpoint-* in {folder.name or '.'}"
        )
    if every is None or not isinstance(every.value, int):
        return
    # save_steps stands there at its default too where saving went by epochs or not at all
    if any(step % every.value for step in steps[:-1]):
        del facts["checkpoint_every"]
    elif not steps:
        facts["checkpoint_every"] = Fact(
            value=every.value, source=f"{every.source}, if save_strategy is steps"
        )
