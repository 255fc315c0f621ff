"""JSON lines: twelve metrics a row, clean or with all that trainers do to them."""

import json
import math
import random
from functools import partial

from reading.clock import Case, Peer

NAMES = (
    "step loss grad_norm learning_rate tokens_seen tokens_per_second mfu step_time lr_mult"
    " mem_gb ppl moe_aux_loss entropy note"
).split()
BAD = 10
"""Broken lines in the log that has some."""

STABCLI = """
import sys
from stabcli.readers.jsonl import jsonl
from stabcli.sources import open_source
[reading] = jsonl(open_source(sys.argv[1]))
print(reading.table.height, int(reading.table["step"].sum()))
"""
POLARS = f"""
import sys
import polars as pl
kinds = {{"step": pl.Int64, "tokens_seen": pl.Int64, "note": pl.String}}
schema = {{n: kinds.get(n, pl.Float64) for n in {NAMES}}}
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
THREE = """
import sys
from stabcli.readers import read_runs
from stabcli.assembly import Options
[run], _ = read_runs([sys.argv[1]], format_name="jsonl", options=Options(metrics=()))
frame = run.frame.select("step", "loss", "grad_norm")
print(frame.height, float(frame["loss"].median()))
"""


def rows(number, *, dirty):
    """Yield rows of 12 metrics; in dirty ones columns come late, widen and hold NaN."""
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
            "lr_mult": 1 if dirty and i < 0.4 * number else 1 - 0.5 * draw.random(),
            "mem_gb": 71.5 + draw.random(),
            "ppl": math.exp(2 + draw.random()),
        }
        if not dirty or i >= number / 2:
            row["moe_aux_loss"] = 0.01 + 0.001 * draw.random()
        if not dirty or i < number / 2:
            row["entropy"] = 2.1 + 0.1 * draw.random()
        if i % 997 == 0:
            row["note"] = 'saw NaN, not "NaN": -Infinity \\ "x": NaN'
        if dirty and i % 5000 < 5:
            row["grad_norm"] = math.nan if i % 5000 < 3 else math.inf
            row["loss"] = -math.inf if i % 5000 == 4 else row["loss"]
        yield row


def dirty(number, folder):
    """Write a log with broken lines in it, and the same one without them."""
    whole, broken = folder / "whole.jsonl", folder / "dirty.jsonl"
    every = max(2, number // BAD)
    with whole.open("w") as sound, broken.open("w") as file:
        for i, row in enumerate(rows(number, dirty=True)):
            line = json.dumps(row) + "\n"
            sound.write(line)
            file.write(line if i % every != every // 2 else line[: len(line) // 2] + "\n" + line)
    return {"log": broken, "whole": whole}


def clean(number, folder):
    """Write a log in which every row is like the others."""
    path = folder / "clean.jsonl"
    with path.open("w") as file:
        for row in rows(number, dirty=False):
            file.write(json.dumps(row) + "\n")
    return {"log": path}


def large(size, folder):
    """Write a log of many gigabytes: the same rows over and over, their steps counted on."""
    path = folder / "large.jsonl"
    lines = [json.dumps(row).partition(",")[2] + "\n" for row in rows(100_000, dirty=False)]
    step = 0
    with path.open("w", buffering=1 << 22) as file:
        while file.tell() < size:
            for line in lines:
                file.write(f'{{"step": {step},{line}')
                step += 1
    return {"log": path}


def cases(scale):
    """Return the cases, of a million rows times ``scale``."""
    number = int(1e6 * scale)
    pyarrow = Peer(
        name="pyarrow to polars, no bad lines", code=PYARROW, most=0.7, log="whole"
    )  # it refuses the whole of a file with a bad line
    known = Peer(name="polars, schema known", code=POLARS, most=1.4, own=True)
    return [
        Case(
            name=f"JSON lines, {number:,} x 12, bare NaN, late and widening columns, bad lines",
            make=partial(dirty, number),
            code=STABCLI,
            peers=[pyarrow],
        ),
        Case(
            name=f"JSON lines, {number:,} x 12, clean",
            make=partial(clean, number),
            code=STABCLI,
            peers=[known],
        ),
    ]


def large_case(size) -> Case:
    """Return the case of a log that is larger than what may be kept in memory."""
    name = f"JSON lines, {size / 1e9:.0f} GB, three metrics"
    return Case(name=name, make=partial(large, size), code=THREE, most_mb=400)
