"""Event files for tests, byte by byte, with the protocol buffers of TensorBoard."""

import struct

import numpy as np
import pytest

from stabcli.eventfile import checksum
from stabcli.readers import read_runs
from stabcli.readers.tensorboard import tensorboard
from stabcli.sources import open_source

pytest.importorskip("tensorboard")

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2

Event = event_pb2.Event
Value = summary_pb2.Summary.Value
Tensor = tensor_pb2.TensorProto
SessionLog = event_pb2.SessionLog

NAN = float("nan")
TAGS = ("train/loss", "train/grad_norm", "lr")


def masked(data):
    """The checksum of some bytes as a record stores it."""
    rows = np.frombuffer(data, np.uint8)[None]
    return int(checksum.mask(checksum.of_rows(rows))[0])


def record(payload):
    """A record around the bytes of an event, or around any bytes."""
    if not isinstance(payload, bytes):
        payload = payload.SerializeToString()
    size = struct.pack("<Q", len(payload))
    return b"".join(
        (size, struct.pack("<I", masked(size)), payload, struct.pack("<I", masked(payload)))
    )


def version(wall=1.7e9, **fields):
    """The record that opens a file."""
    return record(Event(wall_time=wall, file_version="brain.Event:2", **fields))


def scalar(tag, step, value, wall=None, style="simple", **fields):
    """A record of one scalar, as torch (``simple``) or TensorFlow 2 (``tensor``) writes it."""
    if style == "simple":
        held = Value(tag=tag, simple_value=value, **fields)
    else:
        content = np.float32(value).tobytes()
        held = Value(tag=tag, tensor=Tensor(dtype=1, tensor_content=content), **fields)
    return event(step, held, wall=wall)


def event(step, *values, wall=None):
    """A record of some values."""
    made = Event(wall_time=1.7e9 + step if wall is None else wall, step=step)
    made.summary.value.extend(values)
    return record(made)


def start(step, wall=1.7e9):
    """The record of a session that starts at ``step``."""
    log = SessionLog(status=SessionLog.START)
    return record(Event(wall_time=wall, step=step, session_log=log))


def log_of(rows, style="simple", wall=0.0):
    """The records of (step, {tag: value}) one after another, a second a step."""
    return b"".join(
        scalar(tag, step, value, wall=1.7e9 + wall + step, style=style)
        for step, values in rows
        for tag, value in values.items()
    )


def write(folder, name, *records, wall=1.7e9):
    """Write a file of records."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(version(wall) + b"".join(records))
    return path


def cycles(count, style="simple", tags=TAGS):
    """Steps of the same tags, as a training loop writes them."""
    return log_of([(n, {t: n + k / 8 for k, t in enumerate(tags)}) for n in range(count)], style)


def assert_equal(one, other):
    """Two readings hold the same; NaN equals NaN."""
    assert list(one.scalars) == list(other.scalars)
    for tag, series in one.scalars.items():
        for name in ("records", "steps", "walls", "values"):
            np.testing.assert_array_equal(
                getattr(series, name), getattr(other.scalars[tag], name), err_msg=tag
            )
    for name in ("starts", "texts", "records", "others", "damaged", "torn", "size"):
        assert getattr(one, name) == getattr(other, name)


def points(found):
    """Tag -> (step, time, value) of every scalar."""
    return {
        tag: list(zip(s.steps.tolist(), s.walls.tolist(), s.values.tolist(), strict=True))
        for tag, s in found.scalars.items()
    }


def name(begun, process="host.1", count=0):
    """Name of an event file as its writers form it."""
    return f"events.out.tfevents.{1_700_000_000 + begun}.{process}.{count}"


def readings(path):
    return list(tensorboard(open_source(path)))


def only(path):
    """The one reading of a path."""
    (found,) = readings(path)
    return found


def runs(path):
    """Name -> run, by way of all readers."""
    found, unread = read_runs([str(path)])
    assert unread == []
    return {run.name: run for run in found}


def spans(run):
    return [(a.first_step, a.last_step) for a in run.attempts]


def losses(steps, tag="loss"):
    return [(step, {tag: step / 8}) for step in steps]
