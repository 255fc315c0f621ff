"""SwanLab: the file that its SDK appends records to, framed as W&B frames its own.

Source: swanlab 0.10.3: sdk/internal/core_python/store (framing: ``:SWL``, 0xE1D6, version 2) and
proto/swanlab/{record,run,metric}/v1 (``Record``: start 10, finish 11, column 12, scalar 13).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stabcli.trackers.points import Points
from stabcli.trackers.values import WIDEST_STEP, Faults, text
from stabcli.wandbfile.fields import BYTES, VARINT, WORD, MalformedError, walk
from stabcli.wandbfile.framing import Framing

MAGIC = b":SWL"
"""First bytes of every file."""
START = MAGIC + b"\xd6\xe1\x02"
"""Header of a file: magic, a second magic number and version 2, the only one that is known."""
_START, _FINISH, _COLUMN, _SCALAR, _MEDIA = 10, 11, 12, 13, 14
_SYSTEM = 2
"""Class of the columns that SwanLab measures of the machine by itself."""
_SYSTEM_PREFIX = "__swanlab__"
_STATES = {0: "running", 1: "finished", 2: "crashed", 3: "aborted"}
_double = struct.Struct("<d").unpack_from


@dataclass(slots=True)
class SwanRun:
    """One file."""

    points: Points = field(default_factory=Points)
    faults: Faults = field(default_factory=Faults)
    name: str = ""
    run_id: str = ""
    project: str = ""
    state: str | None = None
    """How the run finished; None where the file tells of no end."""
    error: str = ""
    machine: int = 0
    """Values measured of the machine, which are not read."""
    media: int = 0
    """Values that are no numbers: images, texts, …"""
    torn: int = 0
    """Bytes of a last record that was cut short."""
    records: int = 0
    version: int = 2
    _system: set[str] = field(default_factory=set)


def read_swanlab(path: Path) -> SwanRun:
    """Read a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is empty.
    """
    run = SwanRun()
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    run.version = view[6] if len(view) > 6 else run.version
    framing = Framing(view, start=START)
    for number, message in _records(framing):
        try:
            _take(run, message, number)
        except (MalformedError, struct.error):
            run.faults.add(number, "no message of SwanLab")
    for damage in framing.damaged:
        run.faults.add(damage.record, f"byte {damage.at:,}: {damage.why}")
    run.torn, run.records = framing.torn, framing.records
    return run


def _records(framing: Framing) -> Iterator[tuple[int, bytes]]:
    for batch in framing.batches():
        data = np.asarray(batch.data).tobytes()
        for number, start, stop in zip(
            batch.numbers.tolist(), batch.starts.tolist(), batch.stops.tolist(), strict=True
        ):
            yield number, data[start:stop]


def _take(run: SwanRun, message: bytes, number: int) -> None:
    for kind, wire, at, end, _ in walk(message, 0, len(message)):
        if wire != BYTES:
            continue
        inner = message[at:end]
        if kind == _SCALAR:
            _scalar(run, inner, number)
        elif kind == _COLUMN:
            _column(run, inner)
        elif kind == _START:
            said = _texts(inner)
            run.project, run.name, run.run_id = (said.get(n, "") for n in (1, 4, 10))
        elif kind == _FINISH:
            numbers = {n: v for n, w, _, _, v in walk(inner, 0, len(inner)) if w == VARINT}
            run.state = _STATES.get(numbers.get(1, 0), "in a state that is not known")
            run.error = _texts(inner).get(2, "")
        elif kind == _MEDIA:
            run.media += 1


def _texts(message: bytes) -> dict[int, str]:
    return {
        number: text(message[at:end].decode("utf-8", "replace"))
        for number, wire, at, end, _ in walk(message, 0, len(message))
        if wire == BYTES
    }


def _column(run: SwanRun, message: bytes) -> None:
    kinds = {n: v for n, w, _, _, v in walk(message, 0, len(message)) if w == VARINT}
    if kinds.get(1) == _SYSTEM:
        run._system.add(_texts(message).get(3, ""))


def _scalar(run: SwanRun, message: bytes, number: int) -> None:
    """Take in one value of one key; fields that are 0 are not written."""
    key, step, value, wall = "", 0, 0.0, None
    told = False
    for field_, wire, at, end, said in walk(message, 0, len(message)):
        inner = message[at:end]
        if field_ == 1 and wire == BYTES:
            key = text(inner.decode("utf-8", "replace"))
        elif field_ == 2 and wire == VARINT:
            step = said - (1 << 64) if said >= 1 << 63 else said
        elif field_ == 4 and wire == BYTES:
            wall = _time(inner)
        elif field_ == 5 and wire == BYTES:
            told = True
            for inner_number, inner_wire, place, _, _ in walk(inner, 0, len(inner)):
                if inner_number == 1 and inner_wire == WORD:
                    (value,) = _double(inner, place)
    if not key or not told or abs(step) >= WIDEST_STEP:
        run.faults.add(number, "a value without key, step or number")
    elif key in run._system or key.startswith(_SYSTEM_PREFIX):
        run.machine += 1
    else:
        run.points.add(key, step, value, wall=wall, line=number)


def _time(message: bytes) -> float:
    said = {n: v for n, w, _, _, v in walk(message, 0, len(message)) if w == VARINT}
    return float(said.get(1, 0)) + said.get(2, 0) / 1e9
