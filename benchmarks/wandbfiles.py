"""Time stabcli's reader of .wandb files against the last one in Python that W&B's SDK had.

    python benchmarks/wandbfiles.py [--records 20000] [--rounds 3] [--peer-python PYTHON] [--no-peer]

The peer needs an environment of its own, as stabcli does not depend on W&B:

    python -m venv ../peer && ../peer/bin/pip install "wandb==0.22.3" polars

Each is a whole process that reads the same file into a frame: ours makes the table that assembly
takes; the peer scans with the SDK's DataStore, parses each record with the SDK's protobuf classes
and each value with json, and hands the rows to Polars. They take turns, and what counts is CPU
time (user + system) and peak memory of the process, by wait4. Both print rows and a checksum of
the values, which must agree.
"""

import argparse
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path

KEYS = (
    "train/loss train/grad_norm train/learning_rate train/epoch train/tokens_per_sec train/mfu "
    "train/step_time train/ppl moe/aux_loss moe/load_balance moe/z_loss moe/max_violation "
    "rl/entropy rl/kl rl/reward rl/clip_frac mem/alloc_gb"
).split()
BLOCK = 32768

OURS = """
import sys
from stabcli.readers.wandb import wandb
from stabcli.sources import open_source
reading, = wandb(open_source(sys.argv[1]))
table = reading.table
print(table.height, int(table["train/grad_norm"].is_nan().sum()), round(table["train/loss"].sum(), 6))
"""
PEER = """
import json, sys
import polars as pl
from wandb.proto import wandb_internal_pb2 as messages
from wandb.sdk.internal.datastore import DataStore
store = DataStore()
store.open_for_scan(sys.argv[1])
rows = []
while (data := store.scan_data()) is not None:
    record = messages.Record()
    record.ParseFromString(data)
    if record.WhichOneof("record_type") == "history":
        rows.append({".".join(i.nested_key) or i.key: json.loads(i.value_json)
                     for i in record.history.item})
table = pl.from_dicts(rows, infer_schema_length=None)
print(table.height, int(table["train/grad_norm"].is_nan().sum()), round(table["train/loss"].sum(), 6))
"""


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


class Writer:
    """Frames records as the SDK does."""

    def __init__(self, file):
        self.file = file
        self.at = file.write(b":W&B\xe1\xbe\x00")

    def part(self, kind, data):
        checksum = zlib.crc32(data, zlib.crc32(bytes([kind])))
        self.at += self.file.write(struct.pack("<IHB", checksum, len(data), kind) + data)

    def record(self, data):
        left = BLOCK - self.at % BLOCK
        if left < 7:
            self.at += self.file.write(bytes(left))
            left = BLOCK
        if len(data) + 7 <= left:
            self.part(1, data)
            return
        self.part(2, data[: left - 7])
        data = data[left - 7 :]
        while len(data) > BLOCK - 7:
            self.part(3, data[: BLOCK - 7])
            data = data[BLOCK - 7 :]
        self.part(4, data)


def write(path, records, summaries):
    """History of 20 keys in any order, a NaN now and then; optionally a summary after each."""
    draw = random.Random(0)
    names = {key: field(2, key.encode()) for key in [*KEYS, "_step", "_runtime", "_timestamp"]}
    with open(path, "wb", 1 << 20) as file:
        writer = Writer(file)
        writer.record(field(17, field(1, b"abcd1234")))
        for i in range(records):
            values = {key: repr(abs(draw.gauss(1, 0.3))) for key in KEYS}
            if i % 5003 < 3:
                values["train/grad_norm"] = "NaN"
            values["_step"] = str(i)
            values["_runtime"] = repr(i * 2.5 + draw.random())
            values["_timestamp"] = repr(1.7e9 + i * 2.5 + draw.random())
            keys = list(values)
            draw.shuffle(keys)
            items = [names[key] + field(16, values[key].encode()) for key in keys]
            step = field(2, b"\x08" + varint(i) if i else b"")
            writer.record(
                b"\x08" + varint(i + 1) + field(2, b"".join(field(1, x) for x in items) + step)
            )
            if summaries:
                writer.record(
                    b"\x08" + varint(i + 1) + field(3, b"".join(field(1, x) for x in items))
                )
        writer.record(field(18, b""))


def timed(python, code, path):
    """CPU seconds, wall seconds, peak MB and output of a process."""
    read, wrote = os.pipe()
    begun = time.perf_counter()
    pid = os.fork()
    if not pid:
        os.dup2(wrote, 1)
        os.execv(python, [python, "-c", code, str(path)])
    os.close(wrote)
    with os.fdopen(read) as out:
        said = out.read().strip()
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{python} failed; the peer needs wandb==0.22.3 and polars")
    wall = time.perf_counter() - begun
    return used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024, said


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--records", type=float, default=2e4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--peer-python", default="../peer/bin/python")
    options.add_argument("--no-peer", action="store_true", help="only time stabcli")
    given = options.parse_args()
    readers = {"stabcli": (sys.executable, OURS)}
    if not given.no_peer:
        readers["SDK 0.22.3, json, polars"] = (given.peer_python, PEER)
    with tempfile.TemporaryDirectory() as folder:
        for summaries in (False, True):
            path = Path(folder) / "run-abcd1234.wandb"
            write(path, int(given.records), summaries)
            kind = "history and a summary each" if summaries else "history alone"
            print(
                f"{kind}: {int(given.records):,} records of {len(KEYS) + 3} keys,"
                f" {path.stat().st_size / 1e6:.0f} MB, {given.rounds} rounds"
            )
            runs = {name: [] for name in readers}
            for turn in range(given.rounds + 1):  # the first only fills the page cache
                for name, (python, code) in readers.items():
                    result = timed(python, code, path)
                    if turn:
                        runs[name].append(result)
            if len({r[3] for found in runs.values() for r in found}) > 1:
                raise SystemExit(f"the readers disagree: {json.dumps(runs)}")
            for name, found in runs.items():
                cpu, wall, peak = (statistics.median(r[i] for r in found) for i in range(3))
                print(f"  {name:25} CPU {cpu:7.2f} s  wall {wall:7.2f} s  peak {peak:6.0f} MB")
            if not given.no_peer:
                ratios = [p[0] / o[0] for o, p in zip(*runs.values())]
                print(
                    f"  peer / stabcli, CPU: {statistics.median(ratios):.1f}"
                    f" ({min(ratios):.1f} to {max(ratios):.1f})"
                )


if __name__ == "__main__":
    main()
