"""Readers beside their peers, on one made file: whole processes, in turns, CPU seconds.

Run it as ``python benchmarks/readers.py [--rows 1000000] [--rounds 3]``. Ratios are of CPU time
(user and system) to stabcli's in the same round; wall time is shown for orientation only.
Each process reads the whole file and prints its rows and the sum of the step, so that nobody
wins by not looking.
"""

import argparse
import importlib.util
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

STABCLI = """
import sys
from stabcli.readers import readers
from stabcli.sources import open_source
[reading] = readers["jsonl"].read(open_source(sys.argv[1]))
print(reading.table.height, int(reading.table["step"].sum()))
"""
ASSEMBLED = """
import sys
from stabcli.readers import read_runs
runs, _ = read_runs([sys.argv[1]], format_name="jsonl")
print(runs[0].frame.height, int(runs[0].frame["step"].sum()))
"""
POLARS = """
import json, sys
import polars as pl
kinds = {"step": pl.Int64, "tokens_seen": pl.Int64, "note": pl.String}
schema = {n: kinds.get(n, pl.Float64) for n in json.loads(sys.argv[2])}
frame = pl.read_ndjson(sys.argv[1], schema=schema)
print(frame.height, int(frame["step"].sum()))
"""
PYARROW = """
import sys
import polars as pl
import pyarrow.json as pj
frame = pl.from_arrow(pj.read_json(sys.argv[1]))
print(frame.height, int(frame["step"].sum()))
"""


def rows(number, *, nan):
    """Yield rows of 12 metrics: one comes late, one turns from whole numbers to fractions."""
    draw = random.Random(0)
    for i in range(number):
        row = {
            "step": i,
            "loss": 2.0 + 8.0 * math.exp(-i / 2e5) + draw.gauss(0, 0.05),
            "grad_norm": abs(draw.gauss(1, 0.3)),
            "learning_rate": 3e-4 * min(1, (i + 1) / 2000),
            "tokens_seen": i * 4194304,
            "tokens_per_second": 41000 + draw.gauss(0, 500),
            "mfu": 0.41 + draw.gauss(0, 0.01),
            "step_time": 2.5 + 0.1 * draw.random(),
            "lr_mult": 1 if nan and i < 0.4 * number else 1 - 0.5 * draw.random(),
            "mem_gb": 71.5 + draw.random(),
            "ppl": math.exp(2 + draw.random()),
        }
        if not nan or i >= number / 2:
            row["moe_aux_loss"] = 0.01 + 0.001 * draw.random()
        if not nan or i < number / 2:
            row["entropy"] = 2.1 + 0.1 * draw.random()
        if i % 997 == 0:
            row["note"] = 'saw NaN, not "NaN": -Infinity \\ "x": NaN'
        if nan and i % 5000 < 5:
            row["grad_norm"] = math.nan if i % 5000 < 3 else math.inf
            row["loss"] = -math.inf if i % 5000 == 4 else row["loss"]
        yield row


def write(path, number, *, nan):
    with path.open("w") as file:
        for row in rows(number, nan=nan):
            file.write(json.dumps(row) + "\n")


def timed(command):
    """Run a command; return its CPU seconds, wall seconds, peak memory in MB and output."""
    reading, writing = os.pipe()
    start = time.perf_counter()
    child = os.fork()
    if not child:
        os.dup2(writing, 1)
        os.close(reading)
        os.execv(command[0], command)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read().strip()
    _, status, used = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{command[2][:60]!r} ended with {status}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - start, used.ru_maxrss / 1024, said


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dirty, clean = Path(folder, "nan.jsonl"), Path(folder, "clean.jsonl")
        write(dirty, given.rows, nan=True)
        write(clean, given.rows, nan=False)
        names = json.dumps([*dict.fromkeys(n for row in rows(1, nan=False) for n in row)])
        peers = [
            ("stabcli, NaN file", STABCLI, dirty),
            ("stabcli, clean file", STABCLI, clean),
            ("stabcli with assembly, NaN file", ASSEMBLED, dirty),
            ("polars, schema given, clean file", POLARS, clean),
        ]
        if importlib.util.find_spec("pyarrow"):
            peers.append(("pyarrow to polars, NaN file", PYARROW, dirty))
        print(f"{given.rows:,} rows, {dirty.stat().st_size / 1e6:.0f} MB, {given.rounds} rounds")
        taken = {label: [] for label, _, _ in peers}
        said = {}
        for turn in range(given.rounds + 1):  # the first round only fills the page cache
            for label, code, path in peers:
                result = timed([sys.executable, "-c", code, str(path), names])
                said[label] = result[3]
                if turn:
                    taken[label].append(result)
    if len(set(said.values())) > 1:
        raise SystemExit(f"the readers disagree: {said}")
    print(f"{'':34}{'CPU s':>8}{'wall s':>8}{'MB':>7}{'CPU / stabcli':>15}")
    for label, _, path in peers:
        base = taken["stabcli, NaN file" if path == dirty else "stabcli, clean file"]
        cpu, wall, memory, _ = (list(column) for column in zip(*taken[label], strict=True))
        ratio = statistics.median(c / b[0] for c, b in zip(cpu, base, strict=True))
        middles = [statistics.median(values) for values in (cpu, wall, memory)]
        print(f"{label:34}{middles[0]:8.2f}{middles[1]:8.2f}{middles[2]:7.0f}{ratio:15.2f}")


if __name__ == "__main__":
    main()
