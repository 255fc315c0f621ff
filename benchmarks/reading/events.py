"""Event files of TensorBoard: what repeats step by step, and what never does."""

import struct
from functools import partial

import numpy as np

from reading.clock import Case, Peer
from stabcli.eventfile import checksum

TAGS = (
    "train/loss train/grad_norm train/learning_rate train/epoch train/tokens_per_sec train/mfu "
    "train/step_time train/ppl moe/aux_loss moe/load_balance moe/z_loss moe/max_violation "
    "rl/entropy rl/kl rl/reward rl/clip_frac mem/alloc_gb mem/reserved_gb data/wait_ms optim/ratio"
).split()
NAME = "tfevents.1700000000.host.1.0"

STABCLI = """
import sys
from stabcli.readers.tensorboard import tensorboard
from stabcli.sources import open_source
reading, = tensorboard(open_source(sys.argv[1]))
own = [c for c in reading.table.columns if not c.startswith("@") and c != "step"]
print(sum(reading.table[c].count() for c in own))
"""
ACCUMULATOR = """
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
print(sum(len(events.Scalars(t)) for t in tags["scalars"])
      + sum(len(events.Tensors(t)) for t in tags["tensors"]))
"""
TBPARSE = """
import sys
from tbparse import SummaryReader
reader = SummaryReader(sys.argv[1])
print(len(reader.scalars) + len(reader.tensors))
"""
SERVER = """
import os, re, subprocess, sys, tempfile, time
import grpc
from tensorboard.data import grpc_provider, provider
from tensorboard import context
import tensorboard_data_server
path, tags, last = sys.argv[1], {tags}, {last}
folder = os.path.dirname(path)
port_file = os.path.join(tempfile.mkdtemp(), "port")
server = subprocess.Popen(
    [tensorboard_data_server.server_binary(), "--logdir", folder, "--port", "0", "--port-file",
     port_file, "--reload", "once", "--checksum", "--samples-per-plugin", "scalars=all"],
    stdin=subprocess.PIPE)
while not os.path.exists(port_file) or not open(port_file).read().endswith("\\n"):
    time.sleep(0.01)
channel = grpc.insecure_channel("localhost:" + open(port_file).read().strip())
asked = grpc_provider.GrpcDataProvider("localhost", __import__(
    "tensorboard.data.proto.data_provider_pb2_grpc", fromlist=["x"]).TensorBoardDataProviderStub(channel))
while True:
    found = asked.list_scalars(context.RequestContext(), experiment_id="", plugin_name="scalars")
    series = [s for run in found.values() for s in run.values()]
    if len(series) == tags and all(s.max_step >= last for s in series):
        break
    if server.poll() is not None:
        sys.exit(1)
    time.sleep(0.02)
ticks = open("/proc/%d/stat" % server.pid).read().rpartition(")")[2].split()
cpu = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/%d/status" % server.pid).read())[1]
print("server", cpu, int(peak) / 1024)
server.kill()
"""


def varint(number):
    """A number as protobuf writes it."""
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
    plugin = part(9, part(1, part(1, b"scalars")))
    if style == "simple":
        value = part(1, tag.encode()) + b"\x15" + bytes(4)
        tail = 4
    else:  # as TF2 writes: tensor_content, then the plugin
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


def columns(at, style, draw):
    """Records of every tag at steps ``at``, which are as long as one another; a NaN here and there."""
    width = len(varint(int(at[0]))) if at[0] else 0
    made = []
    for number, tag in enumerate(TAGS):
        shape, step_at, value_at = event(tag, style, width)
        events = np.tile(shape, (len(at), 1))
        wall = 1.7e9 + at * 2.5 + number * 1e-4 + draw.random(len(at)) * 1e-5
        events[:, 1:9] = wall.view(np.uint8).reshape(-1, 8)
        for byte in range(width):
            more = 128 if byte < width - 1 else 0
            events[:, step_at + byte] = at >> 7 * byte & 127 | more
        values = draw.normal(1, 0.3, len(at)).astype("<f4")
        values[at % 5003 == 5002] = np.nan
        events[:, value_at : value_at + 4] = values.view(np.uint8).reshape(-1, 4)
        made.append(framed(events))
    return made


def shuffled(made, draw):
    """Records of some of the tags of every step, in any order."""
    count = len(made[0])
    order = np.argsort(draw.random((count, len(TAGS))), axis=1)
    kept = draw.random((count, len(TAGS))) < 0.5
    kept[-1] = True  # so that every tag has the last step
    tags = order[kept]
    steps = np.repeat(np.arange(count), kept.sum(axis=1))
    sizes = np.array([m.shape[1] for m in made])[tags]
    ends = np.cumsum(sizes)
    out = np.empty(ends[-1], np.uint8)
    for tag, records in enumerate(made):
        mine = tags == tag
        places = (ends - sizes)[mine]
        out[places[:, None] + np.arange(records.shape[1])] = records[steps[mine]]
    return out


def write(steps, style, folder):
    """Write ``steps`` steps; ``irregular`` ones have half of the tags, in any order."""
    path = folder / f"{style}.{NAME}"
    draw = np.random.default_rng(0)
    with path.open("wb") as file:
        head = b"\x09" + struct.pack("<d", 1.7e9) + part(3, b"brain.Event:2")
        file.write(framed(np.frombuffer(head, np.uint8)[None]).tobytes())
        edges = {0, steps, *(e for e in (1, 128, 16384, 1 << 21) if e < steps)}
        edges = sorted({*edges, *range(0, steps, 20_000)})
        for first, stop in zip(edges, edges[1:]):
            at = np.arange(first, stop)
            if style == "irregular":
                file.write(shuffled(columns(at, "simple", draw), draw).tobytes())
            else:
                file.write(np.concatenate(columns(at, style, draw), axis=1).tobytes())
    return {"log": path}


def cases(scale):
    """Return the cases, of 4e6 and 4e5 scalars times ``scale``."""
    many, few = int(4e6 * scale) // len(TAGS), int(4e5 * scale) // len(TAGS)
    made = []
    for style in ("simple", "tensor"):
        server = _server(many, most=1 / 6, most_memory=0.4)
        made.append(_case(many, style, [server]))
    for style in ("simple", "tensor"):
        slow = [
            Peer(name=name, code=code, most=1 / 30)
            for name, code in (("EventAccumulator", ACCUMULATOR), ("tbparse", TBPARSE))
        ]
        made.append(_case(few, style, slow))
    return [*made, _case(2 * many, "irregular", [_server(2 * many, most=1.0)])]


def _server(steps, *, most, most_memory=None):
    code = SERVER.replace("{tags}", str(len(TAGS))).replace("{last}", str(steps - 1))
    return Peer(
        name="tensorboard-data-server", code=code, most=most, most_memory=most_memory, same=False
    )


def _case(steps, style, peers):
    scalars = steps * len(TAGS) // (2 if style == "irregular" else 1)
    name = f"event file, {style}, {scalars:,} scalars, every checksum looked at"
    return Case(name=name, make=partial(write, steps, style), code=STABCLI, peers=peers)
