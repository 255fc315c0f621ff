"""Framing: where the records of a file begin, and after how many of them lengths repeat.

Source: TFRecord framing (length, its masked CRC-32C, data, its masked CRC-32C) as in
tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stabcli.eventfile import checksum
from stabcli.eventfile.checksum import Bytes
from stabcli.eventfile.contents import Integers

HEADER = 12
"""Bytes before the data of a record: its length and the checksum of that."""
FRAME = 16
"""Bytes of a record besides its data."""

_TRIES = 1000
"""Periods tried."""
_LATEST = 16
"""Records by which most of them are ruled out before all are compared."""

_length = struct.Struct("<Q").unpack_from


def starts_like_events(head: bytes) -> bool:
    """Say whether bytes begin with the record that opens every event file."""
    if len(head) < HEADER:
        return False
    size = _length(head)[0]
    return header_fits(np.frombuffer(head[:HEADER], np.uint8)) and (
        b"brain.Event:" in head[HEADER : HEADER + min(size, 256)]
    )


def header_fits(header: Bytes) -> bool:
    """Say whether the first 12 bytes of a record are a length and its checksum."""
    stored = header[8:12].copy().view("<u4")
    return bool((checksum.of_rows(header[None, :8]) == checksum.unmask(stored))[0])


def walk(data: Bytes, at: int, most: int) -> tuple[Integers, Integers, int]:
    """Return offsets and lengths of up to ``most`` sound records, and where they end."""
    offsets: list[int] = []
    append, view = offsets.append, data.data
    last = len(data) - FRAME
    for _ in range(most):
        if at > last or (length := _length(view, at)[0]) > last - at:
            break
        append(at)
        at += length + FRAME
    starts = np.array(offsets, np.int64)
    if not len(starts):
        return starts, starts, at
    headers = sliding_window_view(data, HEADER)[starts]
    wanted = checksum.unmask(np.ascontiguousarray(headers[:, 8:]).view("<u4").ravel())
    wrong = np.flatnonzero(checksum.of_rows(headers[:, :8]) != wanted)
    sizes = np.diff(starts, append=at) - FRAME
    if len(wrong):
        return starts[: wrong[0]], sizes[: wrong[0]], int(starts[wrong[0]])
    return starts, sizes, at


def next_header(data: Bytes, at: int) -> int:
    """Return the first place from ``at`` on where a length fits its checksum."""
    step = 1 << 12
    while at <= len(data) - HEADER:
        part = data[at : at + step + HEADER - 1]
        count = len(part) - HEADER + 1
        zero = part == 0
        # A length below 2^40 ends in three bytes of zero; its checksum is not zero, as a hole is.
        likely = zero[5 : 5 + count] & zero[6 : 6 + count] & zero[7 : 7 + count]
        empty = zero[8 : 8 + count] & zero[9 : 9 + count] & zero[10 : 10 + count]
        places = np.flatnonzero(likely & ~(empty & zero[11 : 11 + count]))
        frames = sliding_window_view(part, HEADER)[places]
        stored = checksum.unmask(np.ascontiguousarray(frames[:, 8:]).view("<u4").ravel())
        fitting = places[checksum.of_rows(frames[:, :8]) == stored]
        if len(fitting):
            return at + int(fitting[0])
        at += count
        step = min(2 * step, 1 << 20)
    return len(data)


def cycle(lengths: Integers, *, loose: bool) -> tuple[int, int] | None:
    """Return first record and end of the first cycle in which the lengths repeat.

    They must repeat over the last half of the records; ``loose``, over the last few cycles.
    """
    count = len(lengths)
    if count < 64:
        return None
    back = count - 1 - np.flatnonzero(lengths[:-1] == lengths[-1])[::-1]
    back = back[back <= count // 2][:_TRIES]
    latest = count - 1 - np.arange(_LATEST)
    back = back[(lengths[latest - back[:, None]] == lengths[latest]).all(axis=1)].tolist()
    for strict in (True, False) if loose else (True,):
        for period in back:
            proof = count // 2 if strict else max(3 * period, 64)
            if proof + period > count:
                break
            if np.array_equal(lengths[count - proof :], lengths[count - proof - period : -period]):
                broken = np.flatnonzero(lengths[:-period] != lengths[period:])
                first = int(broken[-1]) + 1 if len(broken) else 0
                return first, first + period
    return None
