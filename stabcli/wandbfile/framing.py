"""Framing: the records of a file, and what is damaged among them.

A file is a row of blocks of 32 KiB, counted from its first byte. A record that does not fit into
the rest of a block is cut into parts. Each part has a header of its own: checksum, length and
which part it is.

Source: the log format of LevelDB (github.com/google/leveldb, doc/log_format.md) as W&B's SDK
writes it: wandb/sdk/internal/datastore.py, with the plain CRC-32 in place of the masked CRC-32C.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

MAGIC = b":W&B"
"""First bytes of every file."""
START = MAGIC + b"\xe1\xbe\x00"
"""Header of a file: magic, a second magic number and version 0."""
BLOCK = 32768
"""Bytes of a block."""
HEADER = 7
"""Bytes of the header of a part."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

PADDING = 16
"""Zeros after the records of a batch, so that a number may be read beyond the last of them."""

_SEEDS = [0, *(zlib.crc32(bytes([kind])) for kind in (FULL, FIRST, MIDDLE, LAST))]
_BATCH_BYTES = 1 << 21
"""Bytes decoded at once: what fits the cache."""
_SEARCH = 1 << 26
"""Bytes checksummed in a file, beyond its own size, to find records behind damage."""

_header = struct.Struct("<IHB").unpack_from


@dataclass(slots=True, kw_only=True)
class Damage:
    """A stretch of a file that could not be used."""

    record: int
    """Number of the record it begins with, from 1."""
    at: int
    """Byte offset of it."""
    stop: int
    """Byte offset behind it."""
    why: str
    """What is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some records, one after another in memory."""

    data: Bytes
    """All their bytes, and ``PADDING`` zeros."""
    starts: Integers
    """Where in ``data`` each begins, (n,)."""
    stops: Integers
    """Where each ends, (n,)."""
    numbers: Integers
    """Number of each in the file, from 1, (n,)."""
    places: Integers
    """Byte offset of each in the file, (n,)."""


def starts_like_wandb(head: bytes) -> bool:
    """Say whether bytes begin as every file does."""
    return head.startswith(MAGIC)


@dataclass(slots=True)
class Framing:
    """A walk over one file; tells of damage once it is over."""

    view: memoryview
    """All bytes of the file."""
    start: bytes = START
    """How the file must begin; other tools frame their records the same way."""
    damaged: list[Damage] = field(default_factory=list)
    """What could not be used, in order."""
    torn: int = 0
    """Bytes of a last record that was cut short."""
    records: int = 0
    """Records so far, damaged ones included."""
    _parts: list[memoryview] = field(default_factory=list)
    _begun: int = 0
    _orphaned: bool = False
    _searched: int = 0

    def batches(self) -> Iterator[Batch]:
        """Yield the sound records of the file."""
        view, size = self.view, len(self.view)
        crc32, seed, header = zlib.crc32, _SEEDS[FULL], _header
        pieces: list[memoryview | bytes] = []
        numbers: list[int] = []
        places: list[int] = []
        at = self._file_header()
        limit = at + _BATCH_BYTES
        while at + HEADER <= size:
            edge = at - at % BLOCK + BLOCK
            if edge - at < HEADER:
                at = self._padding(at, edge - at)
                continue
            edge = min(edge, size)
            number, last = self.records, edge - HEADER
            while at <= last and not self._parts:
                checksum, length, kind = header(view, at)
                start = at + HEADER
                stop = start + length
                if kind != FULL or stop > edge:
                    break
                data = view[start:stop]
                if crc32(data, seed) != checksum:
                    break
                number += 1
                pieces.append(data)
                numbers.append(number)
                places.append(at)
                at = stop
            self.records = number
            if edge - at >= HEADER:
                begun = self._begun if self._parts else at
                at, whole = self._part(at)
                if whole is not None:
                    pieces.append(whole)
                    numbers.append(self.records)
                    places.append(begun)
            if at > limit and pieces:
                yield _batch(pieces, numbers, places)
                pieces, numbers, places = [], [], []
                limit = at + _BATCH_BYTES
        self._end(at)
        if pieces:
            yield _batch(pieces, numbers, places)

    def _file_header(self) -> int:
        """Check the header of the file; return where its first record begins."""
        if bytes(self.view[:HEADER]) != self.start:
            self.damaged.append(
                Damage(record=0, at=0, stop=HEADER, why="the file does not begin with its header")
            )
        return HEADER

    def _padding(self, at: int, left: int) -> int:
        if any(self.view[at : at + left]):
            self._bad(at, at + left, "padding that is not zero")
        return at + left

    def _part(self, at: int) -> tuple[int, memoryview | bytes | None]:
        """Take in one part of a record; return where the next begins, and a record if whole."""
        kind = self.view[at + 6]
        stop = self._sound(at)
        if stop is None:
            return self._skip(at), None
        data = self.view[at + HEADER : stop]
        if kind in (FULL, FIRST):
            self._break("a record without its end", at)
            self._orphaned = False
            if kind == FULL:
                self.records += 1
                return stop, data
            self._begun = at
            self._parts = [data]
        elif self._parts:
            self._parts.append(data)
            if kind == LAST:
                whole = b"".join(self._parts)
                self._parts = []
                self.records += 1
                return stop, whole
        elif self._orphaned or (self.damaged and self.damaged[-1].stop == at):
            self.damaged[-1].stop = stop  # it belongs to what was damaged before it
            self._orphaned = kind != LAST
        else:
            self._bad(at, stop, "a part of a record without its beginning")
            self._orphaned = kind != LAST
        return stop, None

    def _sound(self, at: int) -> int | None:
        """Return the end of the part at ``at``, None where its header or checksum is wrong."""
        left = min(BLOCK - at % BLOCK, len(self.view) - at)
        if left < HEADER:
            return None
        checksum, length, kind = _header(self.view, at)
        stop: int = at + HEADER + length
        if not FULL <= kind <= LAST or HEADER + length > left:
            return None
        fits = zlib.crc32(self.view[at + HEADER : stop], _SEEDS[kind]) == checksum
        return stop if fits else None

    def _skip(self, at: int) -> int:
        """Return where the next sound part after damage at ``at`` begins."""
        size = len(self.view)
        edge = min(at - at % BLOCK + BLOCK, size)
        _, length, kind = _header(self.view, at)
        stop: int = at + HEADER + length
        claimed = FULL <= kind <= LAST and stop <= edge
        if claimed and (edge - stop < HEADER or self._sound(stop) is not None):
            # a length that is damaged may by chance lead to the begin of another record
            inside = self._search(at + 1, stop)
            self._bad(at, inside or stop, _CHECKSUM, broken=True)
            return inside or stop
        found = self._search(at + 1, edge)
        if found is None and edge == size and not claimed and FULL <= kind <= LAST:
            self.torn = size - (self._begun if self._parts else at)
            self._parts = []
            return size
        rest = self.view[at : found or edge]
        hole = not np.frombuffer(rest, np.uint8).any()
        why = "nothing but zeros" if hole else "no sound record"
        self._bad(at, found or edge, why, broken=True)
        return found or edge

    def _search(self, at: int, edge: int) -> int | None:
        """Return the first place from ``at`` on, in the same block, with a sound part."""
        if edge - at < HEADER:
            return None
        headers = sliding_window_view(np.frombuffer(self.view[at:edge], np.uint8), HEADER)
        kinds = headers[:, 6]
        lengths = headers[:, 4].astype(np.int64) | headers[:, 5].astype(np.int64) << 8
        fits = np.arange(len(headers)) + HEADER + lengths <= edge - at
        likely = np.flatnonzero((kinds >= FULL) & (kinds <= LAST) & fits)
        for place in likely.tolist():
            self._searched += int(lengths[place])
            if self._searched > len(self.view) + _SEARCH:
                return None
            if self._sound(at + place) is not None:
                return at + place
        return None

    def _bad(self, at: int, stop: int, why: str, *, broken: bool = False) -> None:
        """Count a bad stretch; one that goes on from the last is the same."""
        if broken and self._parts:
            at, self._parts = self._begun, []
        last = self.damaged[-1] if self.damaged else None
        if last is not None and last.stop == at and last.record and why != _CHECKSUM:
            last.stop = stop
        else:
            self.records += 1
            self.damaged.append(Damage(record=self.records, at=at, stop=stop, why=why))
        self._orphaned = broken

    def _break(self, why: str, stop: int) -> None:
        if self._parts:
            self._parts = []
            self._bad(self._begun, stop, why)

    def _end(self, at: int) -> None:
        """Account for what is left behind the last whole record."""
        at = self._begun if self._parts else at
        if at < len(self.view):
            self.torn = len(self.view) - at


_CHECKSUM = "its checksum does not fit"


def _batch(pieces: list[memoryview | bytes], numbers: list[int], places: list[int]) -> Batch:
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    stops = np.cumsum(lengths)
    joined = b"".join([*pieces, bytes(PADDING)])
    return Batch(
        data=np.frombuffer(joined, np.uint8),
        starts=stops - lengths,
        stops=stops,
        numbers=np.array(numbers, np.int64),
        places=np.array(places, np.int64),
    )
