"""Decoding of event files, from the bytes: framing, checksums, values.

Training loops write the same few scalars step after step. Such a stretch is a matrix, one row a
step, of which every byte is compared with the first row's and every checksum is checked, without
looking at any record by itself. What does not repeat is gathered by length of record and layout.
Both ways give the same. A damaged record costs itself only.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.eventfile import checksum
from stabcli.eventfile.checksum import Bytes
from stabcli.eventfile.contents import (
    TEXTS,
    Damage,
    EventFile,
    Floats,
    Gathered,
    Integers,
    Scalars,
    text,
)
from stabcli.eventfile.framing import FRAME, HEADER, cycle, header_fits, next_header, walk
from stabcli.eventfile.layout import Field, Layout, MalformedError, read_layout

_WINDOW = 2048
"""Records walked one by one to see whether they repeat."""
_WIDEST = 1 << 16
_FEW_ROWS = 4
"""Rows below which a stretch is not worth the trouble."""
_LONG_STRETCH = 4096
"""Records from which a stretch has paid for finding it."""
_TRIES = 16
"""Stretches after which it is judged whether looking for them pays."""
_BLOCK = 1 << 21
"""Bytes compared at once; a quarter of it took a tenth longer."""
_GATHER = 1 << 20
"""Bytes of records of one length gathered at once."""
_MIX = np.uint64(0x9E3779B97F4A7C15)


def read_events(path: Path, *, periodic: bool = True) -> EventFile:
    """Read an event file.

    Args:
        path: The file.
        periodic: Whether stretches that repeat are read at once; without, the same, slower.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if not size:
            return Gathered().finish(records=0, torn=0, size=0)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # closed with its last view
    return _File(mapped).read(periodic=periodic)


class _File:
    """One file being read."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self.mapped = mapped
        self.data: Bytes = np.frombuffer(mapped, np.uint8)
        self.size = len(self.data)
        self.found = Gathered()
        self.records = 0
        self.torn = 0
        self.single: list[tuple[Integers, Integers, Integers]] = []

    def read(self, *, periodic: bool) -> EventFile:
        at = 0
        window = _WINDOW
        loose = True
        tried, gained = 0, 0
        while at < self.size:
            if tried >= _TRIES and gained < tried * _WINDOW // 2:
                periodic = False  # too much is broken, or nothing really repeats
            offsets, lengths, stop = walk(self.data, at, window)
            found = cycle(lengths, loose=loose) if periodic else None
            stretch = self._stretch(offsets[found[0]], lengths[slice(*found)]) if found else None
            tried += found is not None
            if found and stretch:
                self._one_by_one(offsets[: found[0]], lengths[: found[0]])
                records = self._take(stretch)
                at = stretch.start + stretch.rows * stretch.width
                gained += records
                loose = records >= _LONG_STRETCH
                window = _WINDOW if loose else min(2 * window, _WIDEST)
                continue
            self._one_by_one(offsets, lengths)
            at = stop
            if len(offsets) < window and at < self.size:
                at = self._past_damage(at)
                window = _WINDOW
            else:
                window = min(2 * window, _WIDEST)
        self._group()
        return self.found.finish(records=self.records, torn=self.torn, size=self.size)

    def _past_damage(self, at: int) -> int:
        """Return where to go on after ``at``, where no sound record starts."""
        header = self.data[at : at + HEADER]
        if len(header) < HEADER or header_fits(header):
            self.torn = self.size - at
            return self.size
        following = next_header(self.data, at + 1)
        self.records += 1
        lost = following - at
        self._damage(self.records, at, f"its length is damaged: {lost:,} bytes lost")
        return following

    def _damage(self, record: int, at: int, why: str) -> None:
        self.found.damaged.append(Damage(record=record, at=at, why=why))

    def _one_by_one(self, offsets: Integers, lengths: Integers) -> None:
        """Note records that are to be gathered by length at the end."""
        if len(offsets):
            numbers = np.arange(self.records + 1, self.records + 1 + len(offsets), dtype=np.int64)
            self.single.append((offsets, lengths, numbers))
            self.records += len(offsets)

    # What repeats

    def _layouts(self, start: int, lengths: Integers) -> list[tuple[int, Layout]]:
        """Return offset and layout of each record of a cycle; nothing where one is no scalar."""
        found: list[tuple[int, Layout]] = []
        at = start + HEADER
        for length in lengths.tolist():
            try:
                layout = read_layout(self.data[at : at + length].tobytes())
            except MalformedError:
                return []
            if not layout.scalars or layout.strings or layout.others or layout.session:
                return []
            found.append((at - start, layout))
            at += length + FRAME
        return found

    def _stretch(self, start: int, lengths: Integers) -> _Stretch | None:
        """Return the rows from ``start`` on that differ from the first in their fields only."""
        width = int((lengths + FRAME).sum())
        most = (self.size - start) // width
        if most < _FEW_ROWS or not (layouts := self._layouts(start, lengths)):
            return None
        same = np.full(width, 255, np.uint8)
        found = _Stretch(start=int(start), width=width, layouts=layouts)
        for at, layout in layouts:
            for number in layout.fields:
                span = slice(at + number.at, at + number.at + number.width)
                same[span] = 128 if number.kind.startswith("varint") else 0
                found.add(self.data, span.start, number.width, most)
            checked = at + layout.length
            same[checked : checked + 4] = 0
            found.add(self.data, checked, 4, most)
        rows = self.data[start : start + most * width].reshape(most, width)
        first = rows[0].copy()
        block = max(8, min(most, _BLOCK // width))
        changed = np.empty((block, width), np.uint8)
        for at in range(0, most, block):
            part = rows[at : at + block]
            difference = np.bitwise_xor(part, first, out=changed[: len(part)])
            if (np.bitwise_or.reduce(difference, axis=0) & same).any():
                other = (difference & same).any(axis=1)
                found.copy(at + int(np.argmax(other)))
                return found if found.rows >= _FEW_ROWS else None
            found.copy(at + len(part))
            self._release(start + at * width, start + (at + block) * width)
        return found

    def _release(self, start: int, stop: int) -> None:
        """Let go of pages of the file that will hardly be looked at again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            length = min(stop, self.size) - first
            if length > 0:
                self.mapped.madvise(mmap.MADV_DONTNEED, first, length)

    def _take(self, stretch: _Stretch) -> int:
        """Take in the records of a stretch; return how many."""
        per_row = len(stretch.layouts)
        rows = stretch.rows
        counted = np.arange(rows, dtype=np.int64) * per_row
        known: tuple[npt.NDArray[np.unsignedinteger], Integers] | None = None
        for slot, (at, layout) in enumerate(stretch.layouts):
            place = stretch.start + at
            event = self.data[place : place + layout.length].tobytes()
            numbers = counted + (self.records + 1 + slot)
            raw = {number: stretch.column(at + number.at) for number in layout.fields}
            wrong = checksum.unmask(stretch.words(at + layout.length))
            wrong ^= checksum.of_rows(np.frombuffer(event, np.uint8)[None])
            for number in layout.fields:
                after = layout.length - number.at - number.width
                wrong ^= checksum.of_changes(stretch.changes(at + number.at), number.width, after)
            steps = None
            if layout.step is not None:
                words = stretch.words(at + layout.step.at)
                if known is None or not np.array_equal(known[0], words):
                    known = (words, _steps(layout, raw[layout.step], rows))
                steps = known[1]
            if steps is None:
                steps = np.zeros(rows, np.int64)
            walls = _walls(layout, raw[layout.wall] if layout.wall else None, rows)
            sound = wrong == 0
            for row in np.flatnonzero(~sound).tolist():
                self._damage(int(numbers[row]), place + row * stretch.width - HEADER, _WRONG)
            for tag, number in layout.scalars:
                values = _values(number, raw[number])
                piece = Scalars(records=numbers, steps=steps, walls=walls, values=values)
                self.found.add(text(event, tag), piece if sound.all() else piece.at(sound))
            self.found.aside(layout, event, numbers)
        self.records += rows * per_row
        return rows * per_row

    # What does not

    def _group(self) -> None:
        if not self.single:
            return
        offsets, lengths, numbers = (
            np.concatenate(part) for part in zip(*self.single, strict=True)
        )
        order = np.argsort(lengths, kind="stable")
        cuts = np.flatnonzero(np.diff(lengths[order])) + 1
        for group in np.split(order, cuts):
            length = int(lengths[group[0]])
            most = max(1, _GATHER // (length + FRAME))
            for at in range(0, len(group), most):
                part = group[at : at + most]
                self._equally_long(offsets[part], numbers[part], length)

    def _equally_long(self, offsets: Integers, numbers: Integers, length: int) -> None:
        """Take in records of one length."""
        padded = np.zeros((len(offsets), -(-length // 8) * 8), np.uint8)
        if length:
            padded[:, :length] = sliding_window_view(self.data, length)[offsets + HEADER]
        stored = sliding_window_view(self.data, 4)[offsets + HEADER + length].view("<u4").ravel()
        sound = checksum.of_rows(padded[:, :length]) == checksum.unmask(stored)
        for row in np.flatnonzero(~sound).tolist():
            self._damage(int(numbers[row]), int(offsets[row]), _WRONG)
        words = padded.view("<u8")
        left = np.flatnonzero(sound)
        while len(left):
            event = padded[left[0], :length].tobytes()
            try:
                layout = read_layout(event)
            except MalformedError as error:
                number, at = int(numbers[left[0]]), int(offsets[left[0]])
                self._damage(number, at, f"its checksum fits, but it is no event: {error}")
                left = left[1:]
                continue
            same = np.frombuffer(bytes(layout.same).ljust(padded.shape[1], b"\0"), "<u8")
            alike = np.ones(len(left), bool)
            for word in np.flatnonzero(same).tolist():
                alike &= ((words[left, word] ^ words[left[0], word]) & same[word]) == 0
            for rows in _by_tag(words, left[alike], layout):
                self._alike(padded, rows, numbers, layout)
            left = left[~alike]

    def _alike(self, events: Bytes, rows: Integers, numbers: Integers, layout: Layout) -> None:
        """Take in rows of one layout that have the same tags."""
        event = events[rows[0], : layout.length].tobytes()
        records = numbers[rows]
        self.found.aside(layout, event, records)
        for tag, span in layout.strings:
            self.found.strings(events[rows[:TEXTS]], tag, span, records)
        if not layout.scalars:
            return

        def raw(number: Field) -> Bytes:
            return events[rows, number.at : number.at + number.width]

        steps = np.zeros(len(rows), np.int64)
        if layout.step is not None:
            steps = _steps(layout, raw(layout.step), len(rows))
        walls = _walls(layout, raw(layout.wall) if layout.wall else None, len(rows))
        for tag, number in layout.scalars:
            values = _values(number, raw(number))
            piece = Scalars(records=records, steps=steps, walls=walls, values=values)
            self.found.add(text(event, tag), piece)


_WRONG = "its checksum is wrong"
Words = npt.NDArray[np.unsignedinteger]


@dataclass(slots=True, kw_only=True)
class _Stretch:
    """Rows of equal records, of which only some bytes differ."""

    start: int
    width: int
    """Bytes of a row."""
    layouts: list[tuple[int, Layout]]
    """Where in a row the data of each record stands, and how it is laid out."""
    columns: dict[int, tuple[Words, Words, int]] = field(default_factory=dict)
    """Place in a row -> room for what stands there in every row, where it stands, and its bytes.

    What is up to 8 bytes long stands in a whole number, beside bytes that come after it in the
    row; what is longer by itself.
    """
    rows: int = 0

    def add(self, data: Bytes, place: int, width: int, most: int) -> None:
        """Make room for the bytes at a place in up to ``most`` rows of ``data``."""
        size = next((s for s in (1, 2, 4, 8) if s >= width and place + s <= self.width), 0)
        kind, shape = (f"<u{size}", ()) if size else ("|u1", (width,))
        strides = (self.width, 1)[: 1 + len(shape)]
        source = np.ndarray((most, *shape), kind, data.data, self.start + place, strides)
        self.columns[place] = np.empty_like(source, order="C"), source, width

    def copy(self, stop: int) -> None:
        """Copy the rows up to ``stop`` into the columns, while the cache still holds them."""
        start, self.rows = self.rows, stop
        for column, source, _ in self.columns.values():
            column[start:stop] = source[start:stop]

    def words(self, place: int) -> Words:
        """Return what stands at a place in every row as numbers, (rows,), or bytes, (rows, n)."""
        column, _, width = self.columns[place]
        if column.itemsize > width:
            column &= column.dtype.type((1 << 8 * width) - 1)
        return column[: self.rows]

    def column(self, place: int) -> Bytes:
        """Return the bytes at a place in every row, (rows, width)."""
        whole: Bytes = self.words(place).view(np.uint8).reshape(self.rows, -1)
        return whole[:, : self.columns[place][2]]

    def changes(self, place: int) -> Bytes:
        """Return how the bytes at a place, or more, differ from the first row's, (rows, n)."""
        words = self.words(place)
        changed: Bytes = (words ^ words[0]).view(np.uint8).reshape(self.rows, -1)
        return changed


def _steps(layout: Layout, raw: Bytes, count: int) -> Integers:
    if layout.step is None:
        return np.zeros(count, np.int64)
    return layout.step.decode(raw).astype(np.int64, copy=False)


def _walls(layout: Layout, raw: Bytes | None, count: int) -> Floats:
    if layout.wall is None or raw is None:
        return np.zeros(count)
    return layout.wall.decode(raw).astype(np.float64, copy=False)


def _values(number: Field, raw: Bytes) -> npt.NDArray[np.floating]:
    """Return values as float32 where that holds them, else as float64."""
    values = number.decode(raw)
    kept = np.float32 if values.dtype.kind == "f" and values.dtype.itemsize <= 4 else np.float64
    return values.astype(kept, copy=False)


def _by_tag(words: npt.NDArray[np.uint64], rows: Integers, layout: Layout) -> list[Integers]:
    """Split rows of one layout by the bytes of their tags."""
    if not layout.tags or len(rows) < 2:
        return [rows]
    tags = bytearray(words.shape[1] * 8)
    for start, stop in layout.tags:
        tags[start:stop] = b"\xff" * (stop - start)
    masks = np.frombuffer(bytes(tags), "<u8")
    places = np.flatnonzero(masks).tolist()
    mixed = np.zeros(len(rows), np.uint64)
    for word in places:
        mixed = (mixed ^ (words[rows, word] & masks[word])) * _MIX
        mixed ^= mixed >> np.uint64(29)
    if (mixed == mixed[0]).all():
        return [rows]
    order = np.argsort(mixed, kind="stable")
    cuts = np.flatnonzero(np.diff(mixed[order])) + 1
    return [rows[group] for group in np.split(order, cuts)]
