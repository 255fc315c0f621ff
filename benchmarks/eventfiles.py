"""Time stabcli's reader of event files against TensorBoard's own, side by side.

    python benchmarks/eventfiles.py [--scalars 400000] [--rounds 3] [--no-peer]

Each is a whole process that reads the same file and holds every scalar: ours makes the table that
assembly takes; TensorBoard's is an EventAccumulator that keeps all (size_guidance 0). They take
turns, and what counts is CPU time (user + system) and peak memory of the process, by wait4.
"""

import argparse
import os
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from stabcli.eventfile import checksum

TAGS = (
    "train/loss train/grad_norm train/learning_rate train/epoch train/tokens_per_sec train/mfu "
    "train/step_time train/ppl moe/aux_loss moe/load_balance moe/z_loss moe/max_violation "
    "rl/entropy rl/kl rl/reward rl/clip_frac mem/alloc_gb mem/reserved_gb data/wait_ms optim/ratio"
).split()

OURS = """
import sys
from stabcli.readers.tensorboard import tensorboard
from stabcli.sources import open_source
reading, = tensorboard(open_source(sys.argv[1]))
own = [c for c in reading.table.columns if not c.startswith("@") and c != "step"]
print(sum(reading.table[c].count() for c in own))
"""
PEER = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
print(sum(len(events.Scalars(t)) for t in tags["scalars"])
      + sum(len(events.Tensors(t)) for t in tags["tensors"]))
"""


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def part(number, data):
    """One length-delimited field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(tag, style, width):
    """Bytes of an event with zeros for its numbers, and where its step and its value stand."""
    if style == "simple":
        value = part(1, tag.encode()) + b"\x15" + bytes(4)
        tail = 4
    else:  # as TF2 writes: tensor_content, then the plugin
        plugin = part(9, part(1, part(1, b"scalars")))
        value = part(1, tag.encode()) + part(8, b"\x08\x01\x12\x00" + part(4, bytes(4))) + plugin
        tail = 4 + len(plugin)
    clocks = b"\x09" + bytes(8) + (b"\x10" + bytes(width) if width else b"")
    whole = clocks + part(5, part(1, value))
    return np.frombuffer(whole, np.uint8), 10, len(whole) - tail


def framed(events):
    """Records of equally long events (n, length)."""
    count, length = events.shape
    out = np.empty((count, length + 16), np.uint8)
    size = np.frombuffer(struct.pack("<Q", length), np.uint8)
    out[:, :8] = size
    out[:, 8:12] = checksum.mask(checksum.of_rows(size[None])).view(np.uint8)
    out[:, 12:-4] = events
    out[:, -4:] = checksum.mask(checksum.of_rows(events)).view(np.uint8).reshape(count, 4)
    return out


def write(path, steps, style):
    """Write ``steps`` steps of every tag, a NaN now and then."""
    random = np.random.default_rng(0)
    with open(path, "wb") as file:
        head = b"\x09" + struct.pack("<d", 1.7e9) + part(3, b"brain.Event:2")
        file.write(framed(np.frombuffer(head, np.uint8)[None]).tobytes())
        edges = sorted({0, steps, *[e for e in (1, 128, 16384, 1 << 21) if e < steps]})
        edges = sorted({*edges, *range(0, steps, 50_000)})
        for first, stop in zip(edges, edges[1:]):
            count = stop - first
            at = np.arange(first, stop)
            width = len(varint(first)) if first else 0
            columns = []
            for number, tag in enumerate(TAGS):
                shape, step_at, value_at = event(tag, style, width)
                events = np.tile(shape, (count, 1))
                wall = 1.7e9 + at * 2.5 + number * 1e-4 + random.random(count) * 1e-5
                events[:, 1:9] = wall.view(np.uint8).reshape(count, 8)
                for byte in range(width):
                    more = 128 if byte < width - 1 else 0
                    events[:, step_at + byte] = at >> 7 * byte & 127 | more
                values = random.normal(1, 0.3, count).astype("<f4")
                values[at % 5003 == 5002] = np.nan
                events[:, value_at : value_at + 4] = values.view(np.uint8).reshape(count, 4)
                columns.append(framed(events))
            file.write(np.concatenate(columns, axis=1).tobytes())


def timed(code, path):
    """CPU seconds, wall seconds, peak MB and output of a process."""
    read, wrote = os.pipe()
    begun = time.perf_counter()
    pid = os.fork()
    if not pid:
        os.dup2(wrote, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.execv(sys.executable, [sys.executable, "-c", code, str(path)])
    os.close(wrote)
    with os.fdopen(read) as out:
        said = out.read().strip()
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit("a process failed; is tensorboard installed, and stabcli on the path?")
    wall = time.perf_counter() - begun
    return used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024, said


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--scalars", type=float, default=4e5)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--no-peer", action="store_true", help="only time stabcli")
    given = options.parse_args()
    steps = int(given.scalars) // len(TAGS)
    with tempfile.TemporaryDirectory() as folder:
        for style in ("simple", "tensor"):
            path = Path(folder) / f"{style}.tfevents.1700000000.host.1.0"
            write(path, steps, style)
            size = path.stat().st_size / 1e6
            print(f"{style}: {steps * len(TAGS):,} scalars, {size:.0f} MB, {given.rounds} rounds")
            readers = {"stabcli": OURS} | ({} if given.no_peer else {"EventAccumulator": PEER})
            runs = {name: [] for name in readers}
            for _ in range(given.rounds):
                for name, code in readers.items():
                    runs[name].append(timed(code, path))
            for name, found in runs.items():
                cpu, wall, peak = (statistics.median(r[i] for r in found) for i in range(3))
                print(
                    f"  {name:17} CPU {cpu:7.2f} s  wall {wall:7.2f} s  peak {peak:6.0f} MB"
                    f"  {int(found[0][3]):,} scalars"
                )
            if not given.no_peer:
                ratios = [p[0] / o[0] for o, p in zip(*runs.values())]
                print(
                    f"  EventAccumulator / stabcli, CPU: {statistics.median(ratios):.1f}"
                    f" ({min(ratios):.1f} to {max(ratios):.1f})"
                )
            path.unlink()


if __name__ == "__main__":
    main()
