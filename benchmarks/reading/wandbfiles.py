"""Files of W&B: history, beside the last reader in Python that W&B's SDK had.

The peer scans with the SDK's DataStore, parses each record with the SDK's protobuf classes and
each value with json, and hands the rows to Polars.
"""

import random
import struct
import zlib
from functools import partial

from reading.clock import Case, Peer

KEYS = (
    "train/loss train/grad_norm train/learning_rate train/epoch train/tokens_per_sec train/mfu "
    "train/step_time train/ppl moe/aux_loss moe/load_balance moe/z_loss moe/max_violation "
    "rl/entropy rl/kl rl/reward rl/clip_frac mem/alloc_gb"
).split()
BLOCK = 32768

STABCLI = """
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
    """A number as protobuf writes it."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number, content):
    """One length-delimited field."""
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


def write(records, folder):
    """Write history of 20 keys in any order, with a NaN now and then."""
    path = folder / "run-abcd1234.wandb"
    draw = random.Random(0)
    names = {key: field(2, key.encode()) for key in [*KEYS, "_step", "_runtime", "_timestamp"]}
    with path.open("wb", 1 << 20) as file:
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
        writer.record(field(18, b""))
    return {"log": path}


def cases(scale):
    """Return the case, of 2e5 records times ``scale``."""
    number = int(2e5 * scale)
    peer = Peer(name="SDK 0.22.3, json, polars", code=PEER, most=1 / 8)
    name = f".wandb, {number:,} records of {len(KEYS) + 3} keys"
    return [Case(name=name, make=partial(write, number), code=STABCLI, peers=[peer])]
