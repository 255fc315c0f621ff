"""Reader ``console-table``: tables of training in text, of notebooks, model cards and consoles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from stabcli.assembly import LINE, Reading
from stabcli.facts import find_facts
from stabcli.metrics import normalise
from stabcli.ndjson.chunks import LONGEST_LINE, Chunk, chunks
from stabcli.readers import BAD_SHOWN, reader
from stabcli.run import BadLines, Fact
from stabcli.sources import Source
from stabcli.tables import find_header
from stabcli.textlog.grids import Grid, Search
from stabcli.textlog.hygiene import scrubbed, segments
from stabcli.textlog.numbers import number
from stabcli.textlog.sniffing import holds_tables
from stabcli.units import plural

_SAYS = re.compile(r"^[-*] (?P<key>[a-z]\w{1,60}): (?P<value>\S.{0,100})$")
"""A line of a model card: ``- learning_rate: 2e-05``."""
_LOGS = (
    "trainer_state.json",
    "checkpoint-*/trainer_state.json",
    "runs/*/events.out.tfevents.*",
)
"""What transformers' Trainer logs beside the card that it writes."""
_SECONDS = {"time": "epoch_seconds", "dur": "epoch_seconds"}
"""Columns of fastai and skorch with what an epoch took; ``time`` is a time of day elsewhere."""


def matches(source: Source) -> bool:
    """Claim text with a table of training in it, if it is no log of a framework and no CSV.

    A model card beside the logs that it was made of tells nothing that they do not tell better.
    """
    if not holds_tables(source) or find_header(source.head) is not None:
        return False
    path = Path(source.shown)
    return path.suffix != ".md" or not any(
        found for log in _LOGS for found in path.parent.glob(log)
    )


@reader(matches, writes="notebooks, model cards, fastai, skorch, Ultralytics: tables in text")
def console_table(source: Source) -> Iterator[Reading]:
    """Read tables with a column that counts steps or epochs and one that is a loss.

    A table whose rows begin anew, or that has other names, is another run. A training loss that
    transformers only repeats beside an evaluation was not logged again, and a note says so.
    """
    text = _Text()
    for chunk in chunks(source.path, longest=LONGEST_LINE):
        text.add(chunk)
    search, notes = text.search, text.notes
    for column, cell in search.commas.items():
        taken = f"commas in {column!r} that part no thousands are taken as decimal points"
        notes.append(f"{taken}: {cell!r} is {number(cell)}")
    trainings = [grid for grid in search.grids if grid.is_training]
    bad = sorted([*search.bad, *(wrong for grid in trainings for wrong in grid.wrong)])
    runs = [(grid, rows) for grid in trainings for rows in _apart(grid)]
    count = sum(len(rows) for _, rows in runs)
    for i, (grid, rows) in enumerate(runs):
        last = i + 1 == len(runs)
        told = [] if i else [f"{count:,} of {text.lines:,} lines are rows of tables"]
        if len(runs) > 1:
            told.append(f"run {i + 1} of {len(runs)} in this log, from line {rows[0][0]:,}")
        table = _table(grid, rows, told)
        yield Reading(
            name=source.name if not i else f"{source.name} ({i + 1})",
            table=table,
            names={} if normalise(grid.counter) == "epoch" else {"step": grid.counter},
            facts=text.said,
            notes=(*told, *(notes if last else ())),
            bad=BadLines(count=len(bad), first=tuple(bad[:BAD_SHOWN])) if last else BadLines(),
        )


@dataclass(slots=True)
class _Text:
    """What was found in a text, chunk by chunk."""

    search: Search = field(default_factory=Search)
    said: dict[str, Fact] = field(default_factory=dict)
    """What a model card says of the training."""
    notes: list[str] = field(default_factory=list)
    lines: int = 0

    def add(self, chunk: Chunk) -> None:
        """Look through some lines."""
        self.lines = chunk.first + chunk.lines - 1
        if not chunk.data:
            self.search.bad.append((chunk.first, f"longer than {LONGEST_LINE >> 20} MB"))
            return
        for i, raw in enumerate(scrubbed(chunk.data).split(b"\n")[: chunk.lines], chunk.first):
            torn = chunk.cut and i == self.lines
            if torn:
                self.notes.append(f"the last line, {i:,}, has no end: it may be cut short")
            for text in segments(raw):
                self.search.add(i, text, torn=torn)
                if (found := _SAYS.match(text)) is not None:
                    facts = find_facts({found["key"]: found["value"]}, f"line {i}")
                    self.said = {**facts, **self.said}


Rows = list[tuple[int, dict[str, float]]]


def _apart(grid: Grid) -> list[Rows]:
    """Part the rows of trainings that began from the start under the names of the one before."""
    parts: list[Rows] = []
    for row in grid.rows:
        count = row[1][grid.counter]
        if not parts or (
            count < parts[-1][-1][1][grid.counter] and count <= parts[-1][0][1][grid.counter]
        ):
            parts.append([])
        parts[-1].append(row)
    return parts


def _table(grid: Grid, rows: Rows, notes: list[str]) -> pl.DataFrame:
    """Return the rows as a table."""
    columns = {name: [row.get(name) for _, row in rows] for name in grid.names}
    table = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Float64))
    table = table.insert_column(0, pl.Series(LINE, [line for line, _ in rows], dtype=pl.Int64))
    left = sorted({name for _, name, _ in grid.texts} - grid.numbers)
    if left:
        notes.append(f"columns of text left out: {', '.join(left)}")
    table = table.drop(left)
    spelt = {normalise(name): name for name in table.columns}
    train, held_out = spelt.get("training_loss"), spelt.get("validation_loss")
    if train and held_out:
        loss = table[train]
        again = (loss == loss.shift(1)) & (loss > 0) & loss.is_finite()
        if again.any():
            table = table.with_columns(
                pl.when(~again.fill_null(value=False)).then(pl.col(train)).alias(train)
            )
            notes.append(
                f"{plural(int(again.sum()), 'row')} with the training loss of the row before:"
                " it was not logged anew"
            )
    return table.rename({spelt[n]: new for n, new in _SECONDS.items() if n in spelt})
