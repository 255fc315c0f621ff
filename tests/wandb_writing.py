"""Writes .wandb files for tests: framing and messages as W&B's SDK makes them."""

import json
import math
import struct
import zlib

START = b":W&B\xe1\xbe\x00"
BLOCK = 32768


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number, content):
    """A field of bytes, or of a number."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content % (1 << 64))
    content = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(content)) + content


def item(key, value, *, nested=True):
    """One logged value; a tuple is a path of names, bytes are the fields of the value as they are."""
    path = key if isinstance(key, tuple) else (key,)
    named = b"".join(field(2 if nested else 1, name) for name in path)
    return named + (value if isinstance(value, bytes) else field(16, said(value)))


def said(value):
    """JSON as W&B writes it: whole numbers without a point."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    return json.dumps(value)


def history(values, *, step=None, nested=True):
    body = b"".join(field(1, item(k, v, nested=nested)) for k, v in values.items())
    if step is not None:
        body += field(2, field(1, step) if step else b"")
    return field(2, body)


def config(values):
    return b"".join(field(1, field(1, k) + field(16, json.dumps(v))) for k, v in values.items())


def run_record(run_id="abcd1234", *, name="", started=1_700_000_000, values=None, project="p"):
    body = field(1, run_id) + field(3, project) + field(4, config(values or {}))
    return field(17, body + field(8, name) + field(17, field(1, started)))


def exit_record(code=0):
    return field(18, field(1, code) if code else b"")


def part(kind, data):
    checksum = zlib.crc32(data, zlib.crc32(bytes([kind])))
    return struct.pack("<IHB", checksum, len(data), kind) + data


def framed(records, *, numbered=True):
    """The bytes of a file, and where each record begins and ends."""
    out = bytearray(START)
    spans = []
    for number, record in enumerate(records, 1):
        data = (field(1, number) if numbered else b"") + record
        left = BLOCK - len(out) % BLOCK
        if left < 7:
            out += bytes(left)
            left = BLOCK
        begun = len(out)
        if len(data) + 7 <= left:
            out += part(1, data)
        else:
            out += part(2, data[: left - 7])
            data = data[left - 7 :]
            while len(data) > BLOCK - 7:
                out += part(3, data[: BLOCK - 7])
                data = data[BLOCK - 7 :]
            out += part(4, data)
        spans.append((begun, len(out)))
    return bytes(out), spans


def rows(count, *, first=0, **more):
    """History records of a healthy run."""
    return [
        history(
            {
                "train/loss": 2.0 + 1 / (i + 1),
                "train/grad_norm": 0.5,
                "_step": i,
                "_timestamp": 1.7e9 + i,
                **{k: v(i) for k, v in more.items()},
            },
            step=i,
        )
        for i in range(first, first + count)
    ]


def whole(count=50, *, code=0, **about):
    """All records of a run that ended."""
    return [run_record(**about), *rows(count), exit_record(code)]


def write(path, records):
    """Write a file; return where its records begin and end."""
    data, spans = framed(records)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return spans
