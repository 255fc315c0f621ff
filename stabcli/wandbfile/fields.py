"""Fields: protobuf as far as it is needed, of one record or of many at once.

Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stabcli.wandbfile.framing import Batch, Bytes, Integers

VARINT, WORD, BYTES, HALF = 0, 1, 2, 5
"""Wire types: a number, eight bytes, any bytes, four bytes."""

MALFORMED = -1
"""Kind of a record that is no protobuf message."""

KINDS = frozenset({*range(2, 16), 17, 18, *range(20, 28), 100})
"""Fields of a record of which it has just one: what it tells.

Source: wandb/proto/wandb_internal.proto, ``message Record``, ``oneof record_type``.
"""

_ROUNDS = 64
"""Fields of a record that are passed in step with those of the others."""
_FEW = 32
"""Records below which each is walked by itself."""


class MalformedError(ValueError):
    """Bytes that are no protobuf message."""


def varint(data: memoryview | bytes, at: int, stop: int) -> tuple[int, int]:
    """Return a number and where it ends.

    Raises:
        MalformedError: It has no end.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise MalformedError("a number without an end")


def walk(data: memoryview | bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield number, wire type, start and end of the content, and value of a number, by field.

    Raises:
        MalformedError: The bytes are no message.
    """
    while at < stop:
        key, at = varint(data, at, stop)
        number, wire = key >> 3, key & 7
        value, end = 0, at
        if wire == VARINT:
            value, end = varint(data, at, stop)
        elif wire == BYTES:
            size, at = varint(data, at, stop)
            end = at + size
        elif wire in (WORD, HALF):
            end = at + (8 if wire == WORD else 4)
        else:
            raise MalformedError("a field of no known kind")
        if end > stop or not number:
            raise MalformedError("a field longer than what holds it")
        yield number, wire, at, end, value
        at = end


def varints(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Return the numbers at ``at`` and where they end; one without an end ends after ten bytes."""
    byte = data[at]
    values = (byte & 127).astype(np.int64)
    after = at + 1
    more = np.flatnonzero(byte > 127)
    shift = 7
    while len(more) and shift < 70:
        byte = data[after[more]]
        values[more] |= (byte & 127).astype(np.int64) << min(shift, 63)
        after[more] += 1
        more = more[byte > 127]
        shift += 7
    return values, after


def kinds(batch: Batch) -> tuple[Integers, Integers, Integers]:
    """Return what each record tells (one of ``KINDS``, 0, ``MALFORMED``), its start and end."""
    data, stops = batch.data, batch.stops
    count = len(stops)
    kind = np.zeros(count, np.int64)
    first = np.zeros(count, np.int64)
    last = np.zeros(count, np.int64)
    at = batch.starts.copy()
    live = np.flatnonzero(at < stops)
    wanted = np.array(sorted(KINDS))
    for _ in range(_ROUNDS):
        if not len(live):
            break
        key, here = varints(data, at[live])
        number, wire = key >> 3, key & 7
        size = np.select([wire == WORD, wire == HALF], [8, 4], 0)
        numeric = np.flatnonzero((wire == VARINT) & (here < len(data)))
        if len(numeric):
            here[numeric] = varints(data, np.minimum(here[numeric], len(data) - 1))[1]
        sized = np.flatnonzero(wire == BYTES)
        if len(sized):
            size[sized], here[sized] = varints(data, np.minimum(here[sized], len(data) - 1))
        left = stops[live] - here
        wrong = (size < 0) | (size > left) | (number <= 0) | ~np.isin(wire, (0, 1, 2, 5))
        hit = ~wrong & (wire == BYTES) & np.isin(number, wanted)
        kind[live[wrong]] = MALFORMED
        found = live[hit]
        kind[found], first[found], last[found] = number[hit], here[hit], (here + size)[hit]
        at[live] = here + size
        live = live[~wrong & ~hit & (size < left)]
    for record in live.tolist():
        kind[record], first[record], last[record] = _kind(batch, record)
    return kind, first, last


def _kind(batch: Batch, record: int) -> tuple[int, int, int]:
    view = batch.data.data
    try:
        for number, wire, at, end, _ in walk(
            view, int(batch.starts[record]), int(batch.stops[record])
        ):
            if wire == BYTES and number in KINDS:
                return number, at, end
    except MalformedError:
        return MALFORMED, 0, 0
    return 0, 0, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The m fields of many messages, as far as they are bytes."""

    messages: Integers
    """Which message each is of, (m,)."""
    numbers: Integers
    """Number of the field, (m,)."""
    starts: Integers
    """Where its content begins, (m,)."""
    stops: Integers
    """Where it ends, (m,)."""
    malformed: Integers
    """Messages that are none."""

    def of(self, chosen: npt.NDArray[np.bool_]) -> Parts:
        """Return the fields of some of the messages."""
        if chosen.all():
            return self
        keep = chosen[self.messages]
        return Parts(
            messages=self.messages[keep],
            numbers=self.numbers[keep],
            starts=self.starts[keep],
            stops=self.stops[keep],
            malformed=self.malformed,
        )


def parts(data: Bytes, starts: Integers, stops: Integers) -> Parts:
    """Split messages into their fields; those of one message keep their order.

    Args:
        data: Bytes the messages lie in.
        starts: Where each begins, (n,).
        stops: Where each ends, (n,).
    """
    found: list[tuple[Integers, Integers, Integers, Integers]] = []
    malformed: list[int] = []
    at = starts.copy()
    live = np.flatnonzero(at < stops)
    alone: list[int] = []
    while len(live) >= _FEW:
        here = at[live]
        tag = data[here]
        size, after = varints(data, here + 1)
        plain = ((tag & 0x87) == BYTES) & (tag > 7) & (size >= 0) & (size <= stops[live] - after)
        if not plain.all():
            alone += live[~plain].tolist()
            live, tag, size, after = live[plain], tag[plain], size[plain], after[plain]
        end = after + size
        found.append((live, (tag >> 3).astype(np.int64), after, end))
        at[live] = end
        live = live[end < stops[live]]
    for message in alone + live.tolist():
        own: list[tuple[int, int, int, int]] = []
        try:
            for number, wire, start, stop, _ in walk(
                data.data, int(at[message]), int(stops[message])
            ):
                if wire == BYTES:
                    own.append((message, number, start, stop))
        except MalformedError:
            malformed.append(message)
        if own:
            found.append(tuple(np.array(own, np.int64).T))
    columns = [np.concatenate([np.empty(0, np.int64), *c]) for c in zip(*found, strict=True)]
    if not columns:
        columns = [np.empty(0, np.int64)] * 4
    return Parts(
        messages=columns[0],
        numbers=columns[1],
        starts=columns[2],
        stops=columns[3],
        malformed=np.array(malformed, np.int64),
    )
