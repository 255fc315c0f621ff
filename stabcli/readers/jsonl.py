"""Reader ``jsonl``: one JSON object a logged step, whoever wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from stabcli.assembly import LINE, Reading
from stabcli.attempts import PART
from stabcli.errors import LogError
from stabcli.facts import find_facts, may_tell
from stabcli.metrics import METRICS, resolve
from stabcli.ndjson import Table, read_array, read_lines, sniff
from stabcli.parts import RUN_COLUMNS, part_by_run
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.trackers.layouts import COMET, is_clearml, is_golden
from stabcli.units import plural

NAMES: Final = {
    "step": ("global_step/max_steps",),  # ms-swift: "10/500"
    "loss": ("learning/loss",),  # MaxText
    "step_seconds": ("train_speed(s/it)", "perf/step_time_seconds"),  # ms-swift, MaxText
}
"""Canonical name -> what one framework alone calls it in its JSON lines."""

_CONFIGURATION = re.compile(r"(config|args|arguments|hparams|hyperparameters|settings)(/|$)")
_MEASURED = ("loss", "objective_loss", "grad_norm", "val_loss", "reward")
"""A row with one of these is no configuration, whatever else it holds."""
_SEARCHED = 20  # rows without a step that are searched for facts
_MANY = 3  # facts that a flat row must hold to be all of the configuration
_DURATION = (
    r"^(?:(?P<days>\d+) days?, )?(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d(?:\.\d+)?)$"
)
_SPELT_DURATION = (
    r"^(?:(?P<days>\d+)d ?)?(?:(?P<hours>\d+)h ?)?(?:(?P<minutes>\d+)m ?)?(?:(?P<seconds>\d+)s)?$"
)
_PARTS = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))


def matches(source: Source) -> bool:
    """Claim a file whose first lines are JSON objects, unless a tracker's reader does."""
    if is_golden(source) or is_clearml(source):
        return False
    sniffed = sniff(source)
    return sniffed is not None and not sniffed.counts("_step") and not sniffed.counts(COMET)


@reader(matches, writes="own loops, LLaMA-Factory, ms-swift, verl, lingua, MaxText, levanter")
def jsonl(source: Source) -> Iterator[Reading]:
    """Read one JSON object a line, or an array of them; nested names are joined by ``/``.

    NaN and infinities may stand bare or as text. Lines that are broken, cut or no JSON are left
    out and counted, and the good ones around them kept. An object without a step that says how
    the run was set up gives facts.

    Raises:
        LogError: It is a folder, or an array too large for memory.
    """
    if source.is_folder:
        raise LogError(f"{source.shown}: a folder: jsonl reads files; give one of those in it")
    sniffed = sniff(source)
    is_array = sniffed is not None and sniffed.kind == "array"
    table = read_array(source.path) if is_array else read_lines(source.path, needed=_read_text)
    if not table.frame.height:
        return
    names = _names(table.frame)
    notes = list(table.notes)
    columns = resolve(_own(table.frame), names)
    frame, facts = _without_configuration(table, columns, notes)
    frame = _evaluated(frame, columns, notes)
    yield from part_by_run(
        Reading(
            name=source.name,
            table=_with_durations(frame, names),
            names=names,
            facts=facts,
            notes=tuple(notes),
            bad=table.bad,
        )
    )


def _read_text(names: list[str]) -> set[str]:
    """Return those of some columns of which text is read: steps, times, names of runs, facts."""
    words = {word for alternatives in NAMES.values() for word in alternatives}
    known = {*resolve(names).values(), *RUN_COLUMNS, *words}
    return {n for n in names if n in known or may_tell(n) or _CONFIGURATION.match(n)}


def _own(frame: pl.DataFrame) -> list[str]:
    return [c for c in frame.columns if not c.startswith("@")]


def _names(frame: pl.DataFrame) -> dict[str, str]:
    """Return canonical name -> own name, where only one framework calls it that."""
    found: dict[str, str] = {}
    for canonical, words in NAMES.items():
        present = [word for word in words if word in frame.columns]
        if present and not set(METRICS[canonical].names) & set(frame.columns):
            found[canonical] = present[0]
    return found


def _without_configuration(
    table: Table, columns: dict[str, str], notes: list[str]
) -> tuple[pl.DataFrame, dict[str, Fact]]:
    """Take the rows that say how the run was set up out of the table, as facts."""
    frame = table.frame
    step = columns.get("step")
    if step is None or not frame[step].null_count():
        return frame, {}
    facts: dict[str, Fact] = {}
    lines: list[int] = []
    restarts = 0
    for row in frame.filter(pl.col(step).is_null()).head(_SEARCHED).iter_rows(named=True):
        line = row[LINE]
        said = {k: v for k, v in row.items() if v is not None and not k.startswith("@")}
        if any(columns.get(m) in said for m in _MEASURED):
            continue
        found = find_facts(said, f"line {line}")
        nested = any(_CONFIGURATION.match(k) for k in said)
        restarts += nested or len(found) >= _MANY
        if found or nested:
            facts = {**found, **facts}
            lines.append(line)
    if not lines:
        return frame, {}
    notes.append(
        "no steps but the configuration of the run, read as facts: line"
        + ("s " if len(lines) > 1 else " ")
        + ", ".join(str(n) for n in lines)
    )
    apart = (pl.col(LINE).is_in(lines) & pl.col(step).is_null()).fill_null(value=False)
    if restarts == len(lines) > 1:  # said again: the run was started again
        frame = frame.with_columns(apart.cast(pl.Int64).cum_sum().alias(PART))
    frame = frame.filter(~apart)
    return frame.select(c for c in frame.columns if frame[c].null_count() < frame.height), facts


def _evaluated(frame: pl.DataFrame, columns: Mapping[str, str], notes: list[str]) -> pl.DataFrame:
    """Give rows that hold an evaluation and no step that of the row before."""
    step = columns.get("step")
    measured = [c for name, c in columns.items() if name.startswith("val_") and c in frame.columns]
    if step not in frame.columns or not measured or not frame[step].null_count():
        return frame
    bare = pl.col(step).is_null() & pl.any_horizontal(pl.col(c).is_not_null() for c in measured)
    before = pl.col(step).forward_fill()
    count = frame.select((bare & before.is_not_null()).sum()).item()
    if count:
        rows = plural(count, "row") + " of evaluation without a step"
        notes.append(f"{rows} taken at that of the row before")
    return frame.with_columns(pl.when(bare).then(before).otherwise(pl.col(step)).alias(step))


def _with_durations(frame: pl.DataFrame, names: dict[str, str]) -> pl.DataFrame:
    """Turn an elapsed time such as ``1 day, 2:03:04`` or ``1h 2m 3s`` into seconds."""
    name = resolve(_own(frame), names).get("elapsed_seconds")
    if name is None or frame[name].dtype != pl.String:
        return frame
    for pattern in (_DURATION, _SPELT_DURATION):
        parts = frame[name].str.strip_chars().str.extract_groups(pattern).struct.unnest()
        seconds = parts.select(
            pl.when(pl.any_horizontal(pl.col(p).is_not_null() for p, _ in _PARTS)).then(
                pl.sum_horizontal(pl.col(p).cast(pl.Float64) * scale for p, scale in _PARTS)
            )
        ).to_series()
        if seconds.count() and seconds.count() == frame[name].count():
            return frame.with_columns(seconds.alias(name))
    return frame
