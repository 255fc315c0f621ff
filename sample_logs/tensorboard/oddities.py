"""Write `damaged/`: a run of two event files that shows how such files go wrong.

    python sample_logs/tensorboard/oddities.py

No model was trained for it. The first file has a NaN, a value in which one bit was flipped (record
243: its checksum tells), a hole of zeros where a block was never written, and a last record that a
crash cut short. The second is the restart from a checkpoint, and goes back by a few steps.
"""

import math
import struct
from pathlib import Path

import numpy as np

from stabcli.eventfile import checksum

FOLDER = Path(__file__).parent / "damaged"


def part(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def crc(data):
    of_rows = checksum.of_rows(np.frombuffer(data, np.uint8)[None])
    return struct.pack("<I", int(checksum.mask(of_rows)[0]))


def record(event):
    size = struct.pack("<Q", len(event))
    return size + crc(size) + event + crc(event)


def version(wall):
    return record(b"\x09" + struct.pack("<d", wall) + part(3, b"brain.Event:2"))


def scalar(tag, step, wall, value):
    assert step < 1 << 14
    steps = bytes([step]) if step < 128 else bytes([step & 127 | 128, step >> 7])
    clocks = b"\x09" + struct.pack("<d", wall) + (b"\x10" + steps if step else b"")
    held = part(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    return record(clocks + part(5, part(1, held)))


def rows(first, stop, wall, random):
    for step in range(first, stop):
        loss = 2 + 6 / (1 + step / 20) + random.normal(0, 0.02)
        norm = math.nan if step == 30 else 0.5 + random.gamma(2, 0.05)
        at = wall + 2.0 * (step - first)
        yield scalar("train/loss", step, at, loss) + scalar(
            "train/grad_norm", step, at + 0.01, norm
        )


def main():
    random = np.random.default_rng(0)
    FOLDER.mkdir(exist_ok=True)
    wall = 1_767_254_400.0
    before = list(rows(0, 200, wall + 1, random))
    flipped = bytearray(before[120])
    flipped[-6] ^= 0x40
    before[120] = bytes(flipped)
    before[150] = bytes(512)
    text = version(wall) + b"".join(before)
    (FOLDER / "events.out.tfevents.1767254400.host.11.0").write_bytes(text[:-9])
    wall += 900.0
    text = version(wall) + b"".join(rows(180, 320, wall + 1, random))
    (FOLDER / "events.out.tfevents.1767255300.host.12.0").write_bytes(text)


main()
