"""Contents: all that one file holds."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stabcli.wandbfile.about import CONFIG, ENVIRONMENT, EXIT, RUN, About
from stabcli.wandbfile.fields import MALFORMED, MalformedError, kinds, parts, varints
from stabcli.wandbfile.framing import Batch, Damage, Framing, Integers
from stabcli.wandbfile.history import STEP, History, Values

HISTORY = 2
"""Kind of the records that hold what was logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The numbers of one key, n of them."""

    rows: Integers
    """Row each stands in; a later value of the same row replaces an earlier one, (n,)."""
    values: npt.NDArray[np.float64]
    """Values, (n,); truth values are 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbFile:
    """What stands in a file."""

    numbers: Integers
    """Number of the record each row stands in, from 1, (rows,)."""
    steps: Integers
    """The count of log calls that each row was given; -1 where it has none, (rows,)."""
    columns: dict[str, Column]
    """Key -> numbers, in order of first appearance; null is not logged."""
    texts: dict[str, list[tuple[int, str]]]
    """Key -> row and text, where text was logged."""
    objects: int
    """Values left out because they are no single numbers: tables, media, histograms, lists."""
    unreadable: int
    """Values that could not be read."""
    about: About
    """What is said besides."""
    records: int
    """Records in all; a damaged stretch counts as one."""
    damaged: tuple[Damage, ...]
    """Stretches that could not be used, in order."""
    torn: int
    """Bytes of a last record that was cut short."""
    size: int
    """Bytes in all."""

    @property
    def height(self) -> int:
        """Rows in all."""
        return len(self.numbers)


def read_wandb(path: Path) -> WandbFile:
    """Read a file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return _read(memoryview(b""))
        return _read(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def _read(view: memoryview) -> WandbFile:
    framing = Framing(view)
    reader = _Reader()
    for batch in framing.batches():
        reader.add(batch)
    history = reader.history
    history.drop_objects()
    return WandbFile(
        numbers=np.concatenate([np.empty(0, np.int64), *reader.numbers]),
        steps=np.concatenate([np.empty(0, np.int64), *reader.steps]),
        columns={name: _column(values) for name, values in history.columns.items()},
        texts=history.texts,
        objects=history.objects,
        unreadable=history.unreadable,
        about=reader.about,
        records=framing.records,
        damaged=tuple(sorted([*framing.damaged, *reader.damaged], key=lambda d: d.at)),
        torn=framing.torn,
        size=len(view),
    )


def _column(values: Values) -> Column:
    return Column(rows=np.concatenate(values.rows), values=np.concatenate(values.values))


class _Reader:
    """Takes in the records of a file, batch by batch."""

    def __init__(self) -> None:
        self.history = History()
        self.about = About()
        self.damaged: list[Damage] = []
        self.numbers: list[Integers] = []
        self.steps: list[Integers] = []
        self.height = 0

    def add(self, batch: Batch) -> None:
        """Take in records."""
        kind, first, last = kinds(batch)
        for record in np.flatnonzero(kind == MALFORMED).tolist():
            self._malformed(batch, record)
        for record in np.flatnonzero(np.isin(kind, (CONFIG, RUN, EXIT, ENVIRONMENT))).tolist():
            message = batch.data[first[record] : last[record]].tobytes()
            try:
                self.about.add(int(kind[record]), message)
            except MalformedError:
                self._malformed(batch, record)
        logged = np.flatnonzero(kind == HISTORY)
        found = parts(batch.data, first[logged], last[logged])
        fine = np.ones(len(logged), bool)
        fine[found.malformed] = False
        for message in found.malformed.tolist():
            self._malformed(batch, int(logged[message]))
        rows = self.height + np.cumsum(fine) - 1
        self.history.add(batch.data, found.of(fine), rows)
        self.numbers.append(batch.numbers[logged[fine]])
        steps = np.full(len(logged), -1)
        own = np.flatnonzero(found.numbers == STEP)
        steps[found.messages[own]] = 0  # protobuf does not write a zero
        own = own[found.stops[own] > found.starts[own]]
        own = own[batch.data[found.starts[own]] == 0x08]
        steps[found.messages[own]] = varints(batch.data, found.starts[own] + 1)[0]
        self.steps.append(steps[fine])
        self.height += int(fine.sum())

    def _malformed(self, batch: Batch, record: int) -> None:
        at = int(batch.places[record])
        self.damaged.append(
            Damage(
                record=int(batch.numbers[record]),
                at=at,
                stop=at,
                why="a record that is no message of W&B",
            )
        )
