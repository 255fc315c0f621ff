"""History: what was logged, read out of many records at once.

A history record is a list of items, each a key and a value. The key is a name, or a path of
names; the value is JSON text, or since 2026 a typed field. Items come in any order.

Source: wandb/proto/wandb_internal.proto, ``message HistoryItem``: key = 1, nested_key = 2,
none = 3, boolean = 4, integer = 5, number = 6, text = 7, json = 8, value_json = 16.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.wandbfile.fields import (
    BYTES,
    VARINT,
    WORD,
    MalformedError,
    Parts,
    varint,
    varints,
    walk,
)
from stabcli.wandbfile.framing import Bytes, Integers
from stabcli.wandbfile.numbers import LONGEST, read_numbers

ITEM, STEP = 1, 2
"""Fields of a history record."""

KEY, NESTED, NONE, BOOLEAN, INTEGER, NUMBER, TEXT, JSON, VALUE = 1, 2, 3, 4, 5, 6, 7, 8, 16
"""Fields of an item."""

_TAGS = {NONE: 0x18, BOOLEAN: 0x20, INTEGER: 0x28, NUMBER: 0x31, TEXT: 0x3A, JSON: 0x42}
_TYPE = "._type"
"""End of the path that says what kind of object the values beside it are."""
_DEEPEST = 8
"""Names of a path up to which items are read many at once."""

_NUMERIC, _LITERAL, _STRING, _OBJECT = 1, 2, 3, 4
_CLASS = np.zeros(256, np.uint8)
"""What a JSON value is, by its first byte."""
_CLASS[np.frombuffer(b"0123456789-NI", np.uint8)] = _NUMERIC
_CLASS[np.frombuffer(b"tfn", np.uint8)] = _LITERAL
_CLASS[np.frombuffer(b'"', np.uint8)] = _STRING
_CLASS[np.frombuffer(b"{[", np.uint8)] = _OBJECT

_draw = Random(3)  # noqa: S311  (nothing is kept secret; NumPy's takes 10 ms to import)
_ODD = np.array([_draw.getrandbits(63) | 1 << 62 | 1 for _ in range(64)], np.uint64)
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


_SLOTS = 1 << 12
"""Places in which keys are looked up first; two keys of one place are found by a search."""


@dataclass(slots=True)
class Values:
    """Numbers of one key, piece by piece."""

    rows: list[Integers] = field(default_factory=list)
    values: list[npt.NDArray[np.float64]] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """What has been read so far."""

    columns: dict[str, Values] = field(default_factory=dict)
    """Key -> its numbers, in order of first appearance; truth values are 0 and 1."""
    texts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """Key -> row and text, where text was logged."""
    objects: int = 0
    """Values that are tables, media, histograms or lists."""
    unreadable: int = 0
    """Values that are no JSON."""
    _hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    _places: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    _slots: Integers = field(default_factory=lambda: np.zeros(_SLOTS, np.int64))
    _names: list[str] = field(default_factory=list)

    def add(self, data: Bytes, items: Parts, rows: Integers) -> None:
        """Take in items.

        Args:
            data: Bytes they lie in, with some more behind the last.
            items: The items, m of them.
            rows: Row of each message that ``items`` are of.
        """
        own = np.flatnonzero(items.numbers == ITEM)
        own_rows = rows[items.messages[own]]
        starts, stops = items.starts[own], items.stops[own]
        at, named = _after_key(data, starts, stops)
        tag = data[at]
        keys = np.full(len(own), -1, np.int64)
        keys[named] = self._keys(data, starts[named], at[named] - starts[named])
        plain = named & (at < stops)
        values = np.zeros(len(own))
        known = np.zeros(len(own), bool)
        done = named & (at == stops)  # a key without a value
        json_text = plain & (((tag == 0x82) & (data[at + 1] == 1)) | (tag == _TAGS[JSON]))
        where = np.flatnonzero(json_text)
        skip = np.where(tag[where] == 0x82, 2, 1)
        sizes, begun = varints(data, at[where] + skip)
        fits = (sizes >= 0) & (begun + sizes == stops[where])
        where, sizes, begun = where[fits], sizes[fits], begun[fits]
        kind = np.where(sizes > 0, _CLASS[data[begun]], np.uint8(0))
        short = (kind == _NUMERIC) & (sizes <= LONGEST)
        read, there = read_numbers(data, begun[short], sizes[short])
        quick = where[short][there]
        values[quick], known[quick] = read[there], True
        done[quick] = True
        for slow in np.flatnonzero(~_spread(short, there)).tolist():
            item = int(where[slow])
            span = data[begun[slow] : begun[slow] + sizes[slow]].tobytes()
            self._one(self._names[keys[item]], int(own_rows[item]), span)
            done[item] = True
        number = np.flatnonzero(plain & (tag == _TAGS[NUMBER]) & (at + 9 == stops))
        values[number] = _doubles(data, at[number] + 1)
        whole = np.flatnonzero(plain & (tag == _TAGS[INTEGER]))
        raw, end = varints(data, at[whole] + 1)
        whole, raw = whole[end == stops[whole]], raw[end == stops[whole]].view(np.uint64)
        values[whole] = (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)
        for typed in (number, whole):
            known[typed] = done[typed] = True
        for item in np.flatnonzero(~done).tolist():
            self._strange(data, int(starts[item]), int(stops[item]), int(own_rows[item]))
        self._sorted(keys[known], own_rows[known], values[known])

    def drop_objects(self) -> None:
        """Leave out the leaves of tables, media and histograms, which the SDK writes one by one."""
        for name in [n for n in self.texts if n.endswith(_TYPE)]:
            self.objects += len(self.texts[name])
            inside = name.removesuffix(_TYPE[1:])
            for found in (self.columns, self.texts):
                for key in [k for k in found if k.startswith(inside)]:
                    del found[key]

    def _sorted(self, keys: Integers, rows: Integers, values: npt.NDArray[np.float64]) -> None:
        """Hand numbers out to their keys."""
        if not len(keys):
            return
        narrow = keys.astype(np.uint16) if len(self._names) < 1 << 16 else keys
        order = np.argsort(narrow, kind="stable")
        keys, rows, values = keys[order], rows[order], values[order]
        edges = np.flatnonzero(np.diff(keys)) + 1
        firsts = [0, *edges.tolist()]
        for first, last in zip(firsts, [*firsts[1:], len(keys)], strict=True):
            column = self._column(self._names[keys[first]])
            column.rows.append(rows[first:last])
            column.values.append(values[first:last])

    def _column(self, name: str) -> Values:
        return self.columns.setdefault(name, Values())

    def _keys(self, data: Bytes, starts: Integers, sizes: Integers) -> Integers:
        """Return the numbers of keys, given the fields that spell them."""
        hashes = _hashes(data, starts, sizes)
        places, known = self._look_up(hashes)
        if not known.all():
            fresh, first = np.unique(hashes[~known], return_index=True)
            for index in np.flatnonzero(~known)[np.sort(first)].tolist():
                at = int(starts[index])
                self._names.append(_name(data[at : at + int(sizes[index])].tobytes()))
            rank = np.argsort(np.argsort(first))
            joined = np.concatenate([self._hashes, fresh])
            order = np.argsort(joined)
            numbers = len(self._names) - len(fresh) + rank
            self._hashes = joined[order]
            self._places = np.concatenate([self._places, numbers])[order]
            self._slots[_slots(self._hashes)] = np.arange(len(order))
            places, _ = self._look_up(hashes)
        return self._places[places] if len(places) else places

    def _look_up(self, hashes: npt.NDArray[np.uint64]) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return where in ``_hashes`` each stands, and which of them are there."""
        if not len(self._hashes):
            return np.zeros(len(hashes), np.int64), np.zeros(len(hashes), bool)
        places = self._slots[_slots(hashes)]
        known = self._hashes[places] == hashes
        rest = np.flatnonzero(~known)
        if len(rest):
            there = np.searchsorted(self._hashes, hashes[rest])
            places[rest] = np.minimum(there, len(self._hashes) - 1)
            known[rest] = self._hashes[places[rest]] == hashes[rest]
        return places, known

    def _strange(self, data: Bytes, start: int, stop: int, row: int) -> None:
        """Take in one item that is not built as usual."""
        names: list[str] = []
        key = ""
        found: tuple[int, int, int, int] | None = None
        try:
            for number, wire, at, end, value in walk(data.data, start, stop):
                if wire == BYTES and number in (KEY, NESTED):
                    name = data[at:end].tobytes().decode("utf-8", "replace")
                    key, names = (name, names) if number == KEY else (key, [*names, name])
                elif number in _TAGS or number == VALUE:
                    found = number, wire, at, end if wire != VARINT else value
        except MalformedError:
            found = None
        if found is None:
            self.unreadable += 1
            return
        number, wire, at, end = found
        name = ".".join(names) or key
        if number == NONE:
            return
        if number == BOOLEAN and wire == VARINT:
            self._late(name, row, float(bool(end)))
        elif number == INTEGER and wire == VARINT:
            self._late(name, row, float((end >> 1) ^ -(end & 1)))
        elif number == NUMBER and wire == WORD:
            self._late(name, row, float(_doubles(data, np.array([at]))[0]))
        elif number == TEXT and wire == BYTES:
            text = data[at:end].tobytes().decode("utf-8", "replace")
            self.texts.setdefault(name, []).append((row, text))
        elif wire == BYTES:
            self._one(name, row, data[at:end].tobytes())
        else:
            self.unreadable += 1

    def _one(self, name: str, row: int, text: bytes) -> None:
        """Take in one value that is JSON text."""
        if not text or text == b"null":
            return
        if text[:1] in b"{[" and b'"_type"' in text:
            self.objects += 1
            return
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            self.unreadable += 1
            return
        for path, leaf in _leaves(name, value):
            if isinstance(leaf, str):
                self.texts.setdefault(path, []).append((row, leaf))
            elif isinstance(leaf, (bool, int, float)):
                with contextlib.suppress(OverflowError):
                    self._late(path, row, float(leaf))
                    continue
                self._late(path, row, math.inf if leaf > 0 else -math.inf)
            elif leaf is not None:
                self.objects += 1

    def _late(self, name: str, row: int, value: float) -> None:
        column = self._column(name)
        column.rows.append(np.array([row]))
        column.values.append(np.array([value]))


def _slots(hashes: npt.NDArray[np.uint64]) -> Integers:
    return (hashes >> np.uint64(64 - _SLOTS.bit_length() + 1)).view(np.int64)


def _spread(short: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return ``there``, said of the short ones only, over all."""
    out = short.copy()
    out[short] = there
    return out


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what stands in nested objects, by path."""
    stack = [(name, value)]
    while stack:
        path, inner = stack.pop()
        if isinstance(inner, dict):
            stack += [(f"{path}.{key}", v) for key, v in reversed(inner.items())]
        else:
            yield path, inner


def _after_key(
    data: Bytes, starts: Integers, stops: Integers
) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return where the value of each item begins, and which items have a plain key."""
    at = starts.copy()
    named = np.zeros(len(at), bool)
    live = np.flatnonzero(at < stops)
    for _ in range(_DEEPEST):
        tag = data[at[live]]
        live = live[(tag == 0x0A) | (tag == 0x12)]
        if not len(live):
            break
        sizes, after = varints(data, at[live] + 1)
        fits = (sizes >= 0) & (sizes <= stops[live] - after)
        named[live] = fits
        live = live[fits]
        at[live] = after[fits] + sizes[fits]
        live = live[at[live] < stops[live]]
    else:
        named[live] = False
    return at, named


def _name(spelling: bytes) -> str:
    """Return the key that some fields spell; a path is joined with dots, as W&B shows it."""
    key = ""
    names: list[str] = []
    at = 0
    while at < len(spelling):
        number = spelling[at] >> 3
        size, at = varint(spelling, at + 1, len(spelling))
        name = spelling[at : at + size].decode("utf-8", "replace")
        if number == KEY:
            key = name
        else:
            names.append(name)
        at += size
    return ".".join(names) or key


def _hashes(data: Bytes, starts: Integers, sizes: Integers) -> npt.NDArray[np.uint64]:
    """Return numbers of 64 bits that differ where the bytes differ.

    Two of a million keys agree by chance once in 3e7 files.
    """
    words = np.ndarray((len(data) - 7,), "<u8", buffer=data, strides=(1,))
    hashes: npt.NDArray[np.uint64] = sizes.astype(np.uint64) * _ODD[63]
    longest = int(sizes.max()) if len(sizes) else 0
    for offset in range(0, longest, 8):
        rest = np.flatnonzero(sizes > offset) if offset else slice(None)
        some = sizes[rest] - offset
        word = words[starts[rest] + offset] & _MASKS[np.minimum(some, 8)]
        mixed = (hashes[rest] ^ word) * _ODD[offset // 8 % 63]
        hashes[rest] = mixed ^ mixed >> np.uint64(29)
    return hashes


def _doubles(data: Bytes, at: Integers) -> npt.NDArray[np.float64]:
    return np.ascontiguousarray(sliding_window_view(data, 8)[at]).view("<f8").ravel()
