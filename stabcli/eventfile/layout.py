"""Layouts: where in the bytes of an event its step, its time and its values stand.

Events of one layout differ only in the bytes of their fields, so that one walk through the
protocol buffer of one of them serves thousands at once.

Source: event.proto, summary.proto and tensor.proto of tensorboard/compat/proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stabcli.eventfile.checksum import Bytes

Span = tuple[int, int]
"""First byte and the one after the last."""

START = 1
"""Status of a session log that says that the run was started (anew)."""

_BFLOAT16 = "bfloat16"
_CONTENT = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "<u1", 5: "<i2", 6: "<i1", 9: "<i8", 10: "<u1",
    14: _BFLOAT16, 17: "<u2", 19: "<f2", 22: "<u4", 23: "<u8",
}  # fmt: skip
"""Data type of a tensor -> how ``tensor_content`` spells it."""
_STRING = 7
_FIXED = {5: "<f4", 6: "<f8"}
"""Field of a tensor that holds values of a fixed size -> how they are spelt."""
_VARYING = (7, 10, 11, 13, 16, 17)
"""Fields of a tensor that hold varints: int, int64, bool, half, uint32, uint64."""
_HALF = 13


class MalformedError(ValueError):
    """The bytes are no event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Bytes of an event that hold one number."""

    at: int
    """First byte."""
    width: int
    """Bytes."""
    kind: str
    """A numpy type, ``bfloat16``, or ``varint`` with such a type behind a space."""

    def decode(self, raw: Bytes) -> npt.NDArray[np.generic]:
        """Return the numbers in ``raw`` (n, width)."""
        kind = self.kind
        if not kind.startswith("varint"):
            return _spelt(np.ascontiguousarray(raw), kind)
        bits = np.zeros(len(raw), np.uint64)
        for byte in range(self.width):
            low = raw[:, byte].astype(np.uint64) & np.uint64(127)
            bits |= low << np.uint64(7 * byte)
        kind = kind.removeprefix("varint ")
        size = 2 if kind == _BFLOAT16 else np.dtype(kind).itemsize
        narrow = np.ascontiguousarray(bits.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :size])
        return _spelt(narrow, kind)


def _spelt(raw: Bytes, kind: str) -> npt.NDArray[np.generic]:
    if kind == _BFLOAT16:
        return (raw.view("<u2").ravel().astype("<u4") << np.uint32(16)).view("<f4")
    return np.asarray(raw.view(kind).ravel())


@dataclass(slots=True, kw_only=True)
class Layout:
    """Where things stand in an event of ``length`` bytes."""

    length: int
    same: bytearray
    """Per byte the bits that are equal in all events of this layout; tags are free to differ."""
    tags: list[Span] = field(default_factory=list)
    """Where the tags stand."""
    wall: Field | None = None
    step: Field | None = None
    scalars: list[tuple[Span, Field]] = field(default_factory=list)
    """Tag and value of every scalar."""
    strings: list[tuple[Span, Span]] = field(default_factory=list)
    """Tag and first string of every text."""
    foreign: list[Span] = field(default_factory=list)
    """Tags of which a plugin other than that of scalars says that they are its own."""
    others: int = 0
    """Values that are neither: histograms, images, tensors of many numbers."""
    session: int | None = None
    """Status of the session log in it."""

    @property
    def fields(self) -> list[Field]:
        """Every number that differs from event to event."""
        clocks = [f for f in (self.wall, self.step) if f is not None]
        return clocks + [value for _, value in self.scalars]


def read_layout(event: bytes) -> Layout:
    """Find out the layout of an event.

    Raises:
        MalformedError: The bytes are no event.
    """
    return _Walk(event).event()


class _Walk:
    """A walk through one event, marking every byte that says how the rest is to be read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.layout = Layout(length=len(data), same=bytearray(len(data)))

    def event(self) -> Layout:
        layout = self.layout
        for number, wire, span, _ in self._fields((0, len(self.data))):
            if (number, wire) == (1, 1):
                layout.wall = Field(at=span[0], width=8, kind="<f8")
            elif (number, wire) == (2, 0):
                layout.step = Field(at=span[0], width=span[1] - span[0], kind="varint <i8")
            elif (number, wire) == (5, 2):
                for inner, inner_wire, inside, _ in self._fields(span):
                    if (inner, inner_wire) == (1, 2):
                        self._value(inside)
            elif (number, wire) == (7, 2):
                layout.session = 0
                for inner, inner_wire, inside, status in self._fields(span):
                    if (inner, inner_wire) == (1, 0):
                        self._mark(inside)
                        layout.session = status
        return layout

    def _value(self, span: Span) -> None:
        tag: Span | None = None
        node: Span | None = None
        plugin = b""
        found: Field | Span | None = None
        for number, wire, inside, _ in self._fields(span):
            if (number, wire) == (1, 2):
                tag = inside
            elif (number, wire) == (7, 2):
                node = inside
            elif (number, wire) == (2, 5):
                found = Field(at=inside[0], width=4, kind="<f4")
            elif (number, wire) == (8, 2):
                found = self._tensor(inside)
            elif (number, wire) == (9, 2):
                plugin = self._plugin(inside)
        tag = tag or node
        if tag is None:
            self.layout.others += 1
            return
        self.layout.tags.append(tag)
        if isinstance(found, Field) and plugin in (b"", b"scalars"):
            self.layout.scalars.append((tag, found))
        elif isinstance(found, tuple):
            self.layout.strings.append((tag, found))
        else:
            self.layout.others += 1
            if plugin:
                self.layout.foreign.append(tag)

    def _plugin(self, span: Span) -> bytes:
        """Return the name of the plugin in a value's metadata."""
        name = b""
        for number, wire, inside, _ in self._fields(span):
            if (number, wire) == (1, 2):
                for inner, inner_wire, at, _ in self._fields(inside):
                    if (inner, inner_wire) == (1, 2):
                        self._mark(at)
                        name = self.data[slice(*at)]
        return name

    def _tensor(self, span: Span) -> Field | Span | None:
        """Return the one number of a tensor, or its first string; None of any other tensor."""
        kind = 0
        size = 1
        content: Span | None = None
        listed: Field | None = None
        string: Span | None = None
        many = False
        for number, wire, inside, value in self._fields(span):
            if (number, wire) == (1, 0):
                self._mark(inside)
                kind = value
            elif (number, wire) == (2, 2):
                size = self._size(inside)
            elif (number, wire) == (4, 2):
                content = inside
            elif (number, wire) == (8, 2):
                string = string or inside
            elif number in _FIXED or number in _VARYING:
                many = many or listed is not None
                listed = self._listed(number, wire, inside)
                many = many or listed is None
        if kind == _STRING:
            return string
        spelling = _CONTENT.get(kind)
        if spelling is None or size != 1 or many:
            return None
        if listed is not None:
            if listed.kind != "varint":
                return listed if listed.kind == spelling else None
            if listed.width > 10:
                return None
            return Field(at=listed.at, width=listed.width, kind=f"varint {spelling}")
        width = 2 if spelling == _BFLOAT16 else np.dtype(spelling).itemsize
        if content is None or content[1] - content[0] != width:
            return None
        return Field(at=content[0], width=width, kind=spelling)

    def _listed(self, number: int, wire: int, span: Span) -> Field | None:
        """Return the number in a field of repeated ones, packed or not; None of several."""
        width = span[1] - span[0]
        if number in _FIXED:
            kind = _FIXED[number]
            fits = width == np.dtype(kind).itemsize and wire in (1, 2, 5)
            return Field(at=span[0], width=width, kind=kind) if fits else None
        if wire not in (0, 2) or not width:
            return None
        _, stop = self._varint(*span)
        if stop != span[1]:
            return None
        self._mark_length(span)
        return Field(at=span[0], width=width, kind="varint")

    def _size(self, span: Span) -> int:
        """Return how many numbers a tensor of this shape has."""
        size = 1
        for number, wire, inside, _ in self._fields(span):
            if (number, wire) == (2, 2):
                extent = 0
                for inner, inner_wire, at, value in self._fields(inside):
                    if (inner, inner_wire) == (1, 0):
                        self._mark(at)
                        extent = value
                size *= extent
        return size

    def _fields(self, span: Span) -> Iterator[tuple[int, int, Span, int]]:
        """Yield number, wire type, bytes and, of a varint, the value of every field."""
        at, stop = span
        while at < stop:
            key, after = self._varint(at, stop)
            self._mark((at, after))
            number, wire = key >> 3, key & 7
            value = 0
            if wire == 0:
                value, end = self._varint(after, stop)
                self._mark_length((after, end))
            elif wire == 1:
                end = after + 8
            elif wire == 2:
                size, start = self._varint(after, stop)
                self._mark((after, start))
                after, end = start, start + size
            elif wire == 5:
                end = after + 4
            else:
                raise MalformedError("a field of no known kind")
            if end > stop or number == 0:
                raise MalformedError("a field longer than what holds it")
            yield number, wire, (after, end), value
            at = end

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        """Return a varint's value and the byte after it."""
        value = 0
        for shift in range(0, 70, 7):
            if at >= stop:
                break
            byte = self.data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, at
        raise MalformedError("a number without an end")

    def _mark(self, span: Span) -> None:
        self.layout.same[slice(*span)] = b"\xff" * (span[1] - span[0])

    def _mark_length(self, span: Span) -> None:
        """Mark that a varint takes as many bytes, whatever its value."""
        self.layout.same[slice(*span)] = b"\x80" * (span[1] - span[0])
