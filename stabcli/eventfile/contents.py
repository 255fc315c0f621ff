"""Contents: what one event file holds, gathered piece by piece in any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stabcli.eventfile.checksum import Bytes
from stabcli.eventfile.layout import START, Layout, Span

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TEXT_BYTES = 1 << 20
"""Longest text that is kept."""
TEXTS = 4096
"""Texts that are kept; the arguments of a run are a few hundred."""
_HPARAMS = "_hparams_/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalars:
    """The n values of one tag, in the order of the file."""

    records: Integers
    """Number of the record each stands in, from 1, (n,)."""
    steps: Integers
    """Steps, (n,)."""
    walls: Floats
    """Seconds since 1970, (n,)."""
    values: npt.NDArray[Any]
    """Values, float32 or float64, (n,)."""

    def __len__(self) -> int:
        return len(self.records)

    def at(self, keep: slice | npt.NDArray[Any]) -> Scalars:
        """Return some of the values."""
        return Scalars(
            records=self.records[keep],
            steps=self.steps[keep],
            walls=self.walls[keep],
            values=self.values[keep],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A record that could not be used."""

    record: int
    """Its number, from 1."""
    at: int
    """Byte offset of it in the file."""
    why: str
    """What is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFile:
    """What stands in an event file."""

    scalars: dict[str, Scalars]
    """Tag -> values, in order of first appearance."""
    starts: tuple[int, ...]
    """Records with which a session was started (anew)."""
    texts: dict[str, str]
    """Tag -> first text under it."""
    records: int
    """Records in all, damaged ones included."""
    others: int
    """Values left out because they are no single numbers: histograms, images, texts."""
    damaged: tuple[Damage, ...]
    """Records that could not be used, in order."""
    torn: int
    """Bytes of a last record that was cut short."""
    size: int
    """Bytes in all."""

    @property
    def points(self) -> int:
        """Scalar values in all."""
        return sum(map(len, self.scalars.values()))


@dataclass(slots=True)
class Gathered:
    """What has been found so far."""

    pieces: dict[str, list[Scalars]] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    starts: list[int] = field(default_factory=list)
    texts: list[tuple[int, str, str]] = field(default_factory=list)
    damaged: list[Damage] = field(default_factory=list)
    others: int = 0

    def add(self, tag: str, piece: Scalars) -> None:
        """Take in values of one tag, in the order of the file among themselves."""
        if len(piece):
            self.pieces.setdefault(tag, []).append(piece)

    def aside(self, layout: Layout, event: bytes, records: Integers) -> None:
        """Take in what is no scalar, from ``event``, which has these tags in all ``records``."""
        self.others += layout.others * len(records)
        for tag in layout.foreign:
            self.foreign.add(text(event, tag))
        if layout.session == START:
            self.starts += records.tolist()

    def strings(self, events: Bytes, tag: Span, span: Span, records: Integers) -> None:
        """Take in the texts at ``span`` of the first of the events in ``records``."""
        self.others += len(records)
        room = TEXTS - len(self.texts) if span[1] - span[0] <= TEXT_BYTES else 0
        for event, record in zip(events[:room], records.tolist(), strict=False):
            self.texts.append((record, text(event, tag), text(event, span)))

    def finish(self, *, records: int, torn: int, size: int) -> EventFile:
        """Put everything in the order of the file."""
        shared: Shared = {}
        scalars: dict[str, Scalars] = {}
        for tag in list(self.pieces):
            pieces = self.pieces.pop(tag)  # so that its memory serves for those of the next tag
            if tag not in self.foreign and not tag.startswith(_HPARAMS):
                scalars[tag] = _joined(pieces, shared)
        texts: dict[str, str] = {}
        for _, tag, content in sorted(self.texts):
            texts.setdefault(tag, content)
        return EventFile(
            scalars=dict(sorted(scalars.items(), key=lambda item: int(item[1].records[0]))),
            starts=tuple(sorted(self.starts)),
            texts=texts,
            records=records,
            others=self.others,
            damaged=tuple(sorted(self.damaged, key=lambda d: d.record)),
            torn=torn,
            size=size,
        )


def text(event: bytes | Bytes, span: Span) -> str:
    """Return the text in some bytes of an event."""
    return bytes(event[slice(*span)]).decode("utf-8", "replace")


Shared = dict[tuple[int, ...], tuple[Integers, list[Integers]]]
"""Identities of arrays -> the arrays joined, and they themselves, whose identities these are."""


def _joined(pieces: list[Scalars], shared: Shared) -> Scalars:
    """Join the pieces of one tag; arrays that tags have in common stay common."""
    if len(pieces) == 1:
        return pieces[0]
    pieces.sort(key=lambda piece: int(piece.records[0]))
    steps = [piece.steps for piece in pieces]
    key = tuple(map(id, steps))
    if key not in shared:
        shared[key] = np.concatenate(steps), steps
    whole = Scalars(
        records=np.concatenate([piece.records for piece in pieces]),
        steps=shared[key][0],
        walls=np.concatenate([piece.walls for piece in pieces]),
        values=np.concatenate([piece.values for piece in pieces]),
    )
    if (np.diff(whole.records) < 0).any():
        whole = whole.at(np.argsort(whole.records, kind="stable"))
    return whole
